//! Every interleaving of the core with a small history, in both delivery modes: receiving, delivery
//! reports, writes of the state topic, confirmations, and up to [`FAULTS`] faults at any moment.
//!
//! Breadth-first over the states that differ in what the core or its environment will do next, so
//! nothing bounds the length of a run. Each state is reached again from the beginning by its path.
//! The model: one partition, one instance; what PostgreSQL sends follows its rule (commit LSN at or
//! after the start); a write of the state topic whose reply is lost has happened or not; the next
//! producer settles which. Left out, and at random in `tests/simulation`: rejected records and the
//! halts and dead letters that follow, a full outlet, draining, several instances. That each run
//! comes to an end is not shown, only that none stops halfway.

use std::collections::{HashSet, VecDeque};

use super::tests::{TABLE, insert_into, new_core, relation_of};
use super::*;
use crate::outlet::ProduceError;
use crate::pgoutput::Commit;
use crate::position::{Checkpoint, EventPosition};
use crate::record::Record;

/// Faults in one run: lost sessions, records and replies, and crashes. With three there are 182,582
/// states, 93,000 with two.
const FAULTS: u8 = 2;

/// The number of events of each transaction.
const HISTORIES: [&[u16]; 3] = [&[1, 2, 1], &[2, 0, 1], &[3, 1]];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Receive,
    /// The broker appends the oldest record and reports it.
    Deliver,
    /// Reads no more before a commit.
    Request(CommitAt),
    /// Begins to write the state: in exactly-once mode the commit of the Kafka transaction.
    Write,
    Written,
    Confirm,
    /// Opens a session: from the slot's position, or from where the core resumes.
    Connect {
        from_slot: bool,
    },
    Replace,
    // Faults. A write that is under way has happened, or not.
    LoseRecord {
        appended: bool,
    },
    LoseWrite {
        happened: bool,
    },
    LoseSession {
        happened: bool,
    },
    Crash {
        happened: bool,
    },
}

impl Action {
    fn is_fault(self) -> bool {
        use Action::{Crash, LoseRecord, LoseSession, LoseWrite};
        matches!(self, LoseRecord { .. } | LoseWrite { .. } | LoseSession { .. } | Crash { .. })
    }

    fn all() -> Vec<Self> {
        use Action::*;
        let both = [false, true];
        let mut all = vec![Receive, Deliver, Write, Written, Confirm, Replace];
        all.extend([CommitAt::Boundary, CommitAt::Now].map(Request));
        all.extend(both.map(|from_slot| Connect { from_slot }));
        all.extend(both.map(|appended| LoseRecord { appended }));
        all.extend(both.map(|happened| LoseWrite { happened }));
        all.extend(both.map(|happened| LoseSession { happened }));
        all.extend(both.map(|happened| Crash { happened }));
        all
    }
}

/// A transaction of the history.
struct Past {
    commit: Lsn,
    end: Lsn,
    events: std::ops::Range<usize>,
}

fn history(sizes: &[u16]) -> Vec<Past> {
    let mut next = 0;
    let transactions = (1..).zip(sizes).map(|(number, size)| {
        let events = next..next + usize::from(*size);
        next = events.end;
        Past { commit: Lsn::new(number * 100), end: Lsn::new(number * 100 + 10), events }
    });
    transactions.collect()
}

/// A producer.
#[derive(Default)]
struct Producer {
    /// The records that were produced and not reported, oldest first.
    in_flight: VecDeque<(Seq, usize)>,
    /// A record failed: the broker appends none of those behind it.
    has_gap: bool,
}

