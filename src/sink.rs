//! The trait through which the relay uses a destination's producer: see [`crate::destination`] for those
//! that there are.
//!
//! A sink takes records without blocking, and reports the outcome of each at most once: delivered
//! (durable at the broker), lost (may succeed later), refused (permanently rejected), suspect
//! (rejected for a reason that may be its own) or purged (discarded with its producer). A record without
//! an outcome when its producer is replaced gets none.

use std::pin::Pin;
use std::time::Instant;

use crate::ledger::Seq;
use crate::outlet::{Outlet, Refusal};

/// The outcome of one production.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The production.
    pub seq: Seq,
    /// The outcome of the record.
    pub outcome: Outcome,
    /// When it was reported.
    pub at: Instant,
}

impl Report {
    /// The outcome of production `seq`, reported now.
    pub fn new(seq: Seq, outcome: Outcome) -> Self {
        Self { seq, outcome, at: Instant::now() }
    }
}

/// How a production ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has acknowledged it, with `acks=all`.
    Delivered,
    /// The record failed for this reason, which may be temporary.
    Lost(String),
    /// The record is permanently rejected: the answer is known to be about this record.
    Refused(Refusal),
    /// The record is rejected with an answer that may be about it, or about the destination: the
    /// core finds out which.
    Suspect(Refusal),
    /// The record was purged with its producer, whatever the reason.
    Purged,
}

/// A change in the state of the sink, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No broker can be reached, for this reason.
    Unreachable(String),
    /// A broker rejects the credentials, for this reason.
    Unauthenticated(String),
    /// The producer has failed permanently, for this reason.
    Broken(String),
    /// No acknowledgement has arrived for a long time.
    Stalled {
        /// What is wrong, for the log.
        reason: String,
        /// What is at fault, as far as the brokers report.
        fault: Fault,
    },
    /// Acknowledgements arrive again.
    Flowing,
    /// The destination has lost records that it had acknowledged, for this reason.
    Regressed(String),
    /// The number of a topic's partitions has changed.
    Repartitioned {
        /// The topic.
        topic: String,
        /// The previous number.
        before: u32,
        /// The new number.
        now: u32,
    },
}

/// Why acknowledgements may not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The brokers do not respond, or say no more than that to a new connection.
    OutOfReach,
    /// The brokers respond, but cannot acknowledge: too few in-sync replicas, no leader.
    Brokers,
    /// The brokers report no reason: the producer itself may be at fault.
    Unknown,
}

/// What a destination is called in log lines, metrics and errors.
#[derive(Debug, PartialEq, Eq)]
pub struct Peer {
    /// The destination's name.
    pub name: &'static str,
    /// The label of the reconnect metric.
    pub label: &'static str,
    /// What to do if it cannot be reached.
    pub unreachable: &'static str,
    /// What to check if it rejects the credentials from the start.
    pub credentials: &'static str,
    /// Whether a part of the records may fail while others are delivered, so that only the sink knows
    /// when all are: it reports [`Condition::Flowing`].
    pub has_lanes: bool,
}

/// Kafka.
pub const KAFKA: Peer = Peer {
    name: "Kafka",
    label: "kafka",
    unreachable: "see whether the brokers run and can be reached from here",
    credentials: "security.protocol and the sasl.* and ssl.* properties",
    has_lanes: false,
};

/// The origin of events, outside which their positions mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The system identifier of the server.
    pub system_identifier: &'a str,
    /// The oid of the database.
    pub database_oid: u32,
    /// The replication slot.
    pub slot: &'a str,
}

/// A future of an object-safe trait.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Has a running sink read its configuration again.
pub type Reloader = Box<dyn Fn() + Send + Sync>;

/// A producer of records at a destination.
pub trait Sink: Outlet + Send {
    /// What it is called.
    fn peer(&self) -> &'static Peer;

    /// A session with PostgreSQL begins: the records from here on are of events from `origin`.
    fn begins(&mut self, origin: &Origin<'_>) {
        let _ = origin;
    }

    /// Whether the store of the position is opened again with each new producer: what the old one
    /// has sent is then not written any more.
    fn is_fenced_by_state(&self) -> bool {
        false
    }

    /// Appends all delivery reports that have arrived to `into`. This makes room after
    /// [`ProduceError::Full`](crate::outlet::ProduceError::Full).
    fn take_reports(&mut self, into: &mut Vec<Report>);

    /// Takes the conditions that arose since the last call.
    fn take_conditions(&mut self) -> Vec<Condition>;

    /// Whether a broker is connected; `None` if not yet known.
    fn is_connected(&self) -> Option<bool>;

    /// Completes when a condition or a failed record can be taken; with `eager`, also when an
    /// acknowledgement can. Cancel-safe.
    ///
    /// Acknowledgements do not wake a relay that is reading: it takes them between its reads.
    fn wait_for_events(&self, eager: bool) -> BoxFuture<'_, ()>;

    /// Discards the producer with everything in its queues, and creates a new one. The old one's
    /// last reports can be taken afterwards.
    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>>;

    /// What has it read its configuration again, soon; `None`: it does so with each connection.
    fn reload(&self) -> Option<Reloader> {
        None
    }
}

/// The sink cannot be created as configured.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The destination's client refuses the configuration.
    #[error(transparent)]
    Client(Box<dyn std::error::Error + Send + Sync>),
    /// A thread cannot be started.
    #[error("a thread of the sink cannot be started: {0}")]
    Thread(String),
}
