//! The ledger against a naive model, simple enough to be verified by reading it: it keeps every
//! transaction forever, and recomputes everything for each query.

use crate::position::EventPosition;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::property;

/// Cases per property, unless set otherwise.
const CASES: u32 = 3000;

/// A transaction in the model.
#[derive(Debug, Clone)]
struct ModelTransaction {
    commit: u64,
    end: Option<u64>,
    records: Vec<Seq>,
}

/// Every transaction, acknowledgement and keepalive.
#[derive(Debug, Default)]
struct Model {
    start: u64,
    transactions: Vec<ModelTransaction>,
    acknowledged: BTreeSet<Seq>,
    /// A keepalive, and how many transactions were received before it.
    keepalives: Vec<(u64, usize)>,
    outstanding: Vec<(Seq, u64)>,
}

impl Model {
    /// How many leading transactions are complete and durable.
    fn durable_prefix(&self) -> usize {
        let durable = |transaction: &&ModelTransaction| {
            let acknowledged = |seq: &Seq| self.acknowledged.contains(seq);
            transaction.end.is_some() && transaction.records.iter().all(acknowledged)
        };
        self.transactions.iter().take_while(durable).count()
    }

    fn flush_lsn(&self) -> u64 {
        let durable = self.durable_prefix();
        let ends = self.transactions[..durable].iter().filter_map(|transaction| transaction.end);
        let covered = |(_, before): &&(u64, usize)| *before <= durable;
        let keepalives = self.keepalives.iter().filter(covered).map(|(wal_end, _)| *wal_end);
        ends.chain(keepalives).max().unwrap_or(0).max(self.start)
    }

    /// The end of the last completely received transaction.
    fn received(&self) -> u64 {
        let ends = self.transactions.iter().filter_map(|transaction| transaction.end);
        let keepalives = self.keepalives.iter().map(|(wal_end, _)| *wal_end);
        ends.chain(keepalives).max().unwrap_or(0).max(self.start)
    }

    fn undelivered(&self) -> u64 {
        let records = self.transactions.iter().flat_map(|transaction| &transaction.records);
        records.filter(|seq| !self.acknowledged.contains(seq)).count() as u64
    }

    fn oldest(&self) -> Option<Seq> {
        self.outstanding.iter().map(|(seq, _)| *seq).min()
    }

    fn is_open(&self) -> bool {
        self.transactions.last().is_some_and(|transaction| transaction.end.is_none())
    }

