//! The record that failed: it is to stand alone when it comes again.

use super::halt::EventOrigin;
use crate::ledger::Seq;
use crate::outbox::Event;
use crate::outlet::Refusal;
use crate::position::EventPosition;
use crate::record::{Cause, Poison};

/// A record that failed and is to stand alone when it comes again.
#[derive(Debug)]
pub(crate) struct Isolation {
    pub(crate) place: EventPosition,
    pub(crate) alone: Option<IsolatedRecord>,
    /// How often it was refused while it stood alone.
    pub(crate) refusals: u32,
}

/// The suspect, produced with nothing beside it in flight.
#[derive(Debug)]
pub(crate) struct IsolatedRecord {
    pub(crate) seq: Seq,
    pub(crate) origin: EventOrigin,
    /// What is to be said of it, if it is refused: all but the cause.
    poison: Poison,
    topic: String,
    /// Whether it was put aside already: what was refused is its dead letter.
    pub(crate) is_dead_letter: bool,
}

impl Isolation {
    pub(crate) fn at(place: EventPosition) -> Self {
        Self { place, alone: None, refusals: 0 }
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

    /// What is the matter with it, once it is refused.
    pub(crate) fn refused(self, refusal: &Refusal) -> (EventOrigin, Poison) {
        let cause = refusal.cause(&self.topic);
        (self.origin, Poison { cause, ..self.poison })
    }
}
