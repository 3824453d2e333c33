//! The core against a simulated server and broker.
//!
//! The server follows PostgreSQL's rule: a transaction is sent again exactly
//! when its commit LSN is at or after the start. The broker appends a
//! partition's records in the order in which they were produced, reports when
//! it likes, loses reports, and refuses what it is told to refuse. What it
//! appended is then judged.

use std::collections::{BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::outbox::{ColumnNames, OutboxConfig, TableName};
use crate::pgoutput::encode::texts;
use crate::pgoutput::{Column, Commit, Insert, LogicalMessage, Oid};
use crate::record::{HeaderSet, RecordConfig, TimestampSource};

const TABLE: Oid = 7;
const BUDGET_BYTES: u64 = 4 * (RECORD_OVERHEAD_BYTES + 60);

/// Weight of one record and a little: what the budget may be exceeded by.
const ROW_BYTES: u64 = RECORD_OVERHEAD_BYTES + 200;

/// Event number n of the history has id n and belongs to key n % 5.
#[derive(Debug, Clone)]
struct Past {
    commit: u64,
    end: u64,
    events: Vec<usize>,
}

fn history(sizes: &[u8]) -> Vec<Past> {
    let (mut wal, mut next) = (100, 0);
    let transactions = sizes.iter().map(|size| {
        let events: Vec<usize> = (next..next + usize::from(*size)).collect();
        next += events.len();
        let commit = wal + 10;
        wal = commit + 5;
        Past { commit, end: wal, events }
    });
    transactions.collect()
}

fn relation() -> Relation {
    let column = |name: &str| Column { name: name.into(), type_oid: 25 };
    let names = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];
    Relation {
        oid: TABLE,
        schema: "public".into(),
        name: "outbox".into(),
        columns: names.into_iter().map(column).collect(),
    }
}

fn new_core(budget_bytes: u64) -> Core {
    let outbox = Outbox::new(OutboxConfig {
        tables: vec!["public.outbox".parse::<TableName>().expect("a name")],
        columns: ColumnNames::default(),
        message_prefix: Some("outbox".into()),
        placed: Vec::new(),
    });
    let router = Router::new(RecordConfig {
        topic: "t.{aggregate_type}".parse().expect("a template"),
        headers: HeaderSet::default(),
        timestamp: TimestampSource::Commit,
    });
    Core::new(outbox, router, budget_bytes)
}

fn insert(event: usize) -> Message {
    let (id, key) = (event.to_string(), (event % 5).to_string());
    let row = [Some(id.as_str()), Some("a"), Some(key.as_str()), Some("e"), Some("{}")];
    Message::Insert(Insert { relation: TABLE, tuple: texts(&row) })
}

/// What a session that starts at `start` sends, in order.
fn stream(history: &[Past], start: Lsn) -> VecDeque<Input> {
    let mut sent = VecDeque::from([Input::Message(Message::Relation(relation()))]);
    for past in history.iter().filter(|past| Lsn::new(past.commit) >= start) {
        let commit_lsn = Lsn::new(past.commit);
        let commit_time = PgTimestamp::default();
        sent.push_back(Input::Message(Message::Begin(Begin { commit_lsn, commit_time, xid: 1 })));
        sent.extend(past.events.iter().map(|event| Input::Message(insert(*event))));
        let end_lsn = Lsn::new(past.end);
        let commit = Commit { commit_lsn, end_lsn, commit_time };
        sent.push_back(Input::Message(Message::Commit(commit)));
        sent.push_back(Input::Keepalive(Lsn::new(past.end + 3)));
    }
    let end = history.last().map_or(100, |past| past.end + 3);
    sent.push_back(Input::Keepalive(Lsn::new(end)));
    sent
}

#[derive(Debug, Clone)]
enum Input {
    Message(Message),
    Keepalive(Lsn),
}

