//! The trait through which the core publishes: without blocking, and with a reason if a record
//! cannot be queued.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use crate::ledger::Seq;
use crate::position::EventPosition;
use crate::record::{Cause, Record};

/// The memory of a record in flight in addition to its own bytes: librdkafka's message, header and
/// queue structures (measured at 0.4 to 0.6 KiB with three headers), and its `InFlight` in the
/// ledger. In bytes.
pub const RECORD_OVERHEAD_BYTES: u64 = 512;

/// The destination of the core's records.
pub trait Outlet {
    /// Queues the record of the event at `position` as production `seq`, without blocking.
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError>;

    /// The part of the stream in which `record` keeps its place: an event may be published before an
    /// earlier one only if their lanes differ. By default it is that of its topic and key. `None`: no
    /// event may be published before an earlier one.
    ///
    /// Where it is `None`, nothing can show that a suspect is at fault: it is tried until it is accepted.
    /// Where the outlet [`Self::asks`], the lane stands for the topic that may be missing.
    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        Some(hash(&(record.topic, record.key)))
    }

    /// Whether each topic goes to a place of its own, which may be set up wrongly alone: only what is
    /// accepted for a suspect's topic is evidence then.
    fn has_place_for_each_topic(&self) -> bool {
        false
    }

    /// Whether records of other lanes may be published behind a suspect that was refused, with the same
    /// producer. Then at most one record of a lane is under way, so that none is accepted before an earlier one.
    fn outlives_refusals(&self) -> bool {
        false
    }

    /// Whether no event may be published before an earlier one, and the destination can be asked instead
    /// whether it has the topic of one and lets walpost publish to it.
    fn asks(&self) -> bool {
        false
    }

    /// Queues the record of an event behind the suspect, as production `seq`, to see whether it is
    /// accepted: publishes it, or [`Self::asks`].
    fn probe(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.produce(seq, position, record)
    }

    /// Checks, before a record is built, whether one of at least `bytes` for `topic` may be
    /// accepted. What it rejects, [`Outlet::produce`] would reject too.
    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        let _ = (topic, bytes);
        Ok(())
    }
}

/// A number for a lane.
pub fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Why a record was not queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProduceError {
    /// The queue is full: offer the same record again after a report.
    Full,
    /// This record is permanently rejected.
    Refused(Refusal),
    /// This record is rejected for a reason that may be about others too: the core finds that out.
    Suspect(Refusal),
    /// The producer has failed permanently, for this reason: a new one is needed.
    Broken(String),
}

/// Why a record is permanently rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub ground: Ground,
    /// Whether a retry of the same record may succeed without any change.
    pub may_pass: bool,
    /// The reason, as the client library or broker reports it, and the remedy.
    pub reason: String,
}

/// The kind of reason for a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// The size of the record.
    Size,
    /// The topic: it does not exist, or walpost may not publish to it, which some destinations do
    /// not distinguish.
    MissingTopic,
    /// Another reason.
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