    fn bytes(&self) -> u64 {
        self.outstanding.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A step; one that is impossible at that point is ignored.
#[derive(Debug, Clone)]
enum Step {
    Begin {
        gap: u8,
    },
    /// Produces this many records, each of this weight.
    Produce {
        bytes: u16,
        count: u16,
    },
    Commit {
        length: u8,
    },
    Keepalive {
        ahead: u8,
    },
    /// Reports any number, in flight or not.
    Acknowledge {
        pick: u16,
    },
    /// Reports this many at once, from the oldest or from the newest on.
    AcknowledgeMany {
        count: u16,
        newest: bool,
    },
    /// A production fails: only a new producer resolves it.
    Fail {
        pick: u16,
    },
    SessionLost,
    /// The session is lost, and the open transaction is sent again, after a keepalive.
    Resumed {
        keepalive: u8,
    },
    ProducerLost,
    /// Another relay has delivered up to this position.
    TakenOver {
        ahead: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(|gap| Step::Begin { gap }),
        8 => (any::<u16>(), size()).prop_map(|(bytes, count)| Step::Produce { bytes, count }),
        4 => any::<u8>().prop_map(|length| Step::Commit { length }),
        2 => any::<u8>().prop_map(|ahead| Step::Keepalive { ahead }),
        10 => any::<u16>().prop_map(|pick| Step::Acknowledge { pick }),
        3 => (size(), any::<bool>())
            .prop_map(|(count, newest)| Step::AcknowledgeMany { count, newest }),
        1 => any::<u16>().prop_map(|pick| Step::Fail { pick }),
        1 => Just(Step::SessionLost),
        2 => any::<u8>().prop_map(|keepalive| Step::Resumed { keepalive }),
        1 => Just(Step::ProducerLost),
        1 => any::<u8>().prop_map(|ahead| Step::TakenOver { ahead }),
    ]
}

/// How many at once: mostly one, sometimes thousands.
fn size() -> impl Strategy<Value = u16> {
    prop_oneof![60 => Just(1), 20 => 2_u16..20, 2 => 20_u16..200, 1 => 1000_u16..3000]
}

/// Ledger and model together, and the end of WAL that both have seen.
struct Pair {
    ledger: Ledger,
    model: Model,
    wal: u64,
}

impl Pair {
    fn new(start: u64) -> Self {
        let model = Model { start, ..Model::default() };
        Self { ledger: Ledger::new(Lsn::new(start)), model, wal: start }
    }

    fn apply(&mut self, step: &Step) {
        let open = self.model.is_open();
        match *step {
            Step::Begin { gap } if !open => {
                self.wal += u64::from(gap);
                self.ledger.begin(Lsn::new(self.wal), PgTimestamp::default()).expect("in order");
                let transaction =
                    ModelTransaction { commit: self.wal, end: None, records: Vec::new() };
                self.model.transactions.push(transaction);
            }
            Step::Produce { bytes, count } if open => {
                (0..count).for_each(|_| self.produce(u64::from(bytes)));
            }
            Step::Commit { length } if open => {
                let transaction = self.model.transactions.last_mut().expect("open");
                let end = self.wal + u64::from(length) + 1;
                let commit = Lsn::new(transaction.commit);
                self.ledger.commit(commit, Lsn::new(end)).expect("its own commit");
                transaction.end = Some(end);
                self.wal = end;
            }
            Step::Keepalive { ahead } => {
                // Inside a transaction it may be anything, even beyond what will be sent. Outside
                // of one it may be less than what is known.
                let wal_end = (self.wal + u64::from(ahead)).saturating_sub(64);
                self.ledger.keepalive(Lsn::new(wal_end));
                if !open {
                    self.wal = self.wal.max(wal_end);
                    self.model.keepalives.push((wal_end, self.model.transactions.len()));
                }
            }
            Step::Acknowledge { pick } => self.acknowledge(pick),
            Step::AcknowledgeMany { count, newest } => {
                let mut seqs: Vec<Seq> = self.model.outstanding.iter().map(|it| it.0).collect();
                if newest {
                    seqs.reverse();
                }
                seqs.iter().take(usize::from(count)).for_each(|seq| self.report(*seq));
            }
            Step::Fail { pick } => self.fail(pick),
            Step::SessionLost => {
                let before = self.model.undelivered();
                if open {
                    self.model.transactions.pop();
                }
                assert_eq!(self.ledger.withdraw(), before - self.model.undelivered());
            }
            Step::Resumed { keepalive } if open => {
                let commit = Lsn::new(self.model.transactions.last().expect("open").commit);
                assert!(self.ledger.interrupt() && !self.ledger.interrupt());
                assert!(!self.ledger.is_open(), "nothing may be added to it");
                let before = self.ledger.flush_lsn();
                self.ledger.keepalive(Lsn::new(self.wal + u64::from(keepalive) + 1));
                assert_eq!(
                    self.ledger.flush_lsn(),
                    before,
                    "I1: the flush LSN passes what is interrupted"
                );
                assert!(!self.ledger.resume(Lsn::new(commit.as_u64() + 1)), "another transaction");
                assert!(self.ledger.resume(commit) && !self.ledger.resume(commit));
            }
            Step::ProducerLost => self.lose_producer(),
            Step::TakenOver { ahead } => {
                self.lose_producer();
                self.wal += u64::from(ahead);
                self.ledger.reset_to(Lsn::new(self.wal));
                self.model.start = self.model.start.max(self.wal);
            }
            _ => {}
        }
    }

    fn produce(&mut self, bytes: u64) {
        let transaction = self.model.transactions.last_mut().expect("open");
        let ordinal = u32::try_from(transaction.records.len()).expect("few");
        let seq = self.ledger.produce(ordinal, bytes).expect("open");
        let position = EventPosition { commit_lsn: Lsn::new(transaction.commit), ordinal };
        assert_eq!(self.ledger.position(seq), Some(position));
        transaction.records.push(seq);
        self.model.outstanding.push((seq, bytes));
    }

    fn acknowledge(&mut self, pick: u16) {
        let known = self.ledger.next_seq().as_u64().saturating_sub(1).max(1);
        self.report(Seq::new(u64::from(pick) % (known + 2)));
    }

    /// I8: each production is resolved once, and one from before a reset never.
    fn report(&mut self, seq: Seq) {
        let outstanding = self.model.outstanding.iter().position(|(number, _)| *number == seq);
        assert_eq!(self.ledger.delivered(seq), outstanding.is_some(), "I8: each resolves once");
        if let Some(at) = outstanding {
            self.model.outstanding.remove(at);
            self.model.acknowledged.insert(seq);
        }
    }

    fn fail(&mut self, pick: u16) {
        let outstanding = self.model.outstanding.len();
        if outstanding > 0 {
            let (seq, _) = self.model.outstanding.remove(usize::from(pick) % outstanding);
            let before = self.ledger.undelivered();
            assert!(self.ledger.failed(seq).is_some(), "I8: a failure is heard");
            assert!(self.ledger.failed(seq).is_none(), "I8: each resolves once");
            assert_eq!(self.ledger.undelivered(), before, "I8: a failure delivers nothing");
        }
    }

    /// Everything from the flush LSN on is discarded and will be read again.
    fn lose_producer(&mut self) {
        let flush_lsn = self.model.flush_lsn();
        self.ledger.reset();
        let durable = self.model.durable_prefix();
        self.model.transactions.truncate(durable);
        self.model.keepalives.retain(|(_, before)| *before <= durable);
        self.model.outstanding.clear();
        self.wal = flush_lsn;
    }

    fn check(&self) {
        let ledger = &self.ledger;
        let naive = Lsn::new(self.model.flush_lsn());
        assert_eq!(ledger.flush_lsn(), naive, "I3: the flush LSN is not the naive model's");
        assert_eq!(ledger.in_flight_bytes(), self.model.bytes());
        assert_eq!(ledger.in_flight_records(), self.model.outstanding.len());
        assert_eq!(ledger.is_open(), self.model.is_open());
        assert_eq!(ledger.resume_at(), Lsn::new(self.model.received()), "I5: the resume position");
        assert_eq!(ledger.undelivered(), self.model.undelivered());
        assert_eq!(ledger.oldest_in_flight(), self.model.oldest());
        let slots = self
            .model
            .oldest()
            .map_or(0, |oldest| ledger.next_seq().since(oldest).expect("a produced record"));
        let entries = (self.model.transactions.len() - self.model.durable_prefix()) as u64;
        let held = slots * size_of::<InFlight>() as u64 + entries * size_of::<Entry>() as u64;
        assert_eq!(ledger.own_bytes(), held, "I13: what the account itself takes up");
        for transaction in &self.model.transactions {
            let undelivered =
                transaction.records.iter().any(|seq| !self.model.acknowledged.contains(seq));
            if undelivered || transaction.end.is_none() {
                let floor = ledger.flush_lsn();
                assert!(Lsn::new(transaction.commit) >= floor, "I1: confirmed past a record");
            }
        }
    }
}

/// I1, I2, I3, I8: in whatever order reports arrive, and whichever are lost, the flush LSN equals
/// the naive model's, never decreases, and never passes an undelivered record.
#[test]
fn flush_lsn_matches_a_naive_model() {
    let histories = (1_u64..1000, prop::collection::vec(step(), 0..200));
    let name = "flush_lsn_matches_a_naive_model";
    property::holds(name, CASES, &histories, |(start, steps)| {
        let mut pair = Pair::new(start);
        let mut last = pair.ledger.flush_lsn();
        for step in &steps {
            pair.apply(step);
            pair.check();
            assert!(pair.ledger.flush_lsn() >= last, "I2: the flush LSN decreased");
            assert!(
                pair.ledger.flush_lsn() <= Lsn::new(pair.wal.max(start)),
                "I2: the flush LSN ran ahead"
            );
            last = pair.ledger.flush_lsn();
        }
    });
}

/// I4: once everything is acknowledged, the flush LSN is the last keepalive.
#[test]
fn an_idle_ledger_follows_the_keepalives() {
    let histories = (prop::collection::vec(step(), 0..100), 1_u64..1000);
    let name = "an_idle_ledger_follows_the_keepalives";
    property::holds(name, CASES, &histories, |(steps, ahead)| {
        let mut pair = Pair::new(1);
        // Only a new producer resolves a failure.
        for step in steps.iter().filter(|one| !matches!(one, Step::Fail { .. })) {
            pair.apply(step);
        }
        pair.apply(&Step::Commit { length: 1 });
        let wal_end = Lsn::new(pair.wal + ahead);
        pair.ledger.keepalive(wal_end);
        for (seq, _) in pair.model.outstanding.clone() {
            pair.ledger.delivered(seq);
        }
        assert_eq!(pair.ledger.flush_lsn(), wal_end, "I4: the flush LSN stays behind");
        assert_eq!(pair.ledger.own_bytes(), 0, "I4: the ledger still waits for something");
    });
}

#[test]
fn a_report_from_before_a_reset_is_ignored() {
    let mut ledger = Ledger::new(Lsn::new(10));
    ledger.begin(Lsn::new(20), PgTimestamp::default()).expect("in order");
    let old = ledger.produce(0, 5).expect("open");
    ledger.commit(Lsn::new(20), Lsn::new(30)).expect("its own");
    ledger.reset();
    ledger.begin(Lsn::new(20), PgTimestamp::default()).expect("replayed");
    let new = ledger.produce(0, 5).expect("open");
    ledger.commit(Lsn::new(20), Lsn::new(30)).expect("its own");
    assert!(!ledger.delivered(old));
    assert_eq!(ledger.flush_lsn(), Lsn::new(10));
    assert!(ledger.delivered(new));
    assert_eq!(ledger.flush_lsn(), Lsn::new(30));
}

#[test]
fn a_withdrawn_record_counts_as_in_flight_until_its_report() {
    let mut ledger = Ledger::new(Lsn::new(10));
    ledger.begin(Lsn::new(20), PgTimestamp::default()).expect("in order");
    let seq = ledger.produce(0, 5).expect("open");
    ledger.withdraw();
    assert_eq!((ledger.in_flight_bytes(), ledger.resume_at()), (5, Lsn::new(10)));
    assert_eq!(ledger.position(seq), None);
    assert!(ledger.delivered(seq));
    assert_eq!((ledger.in_flight_bytes(), ledger.flush_lsn()), (0, Lsn::new(10)));
}

#[test]
fn a_stream_that_violates_the_protocol_is_rejected() {
    let mut ledger = Ledger::new(Lsn::new(10));
    assert!(matches!(
        ledger.begin(Lsn::new(9), PgTimestamp::default()),
        Err(StreamError::OutOfOrder { .. })
    ));
    assert!(matches!(ledger.produce(0, 1), Err(StreamError::Outside { .. })));
    assert!(matches!(ledger.commit(Lsn::new(20), Lsn::new(21)), Err(StreamError::Outside { .. })));
    ledger.begin(Lsn::new(20), PgTimestamp::default()).expect("in order");
    assert!(matches!(
        ledger.begin(Lsn::new(30), PgTimestamp::default()),
        Err(StreamError::NestedBegin { .. })
    ));
    for (commit, end) in [(19, 30), (20, 20)] {
        let refused = ledger.commit(Lsn::new(commit), Lsn::new(end));
        assert!(matches!(refused, Err(StreamError::WrongCommit { .. })));
    }
}

#[test]
fn an_interrupted_transaction_that_is_not_sent_again_is_withdrawn() {
    let mut ledger = Ledger::new(Lsn::new(1));
    ledger.begin(Lsn::new(10), PgTimestamp::default()).expect("in order");
    let seq = ledger.produce(0, 7).expect("open");
    assert!(ledger.interrupt());
    assert!(ledger.produce(1, 7).is_err() && ledger.commit(Lsn::new(10), Lsn::new(12)).is_err());
    ledger.begin(Lsn::new(20), PgTimestamp::default()).expect("in order");
    assert_eq!((ledger.undelivered(), ledger.in_flight_records()), (0, 1));
    ledger.commit(Lsn::new(20), Lsn::new(22)).expect("its own");
    assert_eq!(ledger.flush_lsn(), Lsn::new(22));
    assert!(ledger.delivered(seq), "it is still in flight");
}

#[test]
fn a_keepalive_takes_effect_up_to_an_interrupted_transaction() {
    let mut ledger = Ledger::new(Lsn::new(1));
    ledger.begin(Lsn::new(20), PgTimestamp::default()).expect("in order");
    ledger.interrupt();
    for (wal_end, expected) in [(15, 15), (20, 20), (21, 20)] {
        ledger.keepalive(Lsn::new(wal_end));
        assert_eq!(ledger.flush_lsn(), Lsn::new(expected), "{wal_end}");
    }
    // After a transaction that is not durable, the keepalive takes effect together with it.
    let mut ledger = Ledger::new(Lsn::new(1));
    ledger.begin(Lsn::new(5), PgTimestamp::default()).expect("in order");
    let seq = ledger.produce(0, 7).expect("open");
    ledger.commit(Lsn::new(5), Lsn::new(7)).expect("its own");
    ledger.begin(Lsn::new(20), PgTimestamp::default()).expect("in order");
    ledger.interrupt();
    ledger.keepalive(Lsn::new(15));
    assert_eq!((ledger.flush_lsn(), ledger.resume_at()), (Lsn::new(1), Lsn::new(15)));
    ledger.delivered(seq);
    assert_eq!(ledger.flush_lsn(), Lsn::new(15));
    assert!(ledger.resume(Lsn::new(20)));
}
