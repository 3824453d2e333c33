//! Instructions per event, from bytes to record and back to the ledger, counted by callgrind
//! without a server: `make bench-instructions`.
//!
//! The counts do not depend on the machine's load, so a change of one percent shows. Heap and
//! copies are included; setup is not. Queues and buffers have grown before the measurement, as in a
//! long-running relay.

#![allow(missing_docs, reason = "what the benches' macros make has none")]
#![allow(clippy::needless_pass_by_value, reason = "benches own what they are given")]

use std::hint::black_box;
use walpost_core::position::EventPosition;

use bytes::{BufMut, Bytes, BytesMut};
use gungraun::{library_benchmark, library_benchmark_group, main};
use walpost_core::Lsn;
use walpost_core::ledger::{Ledger, Seq};
use walpost_core::outbox::{Event, Outbox};
use walpost_core::outlet::{Outlet, ProduceError};
use walpost_core::pgoutput::{self, Begin, Commit, Insert, Message};
use walpost_core::record::debezium::Converters;
use walpost_core::record::{Profile, Record, Router};
use walpost_core::relay::{Core, Taken};

#[path = "../inputs/mod.rs"]
mod inputs;

use inputs::{COMMIT_TIME, debezium, outbox, own, row};

/// In each bench.
const EVENTS: u32 = 1_000;

/// Whose reports come one partition after the other.
const PARTITIONS: usize = 6;

/// How far one transaction's commit lies behind that of the one before it, in bytes.
const STEP: u64 = 0x200;

#[library_benchmark]
#[bench::begin(bytes_of_begin())]
#[bench::insert(row())]
#[bench::commit(bytes_of_commit())]
fn decode(bytes: Bytes) {
    for _ in 0..EVENTS {
        let message = pgoutput::decode(black_box(&bytes)).expect("a message");
        black_box(&message);
    }
}

#[library_benchmark]
#[bench::own(outbox(&own().into()), insert())]
#[bench::debezium(outbox(&debezium(Converters::String, &[])), insert())]
fn event(outbox: Outbox, insert: Insert) {
    for ordinal in 0..EVENTS {
        let event = outbox.event(black_box(&insert), position(ordinal), COMMIT_TIME);
        black_box(&event.expect("an outbox").expect("a row that can be read"));
    }
}

