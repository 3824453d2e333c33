//! From a message to a record; a poison event is handled by the policy of its cause.

use super::halt::{EventOrigin, Halt};
use super::isolation::{IsolatedRecord, Isolation};
use super::offer::{Offered, Purpose, offer};
use super::{Core, DroppedHeaders, Outlet, Taken};
use crate::ledger::StreamError;
use crate::outbox::{Event, Outbox};
use crate::pgoutput::{Insert, Message};
use crate::position::EventPosition;
use crate::record::Poison;
use crate::record::Policy;
use crate::record::Unrouted;
use crate::record::dead_letter::DeadLetter;
use crate::relay::Diverted;

impl Core {
    /// Takes a row or a logical message, which becomes a record if it is an outbox event.
    pub(super) fn event(
        &mut self,
        message: &Message,
        outlet: &mut (impl Outlet + ?Sized),
    ) -> Result<Taken, StreamError> {
        if let Message::Logical(logical) = message
            && !logical.transactional
        {
            self.counters.refused_messages += u64::from(self.outbox.is_ours(logical));
            return Ok(Taken::Yes);
        }
        let Some(transaction) = &self.transaction else {
            return Err(StreamError::Outside { what: "a change" });
        };
        let commit_time = transaction.commit_time;
        let position =
            EventPosition { commit_lsn: transaction.commit_lsn, ordinal: transaction.next_ordinal };
        let event = match message {
            Message::Insert(insert) => self.outbox.event(insert, position, commit_time),
            Message::Logical(logical) => self.outbox.message_event(logical, position, commit_time),
            _ => None,
        };
        let is_taken = position.ordinal < transaction.taken_before;
        match (event, message) {
            (None, _) => Ok(Taken::Yes),
            (Some(_), _) if is_taken => {
                self.count_ordinal();
                Ok(Taken::Yes)
            }
            (Some(event), _) if self.is_skipped(position) => {
                self.take_skip(position, message, event.as_ref().ok());
                Ok(Taken::Yes)
            }
            (Some(_), _) if self.is_accepted(position) => {
                self.count_ordinal();
                Ok(Taken::Yes)
            }
            (Some(event), _) if self.is_probed(position) => {
                self.probe(message, event, position, outlet)
            }
            (Some(Ok(event)), _) => self.publish(message, &event, outlet),
            (Some(Err(error)), Message::Logical(logical)) => {
                let event = Outbox::unread(logical, position, commit_time);
                self.divert(message, &event, error.into(), true, outlet)
            }
            // An unreadable row is caused by a server setting, not by the event.
            (Some(Err(error)), _) => {
                let origin = self.origin(message);
                self.halt(Halt::Poison { origin, poison: error.into() });
                Ok(Taken::Yes)
            }
        }
    }

    fn publish(
        &mut self,
        message: &Message,
        event: &Event<'_>,
        outlet: &mut (impl Outlet + ?Sized),
    ) -> Result<Taken, StreamError> {
        if let Some(cause) = self.quarantine.of(event.position) {
            let poison = Poison::new(cause.clone(), event);
            return self.poisoned(message, event, poison, outlet);
        }
        let seq = self.ledger.next_seq();
        let purpose = purpose(self.isolation.as_ref(), event.position);
        let suspicion = self.isolation.as_ref().and_then(|isolation| isolation.suspicion.as_ref());
        let mut is_elsewhere = false;
        let offered = match self.router.route(event) {
            Ok(record) => {
                is_elsewhere = suspicion.is_some_and(|one| one.is_elsewhere(record.topic));
                offer(&record, seq, event, purpose, outlet)
            }
            Err(Unrouted::Poison(poison)) => Offered::Refused(poison),
            Err(Unrouted::NeedsSchema(schema)) => {
                self.wanted_schema = Some(schema);
                Offered::Full
            }
        };
        if is_elsewhere {
            self.note_elsewhere(seq);
        }
        match offered {
            Offered::Taken { weight, isolated } => {
                let isolated_record = isolated.map(|place| {
                    IsolatedRecord::new(seq, self.origin(message), event, place, None)
                });
                self.produced(event.position, weight, isolated_record)?;
                self.ordinary = Some(seq);
                self.count_dropped_headers(message, event);
                Ok(Taken::Yes)
            }
            Offered::Full => Ok(Taken::NotYet),
            Offered::Suspect { refusal, isolated } => {
                let isolated_record = isolated.map(|place| {
                    IsolatedRecord::new(seq, self.origin(message), event, place, None)
                });
                self.produced(event.position, 0, isolated_record)?;
                self.suspected(seq, &refusal);
                Ok(Taken::Yes)
            }
            Offered::Broken(reason) => {
                self.ask_for_replay(&reason);
                Ok(Taken::Yes)
            }
            Offered::Refused(poison) => self.poisoned(message, event, poison, outlet),
        }
    }

    fn poisoned(
        &mut self,
        message: &Message,
        event: &Event<'_>,
        poison: Poison,
        outlet: &mut (impl Outlet + ?Sized),
    ) -> Result<Taken, StreamError> {
        self.divert(message, event, poison, false, outlet)
    }

