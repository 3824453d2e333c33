//! How a relay is to run, and how its run ended.

use std::time::Duration;

use super::core::{Counters, Halt};
use crate::lsn::Lsn;
use crate::sink::SinkError;
use crate::source::SourceError;

/// The settings of a relay that are not those of its source, core or sink.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// How long stopping may take.
    pub drain_timeout: Duration,
    /// End once this is confirmed.
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
    /// What was received and skipped.
    pub counters: Counters,
    /// Records that the sink acknowledged, repeats included.
    pub delivered: u64,
    /// The flush LSN: confirmed, or about to be.
    pub confirmed: Lsn,
    /// Records that were in flight still when the drain timeout ended.
    pub undrained: u64,
}

/// Why a relay ended other than by a clean stop.
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
    /// The sink cannot be made as configured.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The brokers reject walpost's credentials, and never accepted them.
    #[error(
        "Kafka refuses walpost's credentials: {0}; check security.protocol and the sasl.* and ssl.* properties"
    )]
    Unauthenticated(String),
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
        /// Where it was to end.
        until: Lsn,
        /// The flush LSN.
        confirmed: Lsn,
    },
    /// Stopped before its first session, which determines where it is to end.
    #[error("stopped before PostgreSQL was reached: nothing is delivered")]
    Unbegun,
    /// Aborted.
    #[error("stopped by a second signal: nothing more was confirmed")]
    Aborted,
}
