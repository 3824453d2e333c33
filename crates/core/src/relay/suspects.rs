//! Whose fault is it: the event's, or the destination's? One rule for all destinations.
//!
//! A record whose answer may be about the record or about everything is a suspect. It is produced
//! again alone. It is the event's fault only if it is refused alone again and again, and the destination
//! has accepted another event each time in between ([`EVIDENCE`]). If none was accepted, however often it
//! is refused, the destination is at fault, or its configuration: nothing is diverted, and the suspect is
//! tried again.
//!
//! Where no other event comes before the suspect in a replay, those after it are tried as probes,
//! every other time: a replay with a new producer reads the suspect without producing it, and produces the
//! following events, one at a time, until one is accepted. None may be one that has to come after
//! the suspect, or after another probe that failed ([`Outlet::lane`]). A production that has failed
//! stands in the ledger for each event that is passed over, so the flush LSN cannot pass it, also if
//! the session is lost or the feed changes meanwhile. Then everything from the
//! flush LSN on is read again, and the suspect is produced alone; the accepted probe is repeated.
//!
//! A producer that takes others after a refusal is given them without that replay
//! ([`Outlet::outlives_refusals`]), unless some were accepted since the flush LSN: the next replay sends these
//! again. Another may take nothing more once a record has failed, as Kafka's do,
//! so one replay may be one probe. Therefore the next search goes on behind the probes that have failed, and
//! begins again only when there was none left.
//!
//! Events say nothing about a dead letter, which goes elsewhere: that is at fault if other dead letters
//! are accepted. One that is refused with the same answer as its event, though, has the event's fault, and
//! is judged as that was: walpost halts, since nothing is left to do with it.
//!
//! Where all events have one order nothing may be published before the suspect, and what is there already
//! counts as accepted without being sent. No other write is evidence: NATS has the state key in another
//! stream, with a configuration of its own. So the suspect is tried until it is accepted, and the log has
//! the command that passes over it. Such a destination has to know the answers that are about a record. Of a
//! topic that is missing the answer alone says nothing: everything that is published may have the wrong name.
//! There a probe is not published: the destination is asked whether it would take it ([`Outlet::asks`]).

use std::collections::{HashSet, VecDeque};

use super::offer::{Offered, Purpose, offer};
use super::{Core, Halt, Outlet, Taken};
use crate::ledger::{Seq, StreamError};
use crate::outbox::{Event, EventError};
use crate::pgoutput::Message;
use crate::position::EventPosition;
use crate::record::{Policy, Unrouted};

/// How often another event has to be accepted between two refusals of the suspect. Once would be chance
/// where a destination refuses now and then, or goes down at that moment.
const EVIDENCE: u32 = 2;

/// How many probes are produced between two trials of the suspect.
const PROBES: u32 = 16;

/// After this many failed probes the search begins again at the first one.
const LANES_MAX: usize = 4096;

/// What is known of a suspect.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    /// Whether another event was accepted since it was refused alone.
    is_other_accepted: bool,
    /// How often that was so when it was refused again.
    evidence: u32,
    /// The topic, if each topic has a separate place at the destination.
    topic: Option<String>,
    /// Whether it is a dead letter: only others of those are evidence then, unless its event was refused
    /// alike.
    pub(super) is_letter: bool,
    /// The dead letters produced since: they are no evidence about events.
    letters: HashSet<Seq>,
    /// What was produced since for other topics, if each goes to a place of its own.
    elsewhere: HashSet<Seq>,
    /// The lanes of the suspect and of failed probes: nothing is produced there, also in later
    /// rounds, which go on behind them.
    lanes: HashSet<u64>,
    round: Round,
    /// How often there was nothing more to probe with.
    in_vain: u32,
    /// The refused probes: suspects too.
    others: VecDeque<EventPosition>,
    /// Whether only probes are evidence: see [`Outlet::asks`].
    asks: bool,
    /// Why the suspect is not delivered, for the log.
    outage: String,
    /// Why nothing behind it may be published, if that is so.
    halts_behind: String,
}

#[derive(Debug, Default)]
enum Round {
    /// The suspect is produced alone.
    #[default]
    Alone,
    /// Others are produced, once the suspect is read.
    Probing,
    /// The suspect was read.
    Past { probes: u32, in_flight: Option<Probe> },
}

/// A probe in flight.
#[derive(Debug)]
struct Probe {
    seq: Seq,
    position: EventPosition,
    lane: u64,
}

/// Probing, for the driver's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probing {
    /// How many there were since the last trial of the suspect.
    pub probes: u32,
    /// How often there was nothing more to probe with.
    pub in_vain: u32,
}

impl Suspicion {
    /// `topic`: that of the suspect, if it goes to a place of its own.
    pub(super) fn of(is_letter: bool, topic: Option<String>, asks: bool) -> Self {
        Self { topic, is_letter, asks, ..Self::default() }
    }

