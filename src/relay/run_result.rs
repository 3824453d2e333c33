//! A relay's two ends for whoever runs it: how it is to run, and how it ended.

use std::time::Duration;

use super::core::{Counters, Halt};
use crate::lsn::Lsn;
use crate::sink::SinkError;
use crate::source::SourceError;

/// What a relay does beside its configuration of source, record and sink.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// How long stopping may take.
    pub drain_timeout: Duration,
    /// Stop by itself once this is confirmed.
    pub until: Option<Until>,
    /// Whether nothing else runs on the relay's thread: see [`super::Relay::on_own_thread`].
    pub owns_thread: bool,
}

/// A position to stop at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The end of the log as it was at the first connect.
    Current,
    /// This LSN.
    Lsn(Lsn),
}

/// What a relay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// What was received and passed over.
    pub counters: Counters,
    /// Records that the sink acknowledged, repeats included.
    pub delivered: u64,
    /// A: what is confirmed, or may be.
    pub confirmed: Lsn,
    /// Records that were in flight still when the drain timeout ended.
    pub undrained: u64,
}

/// Why a relay ended other than by a clean stop.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A person must act on an event or on the table's columns.
    #[error("{halt}; {way_out}")]
    Halt {
        /// What is the matter.
        halt: Box<Halt>,
        /// How to go on.
        way_out: String,
    },
    /// A person must act on PostgreSQL's side.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The sink cannot be made as configured.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The broker refuses walpost's credentials, and always has.
    #[error(
        "Kafka refuses walpost's credentials: {0}; check security.protocol and the sasl.* and ssl.* properties"
    )]
    Unauthenticated(String),
    /// Everything up to where it was to run is delivered, and the server may not
    /// know.
    #[error("all before {0} is delivered, and its confirmation was not seen to arrive: run again")]
    Unconfirmed(Lsn),
    /// Told to stop before it was where it was to run.
    #[error(
        "stopped before {until} was reached: all before {confirmed} is delivered and confirmed"
    )]
    Unreached {
        /// Where it was to run.
        until: Lsn,
        /// How far it came.
        confirmed: Lsn,
    },
    /// Told to stop before it had a session, by which to know where it was to run.
    #[error("stopped before PostgreSQL was reached: nothing is delivered")]
    Unbegun,
    /// Told to leave at once.
    #[error("told to stop at once: left with nothing more confirmed")]
    Aborted,
}
