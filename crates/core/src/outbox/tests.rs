//! The outbox as the relay uses it: relations, rows and messages in sequence.

use crate::position::EventPosition;
use bytes::Bytes;

use super::*;
use crate::lsn::Lsn;
use crate::pgoutput::{Column, encode};

const POSITION: EventPosition = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
const NOW: PgTimestamp = PgTimestamp::from_micros(0);

fn outbox(tables: &[&str]) -> Outbox {
    Outbox::new(OutboxConfig {
        tables: tables.iter().map(|table| table.parse().expect("a table's name")).collect(),
        message_prefix: Some("outbox".to_owned()),
        ..OutboxConfig::default()
    })
}

fn relation(oid: Oid, name: &str, columns: &[&str]) -> Relation {
    let column = |name: &&str| Column { name: (*name).to_owned(), type_oid: 25, type_modifier: -1 };
    let columns = columns.iter().map(column).collect();
    Relation { oid, schema: "public".to_owned(), name: name.to_owned(), columns }
}

const COLUMNS: [&str; 4] = ["id", "aggregate_type", "aggregate_id", "payload"];

fn row(relation: Oid) -> Insert {
    let tuple = encode::texts(&[Some("1"), Some("Order"), Some("7"), Some("{}")]);
    Insert { relation, tuple }
}

#[test]
fn only_rows_of_the_outbox_tables_are_events() {
    let mut outbox = outbox(&["outbox", "public.outbox2"]);
    outbox.relation(&relation(1, "outbox", &COLUMNS)).expect("a plan");
    outbox.relation(&relation(2, "orders", &["id"])).expect("not ours");
    assert!(outbox.is_outbox(1) && !outbox.is_outbox(2) && !outbox.is_outbox(3));
    assert!(matches!(outbox.event(&row(1), POSITION, NOW), Some(Ok(_))));
    assert!(outbox.event(&row(2), POSITION, NOW).is_none());
    outbox.relation(&relation(3, "outbox2", &COLUMNS)).expect("a plan");
    assert_eq!(outbox.table(3).map(ToString::to_string).as_deref(), Some("public.outbox2"));
    let mut elsewhere = relation(4, "outbox", &COLUMNS);
    elsewhere.schema = "sales".to_owned();
    outbox.relation(&elsewhere).expect("not ours");
    assert!(!outbox.is_outbox(4));
}

#[test]
fn a_repeated_relation_replaces_its_plan() {
    let mut outbox = outbox(&["outbox"]);
    outbox.relation(&relation(1, "outbox", &COLUMNS)).expect("a plan");
    let turned = ["payload", "aggregate_id", "aggregate_type", "id"];
    outbox.relation(&relation(1, "outbox", &turned)).expect("a plan");
    let insert = row(1);
    let event = outbox.event(&insert, POSITION, NOW).expect("ours").expect("an event");
    assert_eq!(event.id.as_deref(), Some(b"{}".as_slice()));
}

#[test]
fn rows_of_a_table_that_was_renamed_away_are_reported() {
    let mut outbox = outbox(&["outbox"]);
    outbox.relation(&relation(1, "outbox", &COLUMNS)).expect("a plan");
    let renamed = outbox.relation(&relation(1, "outbox_old", &COLUMNS));
    let error = renamed.expect_err("rows follow").to_string();
    assert!(error.contains("table public.outbox while its name was public.outbox_old"), "{error}");
}

#[test]
fn dropping_an_optional_column_is_reported() {
    let mut outbox = outbox(&["outbox"]);
    let more = [COLUMNS.as_slice(), &["headers"]].concat();
    outbox.expect(&relation(1, "outbox", &more).into()).expect("a plan");
    outbox.relation(&relation(1, "outbox", &COLUMNS)).expect("older rows lack it");
    outbox.relation(&relation(1, "outbox", &more)).expect("and younger ones have it");
    let gone = outbox.relation(&relation(1, "outbox", &COLUMNS)).expect_err("it was read");
    assert!(gone.to_string().contains("no column `headers` any more"), "{gone}");
    outbox.forget();
    outbox.expect(&relation(2, "outbox", &COLUMNS).into()).expect("the catalogs may be younger");
    outbox.relation(&relation(2, "outbox", &COLUMNS)).expect_err("in a new session too");
}