    /// The suspect is refused alone: whether it is at fault, and whether more is known than before.
    pub(super) fn is_at_fault(&mut self) -> (bool, bool) {
        let is_new = std::mem::take(&mut self.is_other_accepted) && self.evidence < EVIDENCE;
        self.evidence += u32::from(is_new);
        (self.evidence >= EVIDENCE, is_new)
    }

    /// Whether a record for this topic goes elsewhere than the suspect.
    pub(super) fn is_elsewhere(&self, topic: &str) -> bool {
        self.topic.as_deref().is_some_and(|own| own != topic)
    }

    /// Produces others: from here on, or in the next replay.
    pub(super) fn probe(&mut self, lane: u64, from_here: bool) {
        self.lanes.insert(lane);
        self.round =
            if from_here { Round::Past { probes: 0, in_flight: None } } else { Round::Probing };
    }

    /// Records why the suspect is not delivered; returns that with what else is known.
    pub(super) fn waits(&mut self, outage: String) -> String {
        self.outage = outage;
        self.outage()
    }

    fn outage(&self) -> String {
        format!("{}{}", self.outage, self.halts_behind)
    }

    /// The next suspect: a refused probe. The search goes on where it was, and has to find its own
    /// evidence: everything may be refused meanwhile.
    pub(super) fn next(mut self) -> Option<(EventPosition, Self)> {
        let position = self.others.pop_front()?;
        self.round = Round::Alone;
        (self.is_other_accepted, self.evidence) = (false, 0);
        Some((position, self))
    }

    /// Begins the search again at its first probe, once there is none left.
    fn begin_again(&mut self) {
        self.lanes.clear();
        self.others.clear();
        self.in_vain += 1;
    }
}

impl Core {
    /// Whether the suspect was read, and others are produced instead: everything is read again after
    /// that.
    pub fn is_probing(&self) -> bool {
        self.suspicion().is_some_and(|one| matches!(one.round, Round::Past { .. }))
    }

    /// Whether walpost looks for an event to probe with, and none is in flight: after some time call
    /// [`Core::end_probing`].
    pub fn looks_for_probe(&self) -> Option<Probing> {
        let one = self.suspicion().filter(|_| self.replay.is_none())?;
        match one.round {
            Round::Past { probes, in_flight: None } => {
                Some(Probing { probes, in_vain: one.in_vain })
            }
            _ => None,
        }
    }

    /// Ends the search for now, because no probe is found: the suspect is tried again.
    pub fn end_probing(&mut self) {
        if let Some(one) = self.suspicion_mut()
            && let Round::Past { probes, .. } = one.round
            && (probes == 0 || one.lanes.len() >= LANES_MAX)
        {
            one.begin_again();
        }
        self.interrupt_probing();
    }

    /// Like [`Core::end_probing`], because walpost halts at what was read: nothing behind that may be
    /// published. That halt comes once the suspect is accepted, or is not the reason any more.
    pub(super) fn end_probing_before(&mut self, halt: &Halt) {
        if let Some(one) = self.suspicion_mut() {
            one.halts_behind = format!(
                "; nor may one be tried behind the next one, at which walpost halts: {halt}"
            );
        }
        self.end_probing();
    }

    /// Like [`Core::end_probing`], for a reason that says nothing about probes.
    pub(super) fn interrupt_probing(&mut self) {
        if let Some(one) = self.suspicion_mut()
            && let Round::Past { .. } = one.round
        {
            one.round = Round::Alone;
            let outage = one.outage();
            self.ask_for_replay(&outage);
        }
    }

    /// Whether the event at this position is the suspect to pass over, or one behind it to probe with.
    pub(super) fn is_probed(&self, position: EventPosition) -> bool {
        let Some(isolation) = &self.isolation else { return false };
        match isolation.suspicion.as_ref().map(|one| &one.round) {
            Some(Round::Probing) => position == isolation.position,
            Some(Round::Past { .. }) => true,
            Some(Round::Alone) | None => false,
        }
    }

    /// Passes over the suspect, or produces an event behind it if it may be a probe.
    pub(super) fn probe(
        &mut self,
        message: &Message,
        event: Result<Event<'_>, EventError>,
        position: EventPosition,
        outlet: &mut (impl Outlet + ?Sized),
    ) -> Result<Taken, StreamError> {
        if let Some(one) = self.suspicion_mut().filter(|one| matches!(one.round, Round::Probing)) {
            one.round = Round::Past { probes: 0, in_flight: None };
            return self.pass_over(position.ordinal);
        }
        let offered = self.offer_probe(message, event, position, outlet);
        match offered {
            // Its policy is to halt: nothing behind it may be published.
            Some(Offered::Refused(poison)) if self.policies.of(&poison.cause) == Policy::Halt => {
                self.halt(Halt::Poison { origin: self.origin(message), poison });
            }
            Some(Offered::Full) => return Ok(Taken::NotYet),
            Some(Offered::Broken(reason)) => self.ask_for_replay(&reason),
            Some(Offered::Taken { weight, .. }) => {
                self.produced(position, weight, None)?;
                return Ok(Taken::Yes);
            }
            Some(Offered::Suspect { refusal, .. }) => {
                let seq = self.ledger.next_seq();
                self.produced(position, 0, None)?;
                self.suspected(seq, &refusal);
                return Ok(Taken::Yes);
            }
            Some(Offered::Refused(_)) | None => {}
        }
        self.pass_over(position.ordinal)
    }