/// One partition for each key; what is queued and what is in the log.
#[derive(Debug, Default)]
struct Broker {
    queued: HashMap<String, VecDeque<(Seq, usize)>>,
    log: HashMap<String, Vec<usize>>,
    /// Appended, not reported on yet.
    unreported: Vec<Seq>,
    refuses: BTreeSet<usize>,
    /// Partitions that take nothing more from this producer.
    stopped: BTreeSet<String>,
    full: bool,
}

impl Outlet for Broker {
    fn produce(&mut self, seq: Seq, record: &Record<'_>) -> Result<(), ProduceError> {
        if self.full {
            return Err(ProduceError::Full);
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let key = text(record.key.expect("keyed"));
        let id = record.headers.iter().find(|header| header.name == "id").expect("an id");
        let event = text(id.value.as_ref().expect("a value")).parse().expect("a number");
        self.queued.entry(key).or_default().push_back((seq, event));
        Ok(())
    }
}

impl Broker {
    /// Appends the oldest record of the `pick`-th busy partition, or refuses it.
    fn work(&mut self, pick: usize) -> Option<Seq> {
        let mut busy: Vec<String> = self
            .queued
            .iter()
            .filter(|(key, queue)| !queue.is_empty() && !self.stopped.contains(*key))
            .map(|(key, _)| key.clone())
            .collect();
        busy.sort();
        let key = busy.get(pick % busy.len().max(1))?.clone();
        let (seq, event) = self.queued.get_mut(&key)?.pop_front()?;
        if self.refuses.contains(&event) {
            self.stopped.insert(key);
            return Some(seq);
        }
        self.log.entry(key).or_default().push(event);
        self.unreported.push(seq);
        None
    }

    fn new_producer(&mut self) {
        self.queued.clear();
        self.unreported.clear();
        self.stopped.clear();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Receive(u8),
    Work(u8),
    Report(u8),
    LoseReport,
    /// The producer goes down: all that it had, appended or not, is purged.
    GoDown,
    /// A new producer, where one is asked for: until then anything may happen.
    Replace,
    SessionLost,
    Confirm,
    Crash,
    Full(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any::<u8>().prop_map(Step::Receive),
        10 => any::<u8>().prop_map(Step::Work),
        10 => any::<u8>().prop_map(Step::Report),
        1 => Just(Step::LoseReport),
        1 => Just(Step::GoDown),
        6 => Just(Step::Replace),
        1 => Just(Step::SessionLost),
        4 => Just(Step::Confirm),
        1 => Just(Step::Crash),
        1 => any::<bool>().prop_map(Step::Full),
    ]
}

struct World {
    history: Vec<Past>,
    core: Core,
    broker: Broker,
    coming: VecDeque<Input>,
    /// The slot's `confirmed_flush_lsn`.
    slot: Lsn,
}

impl World {
    fn new(history: Vec<Past>, refuses: BTreeSet<usize>) -> Self {
        let broker = Broker { refuses, ..Broker::default() };
        let (core, slot) = (new_core(BUDGET_BYTES), Lsn::new(100));
        let mut world = Self { history, core, broker, coming: VecDeque::new(), slot };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.core.connected(self.slot, &[relation()]);
        self.coming = stream(&self.history, self.core.resume_at());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Receive(count) => (0..=count % 8).for_each(|_| self.receive()),
            Step::Work(pick) => self.work(usize::from(*pick)),
            Step::Report(pick) => self.report(usize::from(*pick)),
            Step::LoseReport => {
                if let Some(seq) = self.broker.unreported.pop() {
                    self.core.lost(seq, "the connection broke");
                }
            }
            Step::GoDown => {
                let queued = self.broker.queued.values_mut().flat_map(std::mem::take);
                let queued: Vec<Seq> = queued.map(|(seq, _)| seq).collect();
                let purged = queued.into_iter().chain(std::mem::take(&mut self.broker.unreported));
                purged.for_each(|seq| self.core.purged(seq));
            }
            Step::Replace => self.replace(),
            Step::SessionLost => {
                self.core.session_lost();
                self.connect();
            }
            Step::Confirm => self.confirm(),
            Step::Crash => {
                self.core = new_core(BUDGET_BYTES);
                self.broker.new_producer();
                self.connect();
            }
            Step::Full(full) => self.broker.full = *full,
        }
        let (_, bytes) = self.core.in_flight();
        assert!(bytes <= BUDGET_BYTES + ROW_BYTES, "I13: {bytes} bytes in flight");
    }

