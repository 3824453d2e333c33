//! The core against a simulated server and broker.
//!
//! The server follows PostgreSQL's rule: a transaction is sent again exactly if its commit LSN is
//! at or after the start. Its feed is a stream or catch-up batches, and switches whenever the
//! driver would. The broker appends a partition's records in the order in which they were produced,
//! reports at any time or never, fails some records, and rejects configured ones. The checks
//! examine what it appended.

mod feeds;
mod outside;
mod poison;

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use self::feeds::Input;
use self::outside::{
    Broker, DEAD, Guilt, LETTERS, OTHER_TABLE, Past, history, logical, relations, sizes,
};
use super::tests::{TABLE, ambiguous, insert_into, new_core, relation_of, too_large};
use super::*;
use crate::pgoutput::encode::texts;
use crate::property;
use crate::record::Policy;

/// Cases per property, unless set otherwise: `make simulate` tries more.
const CASES: u32 = 1000;

/// Weight of one record or dead letter: the budget may be exceeded by this much.
const ROW_BYTES: u64 = RECORD_OVERHEAD_BYTES + 1000;

#[derive(Debug, Clone)]
enum Step {
    Receive(u8),
    Work(u8),
    Report(u8),
    /// Many reports at once, newest first.
    ReportMany(u8),
    /// The broker appended the record but reports a failure.
    LoseReport,
    /// The broker did not append the record, and reports that.
    LoseRecord(u8),
    /// A report is never delivered.
    NeverReport,
    /// A duplicate report, or a report of a replaced producer.
    LateReport(u16),
    /// The producer fails: all its records are purged, appended or not.
    PurgeProducer,
    /// The producer is found to be unusable.
    Break,
    /// Replaces the producer, if requested: until then anything may happen.
    Replace,
    SessionLost,
    Connect,
    /// Switches feeds: to batches of this many messages, or to a stream.
    SwitchFeed(Option<usize>),
    Confirm,
    /// The server restarts and has lost its last slot positions.
    Regress(u8),
    /// Another relay resumes from the slot and delivers this many transactions.
    TakeOver(u8),
    Crash,
    Drain,
    Full(bool),
    /// The driver's time for finding a probe is up.
    EndProbing,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        14 => any::<u8>().prop_map(Step::Receive),
        12 => any::<u8>().prop_map(Step::Work),
        10 => any::<u8>().prop_map(Step::Report),
        2 => any::<u8>().prop_map(Step::ReportMany),
        1 => Just(Step::LoseReport),
        1 => any::<u8>().prop_map(Step::LoseRecord),
        1 => Just(Step::NeverReport),
        2 => any::<u16>().prop_map(Step::LateReport),
        1 => Just(Step::PurgeProducer),
        1 => Just(Step::Break),
        6 => Just(Step::Replace),
        1 => Just(Step::SessionLost),
        6 => Just(Step::Connect),
        3 => prop::option::of(1_usize..60).prop_map(Step::SwitchFeed),
        4 => Just(Step::Confirm),
        1 => any::<u8>().prop_map(Step::Regress),
        1 => any::<u8>().prop_map(Step::TakeOver),
        1 => Just(Step::Crash),
        1 => Just(Step::Drain),
        1 => any::<bool>().prop_map(Step::Full),
        1 => Just(Step::EndProbing),
    ]
}

struct World {
    history: Vec<Past>,
    budget_bytes: u64,
    policy: Policy,
    core: Core,
    broker: Broker,
    /// What the session will still send; `None` without a session.
    coming: Option<VecDeque<Input>>,
    /// Messages per batch during a catch-up.
    batches: Option<usize>,
    /// The slot's `confirmed_flush_lsn`, and the values that a restart may bring back, ascending.
    slot: Lsn,
    slots: Vec<Lsn>,
    /// How many other relays have had the slot.
    others: usize,
    /// The last observed flush LSN, and its upper bound.
    flush_lsn: Lsn,
    known: Lsn,
    draining: bool,
    /// Whether something was lost since the core was created.
    troubled: bool,
}

