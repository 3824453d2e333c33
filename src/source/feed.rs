//! The traits that the relay reads through: a source opens one feed after the other, and a feed
//! returns the changes in the WAL and takes confirmations. The folder has what implements them.

pub(super) mod feed_base;
pub(super) mod message_text;
pub(super) mod postgres_feed;
pub(super) mod stream;
pub(super) mod visibility;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::{PublicationFingerprint, Resume, Security, ServerIdentity, SourceError};
use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::pgoutput::{Message, PgTimestamp};
use crate::source::identity::history::PublishedHistory;
use crate::source::{MinuteMetrics, SlotMetrics};

/// Opens feeds.
pub trait Source: Clone {
    /// An open feed.
    type Feed: Feed;

    /// The replication slot, as stored in the catalog.
    fn slot(&self) -> &str;

    /// Opens a feed. Dropping the future cancels the attempt and leaves nothing behind.
    fn open(&self, resume: &Resume) -> impl Future<Output = Result<Self::Feed, OpenError>> + Send;

    /// The error of a check that a cancelled [`Source::open`] left undecided: an operator must act.
    fn undecided_error(&self) -> Option<OpenError> {
        None
    }
}

/// Why no feed was opened.
pub struct OpenError {
    /// The reason.
    pub error: SourceError,
    /// Set if an operator must act: tells the standby instances that this one halts, and completes
    /// once they have had time to see it. The error is returned before that, so a signal in the
    /// meantime does not hide it.
    pub announcement: Option<Announcement>,
}

/// Announces to standby instances that this one halts: see [`OpenError::announcement`].
pub type Announcement = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<E: Into<SourceError>> From<E> for OpenError {
    fn from(error: E) -> Self {
        Self { error: error.into(), announcement: None }
    }
}

/// What a feed returns, in WAL order.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// A message of the output plugin.
    Message(Message),
    /// The server has sent everything that committed before this LSN.
    Keepalive(Lsn),
}

/// When to close a feed and open another in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchFeed {
    /// An immediate switch.
    Now,
    /// Once nothing is in flight; until then, nothing more is read.
    Drained,
}

/// The waits until other sessions see transactions, since a feed was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VisibilityWaits {
    /// How long they took in total, with the one that is not over.
    pub total: Duration,
    /// The transaction that is held back now.
    pub held: Option<HeldBack>,
}

/// A transaction that is held back until other sessions see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBack {
    /// The transaction's id.
    pub xid: u32,
    /// When it committed.
    pub commit_time: PgTimestamp,
    /// The time for which the transaction has been held back.
    pub waited: Duration,
}

/// The changes after the slot's position: [`super::PostgresFeed`], or a simulated one.
pub trait Feed {
    /// The server's identity.
    fn identity(&self) -> &ServerIdentity;

    /// The timeline of the server's WAL: newer than that of [`Feed::identity`] while the server's
    /// history is being compared after a promotion.
    fn timeline(&self) -> u32 {
        self.identity().timeline
    }

    /// The start time of the postmaster: another one than in [`Feed::identity`] while the server's
    /// history is being compared.
    fn server_started(&self) -> i64 {
        self.identity().postmaster_start
    }

    /// The end of that timeline in the server's history; `None` if it is not known.
    fn end_of_timeline(&self, _timeline: u32) -> Option<Lsn> {
        None
    }

    /// The fingerprint of the publication in the catalogs.
    fn publication_fingerprint(&self) -> &PublicationFingerprint;

    /// The oid of the database.
    fn database_oid(&self) -> u32;

    /// Compares what the feed returns with the history that was published. To be called before anything
    /// is taken from it. Until the comparison ends, nothing is confirmed.
    fn compare_with(&mut self, published: PublishedHistory);

    /// Whether the server's history is known to be the one that was published, as far as that is
    /// compared.
    fn is_compared(&self) -> bool;

    /// Whether the server is a standby, whose WAL still grows to that of its primary.
    fn is_standby(&self) -> bool {
        false
    }

    /// The process ID of the walsender that holds the slot.
    fn walsender(&self) -> Option<i32>;

    /// The flush LSN at the start of this feed.
    fn start(&self) -> Lsn;

    /// The end of flushed WAL when the feed was opened.
    fn flushed(&self) -> Lsn;

    /// The outbox tables, with the columns that the publication sends.
    fn tables(&self) -> &[FoundTable];

    /// The next message or keepalive; with `reading` false, only waits for the end of the feed. An
    /// error is that end. Cancel-safe.
    fn next(&mut self, reading: bool)
    -> impl Future<Output = Result<Received, SourceError>> + Send;

    /// The next message or keepalive, if it has been received already.
    fn try_next(&mut self) -> Option<Result<Received, SourceError>>;

    /// Whether more was received than was taken since the last call, or the feed reads in batches
    /// itself: then the relay does not pause for batching.
    fn is_backed_up(&mut self) -> bool;

    /// The server's name or address.
    fn host(&self) -> &str;

    /// How the connection to it is secured.
    fn security(&self) -> Security;

    /// Bytes of the output plugin's messages received so far.
    fn received_bytes(&self) -> u64;

    /// The slot's state, if it was read since the last call.
    fn slot_metrics(&mut self) -> Option<SlotMetrics>;

    /// What is read once a minute, if it was read since the last call.
    fn minute_metrics(&self) -> Option<MinuteMetrics> {
        None
    }

    /// The waits until other sessions see transactions.
    fn visibility_waits(&self) -> VisibilityWaits {
        VisibilityWaits::default()
    }

    /// What holds the feed up for long, if something does: walpost is not ready meanwhile.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The size of the backlog for which a catch-up was opened; `None` for a stream.
    fn backlog_bytes(&self) -> Option<u64>;

    /// Whether to switch to another feed, and when.
    fn wanted_switch(&mut self) -> Option<SwitchFeed>;

    /// Whether the requested switch is safe now; called right before it.
    fn may_switch(&mut self) -> impl Future<Output = Result<bool, SourceError>> + Send;

    /// Reports that everything before `lsn` is durable. It is confirmed once the publication guard
    /// has verified that all of it was sent.
    fn confirm(&mut self, lsn: Lsn);

    /// Announces that the relay ends with `error`. If an operator must act, standby instances are
    /// told not to continue; completes once they have had time to see it.
    fn announce_halt(&mut self, error: &SourceError) -> impl Future<Output = ()> + Send;

    /// Confirms `lsn`, and waits until the server has applied it. Messages that still arrive are
    /// discarded: nothing may be read from the feed afterwards.
    fn finish(
        &mut self,
        lsn: Lsn,
        within: Duration,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Closes the feed in an orderly way.
    fn close(self) -> impl Future<Output = ()> + Send;
}
