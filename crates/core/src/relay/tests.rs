//! Individual decisions of the core; `properties.rs` checks what holds in any history.

use super::*;
use crate::outbox::{ColumnNames, OutboxConfig, TableName};
use crate::outlet::Ground;
use crate::pgoutput::encode::texts;
use crate::pgoutput::{Column, Commit, Insert, LogicalMessage, Oid, Relation};
use crate::position::EventPosition;
use crate::record::{Policy, Record, RecordConfig};

pub(super) const TABLE: Oid = 7;

pub(super) fn relation_of(oid: Oid, name: &str) -> Relation {
    let column = |name: &str| Column { name: name.into(), type_oid: 25, type_modifier: -1 };
    let names = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];
    Relation {
        oid,
        schema: "public".into(),
        name: name.into(),
        columns: names.into_iter().map(column).collect(),
    }
}

fn relation() -> Relation {
    relation_of(TABLE, "outbox")
}

pub(super) fn new_core(budget_bytes: u64) -> Core {
    let table = |name: &str| name.parse::<TableName>().expect("a name");
    let outbox = Outbox::new(OutboxConfig {
        tables: vec![table("public.outbox"), table("public.orders")],
        columns: ColumnNames::default(),
        message_prefix: Some("outbox".into()),
        ..OutboxConfig::default()
    });
    let router = Router::new(RecordConfig::to("t.{aggregate_type}".parse().expect("a template")));
    Core::new(outbox, router, budget_bytes)
}

/// Event number `event`, as a row of this table; its key is `event % 5`.
pub(super) fn insert_into(relation: Oid, event: usize) -> Message {
    let (id, key) = (event.to_string(), (event % 5).to_string());
    let row = [Some(id.as_str()), Some("a"), Some(key.as_str()), Some("e"), Some("{}")];
    Message::Insert(Insert { relation, tuple: texts(&row) })
}

pub(super) fn insert(event: usize) -> Message {
    insert_into(TABLE, event)
}

/// A row without a key.
fn keyless() -> Message {
    let row = [Some("1"), Some("a"), None, Some("e"), Some("{}")];
    Message::Insert(Insert { relation: TABLE, tuple: texts(&row) })
}

pub(super) fn too_large() -> Refusal {
    Refusal { ground: Ground::Size, may_pass: false, reason: "too large".to_owned() }
}

/// An answer that may be about the record, or about everything.
pub(super) fn ambiguous() -> Refusal {
    Refusal { ground: Ground::Other, may_pass: false, reason: "forbidden".to_owned() }
}

/// A sink that takes everything and reports nothing.
#[derive(Default)]
struct Silent(Vec<Seq>);

impl Outlet for Silent {
    fn produce(&mut self, seq: Seq, _: EventPosition, _: &Record<'_>) -> Result<(), ProduceError> {
        self.0.push(seq);
        Ok(())
    }
}

pub(super) fn begun(core: &mut Core, outlet: &mut impl Outlet) {
    core.connected(Lsn::new(1), &[relation().into()]);
    let begin = Begin { commit_lsn: Lsn::new(10), commit_time: PgTimestamp::default(), xid: 1 };
    assert_eq!(core.receive(&Message::Begin(begin), outlet), Ok(Taken::Yes));
}

#[test]
fn draining_reads_the_open_transaction_to_its_end_and_begins_no_other() {
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
    assert_eq!(core.flush_lsn(), Lsn::new(12));
    assert_eq!(core.counters().transactions, 1);
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
    core.connected(Lsn::new(1), &[relation().into()]);
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
    assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::Yes));
    let Some(halt @ Halt::Poison { .. }) = core.halted() else {
        panic!("not halted: {:?}", core.halted());
    };
    let text = format!("{halt}; {}", halt.remedy("walpost", false));
    for part in ["table public.outbox", "000000000000000A/00000000", "(id 1)", "`aggregate_id`"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The commit record is at 0/A: one byte further skips it, and nothing else.
    assert!(text.contains("pg_catalog.pg_replication_slot_advance('walpost', '0/B')"), "{text}");
    assert!(!core.wants_input() && core.is_drained());
    let position = EventPosition { commit_lsn: Lsn::new(10), ordinal: 0 };
    let text = halt.remedy("walpost", true);
    assert!(text.contains(&format!("`walpost skip --position {position} --apply`")), "{text}");

    // The event alone is skipped, and what follows in its transaction is published.
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    core.skip([position]);
    begun(&mut core, &mut outlet);
    for event in [keyless(), insert(1)] {
        assert_eq!(core.receive(&event, &mut outlet), Ok(Taken::Yes));
    }
    assert!(core.halted().is_none() && outlet.0.len() == 1, "{:?}", core.halted());
    assert_eq!((core.take_skipped(), core.counters().skipped), (vec![position], 1));
}

