//! Isolation of a failed record: a replay produces it with nothing else in flight.

use super::halt::EventOrigin;
use crate::ledger::Seq;
use crate::outbox::Event;
use crate::outlet::Refusal;
use crate::position::EventPosition;
use crate::record::{Cause, Poison};

/// The position of a failed record, and the record once it is produced again.
#[derive(Debug)]
pub(crate) struct Isolation {
    pub(crate) position: EventPosition,
    pub(crate) record: Option<IsolatedRecord>,
    /// How often it was rejected in isolation.
    pub(crate) refusals: u32,
}

/// The isolated record, produced with nothing else in flight.
#[derive(Debug)]
pub(crate) struct IsolatedRecord {
    pub(crate) seq: Seq,
    pub(crate) origin: EventOrigin,
    /// The poison event that it becomes if it is rejected, without the cause.
    poison: Poison,
    topic: String,
    /// Whether it is a dead letter itself.
    pub(crate) is_dead_letter: bool,
}

impl Isolation {
    pub(crate) fn at(position: EventPosition) -> Self {
        Self { position, record: None, refusals: 0 }
    }
}

impl IsolatedRecord {
    pub(crate) fn new(
        seq: Seq,
        origin: EventOrigin,
        event: &Event<'_>,
        topic: String,
        is_dead_letter: bool,
    ) -> Self {
        let cause = Cause::Refused { topic: topic.clone(), why: String::new() };
        let poison = Poison::new(cause, event);
        Self { seq, origin, poison, topic, is_dead_letter }
    }

    /// The poison event that results from this rejection.
    pub(crate) fn refused(self, refusal: &Refusal) -> (EventOrigin, Poison) {
        let cause = refusal.cause(&self.topic);
        (self.origin, Poison { cause, ..self.poison })
    }
}