impl Outlet for Producer {
    fn produce(
        &mut self,
        seq: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        let id = record.headers.iter().find(|header| header.name == "id").expect("an id");
        let id = String::from_utf8_lossy(id.value.as_deref().expect("an id"));
        self.in_flight.push_back((seq, id.parse().expect("a number")));
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Input {
    Message(Message),
    Keepalive(Lsn),
}

struct World<'a> {
    history: &'a [Past],
    exactly_once: bool,
    core: Core,
    producer: Producer,
    /// What the session is still to send.
    coming: Option<VecDeque<Input>>,
    /// What a consumer of committed records has read.
    visible: Vec<usize>,
    /// What the open Kafka transaction has.
    uncommitted: Vec<usize>,
    /// The newest committed state, and the one being written.
    state: Checkpoint,
    writing: Option<Checkpoint>,
    /// The newest state that this process knows to be written.
    covered: Lsn,
    /// The slot's `confirmed_flush_lsn`.
    slot: Lsn,
    faults: u8,
}

impl<'a> World<'a> {
    fn new(history: &'a [Past], exactly_once: bool) -> Self {
        let slot = Lsn::new(50);
        let mut world = Self {
            history,
            exactly_once,
            core: core(exactly_once),
            producer: Producer::default(),
            coming: None,
            visible: Vec::new(),
            uncommitted: Vec::new(),
            state: Checkpoint { upto: slot, partial: None },
            writing: None,
            covered: slot,
            slot,
            faults: 0,
        };
        world.connect(true);
        world
    }

    fn can(&self, action: Action) -> bool {
        use Action::*;
        let in_session = self.coming.is_some() && self.core.wants_replay().is_none();
        let is_settled = self.writing.is_none();
        match action {
            Receive => {
                in_session
                    && self.core.wants_input()
                    && self.coming.as_ref().is_some_and(|coming| !coming.is_empty())
                    && (is_settled || !self.exactly_once)
            }
            Deliver => !self.producer.in_flight.is_empty() && !self.producer.has_gap,
            Request(at) => {
                in_session
                    && is_settled
                    && self.exactly_once
                    && self.core.requested_commit() < Some(at)
                    && (self.core.uncommitted().0 > 0 || self.core.flush_lsn() > self.covered)
            }
            Write if self.exactly_once => {
                in_session && is_settled && self.core.checkpoint().is_some()
            }
            Write => is_settled && self.core.flush_lsn() > self.covered,
            Written | LoseWrite { .. } => !is_settled,
            Confirm => self.coming.is_some() && self.to_confirm() > self.slot,
            Connect { from_slot } => {
                self.coming.is_none()
                    && self.core.wants_replay().is_none()
                    && (from_slot || self.core.resume_at() > self.slot)
            }
            Replace => self.core.wants_replay().is_some(),
            LoseRecord { appended } => {
                !(self.producer.in_flight.is_empty() || appended && self.producer.has_gap)
            }
            LoseSession { happened } => self.coming.is_some() && (!is_settled || !happened),
            Crash { happened } => !is_settled || !happened,
        }
    }

    fn act(&mut self, action: Action) {
        use Action::*;
        self.faults += u8::from(action.is_fault());
        match action {
            Receive => self.receive(),
            Deliver => {
                let (seq, event) = self.producer.in_flight.pop_front().expect("one is in flight");
                self.append(event);
                self.core.delivered(seq);
            }
            Request(at) => self.core.request_commit(at),
            Write if self.exactly_once => self.writing = self.core.checkpoint(),
            Write => {
                self.writing = Some(Checkpoint { upto: self.core.flush_lsn(), partial: None });
            }
            Written => {
                let written = self.settle(true).expect("it is being written");
                self.core.committed(written);
                self.covered = written.upto;
            }
            Confirm => self.slot = self.to_confirm(),
            Connect { from_slot } => self.connect(from_slot),
            Replace => self.replace(),
            LoseRecord { appended } => {
                let (seq, event) = self.producer.in_flight.pop_front().expect("one is in flight");
                if appended {
                    self.append(event);
                } else {
                    self.producer.has_gap = true;
                }
                self.core.lost(seq, "the connection broke");
            }
            LoseWrite { happened } => {
                self.settle(happened);
                if self.exactly_once {
                    self.core.request_producer_replacement("the commit failed");
                } else {
                    // It is opened again.
                    self.covered = self.state.upto;
                }
            }
            LoseSession { happened } => {
                self.coming = None;
                self.core.session_lost();
                if self.exactly_once {
                    self.settle(happened);
                    self.replace();
                }
            }
            Crash { happened } => {
                self.settle(happened);
                (self.coming, self.producer) = (None, Producer::default());
                self.uncommitted.clear();
                self.core = core(self.exactly_once);
                self.covered = self.state.upto;
            }
        }
        self.check();
    }