#[test]
fn a_message_without_a_key_halts_the_relay_and_names_its_prefix() {
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
fn an_unacknowledged_record_bounds_the_ledger_memory_behind_it() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    let mut followers = 0;
    while core.wants_input() {
        let seq = core.next_seq();
        assert_eq!(core.receive(&insert(1), &mut outlet), Ok(Taken::Yes));
        core.delivered(seq);
        followers += 1;
        assert!(followers < 100_000, "the ledger grows without bound");
    }
    assert_eq!(core.in_flight().0, 1);
    core.delivered(outlet.0[0]);
    assert!(core.wants_input(), "all is delivered, and still nothing is read");
}

#[test]
fn a_lost_record_is_produced_again_with_nothing_after_it() {
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
    assert!(!core.wants_input(), "it is isolated");
    core.delivered(outlet.0[4]);
    assert!(core.wants_input());
}

#[test]
fn a_replay_cancels_a_halt_behind_a_failed_record() {
    for refused in [true, false] {
        let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
        begun(&mut core, &mut outlet);
        assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
        assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::Yes));
        assert!(core.halted().is_some() && !core.is_drained());
        if refused {
            core.refused(outlet.0[0], &too_large());
        } else {
            core.purged(outlet.0[0]);
        }
        assert!(!core.is_drained(), "an operator would be advised to skip event 0");
        assert!(core.wants_replay().is_some());
        core.producer_replaced();
        assert!(core.halted().is_none() && core.wants_input());
    }
}

#[test]
fn a_rejection_survives_the_producer_failure_that_it_caused() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    core.refused(outlet.0[0], &too_large());
    core.producer_replaced();
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    core.request_producer_replacement("a fatal error");
    core.refused(outlet.0[1], &too_large());
    core.producer_replaced();
    assert!(core.halted().is_some() && core.is_drained());
}

/// How often a record is rejected before its event is skipped.
fn refusals_until_skipped(refusal: &Refusal) -> u32 {
    let policies = Policies { refused: Policy::Skip, ..Policies::default() };
    let (core, mut outlet) = (new_core(1 << 20), Silent::default());
    let mut core = core.with_policies(policies);
    for refusals in 0..100 {
        begun(&mut core, &mut outlet);
        assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
        if core.counters().skipped > 0 {
            return refusals;
        }
        core.refused(*outlet.0.last().expect("a production"), refusal);
        assert!(core.wants_replay().is_some());
        core.producer_replaced();
    }
    panic!("it is never skipped");
}

#[test]
fn only_a_temporary_rejection_is_retried() {
    let refusal = |may_pass| Refusal { ground: Ground::Other, may_pass, reason: String::new() };
    // Once among others, and once in isolation.
    assert_eq!(refusals_until_skipped(&refusal(false)), 2);
    assert_eq!(refusals_until_skipped(&refusal(true)), 2 + Policies::RETRIES);
}

#[test]
fn a_halt_behind_withdrawn_records_recurs() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::Yes));
    core.session_lost();
    assert!(
        core.halted().is_none() && core.wants_input(),
        "an operator would be advised to skip event 0"
    );
    // Event 0 of the lost session is never reported: only its second production counts.
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::Yes));
    assert!(core.halted().is_some() && !core.is_drained());
    core.delivered(outlet.0[1]);
    assert!(core.is_drained());
    core.session_lost();
    assert!(core.halted().is_some(), "all before it is delivered");
}

#[test]
fn a_dropped_column_halts_again_in_the_next_session() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    let lesser = Message::Relation({
        let mut relation = relation();
        relation.columns.retain(|column| column.name != "event_type");
        relation
    });
    begun(&mut core, &mut outlet);
    let _ = core.receive(&Message::Relation(relation()), &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    for _ in 0..2 {
        assert_eq!(core.receive(&lesser, &mut outlet), Ok(Taken::Yes));
        assert!(matches!(core.halted(), Some(Halt::Changed { .. })), "{:?}", core.halted());
        core.session_lost();
        assert!(core.halted().is_none(), "event 0 is not delivered");
        begun(&mut core, &mut outlet);
        assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    }
}