    fn replace(&mut self) {
        if self.core.wants_replay().is_some() {
            self.broker.new_producer();
            self.core.producer_replaced();
            self.connect();
        }
    }

    fn receive(&mut self) {
        if !self.core.wants_input() {
            return;
        }
        match self.coming.front() {
            None => {}
            Some(Input::Keepalive(wal_end)) => {
                self.core.keepalive(*wal_end);
                self.coming.pop_front();
            }
            Some(Input::Message(message)) => {
                let taken = self.core.receive(message, &mut self.broker).expect("a lawful stream");
                if taken == Taken::Yes {
                    self.coming.pop_front();
                }
            }
        }
    }

    fn work(&mut self, pick: usize) {
        if let Some(refused) = self.broker.work(pick) {
            self.core.refused(refused, "too large");
        }
    }

    fn report(&mut self, pick: usize) {
        let waiting = self.broker.unreported.len();
        if waiting > 0 {
            self.core.delivered(self.broker.unreported.swap_remove(pick % waiting));
        }
    }

    /// I1, I10's half: nothing before the slot's position is missing.
    fn confirm(&mut self) {
        let confirmable = self.core.confirmable();
        assert!(confirmable >= self.slot, "I2: the slot fell");
        self.slot = confirmable;
        let appended: BTreeSet<usize> = self.broker.log.values().flatten().copied().collect();
        for past in self.history.iter().filter(|past| Lsn::new(past.commit) < self.slot) {
            for event in &past.events {
                assert!(appended.contains(event), "I1: event {event} was confirmed and is nowhere");
            }
        }
    }

    /// Everything that is left to do, without further mishaps.
    fn finish(&mut self) {
        self.broker.full = false;
        for _ in 0..200_000 {
            if self.core.halted().is_some() && self.core.is_drained() {
                return;
            }
            self.step(&Step::Receive(7));
            self.step(&Step::Work(0));
            self.step(&Step::Report(0));
            self.step(&Step::Replace);
            let (records, _) = self.core.in_flight();
            if self.coming.is_empty() && records == 0 && self.core.halted().is_none() {
                return;
            }
        }
        panic!("the relay does not come to an end: {:?}", self.core);
    }