    /// The broker appends a record.
    fn append(&mut self, event: usize) {
        let log = if self.exactly_once { &mut self.uncommitted } else { &mut self.visible };
        log.push(event);
    }

    /// Ends the write: it has happened, or it is aborted.
    fn settle(&mut self, happened: bool) -> Option<Checkpoint> {
        let written = self.writing.take()?;
        if happened {
            self.state = written;
            self.visible.append(&mut self.uncommitted);
        }
        Some(written)
    }

    fn to_confirm(&self) -> Lsn {
        self.core.durable_upto().min(self.covered)
    }

    fn replace(&mut self) {
        self.uncommitted.clear();
        self.producer = Producer::default();
        self.coming = None;
        self.core.producer_replaced();
    }

    fn connect(&mut self, from_slot: bool) {
        assert!(self.slot <= self.state.upto, "I10: the next start would end with exit code 3");
        if self.exactly_once {
            self.covered = self.state.upto;
            assert!(self.core.resume_from(self.state), "nothing is passed over");
        }
        let relation = relation_of(TABLE, "outbox");
        self.core.connected(self.slot.max(self.core.flush_lsn()), &[relation.clone().into()]);
        let start = if from_slot && self.exactly_once { self.slot } else { self.core.resume_at() };
        let mut coming = VecDeque::from([Input::Message(Message::Relation(relation))]);
        let start = start.max(self.slot);
        for past in self.history.iter().filter(|past| past.commit >= start) {
            coming.push_back(Input::Keepalive(past.commit));
            coming.extend(transaction(past).into_iter().map(Input::Message));
        }
        coming.push_back(Input::Keepalive(self.end()));
        self.coming = Some(coming);
    }

    fn receive(&mut self) {
        let coming = self.coming.as_mut().expect("a session");
        let taken = match coming.front().expect("there is one") {
            Input::Keepalive(wal_end) => {
                self.core.keepalive(*wal_end);
                Taken::Yes
            }
            Input::Message(message) => {
                self.core.receive(message, &mut self.producer).expect("a lawful stream")
            }
        };
        if taken == Taken::Yes {
            coming.pop_front();
        }
    }

    fn end(&self) -> Lsn {
        self.history.last().map(|past| past.end).unwrap_or_default()
    }

    fn events(&self) -> usize {
        self.history.last().map_or(0, |past| past.events.end)
    }

    fn check(&self) {
        assert!(self.slot <= self.state.upto, "I10: confirmed beyond the state topic");
        let before = |lsn: Lsn| {
            let events = self.history.iter().filter(move |past| past.commit < lsn);
            events.max_by_key(|past| past.commit).map_or(0, |past| past.events.end)
        };
        if self.exactly_once {
            let all: Vec<_> = (0..self.visible.len()).collect();
            assert_eq!(self.visible, all, "I9: not each event once, in order");
            let partial = self.state.partial.map_or(0, |partial| partial.ordinal as usize);
            assert_eq!(before(self.state.upto) + partial, all.len(), "I9: {:?}", self.state);
        } else {
            let mut next = 0;
            for event in &self.visible {
                assert!(*event <= next, "I6: {:?}", self.visible);
                next = next.max(event + 1);
            }
            assert!(before(self.state.upto) <= next, "I1: {:?}", self.state);
        }
    }

