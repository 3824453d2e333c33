//! The trait that the core publishes through: without blocking, with the reason where a record
//! cannot be queued.

use crate::ledger::Seq;
use crate::record::{Cause, Record};

/// What a record in flight costs beside its own bytes: librdkafka's message,
/// header and queue structures (measured at 0.4 to 0.6 KiB with three headers),
/// and its slot in the ledger. In bytes.
pub const RECORD_OVERHEAD_BYTES: u64 = 512;

/// Where the core publishes.
pub trait Outlet {
    /// Queues `record` as production `seq`, without blocking.
    fn produce(&mut self, seq: Seq, record: &Record<'_>) -> Result<(), ProduceError>;

    /// Checks, before the record is built, whether one of at least `bytes` for `topic` may be taken.
    /// What it refuses here it would refuse in [`Outlet::produce`].
    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        let _ = (topic, bytes);
        Ok(())
    }
}

/// Why a record was not queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProduceError {
    /// The queue is full: the same record is offered again after a report.
    Full,
    /// This record will never be taken.
    Refused(Refusal),
    /// The producer has failed for good, for this reason: a new one is needed.
    Broken(String),
}

/// A record is refused for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub ground: Ground,
    /// Whether a later attempt with the same record may succeed without anyone changing anything.
    pub may_pass: bool,
    /// The reason as the client library or broker gives it, and the remedy.
    pub reason: String,
}

/// What a record is refused for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// Its size.
    Size,
    /// Its topic, which does not exist.
    MissingTopic,
    /// Anything else.
    Other,
}

impl Refusal {
    /// The cause that makes the event of a record for `topic` undeliverable.
    pub fn cause(&self, topic: &str) -> Cause {
        let (topic, why) = (topic.to_owned(), self.reason.clone());
        match self.ground {
            Ground::Size => Cause::TooLarge { topic, why },
            Ground::MissingTopic => Cause::MissingTopic { topic, why },
            Ground::Other => Cause::Refused { topic, why },
        }
    }
}