    /// I6: first occurrences stand in commit order, a repeat begins a replay.
    fn judge_order(&self) {
        for (key, log) in &self.broker.log {
            let mut first = Vec::new();
            for event in log {
                if !first.contains(event) {
                    first.push(*event);
                }
            }
            assert!(first.is_sorted(), "I6: partition {key} holds {log:?}");
            let jumps =
                log.windows(2).filter(|pair| pair[1] > pair[0]).all(|pair| pair[1] == pair[0] + 5);
            assert!(jumps, "I6: partition {key} skips: {log:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_happens_every_event_arrives_in_order(
        sizes in prop::collection::vec(0_u8..9, 1..20),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new(history(&sizes), BTreeSet::new());
        for step in &steps {
            world.step(step);
        }
        world.finish();
        world.confirm();
        world.judge_order();
        let appended: BTreeSet<usize> = world.broker.log.values().flatten().copied().collect();
        let all: usize = sizes.iter().map(|size| usize::from(*size)).sum();
        prop_assert_eq!(appended.len(), all, "I5: something is missing");
        let end = world.history.last().map_or(100, |past| past.end + 3);
        prop_assert_eq!(world.core.confirmable(), Lsn::new(end), "I4: A stays behind");
    }

    #[test]
    fn a_refused_record_halts_with_all_before_it_delivered_and_nothing_after_it_confirmed(
        sizes in prop::collection::vec(0_u8..9, 1..20),
        guilty in any::<prop::sample::Index>(),
        steps in prop::collection::vec(step(), 0..100),
    ) {
        let past = history(&sizes);
        let all: usize = past.iter().map(|past| past.events.len()).sum();
        prop_assume!(all > 0);
        let guilty = guilty.index(all);
        let mut world = World::new(past, BTreeSet::from([guilty]));
        for step in &steps {
            world.step(step);
        }
        world.finish();
        world.confirm();
        world.judge_order();
        let Some(Halt::Refused { id, .. }) = world.core.halted() else {
            panic!("not halted: {:?}", world.core.halted());
        };
        prop_assert_eq!(id, &guilty.to_string());
        let appended: BTreeSet<usize> = world.broker.log.values().flatten().copied().collect();
        prop_assert!((0..guilty).all(|event| appended.contains(&event)));
        prop_assert!(!appended.contains(&guilty));
    }
}

/// A sink that takes everything and reports nothing.
#[derive(Default)]
struct Silent(Vec<Seq>);

impl Outlet for Silent {
    fn produce(&mut self, seq: Seq, _: &Record<'_>) -> Result<(), ProduceError> {
        self.0.push(seq);
        Ok(())
    }
}

fn begun(core: &mut Core, outlet: &mut Silent) {
    core.connected(Lsn::new(1), &[relation()]);
    let begin = Begin { commit_lsn: Lsn::new(10), commit_time: PgTimestamp::default(), xid: 1 };
    assert_eq!(core.receive(&Message::Begin(begin), outlet), Ok(Taken::Yes));
}

#[test]
fn draining_reads_a_transaction_to_its_end_and_begins_no_other() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    core.drain();
    assert!(core.wants_input(), "its second half would come again");
    let commit = Commit {
        commit_lsn: Lsn::new(10),
        end_lsn: Lsn::new(12),
        commit_time: PgTimestamp::default(),
    };
    assert_eq!(core.receive(&Message::Commit(commit), &mut outlet), Ok(Taken::Yes));
    assert!(!core.wants_input());
    assert!(!core.is_drained(), "a record is in flight");
    core.delivered(outlet.0[0]);
    assert!(core.is_drained());
    assert_eq!(core.confirmable(), Lsn::new(12));
}

#[test]
fn updates_deletes_and_truncates_are_counted_and_produce_nothing() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    for message in
        [Message::Update(TABLE), Message::Delete(TABLE), Message::Truncate(vec![TABLE, 99])]
    {
        assert_eq!(core.receive(&message, &mut outlet), Ok(Taken::Yes));
    }
    assert_eq!(core.receive(&Message::Update(99), &mut outlet), Ok(Taken::Yes));
    let counters = core.counters();
    assert_eq!(
        (counters.ignored_updates, counters.ignored_deletes, counters.ignored_truncates),
        (1, 1, 1)
    );
    assert!(outlet.0.is_empty());
}

#[test]
fn a_non_transactional_message_is_refused_and_counted() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    core.connected(Lsn::new(1), &[relation()]);
    for prefix in ["outbox", "other"] {
        let message = Message::Logical(LogicalMessage {
            transactional: false,
            lsn: Lsn::new(5),
            prefix: prefix.into(),
            content: "{}".into(),
        });
        assert_eq!(core.receive(&message, &mut outlet), Ok(Taken::Yes));
    }
    assert_eq!(core.counters().refused_messages, 1);
    assert!(outlet.0.is_empty());
}