    /// There is nothing left to do.
    fn assert_complete(&self) {
        assert!(self.core.halted().is_none(), "{:?}", self.core.halted());
        let seen: HashSet<_> = self.visible.iter().collect();
        assert_eq!(seen.len(), self.events(), "I4: nothing happens any more: {:?}", self.core);
        assert_eq!(self.slot, self.end(), "I4: the slot stays behind: {:?}", self.core);
    }

    /// What decides what happens next, without what only grows.
    fn key(&self) -> String {
        let core = &self.core;
        let isolation = core.isolation.as_ref();
        let isolation = isolation.map(|isolation| (isolation.position, isolation.record.is_some()));
        let (in_flight, coming) = (
            self.producer.in_flight.iter().map(|(_, event)| *event).collect::<Vec<_>>(),
            self.coming.as_ref().map(|coming| {
                let is_new = matches!(coming.front(), Some(Input::Message(Message::Relation(_))));
                (coming.len(), is_new)
            }),
        );
        // Repeats do not matter any more once they are read.
        let seen = self.visible.iter().max();
        format!(
            "{:?} {:?} {:?} {:?} {isolation:?} {:?} {} {in_flight:?} {coming:?} {seen:?} {:?} {:?} \
             {:?} {} {} {} {}",
            core.transaction,
            core.interrupted,
            core.phase,
            core.replay.is_some(),
            core.commits,
            core.ledger.canonical(),
            self.uncommitted,
            self.state,
            self.writing,
            self.covered,
            self.slot,
            self.producer.has_gap,
            self.faults,
        )
    }
}

fn core(exactly_once: bool) -> Core {
    // For two records and a half: the limit is reached, too.
    let core = new_core(2 * (RECORD_OVERHEAD_BYTES + 60));
    if exactly_once { core.exactly_once() } else { core }
}

fn transaction(past: &Past) -> Vec<Message> {
    let (commit_lsn, end_lsn) = (past.commit, past.end);
    let commit_time = PgTimestamp::default();
    let mut messages = vec![Message::Begin(Begin { commit_lsn, commit_time, xid: 1 })];
    messages.extend(past.events.clone().map(|event| insert_into(TABLE, event)));
    messages.push(Message::Commit(Commit { commit_lsn, end_lsn, commit_time }));
    messages
}

/// Visits every state; returns how many there are.
fn explore(sizes: &[u16], exactly_once: bool) -> usize {
    let (history, actions) = (history(sizes), Action::all());
    let reached = |path: &[u8]| {
        let mut world = World::new(&history, exactly_once);
        for at in path {
            world.act(actions[usize::from(*at)]);
        }
        world
    };
    let first = reached(&[]);
    let mut known = HashSet::from([first.key()]);
    let (mut queue, mut ends) = (VecDeque::from([Vec::new()]), 0);
    while let Some(path) = queue.pop_front() {
        let world = reached(&path);
        let mut is_end = true;
        for (at, action) in (0_u8..).zip(&actions) {
            if !world.can(*action) || action.is_fault() && world.faults == FAULTS {
                continue;
            }
            is_end &= action.is_fault();
            let mut longer = path.clone();
            longer.push(at);
            let next = std::panic::catch_unwind(|| reached(&longer).key()).unwrap_or_else(|_| {
                let path: Vec<_> = longer.iter().map(|at| actions[usize::from(*at)]).collect();
                panic!("{sizes:?}, exactly once {exactly_once}, after {path:?}")
            });
            if known.insert(next) {
                queue.push_back(longer);
            }
        }
        if is_end {
            world.assert_complete();
            ends += 1;
        }
    }
    assert!(ends > 0, "no run comes to an end");
    known.len()
}

#[test]
fn no_interleaving_loses_or_repeats_an_event() {
    for exactly_once in [false, true] {
        for sizes in HISTORIES {
            let states = explore(sizes, exactly_once);
            assert!(states > 5000, "the model has stopped early: {states} states");
        }
    }
}