#[test]
fn a_new_session_starts_without_relations() {
    let mut outbox = outbox(&["outbox"]);
    outbox.relation(&relation(1, "outbox", &COLUMNS)).expect("a plan");
    outbox.forget();
    assert!(!outbox.is_outbox(1));
}

#[test]
fn an_unreadable_row_is_reported_with_its_table_and_position() {
    let mut outbox = outbox(&["outbox"]);
    outbox
        .relation(&relation(1, "outbox", &["id", "aggregatetype", "aggregateid", "payload", "x"]))
        .expect("a plan");
    let insert = row(1);
    let error = outbox.event(&insert, POSITION, NOW).expect("ours").expect_err("one column short");
    let text = error.to_string();
    assert!(text.contains("public.outbox") && text.contains("0000000000000007/00000001"), "{text}");
}

#[test]
fn only_transactional_messages_with_the_prefix_are_events() {
    let outbox = outbox(&[]);
    let message = |transactional, prefix: &str, content: &'static str| LogicalMessage {
        transactional,
        lsn: Lsn::new(6),
        prefix: prefix.to_owned(),
        content: Bytes::from_static(content.as_bytes()),
    };
    assert!(matches!(
        outbox.message_event(&message(true, "outbox", "{\"id\":1}"), POSITION, NOW),
        Some(Ok(Event { id: Some(_), .. }))
    ));
    assert!(outbox.message_event(&message(false, "outbox", "{}"), POSITION, NOW).is_none());
    assert!(outbox.message_event(&message(true, "outbox2", "{}"), POSITION, NOW).is_none());
    let without = Outbox::new(OutboxConfig::default());
    assert!(without.message_event(&message(true, "outbox", "{}"), POSITION, NOW).is_none());
    let message = message(true, "outbox", "[]");
    let error = outbox.message_event(&message, POSITION, NOW).expect("ours").expect_err("an array");
    assert!(error.to_string().contains("is not a JSON object"), "{error}");
}

#[test]
fn bytes_of_a_domain_are_told_by_the_stream_whatever_the_catalogs_know() {
    const DOMAIN: Oid = 16_500;
    let named = |oid, base_schema: &str, base_name: &str| {
        let (base_schema, base_name) = (base_schema.to_owned(), base_name.to_owned());
        TypeName { oid, base_schema, base_name }
    };
    let mut of_domain = relation(1, "outbox", &COLUMNS);
    of_domain.columns[3].type_oid = DOMAIN;
    let tuple = encode::texts(&[Some("1"), Some("Order"), Some("7"), Some("\\x00ff")]);
    let insert = Insert { relation: 1, tuple };
    let payload = |outbox: &Outbox| {
        let event = outbox.event(&insert, POSITION, NOW).expect("ours").expect("an event");
        event.payload.map(std::borrow::Cow::into_owned)
    };
    let text = Some(b"\\x00ff".to_vec());
    for (first, expected) in [
        (named(DOMAIN, "pg_catalog", "bytea"), Some(vec![0, 0xff])),
        // A type that only has the name.
        (named(DOMAIN, "public", "bytea"), text.clone()),
        (named(DOMAIN, "pg_catalog", "text"), text.clone()),
        (named(DOMAIN + 1, "pg_catalog", "bytea"), text),
    ] {
        let mut outbox = outbox(&["outbox"]);
        outbox.type_named(&first);
        outbox.relation(&of_domain).expect("a plan");
        assert_eq!(payload(&outbox), expected, "{first:?}");
        // Rows that are read by SQL have no Type message.
        let types = vec![(DOMAIN, DataType::Builtin { oid: 17, modifier: -1 })];
        outbox.expect(&FoundTable { relation: of_domain.clone(), types }).expect("a plan");
        assert_eq!(payload(&outbox), Some(vec![0, 0xff]));
    }
}
