//! The record that failed: a replay produces it alone.

use super::halt::EventOrigin;
use crate::ledger::Seq;
use crate::outbox::Event;
use crate::outlet::Refusal;
use crate::position::EventPosition;
use crate::record::{Cause, Poison};

/// The position of a record that failed, and the record once it is produced again.
#[derive(Debug)]
pub(crate) struct Isolation {
    pub(crate) position: EventPosition,
    pub(crate) record: Option<IsolatedRecord>,
    /// How often it was refused in isolation.
    pub(crate) refusals: u32,
}

/// The record, produced with nothing else in flight.
#[derive(Debug)]
pub(crate) struct IsolatedRecord {
    pub(crate) seq: Seq,
    pub(crate) origin: EventOrigin,
    /// The poison event that it becomes if it is refused, without the cause.
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

    /// The poison event that it is after this refusal.
    pub(crate) fn refused(self, refusal: &Refusal) -> (EventOrigin, Poison) {
        let cause = refusal.cause(&self.topic);
        (self.origin, Poison { cause, ..self.poison })
    }
}