impl World {
    fn new(sizes: &[u16], budget_rows: u64, guilty: Option<(usize, Guilt)>) -> Self {
        Self::with_policy(Policy::Halt, sizes, budget_rows, guilty)
    }

    fn with_policy(
        policy: Policy,
        sizes: &[u16],
        budget_rows: u64,
        guilty: Option<(usize, Guilt)>,
    ) -> Self {
        let budget_bytes = budget_rows * (RECORD_OVERHEAD_BYTES + 60);
        let kind = guilty.map_or(sizes.len(), |(guilty, _)| guilty) % 3;
        let (is_serial, asks) = (kind == 0, kind == 1);
        let mut world = Self {
            history: history(sizes),
            budget_bytes,
            policy,
            core: new_core(budget_bytes).with_policies(policies(policy)),
            broker: Broker { guilty, is_serial, asks, ..Broker::default() },
            coming: None,
            batches: None,
            slot: Lsn::new(100),
            slots: vec![Lsn::new(100)],
            others: 0,
            flush_lsn: Lsn::ZERO,
            known: Lsn::ZERO,
            draining: false,
            troubled: false,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        if self.coming.is_some() {
            return;
        }
        if self.flush_lsn > Lsn::ZERO && self.slot > self.core.flush_lsn() {
            // As the driver does after another relay advanced the slot.
            self.broker.new_producer();
            self.core.producer_replaced();
        }
        let start = self.slot.max(self.core.flush_lsn());
        self.core.connected(start, &relations().map(FoundTable::from));
        self.known = self.known.max(start);
        self.coming = Some(self.feed());
    }

    fn end(&self) -> Lsn {
        Lsn::new(self.history.last().map_or(100, |past| past.end + 3))
    }

    fn events(&self) -> usize {
        self.history.last().map_or(0, |past| past.events.end)
    }

    fn message(&self, event: usize) -> Message {
        let keyless = self.broker.guilty == Some((event, Guilt::Keyless));
        if event % 6 == 5 {
            let key = if keyless { String::new() } else { (event % 5).to_string() };
            let content =
                format!(r#"{{"id": {event}, "aggregate_type": "a", "aggregate_id": "{key}"}}"#);
            return logical(true, "outbox", content);
        }
        let table = if event.is_multiple_of(2) { TABLE } else { OTHER_TABLE };
        let Message::Insert(mut insert) = insert_into(table, event) else { unreachable!() };
        if keyless {
            let id = event.to_string();
            insert.tuple = texts(&[Some(&id), Some("a"), None, Some("e"), Some("{}")]);
        }
        Message::Insert(insert)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Receive(count) => (0..=count % 8).for_each(|_| self.receive()),
            Step::Work(pick) => self.work(usize::from(*pick)),
            Step::Report(pick) => self.report(usize::from(*pick)),
            Step::ReportMany(count) => (0..*count).rev().for_each(|_| self.report(usize::MAX)),
            Step::LoseReport => {
                if let Some((seq, partition)) = self.broker.unreported.pop() {
                    self.stop(partition);
                    self.fail(seq, |core| core.lost(seq, "the connection broke"));
                }
            }
            Step::LoseRecord(pick) => {
                if let Some((seq, event)) = self.broker.next(usize::from(*pick)) {
                    self.broker.stopped.insert(event % 5);
                    self.fail(seq, |core| core.lost(seq, "the connection broke"));
                }
            }
            Step::NeverReport => {
                if let Some((_, partition)) = self.broker.unreported.pop() {
                    self.stop(partition);
                }
            }
            Step::LateReport(pick) => self.report_late(usize::from(*pick)),
            Step::PurgeProducer => {
                self.broker.queued.clear();
                self.broker.letters.clear();
                self.broker.unreported.clear();
                let purged: Vec<Seq> = self.broker.in_flight.keys().copied().collect();
                for seq in purged {
                    self.fail(seq, |core| core.purged(seq));
                }
            }
            Step::Break => {
                self.troubled = true;
                self.core.request_producer_replacement("fatal");
            }
            Step::Replace => self.replace(),
            Step::SessionLost => self.lose_session(),
            Step::Connect => self.connect(),
            Step::SwitchFeed(batches) => self.switch_feed(*batches),
            Step::Confirm => self.confirm(),
            Step::Regress(pick) => {
                self.lose_session();
                // What was lost does not come back with the next restart.
                self.slots.truncate(usize::from(*pick) % self.slots.len() + 1);
                self.slot = *self.slots.last().expect("the first is kept");
            }
            Step::TakeOver(count) => self.take_over(usize::from(*count % 8)),
            Step::Crash => self.start_anew(),
            Step::Drain => {
                self.core.drain();
                self.draining = true;
            }
            Step::Full(full) => self.broker.full = *full,
            Step::EndProbing if self.core.looks_for_probe().is_some() => self.core.end_probing(),
            Step::EndProbing => {}
        }
        if self.draining && self.core.halted().is_none() && self.core.is_drained() {
            self.leave();
        }
        self.check();
    }

    /// Checks what holds at every moment.
    fn check(&mut self) {
        let (records, bytes) = self.core.in_flight();
        let naive = (self.broker.in_flight.len(), self.broker.in_flight.values().sum::<u64>());
        assert_eq!((records, bytes), naive, "I8: what is in flight");
        assert!(bytes <= self.budget_bytes + ROW_BYTES, "I13: {bytes} bytes in flight");
        let flush_lsn = self.core.flush_lsn();
        assert!(flush_lsn >= self.flush_lsn, "I2: the flush LSN fell from {}", self.flush_lsn);
        assert!(
            flush_lsn <= self.known,
            "I2: the flush LSN is {flush_lsn}, known is {}",
            self.known
        );
        self.flush_lsn = flush_lsn;
        // I1: nothing before the flush LSN is missing.
        let before = |past: &&Past| Lsn::new(past.commit) < flush_lsn;
        for past in self.history.iter().rev().filter(before).take(3) {
            for event in past.events.clone() {
                let is_there = self.broker.appended.contains(&event) || self.is_skipped(event);
                assert!(
                    is_there,
                    "I1: event {event} is before the flush LSN ({flush_lsn}) and nowhere"
                );
            }
        }
    }

    fn start_anew(&mut self) {
        self.core = new_core(self.budget_bytes).with_policies(policies(self.policy));
        self.broker.new_producer();
        self.broker.old.clear();
        self.broker.furthest = None;
        (self.flush_lsn, self.known) = (Lsn::ZERO, Lsn::ZERO);
        (self.draining, self.troubled) = (false, false);
        self.coming = None;
        self.connect();
    }

    /// The process ends normally, with its final confirmation.
    fn leave(&mut self) {
        self.confirm();
        if !self.troubled
            && let Some(event) = self.broker.furthest
        {
            let past = self.history.iter().find(|past| past.events.contains(&event));
            let commit = past.map_or(0, |past| past.commit);
            assert!(Lsn::new(commit) < self.slot, "I5: a clean restart repeats event {event}");
        }
        self.start_anew();
    }

    fn lose_session(&mut self) {
        self.troubled = true;
        self.coming = None;
        self.core.session_lost();
    }

    fn replace(&mut self) {
        if self.core.wants_replay().is_some() {
            self.broker.new_producer();
            self.core.producer_replaced();
            self.coming = None;
            self.connect();
        }
    }

    /// Another relay starts at the slot, ends normally, and releases the slot.
    fn take_over(&mut self, transactions: usize) {
        self.lose_session();
        let guilty = self.broker.guilty.map_or(usize::MAX, |(event, _)| event);
        let slot = self.slot;
        let coming = self.history.iter().filter(|past| Lsn::new(past.commit) >= slot);
        let harmless = coming.take_while(|past| !past.events.contains(&guilty));
        self.others += 1;
        let own = std::mem::replace(&mut self.broker.producers, 1_000_000 + self.others);
        for past in harmless.take(transactions) {
            past.events.clone().for_each(|event| self.broker.append(event));
            self.slot = Lsn::new(past.end);
        }
        self.broker.producers = own;
        self.slots.push(self.slot);
    }

    fn receive(&mut self) {
        let Some(coming) = &mut self.coming else { return };
        if !self.core.wants_input() {
            return;
        }
        match coming.front() {
            None => {}
            Some(Input::Keepalive(wal_end)) => {
                if !self.core.ledger.is_open() {
                    self.known = self.known.max(*wal_end);
                }
                self.core.keepalive(*wal_end);
                coming.pop_front();
            }
            Some(Input::Message(message)) => {
                let taken = self.core.receive(message, &mut self.broker).expect("a lawful stream");
                if let Message::Commit(commit) = message {
                    self.known = self.known.max(commit.end_lsn);
                }
                if taken == Taken::Yes {
                    coming.pop_front();
                }
            }
        }
    }

    /// Whether this is the guilty event, and it is skipped.
    fn is_skipped(&self, event: usize) -> bool {
        let guilty = self.broker.guilty.map(|(guilty, _)| guilty);
        self.policy == Policy::Skip && guilty == Some(event)
    }

    fn work(&mut self, pick: usize) {
        if pick.is_multiple_of(2)
            && let Some((seq, event)) = self.broker.letters.pop_front()
        {
            if self.broker.refuses_all {
                return self.fail(seq, |core| core.suspected(seq, &ambiguous()));
            }
            self.broker.appended.insert(event);
            return self.broker.unreported.push((seq, LETTERS));
        }
        let Some((seq, event)) = self.broker.next(pick) else { return };
        if self.broker.guilty == Some((event, Guilt::Refused)) {
            self.broker.stopped.insert(event % 5);
            return self.fail(seq, |core| core.refused(seq, &too_large()));
        }
        let is_suspect = self.broker.guilty == Some((event, Guilt::Suspect));
        if is_suspect || self.broker.refuses_all {
            self.broker.stopped.insert(event % 5);
            let refusal = self.broker.ambiguous();
            return self.fail(seq, |core| core.suspected(seq, &refusal));
        }
        if !self.broker.asked.remove(&seq) {
            self.broker.append(event);
        }
        self.broker.unreported.push((seq, event % 5));
    }

    fn report(&mut self, pick: usize) {
        let waiting = self.broker.unreported.len();
        if waiting > 0 {
            let (seq, _) = self.broker.unreported.swap_remove(pick % waiting);
            self.broker.in_flight.remove(&seq);
            self.core.delivered(seq);
        }
    }

    /// Without a report nothing more is sent where one record is under way at a time.
    fn stop(&mut self, partition: usize) {
        if self.broker.is_serial {
            self.broker.stopped.insert(partition);
        }
    }

    fn fail(&mut self, seq: Seq, tell: impl FnOnce(&mut Core)) {
        self.troubled = true;
        self.broker.in_flight.remove(&seq);
        tell(&mut self.core);
    }

    /// I3, I8: a report of a replaced producer, or a second one, has no effect.
    fn report_late(&mut self, pick: usize) {
        let old = self.broker.old.len();
        if old == 0 {
            return;
        }
        let seq = self.broker.old[pick / 5 % old];
        let state = |core: &Core| {
            (core.flush_lsn(), core.in_flight(), core.undelivered(), core.replay.clone())
        };
        let before = state(&self.core);
        match pick % 5 {
            0 => self.core.delivered(seq),
            1 => self.core.lost(seq, "late"),
            2 => self.core.refused(seq, &too_large()),
            3 => self.core.suspected(seq, &ambiguous()),
            _ => self.core.purged(seq),
        }
        assert_eq!(state(&self.core), before, "I3: a report of before was credited");
    }

    fn confirm(&mut self) {
        self.slot = self.slot.max(self.core.flush_lsn());
        self.slots.push(self.slot);
        for past in self.history.iter().filter(|past| Lsn::new(past.commit) < self.slot) {
            let is_there =
                |event: &usize| self.broker.appended.contains(event) || self.is_skipped(*event);
            let missing = past.events.clone().find(|event| !is_there(event));
            assert_eq!(missing, None, "I1: an event was confirmed and is nowhere");
        }
    }

    /// Runs until nothing is left to do, without further faults.
    fn finish(&mut self) {
        (self.broker.full, self.broker.refuses_all) = (false, false);
        let mut idle = 0;
        for _ in 0..200_000 {
            if self.core.halted().is_some() && self.core.is_drained() {
                return;
            }
            let before = (self.broker.appended.len(), self.core.next_seq(), self.flush_lsn);
            for step in [Step::Connect, Step::Receive(7), Step::Work(0), Step::Report(0)] {
                self.step(&step);
            }
            self.step(&Step::Replace);
            let after = (self.broker.appended.len(), self.core.next_seq(), self.flush_lsn);
            idle = if before == after { idle + 1 } else { 0 };
            let (records, _) = self.core.in_flight();
            let all = self.coming.as_ref().is_some_and(VecDeque::is_empty);
            if all && self.core.looks_for_probe().is_some() {
                self.step(&Step::EndProbing);
                continue;
            }
            let is_delivered = records == 0 && self.core.undelivered() == 0;
            if all && is_delivered && self.core.halted().is_none() {
                return;
            }
            // A report that is never delivered: the producer is eventually replaced.
            if idle > 1000 {
                idle = 0;
                // Or the drain timeout ends the process.
                let stops = self.draining || self.core.halted().is_some();
                self.step(if stops { &Step::Crash } else { &Step::Break });
            }
        }
        panic!("I4: the relay does not come to an end: {:?}", self.core);
    }

    /// I6: first occurrences are in commit order, and what follows a repeated event is repeated too.
    fn judge_order(&self) {
        // A diverted event leaves no gap.
        let aside = self.broker.guilty.map(|(event, _)| event);
        let aside = aside.filter(|_| self.policy != Policy::Halt);
        let here = |event: usize| if aside == Some(event) { event + 5 } else { event };
        for (key, log) in &self.broker.log {
            let (mut front, mut last) = (None, HashMap::new());
            // Another instance goes on elsewhere.
            let is_alone = log.iter().all(|(producer, _)| *producer < 1_000_000);
            for (producer, event) in log {
                let next = here(front.map_or(*key, |front: usize| front + 5));
                assert!(*event <= next, "I6: partition {key} skips {next}: {log:?}");
                front = front.max(Some(*event));
                let of = if is_alone { &0 } else { producer };
                let before = last.insert(*of, *event);
                let next = before.map_or(next, |before: usize| here(before + 5));
                assert!(*event <= next, "I6: {producer} skips in partition {key}: {log:?}");
            }
        }
    }
}

#[test]
fn every_event_arrives_in_order_under_random_faults() {
    let cases = (sizes(), 1_u64..40, prop::collection::vec(step(), 0..200));
    let name = "every_event_arrives_in_order_under_random_faults";
    property::holds(name, CASES, &cases, |(sizes, budget_rows, steps)| {
        let mut world = World::new(&sizes, budget_rows, None);
        for step in &steps {
            world.step(step);
        }
        world.finish();
        world.confirm();
        world.judge_order();
        assert_eq!(world.broker.appended.len(), world.events(), "I5: something is missing");
        assert_eq!(world.core.flush_lsn(), world.end(), "I4: the flush LSN stays behind");
    });
}

fn policies(policy: Policy) -> Policies {
    Policies {
        too_large: policy,
        refused: policy,
        missing_topic: Some(policy),
        missing_field: policy,
        dead_letter_topic: DEAD.to_owned(),
        ..Policies::default()
    }
}