    /// The event is not produced before the next replay: its transaction is undelivered until then,
    /// whatever becomes of the session.
    fn pass_over(&mut self, ordinal: u32) -> Result<Taken, StreamError> {
        let seq = self.ledger.produce(ordinal, 0)?;
        self.ledger.failed(seq);
        self.count_ordinal();
        Ok(Taken::Yes)
    }

    /// Offers the event to the outlet; `None` if it is no probe.
    fn offer_probe(
        &mut self,
        message: &Message,
        event: Result<Event<'_>, EventError>,
        position: EventPosition,
        outlet: &mut (impl Outlet + ?Sized),
    ) -> Option<Offered> {
        let event = match event {
            Ok(event) => event,
            Err(error) if matches!(message, Message::Logical(_)) => {
                return Some(Offered::Refused(error.into()));
            }
            Err(error) => {
                self.halt(Halt::Poison { origin: self.origin(message), poison: error.into() });
                return None;
            }
        };
        if self.quarantine.of(position).is_some() {
            return None;
        }
        let seq = self.ledger.next_seq();
        let record = match self.router.route(&event) {
            Ok(record) => record,
            Err(Unrouted::Poison(poison)) => return Some(Offered::Refused(poison)),
            Err(Unrouted::NeedsSchema(schema)) => {
                self.wanted_schema = Some(schema);
                return Some(Offered::Full);
            }
        };
        let one = self.isolation.as_mut()?.suspicion.as_mut()?;
        if one.is_elsewhere(record.topic) {
            // Those of its key may not overtake it.
            one.lanes.extend(outlet.lane(&record));
            return None;
        }
        let lane = outlet.lane(&record).filter(|lane| !one.lanes.contains(lane))?;
        let offered = offer(&record, seq, &event, Purpose::Probe, outlet);
        if one.asks && matches!(offered, Offered::Suspect { .. }) {
            // Known to be missing too, without a question: there may be many.
            return None;
        }
        if let (
            Offered::Taken { .. } | Offered::Suspect { .. },
            Round::Past { probes, in_flight },
        ) = (&offered, &mut one.round)
        {
            *probes += 1;
            *in_flight = Some(Probe { seq, position, lane });
        }
        Some(offered)
    }

    /// The destination accepted production `seq`, which is not the suspect. Nothing was in flight when
    /// that was refused.
    pub(super) fn other_accepted(&mut self, seq: Seq) {
        let Some(one) = self.suspicion_mut() else { return };
        let of_probe = |probe: &Probe| probe.seq == seq;
        let is_probe = matches!(&one.round, Round::Past { in_flight, .. } if in_flight.as_ref().is_some_and(of_probe));
        if one.letters.contains(&seq) != one.is_letter
            || one.elsewhere.contains(&seq)
            || one.asks && !is_probe
        {
            return;
        }
        one.is_other_accepted = true;
        let round = std::mem::replace(&mut one.round, Round::Alone);
        if let Round::Past { .. } = round {
            one.halts_behind.clear();
            let outage = one.outage();
            self.verdicts += 1;
            self.ask_for_replay(&outage);
        }
    }

    /// Records that production `seq` failed, if it is a probe: returns false if it is not.
    pub(super) fn probe_failed(&mut self, seq: Seq, is_suspect: bool) -> bool {
        let Some(one) = self.suspicion_mut() else { return false };
        let Round::Past { probes, in_flight } = &mut one.round else { return false };
        let Some(Probe { position, lane, .. }) = in_flight.take_if(|probe| probe.seq == seq) else {
            return false;
        };
        let is_last = *probes >= PROBES;
        one.lanes.insert(lane);
        if is_suspect {
            one.others.push_back(position);
        }
        if is_last {
            self.end_probing();
        }
        true
    }

    /// Records that production `seq` is a dead letter.
    pub(super) fn note_letter(&mut self, seq: Seq) {
        if let Some(one) = self.suspicion_mut() {
            one.letters.insert(seq);
        }
    }

    /// Records that production `seq` goes elsewhere than the suspect.
    pub(super) fn note_elsewhere(&mut self, seq: Seq) {
        if let Some(one) = self.suspicion_mut() {
            one.elsewhere.insert(seq);
        }
    }

    /// Nothing is in flight any more.
    pub(super) fn forget_productions(&mut self) {
        let Some(isolation) = &mut self.isolation else { return };
        isolation.has_others = false;
        if let Some(one) = &mut isolation.suspicion {
            one.letters.clear();
            one.elsewhere.clear();
        }
    }

    pub(super) fn suspicion(&self) -> Option<&Suspicion> {
        self.isolation.as_ref()?.suspicion.as_ref()
    }

    fn suspicion_mut(&mut self) -> Option<&mut Suspicion> {
        self.isolation.as_mut()?.suspicion.as_mut()
    }
}

#[cfg(test)]
mod tests;
