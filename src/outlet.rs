//! The seam that the core produces through: records go out without blocking, and what
//! cannot go out says why.

use crate::ledger::Seq;
use crate::record::{Cause, Record};

/// What a record in flight costs beside its own bytes: librdkafka's message,
/// header and queue structures (measured at 0.4 to 0.6 KiB with three headers),
/// and its slot in the ledger. In bytes.
pub const RECORD_OVERHEAD_BYTES: u64 = 512;

/// Where the core puts what it produces.
pub trait Outlet {
    /// Queues `record` as production `seq`, without blocking.
    fn produce(&mut self, seq: Seq, record: &Record<'_>) -> Result<(), ProduceError>;

    /// Whether it may take a record of at least `bytes` for `topic`, before that is made. What it
    /// refuses here it would refuse in [`Outlet::produce`].
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
    /// The producer is of no use any more, for this reason: a new one is needed.
    Broken(String),
}

/// A record is refused for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What it is for.
    pub ground: Ground,
    /// Whether a later attempt with the same record may succeed, though nobody changes anything.
    pub may_pass: bool,
    /// The refusal's own words, and what to do about it.
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
    /// It is the cause why the event's record for `topic` is poison.
    pub fn cause(&self, topic: &str) -> Cause {
        let (topic, why) = (topic.to_owned(), self.reason.clone());
        match self.ground {
            Ground::Size => Cause::TooLarge { topic, why },
            Ground::MissingTopic => Cause::MissingTopic { topic, why },
            Ground::Other => Cause::Refused { topic, why },
        }
    }
}
