//! walpost's own position, kept next to the records: in a topic of Kafka, a key of Redis or NATS.
//!
//! The slot alone does not tell whether its position is the one that walpost has confirmed: it may
//! have been dropped and created again, advanced by another client, or restored with its server.
//! Events are then skipped without an error. So walpost also writes the position up to which the
//! destination has acknowledged everything, **before** it confirms that position to PostgreSQL. At the
//! start, the slot must not be ahead of it.
//!
//! Each store fences a former instance that still runs.

mod agreement;
mod delivered;
#[cfg_attr(
    not(feature = "destinations"),
    allow(dead_code, reason = "a build may have Kafka alone")
)]
pub(crate) mod handle;
mod layout;
mod record;
mod refusal;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lsn::Lsn;
use crate::position::EventPosition;

pub(crate) use self::agreement::end_of_published;
pub use self::agreement::{Decision, Facts, Reason, Refusal, decide, with_publication};
pub use self::delivered::{Bookmark, Delivered};
pub use self::handle::StoreHandle;
pub use self::layout::{ConfiguredLayout, Layout};
pub use self::record::{
    ChosenRows, Ending, Partial, State, StateKey, UnfinishedRows, UnreadableState,
};

/// A position, with the last published event.
#[derive(Debug)]
pub(crate) struct StoredPosition {
    pub(crate) state: State,
    /// The last published event, if the store knows it.
    pub(crate) published: Option<EventPosition>,
}

impl StoredPosition {
    /// The LSN that WAL must reach at least.
    pub(crate) fn needed(&self) -> Lsn {
        agreement::end_of_published(&self.state, self.published)
    }
}

/// What the place of the position has for a key, for a command that only reads it.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub(crate) enum KeptState {
    /// The place does not exist.
    NoPlace,
    /// It has no record of the key.
    NoRecord,
    /// The newest record of the key.
    Record {
        state: State,
        /// The id of the Kafka cluster, if the brokers report one.
        cluster: Option<String>,
        /// The slots of the other walposts of the same database that share the place, with their newest
        /// records.
        others: Vec<(String, State)>,
    },
}

impl From<Option<StoredPosition>> for KeptState {
    fn from(found: Option<StoredPosition>) -> Self {
        match found {
            Some(StoredPosition { state, .. }) => {
                Self::Record { state, cluster: None, others: Vec::new() }
            }
            None => Self::NoRecord,
        }
    }
}

/// A store of the position. Every call returns immediately; the outcome is an event.
pub trait StateStore: Send {
    /// Fences all other writers of `key`, and reads its record: ends in [`StateEvent::Opened`],
    /// [`StateEvent::Missing`] or [`StateEvent::Failed`]. Discards what was opened before.
    fn open(&mut self, key: &StateKey);

    /// Writes a record of the opened key: ends in [`StateEvent::Written`] or
    /// [`StateEvent::Failed`]. One at a time.
    fn write(&mut self, state: &State);

    /// Writes a record of the opened key that an operator wants, whatever was there: ends like
    /// [`StateStore::write`].
    fn adopt(&mut self, state: &State) {
        self.write(state);
    }

    /// The time for which the store may lose a write that it has acknowledged, with the events
    /// before it.
    fn may_lose(&self) -> Duration {
        Duration::ZERO
    }

    /// The next event, if there is one.
    fn take_event(&mut self) -> Option<StateEvent>;

    /// Completes when there may be an event. Cancel-safe.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The outcome of a call.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateEvent {
    /// No other writer can write any more.
    Opened {
        /// The newest record; `None` if there is none for the key.
        state: Option<State>,
        /// The cluster's id, if the brokers report one.
        cluster: Option<String>,
        /// The last published event, from a store that knows it and does not publish an event that
        /// is at or before it once more.
        published: Option<EventPosition>,
        /// Whether what is at the destination is not what walpost has published, for a command that opens
        /// it all the same.
        is_diverged: bool,
        /// How long the brokers keep a transaction of this writer open; `None`: no transactions.
        transaction_timeout: Option<Duration>,
    },
    /// The topic does not exist.
    Missing,
    /// The record is durable.
    Written,
    /// The store cannot be used for now, or was fenced: it has to be opened again.
    Failed(StateFailure),
}

/// Why the store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateFailure {
    /// The store may be usable later.
    #[error("{0}")]
    Unavailable(String),
    /// The brokers reject walpost's credentials.
    #[error(
        "the credentials are refused: {0}; restore the password of walpost's user, or put the new \
         one where walpost reads it"
    )]
    Unauthenticated(String),
    /// walpost's Kafka user lacks a right.
    #[error("{0}")]
    Unauthorized(String),
    /// A record cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// What is at the destination is not what walpost has published: an operator must decide.
    #[error("{0}")]
    Diverged(String),
    /// Another walpost has opened the same key.
    #[error("another walpost with the same delivery.id has taken over")]
    Fenced,
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or_default()
}
