//! Isolation of a failed record: a replay produces it with nothing else in flight. What its answer
//! means then.

use super::halt::EventOrigin;
use super::offer::Place;
use super::suspects::Suspicion;
use super::{Core, Halt, Phase};
use crate::ledger::{Failed, Seq};
use crate::outbox::Event;
use crate::outlet::{Ground, Refusal};
use crate::position::EventPosition;
use crate::record::{Cause, Poison, Policy};

/// Why a suspect is produced again; the answer to that is the reason of the next replay.
pub(super) const TRIED_ALONE: &str =
    "a record was refused, perhaps not for itself: trying the first one alone";

/// The position of a failed record, and the record once it is produced again.
#[derive(Debug)]
pub(super) struct Isolation {
    pub(super) position: EventPosition,
    pub(super) record: Option<IsolatedRecord>,
    /// How often it was rejected in isolation.
    pub(super) refusals: u32,
    /// Whether another one was accepted before it since the last replay: the next one has that too.
    pub(super) has_others: bool,
    /// Whether the record was refused in isolation once, in such a way, while those before it were not
    /// sent again.
    pub(super) is_refused: bool,
    /// Once it was refused in isolation with an answer that may be about everything.
    pub(super) suspicion: Option<Suspicion>,
}

/// The isolated record, produced with nothing else in flight.
#[derive(Debug)]
pub(super) struct IsolatedRecord {
    pub(super) seq: Seq,
    pub(super) origin: EventOrigin,
    /// The poison event that it becomes if it is rejected, without the cause.
    poison: Poison,
    place: Place,
    /// Why its event is undeliverable, if it is a dead letter itself.
    letter_of: Option<Cause>,
}

impl Isolation {
    pub(super) fn at(position: EventPosition) -> Self {
        Self {
            position,
            record: None,
            refusals: 0,
            has_others: false,
            is_refused: false,
            suspicion: None,
        }
    }
}

impl IsolatedRecord {
    pub(super) fn new(
        seq: Seq,
        origin: EventOrigin,
        event: &Event<'_>,
        place: Place,
        letter_of: Option<Cause>,
    ) -> Self {
        let cause = Cause::Refused { topic: place.topic.clone(), why: String::new() };
        let poison = Poison::new(cause, event);
        Self { seq, origin, poison, place, letter_of }
    }

    /// The poison event that results from this rejection.
    fn refused(self, refusal: &Refusal) -> (EventOrigin, Poison) {
        let cause = refusal.cause(&self.place.topic);
        (self.origin, Poison { cause, ..self.poison })
    }
}

impl Core {
    pub(super) fn refused_among_others(&mut self, seq: Seq, reason: &str) {
        if let Some(failed) = self.ledger.failed(seq)
            && !self.probe_failed(seq, true)
        {
            self.isolate(failed);
            self.ask_for_replay(reason);
        }
    }