#[library_benchmark]
#[bench::own(event_for(own().into()))]
#[bench::debezium(event_for(debezium(Converters::String, &[])))]
#[bench::debezium_json(event_for(debezium(Converters::Json, &[])))]
fn record(given: (Router, Event<'static>)) {
    let (mut router, mut event) = given;
    for ordinal in 0..EVENTS {
        event.position.ordinal = ordinal;
        black_box(&router.route(black_box(&event)).expect("a record"));
    }
}

#[library_benchmark]
#[bench::in_order(settled(), in_order())]
#[bench::by_partition(settled(), by_partition())]
fn ledger(mut ledger: Ledger, reports: Vec<Seq>) {
    settle(&mut ledger, &reports);
}

#[library_benchmark]
#[bench::small_transactions(running(), small_transactions(1))]
#[bench::large_transaction(running(), large_transaction(1))]
fn core(mut core: Core, messages: Vec<Message>) {
    relay(&mut core, &messages, Seq::new(EVENTS.into()));
}

library_benchmark_group!(name = an_event, benchmarks = [decode, event, record, ledger, core]);
main!(library_benchmark_groups = an_event);

fn position(ordinal: u32) -> EventPosition {
    EventPosition { commit_lsn: Lsn::new(0x16_B374_D848), ordinal }
}

fn bytes_of_begin() -> Bytes {
    let mut out = BytesMut::from(&b"B"[..]);
    out.put_u64(0x16_B374_D848);
    out.put_i64(COMMIT_TIME.micros());
    out.put_u32(7_654_321);
    out.freeze()
}

fn bytes_of_commit() -> Bytes {
    let mut out = BytesMut::from(&b"C\0"[..]);
    out.put_u64(0x16_B374_D848);
    out.put_u64(0x16_B374_D878);
    out.put_i64(COMMIT_TIME.micros());
    out.freeze()
}

fn insert() -> Insert {
    match pgoutput::decode(&row()) {
        Ok(Message::Insert(insert)) => insert,
        other => panic!("not an Insert: {other:?}"),
    }
}

/// An event, and the router that makes its record.
fn event_for(profile: Profile) -> (Router, Event<'static>) {
    let insert: &'static Insert = Box::leak(Box::new(insert()));
    let event = outbox(&profile).event(insert, position(0), COMMIT_TIME);
    let event = event.expect("an outbox").expect("a row that can be read");
    let mut router = Router::new(profile);
    router.route(&event).expect("a record");
    (router, event)
}

/// The first reports come in the order of the records.
fn in_order() -> Vec<Seq> {
    (0..u64::from(EVENTS)).map(Seq::new).collect()
}

fn by_partition() -> Vec<Seq> {
    let of_partition = |partition| in_order().into_iter().skip(partition).step_by(PARTITIONS);
    (0..PARTITIONS).flat_map(of_partition).collect()
}

/// A ledger all of whose records are delivered.
fn settled() -> Ledger {
    let mut ledger = Ledger::new(Lsn::ZERO);
    settle(&mut ledger, &in_order());
    ledger
}

/// Transactions of one record each, then a report for each; `reports` counts from the first.
fn settle(ledger: &mut Ledger, reports: &[Seq]) {
    let (start, first) = (ledger.flush_lsn().as_u64(), ledger.next_seq());
    for transaction in 0..u64::from(EVENTS) {
        let commit = start + STEP * transaction;
        ledger.begin(Lsn::new(commit), COMMIT_TIME).expect("a Begin in order");
        ledger.produce(0, 900).expect("an open transaction");
        ledger.commit(Lsn::new(commit), Lsn::new(commit + STEP)).expect("its Commit");
    }
    for report in reports {
        assert!(ledger.delivered(first.plus(black_box(*report).as_u64())), "it is in flight");
    }
    assert_eq!(ledger.flush_lsn().as_u64(), start + STEP * u64::from(EVENTS));
}

/// A core that has relayed the same number of events before.
fn running() -> Core {
    let profile = own().into();
    let mut core = Core::new(outbox(&profile), Router::new(profile), 1 << 30);
    relay(&mut core, &small_transactions(0), Seq::FIRST);
    core
}

/// Takes the messages, and then the reports of the records from `first` on.
fn relay(core: &mut Core, messages: &[Message], first: Seq) {
    for message in messages {
        assert!(core.wants_input(), "there is room");
        let taken =
            core.receive(black_box(message), &mut AcceptingOutlet).expect("messages in order");
        assert_eq!(taken, Taken::Yes);
    }
    for number in 0..u64::from(EVENTS) {
        core.delivered(black_box(first.plus(number)));
    }
    assert_eq!(core.in_flight().0, 0);
}

/// Takes every record, and does nothing with it.
struct AcceptingOutlet;

impl Outlet for AcceptingOutlet {
    fn produce(
        &mut self,
        _: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        black_box(record);
        Ok(())
    }
}

fn small_transactions(round: u64) -> Vec<Message> {
    let start = round * u64::from(EVENTS);
    let transactions = start..start + u64::from(EVENTS);
    transactions.flat_map(|number| transaction(1 + number * STEP, 1)).collect()
}

fn large_transaction(round: u64) -> Vec<Message> {
    transaction(1 + round * u64::from(EVENTS) * STEP, EVENTS)
}

fn transaction(commit: u64, rows: u32) -> Vec<Message> {
    let (commit_lsn, end_lsn) = (Lsn::new(commit), Lsn::new(commit + STEP));
    let begin = Begin { commit_lsn, commit_time: COMMIT_TIME, xid: 7_654_321 };
    let commit = Commit { commit_lsn, end_lsn, commit_time: COMMIT_TIME };
    let rows = (0..rows).map(|_| Message::Insert(insert()));
    [Message::Begin(begin)].into_iter().chain(rows).chain([Message::Commit(commit)]).collect()
}
