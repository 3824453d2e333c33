//! The settings of a run, its summary, and its error.

use std::time::Duration;

use crate::lsn::Lsn;
use crate::sink::{Peer, SinkError};
use crate::source::SourceError;
use walpost_core::relay::{Counters, Halt};

/// The settings of a relay, in addition to those of its source, core and sink.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// The maximum duration of a shutdown.
    pub drain_timeout: Duration,
    /// The relay ends once this is confirmed.
    pub until: Option<Until>,
    /// Whether nothing else runs on the relay's thread: see [`super::Relay::on_own_thread`].
    pub owns_thread: bool,
}

/// A position to stop at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The end of flushed WAL at the first connect.
    Current,
    /// This LSN.
    Lsn(Lsn),
}

/// What a relay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Counts of what was received and skipped.
    pub counters: Counters,
    /// Records that the sink acknowledged, including repeats.
    pub delivered: u64,
    /// The flush LSN: confirmed, or about to be.
    pub confirmed: Lsn,
    /// Records that were still in flight when the drain timeout expired.
    pub undrained: u64,
}

/// Why a relay ended without a clean stop.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// An operator must act on an event or on the table's columns.
    #[error("{halt}; {remedy}")]
    Halt {
        /// The reason.
        halt: Box<Halt>,
        /// How to continue.
        remedy: String,
    },
    /// An operator must act on PostgreSQL's side.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The sink cannot be created as configured.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The destination rejects walpost's credentials, and never accepted them.
    #[error("{} refuses walpost's credentials: {reason}; check {}", peer.name, peer.credentials)]
    Unauthenticated {
        /// The destination.
        peer: &'static Peer,
        /// The reason that it reports.
        reason: String,
    },
    /// The schema registry rejects walpost's credentials, and never accepted them.
    #[error("{0}")]
    Registry(String),
    /// The destination has lost records that it had acknowledged.
    #[error(
        "{} has lost records that it had acknowledged: {reason}. Start walpost again: it publishes once \
         more what PostgreSQL still has, and ends with exit code 3 if that is not all",
        peer.name
    )]
    Regressed {
        /// The destination.
        peer: &'static Peer,
        /// What is missing.
        reason: String,
    },
    /// Everything up to [`RelaySettings::until`] is delivered, but PostgreSQL did not acknowledge
    /// the confirmation.
    #[error(
        "everything before {0} is delivered, but it is not known whether PostgreSQL received the last confirmation: run again"
    )]
    Unconfirmed(Lsn),
    /// Stopped before it reached [`RelaySettings::until`].
    #[error(
        "stopped before {until} was reached: all before {confirmed} is delivered and confirmed"
    )]
    Unreached {
        /// The position at which it was to end.
        until: Lsn,
        /// The flush LSN.
        confirmed: Lsn,
    },
    /// Stopped before its first session, which determines the position at which it is to end.
    #[error("stopped before PostgreSQL was reached: nothing is delivered")]
    NeverConnected,
    /// Aborted by a second stop order.
    #[error("stopped by a second signal: nothing more was confirmed")]
    Aborted,
}