    /// The isolated record was refused with an answer that may be about everything.
    pub(super) fn judge(&mut self, refusal: &Refusal) {
        let Some(isolation) = &mut self.isolation else { return };
        // Before all that was accepted is sent again: it may be a chance.
        if !self.accepted.is_empty() && !std::mem::replace(&mut isolation.is_refused, true) {
            self.verdicts += 1;
            return self.ask_for_replay(&refusal.reason);
        }
        let Some(record) = &isolation.record else { return };
        let Place { topic, lane, is_of_topic, outlives_refusals, asks } = record.place.clone();
        // An answer about a topic that is there says nothing of another reason.
        let lane = lane.filter(|_| !asks || refusal.ground == Ground::MissingTopic);
        // A dead letter that is refused as its event was has the same fault: what shows that of the event
        // shows it of the letter.
        let of_event = record.letter_of.as_ref().and_then(|cause| {
            cause.topic().filter(|topic| refusal.cause(topic) == *cause).map(str::to_owned)
        });
        let is_letter = record.letter_of.is_some() && of_event.is_none();
        let topic = is_of_topic.then_some(of_event.unwrap_or(topic));
        // A topic that does not exist yet is waited for, and a halt would not help a dead letter.
        let waits = refusal.ground == Ground::MissingTopic
            && (record.letter_of.is_some() || self.policies.missing_topic.is_none());
        isolation.suspicion.take_if(|one| one.is_letter != is_letter);
        let suspicion =
            isolation.suspicion.get_or_insert_with(|| Suspicion::of(is_letter, topic, asks));
        if lane.is_some() {
            let (is_at_fault, is_new) = suspicion.is_at_fault();
            self.verdicts += u64::from(is_new);
            if is_at_fault && !waits {
                return self.quarantine_or_halt(refusal);
            }
        }
        let Some(record) = isolation.record.take() else { return };
        let (origin, poison) = record.refused(refusal);
        let outage = if waits {
            format!("{origin}, {poison}; trying again until it can be delivered")
        } else if lane.is_none() {
            let position = poison.position;
            format!(
                "{origin}, {poison}; trying again: it is not known to be the event's fault, because no \
                 other event may be published before it. If it is, stop walpost, publish the event by \
                 hand, and run `walpost skip --position {position} --apply`"
            )
        } else {
            let other = if is_letter { "dead letter" } else { "event" };
            format!(
                "{origin}, {poison}; trying again: it is not known to be the event's fault, because \
                 the destination has not accepted another {other} each time since"
            )
        };
        let outage = suspicion.waits(outage);
        if let Some(lane) = lane.filter(|_| !waits && !is_letter) {
            // Where it asks, events before the suspect are no evidence.
            let needs_replay =
                !asks && (!outlives_refusals || isolation.has_others || !self.accepted.is_empty());
            let from_here = !needs_replay && matches!(self.phase, Phase::Running);
            suspicion.probe(lane, from_here);
            if from_here {
                return;
            }
        }
        self.ask_for_replay(&outage);
    }

    /// The isolated record was rejected, so no other record is the cause.
    pub(super) fn quarantine_or_halt(&mut self, refusal: &Refusal) {
        let Some(mut isolation) = self.isolation.take() else { return };
        let Some(record) = isolation.record.take() else { return };
        let letter_of = record.letter_of.clone();
        let (origin, poison) = record.refused(refusal);
        if letter_of.is_some() || self.policies.of(&poison.cause) == Policy::Halt {
            let halt = Box::new(match letter_of {
                Some(cause) => Halt::DeadLetter { origin, poison, cause },
                None => Halt::Poison { origin, poison },
            });
            self.phase = Phase::Halting { halt, all_before_durable: true };
            return;
        }
        // Retrying does not change a permanent reason.
        if !refusal.may_pass || isolation.refusals >= self.policies.retries {
            self.quarantine.add(isolation.position, poison.cause);
            self.verdicts += 1;
            let next = isolation.suspicion.and_then(Suspicion::next);
            self.isolation = next.map(|(position, suspicion)| Isolation {
                suspicion: Some(suspicion),
                ..Isolation::at(position)
            });
        } else {
            isolation.refusals += 1;
            self.isolation = Some(isolation);
        }
        self.ask_for_replay(&refusal.reason);
    }

    /// Isolates the first failed record when it is read again.
    pub(super) fn isolate(&mut self, failed: Failed) {
        if let Failed::At(position) = failed
            && self.isolation.as_ref().is_none_or(|isolation| position < isolation.position)
        {
            let replaced = self.isolation.replace(Isolation::at(position));
            self.verdicts += u64::from(replaced.is_some());
        }
    }

    /// The event that is tried alone, because it failed.
    pub fn isolated(&self) -> Option<EventPosition> {
        self.isolation.as_ref().map(|isolation| isolation.position)
    }

    /// Whether reading must stop for the isolation: while other records are in flight before the
    /// isolated one, or while it, or a probe, is in flight itself.
    pub(super) fn is_held_for_isolation(&self) -> bool {
        let Some(isolation) = &self.isolation else {
            return false;
        };
        if self.is_probing() {
            return self.ledger.in_flight_records() > 0;
        }
        let is_next = self.transaction.as_ref().is_some_and(|transaction| {
            let next = EventPosition {
                commit_lsn: transaction.commit_lsn,
                ordinal: transaction.next_ordinal,
            };
            next == isolation.position
        });
        isolation.record.is_some() || (is_next && self.ledger.in_flight_records() > 0)
    }

    pub(super) fn is_isolated(&self, seq: Seq) -> bool {
        let record = self.isolation.as_ref().and_then(|isolation| isolation.record.as_ref());
        record.is_some_and(|record| record.seq == seq)
    }
}