#[test]
fn progress_of_another_relay_is_adopted() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    core.session_lost();
    core.producer_replaced();
    core.connected(Lsn::new(500), &[relation().into()]);
    assert_eq!((core.flush_lsn(), core.resume_at()), (Lsn::new(500), Lsn::new(500)));
    core.delivered(outlet.0[0]);
    assert_eq!(core.flush_lsn(), Lsn::new(500));
}

fn begin_at(commit_lsn: u64, seconds: i64) -> Message {
    let commit_time = PgTimestamp::from_micros(seconds * 1_000_000);
    Message::Begin(Begin { commit_lsn: Lsn::new(commit_lsn), commit_time, xid: 1 })
}

fn commit_of(commit_lsn: u64) -> Message {
    Message::Commit(Commit {
        commit_lsn: Lsn::new(commit_lsn),
        end_lsn: Lsn::new(commit_lsn + 2),
        commit_time: PgTimestamp::default(),
    })
}

#[test]
fn a_lost_session_repeats_no_event_of_its_open_transaction() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    core.connected(Lsn::new(1), &[relation().into()]);
    let mut give = |core: &mut Core, messages: &[Message]| {
        for message in messages {
            assert_eq!(core.receive(message, &mut outlet), Ok(Taken::Yes));
        }
        outlet.0.len()
    };
    assert_eq!(give(&mut core, &[begin_at(10, 0), insert(0), insert(1)]), 2);
    core.delivered(Seq::new(0));
    // Lost twice: the second time before it reached the same event.
    for _ in 0..2 {
        core.session_lost();
        core.connected(Lsn::new(1), &[relation().into()]);
        core.keepalive(Lsn::new(10));
        assert_eq!(give(&mut core, &[begin_at(10, 0), insert(0)]), 2);
    }
    assert_eq!(give(&mut core, &[insert(1), insert(2), commit_of(10)]), 3);
    // Everything that committed before the transaction is confirmed; the transaction is not.
    assert_eq!((core.in_flight().0, core.flush_lsn()), (2, Lsn::new(10)));
    core.delivered(Seq::new(1));
    core.delivered(Seq::new(2));
    assert_eq!(core.flush_lsn(), Lsn::new(12));
}

#[test]
fn a_transaction_other_than_the_interrupted_one_is_taken_completely() {
    for (other, keepalive) in [(begin_at(20, 0), None), (begin_at(10, 1), None)]
        .into_iter()
        .chain([(begin_at(20, 0), Some(Lsn::new(15)))])
    {
        let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
        core.connected(Lsn::new(1), &[relation().into()]);
        for message in [begin_at(10, 0), insert(0)] {
            assert_eq!(core.receive(&message, &mut outlet), Ok(Taken::Yes));
        }
        core.session_lost();
        core.connected(Lsn::new(1), &[relation().into()]);
        if let Some(wal_end) = keepalive {
            core.keepalive(wal_end);
            assert_eq!(core.flush_lsn(), wal_end, "it was not sent again");
        }
        for message in [other, insert(0)] {
            assert_eq!(core.receive(&message, &mut outlet), Ok(Taken::Yes));
        }
        assert_eq!(outlet.0.len(), 2);
    }
}

#[test]
fn a_change_outside_a_transaction_is_a_protocol_violation() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    core.connected(Lsn::new(1), &[relation().into()]);
    assert!(core.receive(&insert(0), &mut outlet).is_err());
}

#[test]
fn the_smallest_budget_admits_one_record_at_a_time() {
    let (mut core, mut outlet) = (new_core(1), Silent::default());
    begun(&mut core, &mut outlet);
    for event in 0..3 {
        assert!(core.wants_input(), "the entry of an open transaction is not a record");
        let seq = core.next_seq();
        assert_eq!(core.receive(&insert(event), &mut outlet), Ok(Taken::Yes));
        assert_eq!((core.oldest_in_flight(), core.undelivered()), (Some(seq), 1));
        assert!(!core.wants_input());
        core.delivered(seq);
        assert_eq!((core.oldest_in_flight(), core.undelivered()), (None, 0));
    }
    assert_eq!(core.counters().events, 3);
}