    /// Handles an undeliverable event by the policy of its cause. `is_unread`: the event is only
    /// the raw content of a message.
    fn divert(
        &mut self,
        message: &Message,
        event: &Event<'_>,
        poison: Poison,
        is_unread: bool,
        outlet: &mut (impl Outlet + ?Sized),
    ) -> Result<Taken, StreamError> {
        let origin = self.origin(message);
        match self.policies.of(&poison.cause) {
            Policy::Halt => {
                self.halt(Halt::Poison { origin, poison });
                return Ok(Taken::Yes);
            }
            Policy::Skip => {
                self.counters.skipped += 1;
                self.count_event(event.position);
                self.diverted.push(Diverted { origin, poison, topic: None });
                return Ok(Taken::Yes);
            }
            Policy::DeadLetter => {}
        }
        // An earlier record may still be rejected, and its dead letter must precede this one.
        let oldest = self.ledger.oldest_in_flight();
        let is_behind_others = oldest.is_some_and(|oldest| Some(oldest) <= self.ordinary);
        if is_behind_others && self.policies.writes_letters_late() {
            return Ok(Taken::NotYet);
        }
        let seq = self.ledger.next_seq();
        let (topic, name) = (self.policies.dead_letter_topic.clone(), origin.name());
        let (placed, is_untimed) = (self.router.placed(), self.router.is_untimed());
        let (topic_name, origin_name) = (topic.as_str(), name.as_str());
        let letter = DeadLetter {
            topic: topic_name,
            poison: &poison,
            origin: origin_name,
            is_unread,
            placed,
            is_untimed,
        };
        let purpose = purpose(self.isolation.as_ref(), event.position);
        // Checked before the dead letter is built, which is several times as large as its row.
        let offered = match outlet.admits(topic_name, letter.bytes_at_least(event)) {
            Ok(()) => offer(&letter.of(event), seq, event, purpose, outlet),
            Err(refusal) => Offered::Refused(Poison::new(refusal.cause(topic_name), event)),
        };
        match offered {
            Offered::Taken { weight, isolated } => {
                let letter_of = Some(poison.cause.clone());
                let isolated_record = isolated
                    .map(|place| IsolatedRecord::new(seq, origin.clone(), event, place, letter_of));
                self.produced(event.position, weight, isolated_record)?;
                self.note_letter(seq);
                self.counters.dead_letters += 1;
                self.diverted.push(Diverted { origin, poison, topic: Some(topic) });
                Ok(Taken::Yes)
            }
            Offered::Full => Ok(Taken::NotYet),
            Offered::Suspect { refusal, isolated } => {
                let letter_of = Some(poison.cause);
                let isolated_record =
                    isolated.map(|place| IsolatedRecord::new(seq, origin, event, place, letter_of));
                self.produced(event.position, 0, isolated_record)?;
                self.suspected(seq, &refusal);
                Ok(Taken::Yes)
            }
            Offered::Broken(reason) => {
                self.ask_for_replay(&reason);
                Ok(Taken::Yes)
            }
            Offered::Refused(refused) => {
                self.halt(Halt::DeadLetter { origin, poison: refused, cause: poison.cause });
                Ok(Taken::Yes)
            }
        }
    }

    /// Records that the outlet took the event's record, or its dead letter.
    pub(super) fn produced(
        &mut self,
        position: EventPosition,
        weight: u64,
        isolated_record: Option<IsolatedRecord>,
    ) -> Result<(), StreamError> {
        self.ledger.produce(position.ordinal, weight)?;
        self.note_produced(weight);
        self.count_event(position);
        if let Some(isolation) = self.isolation.as_mut().filter(|_| isolated_record.is_some()) {
            isolation.record = isolated_record;
        }
        Ok(())
    }

    /// The table or message prefix of the event in `message`.
    pub(super) fn origin(&self, message: &Message) -> EventOrigin {
        let of_table = |insert: &Insert| self.outbox.table(insert.relation).cloned();
        match message {
            Message::Logical(logical) => EventOrigin::Message(logical.prefix.clone()),
            Message::Insert(insert) => of_table(insert)
                .map_or_else(|| EventOrigin::Message(String::new()), EventOrigin::Table),
            _ => EventOrigin::Message(String::new()),
        }
    }

    fn count_dropped_headers(&mut self, message: &Message, event: &Event<'_>) {
        let Some(dropped) = self.router.dropped_headers() else { return };
        self.counters.dropped_headers += dropped.count;
        if self.dropped_headers.is_none() {
            let (position, name) = (event.position, dropped.name.clone());
            let origin = self.origin(message);
            self.dropped_headers = Some(DroppedHeaders { origin, position, name });
        }
    }

    pub(super) fn count_event(&mut self, position: EventPosition) {
        self.counters.events += 1;
        // A probe is read again, after the events between the suspect and it.
        if !self.is_probing() && self.furthest < Some(position) {
            self.furthest = Some(position);
            self.counters.new_events += 1;
        }
        self.count_ordinal();
    }

    pub(super) fn count_ordinal(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.next_ordinal += 1;
        }
    }
}

fn purpose(isolation: Option<&Isolation>, position: EventPosition) -> Purpose {
    let is_isolated = isolation.is_some_and(|isolation| isolation.position == position);
    if is_isolated { Purpose::Isolation } else { Purpose::Delivery }
}