#[test]
fn a_row_without_a_key_halts_the_relay() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    let row = [Some("1"), Some("a"), None, Some("e"), Some("{}")];
    let keyless = Message::Insert(Insert { relation: TABLE, tuple: texts(&row) });
    assert_eq!(core.receive(&keyless, &mut outlet), Ok(Taken::Yes));
    let Some(halt @ Halt::Poison { .. }) = core.halted() else {
        panic!("not halted: {:?}", core.halted());
    };
    let text = format!("{halt}; {}", halt.way_out("walpost"));
    for part in ["table public.outbox", "000000000000000A/00000000", "(id 1)", "`aggregate_id`"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The commit record is at 0/A: one more passes it over, and nothing else.
    assert!(text.contains("pg_replication_slot_advance('walpost', '0/B')"), "{text}");
    assert!(!core.wants_input() && core.is_drained());
}

#[test]
fn a_message_without_a_key_halts_the_relay_and_is_named_by_its_prefix() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    let message = Message::Logical(LogicalMessage {
        transactional: true,
        lsn: Lsn::new(5),
        prefix: "outbox".into(),
        content: r#"{"aggregate_type": "a"}"#.into(),
    });
    assert_eq!(core.receive(&message, &mut outlet), Ok(Taken::Yes));
    let text = core.halted().map(ToString::to_string).unwrap_or_default();
    assert!(text.contains("logical message with prefix `outbox`"), "{text}");
}

#[test]
fn a_record_that_is_long_in_coming_bounds_the_account_of_what_follows_it() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    let mut followers = 0;
    while core.wants_input() {
        let seq = core.next_seq();
        assert_eq!(core.receive(&insert(1), &mut outlet), Ok(Taken::Yes));
        core.delivered(seq);
        followers += 1;
        assert!(followers < 100_000, "the account grows without end");
    }
    assert_eq!(core.in_flight().0, 1);
    core.delivered(outlet.0[0]);
    assert!(core.wants_input(), "all is delivered, and still nothing is read");
}

#[test]
fn a_lost_record_comes_again_with_nothing_after_it() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    for event in 0..3 {
        assert_eq!(core.receive(&insert(event), &mut outlet), Ok(Taken::Yes));
    }
    core.delivered(outlet.0[0]);
    core.lost(outlet.0[1], "the topic is not there");
    assert!(core.wants_replay().is_some());
    core.producer_replaced();
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    assert!(!core.wants_input(), "one before it is in flight");
    core.delivered(outlet.0[3]);
    assert_eq!(core.receive(&insert(1), &mut outlet), Ok(Taken::Yes));
    assert!(!core.wants_input(), "it stands alone");
    core.delivered(outlet.0[4]);
    assert!(core.wants_input());
}

#[test]
fn a_halt_behind_a_record_that_failed_gives_way_to_its_replay() {
    for refused in [true, false] {
        let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
        begun(&mut core, &mut outlet);
        assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
        let row = [Some("1"), Some("a"), None, Some("e"), Some("{}")];
        let keyless = Message::Insert(Insert { relation: TABLE, tuple: texts(&row) });
        assert_eq!(core.receive(&keyless, &mut outlet), Ok(Taken::Yes));
        assert!(core.halted().is_some() && !core.is_drained());
        if refused {
            core.refused(outlet.0[0], "too large");
        } else {
            core.purged(outlet.0[0]);
        }
        assert!(!core.is_drained(), "a person would be led past event 0");
        assert!(core.wants_replay().is_some());
        core.producer_replaced();
        assert!(core.halted().is_none() && core.wants_input());
    }
}

#[test]
fn another_relays_progress_is_taken_over() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    core.session_lost();
    core.producer_replaced();
    core.connected(Lsn::new(500), &[relation()]);
    assert_eq!((core.confirmable(), core.resume_at()), (Lsn::new(500), Lsn::new(500)));
    core.delivered(outlet.0[0]);
    assert_eq!(core.confirmable(), Lsn::new(500));
}

#[test]
fn a_change_outside_a_transaction_is_a_broken_stream() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    core.connected(Lsn::new(1), &[relation()]);
    assert!(core.receive(&insert(0), &mut outlet).is_err());
}