#[test]
fn a_budget_that_is_exactly_reached_is_used_up() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    let (_, weight) = core.in_flight();
    let (mut core, mut outlet) = (new_core(weight), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    assert!(!core.wants_input());
}

#[test]
fn a_halt_with_everything_before_it_durable_requests_no_replay() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    core.refused(outlet.0[0], &too_large());
    core.producer_replaced();
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    core.refused(outlet.0[1], &too_large());
    core.request_producer_replacement("a fatal error");
    assert!(core.wants_replay().is_none() && core.is_drained(), "everything before is durable");

    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::Yes));
    core.request_producer_replacement("a fatal error");
    assert!(core.wants_replay().is_none() && core.is_drained(), "nothing is before it");
}

#[test]
fn draining_ends_before_the_first_event_of_a_transaction() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    core.drain();
    assert!(!core.wants_input() && core.is_drained());
    assert_eq!(core.counters().transactions, 0);
}

#[test]
fn the_first_of_several_failed_records_is_isolated() {
    let (mut core, mut outlet) = (new_core(1 << 20), Silent::default());
    begun(&mut core, &mut outlet);
    for event in 0..3 {
        assert_eq!(core.receive(&insert(event), &mut outlet), Ok(Taken::Yes));
    }
    assert!(!core.is_isolating());
    core.lost(outlet.0[2], "the connection broke");
    core.lost(outlet.0[1], "the connection broke");
    assert!(core.is_isolating());
    core.producer_replaced();
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    assert!(!core.wants_input(), "the next is isolated");
    core.delivered(outlet.0[3]);
    assert_eq!(core.receive(&insert(1), &mut outlet), Ok(Taken::Yes));
    assert!(!core.wants_input(), "it is isolated");
    core.delivered(outlet.0[4]);
    assert!(core.wants_input() && !core.is_isolating());
}

#[test]
fn a_dead_letter_waits_for_earlier_records_but_not_for_other_dead_letters() {
    let early = Policies { missing_field: Policy::DeadLetter, ..Policies::default() };
    let late = Policies { too_large: Policy::DeadLetter, ..early.clone() };
    // With no record that can still be rejected, there is nothing to wait for.
    let (core, mut outlet) = (new_core(1 << 20), Silent::default());
    let mut core = core.with_policies(early);
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::Yes));

    let (core, mut outlet) = (new_core(1 << 20), Silent::default());
    let mut core = core.with_policies(late);
    begun(&mut core, &mut outlet);
    assert_eq!(core.receive(&insert(0), &mut outlet), Ok(Taken::Yes));
    assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::NotYet));
    core.delivered(outlet.0[0]);
    for letters in 1..=2 {
        assert_eq!(core.receive(&keyless(), &mut outlet), Ok(Taken::Yes));
        assert_eq!(core.counters().dead_letters, letters);
    }
    assert_eq!(core.receive(&insert(1), &mut outlet), Ok(Taken::Yes));
    assert_eq!(outlet.0.len(), 4);
}

/// A sink that takes no record of any size.
struct Narrow;

impl Outlet for Narrow {
    fn produce(
        &mut self,
        _: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        panic!("a record of {} bytes was made", record.bytes())
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        assert_eq!(topic, Policies::DEAD_LETTER_TOPIC);
        assert!(bytes > 6000, "of a thousand characters that take six each: {bytes}");
        Err(too_large())
    }
}

#[test]
fn a_dead_letter_that_is_too_large_halts_before_it_is_built() {
    let policies = Policies { missing_field: Policy::DeadLetter, ..Policies::default() };
    let mut core = new_core(1 << 20).with_policies(policies);
    begun(&mut core, &mut Silent::default());
    let wide = "\u{1}".repeat(1000);
    let row = [Some("1"), Some("a"), None, Some(wide.as_str()), Some("{}")];
    let message = Message::Insert(Insert { relation: TABLE, tuple: texts(&row) });
    assert_eq!(core.receive(&message, &mut Narrow), Ok(Taken::Yes));
    let Some(Halt::DeadLetter { poison, .. }) = core.halted() else {
        panic!("{:?}", core.halted())
    };
    assert_eq!(poison.cause.key(), "too_large");
    assert_eq!(core.counters().dead_letters, 0);
}
