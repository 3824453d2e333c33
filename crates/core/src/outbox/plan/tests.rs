//! Column plans for relations and rows of various shapes.

use crate::position::EventPosition;
use proptest::prelude::*;

use super::*;
use crate::lsn::Lsn;
use crate::outbox::{ColumnNames, Needs};
use crate::pgoutput::{Column, encode};

const POSITION: EventPosition = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
const TEXT: Oid = 25;
const BYTEA: Oid = 17;

fn relation(columns: &[(&str, Oid)]) -> Relation {
    let column = |&(name, type_oid): &(&str, Oid)| Column {
        name: name.to_owned(),
        type_oid,
        type_modifier: -1,
    };
    Relation {
        oid: 1,
        schema: "public".to_owned(),
        name: "outbox".to_owned(),
        columns: columns.iter().map(column).collect(),
    }
}

fn texts(names: &[&str]) -> Relation {
    relation(&names.iter().map(|&name| (name, TEXT)).collect::<Vec<_>>())
}

fn plan(relation: &Relation, placed: &[&str]) -> Result<Plan, PlanError> {
    plan_of(relation, ColumnNames::default(), placed)
}

fn plan_of(relation: &Relation, columns: ColumnNames, placed: &[&str]) -> Result<Plan, PlanError> {
    let placed = placed.iter().copied().map(str::to_owned).collect();
    let config = OutboxConfig { columns, placed, ..OutboxConfig::default() };
    Plan::new(relation, &config, &HashMap::new())
}

fn read<'a>(plan: &Plan, tuple: &'a Tuple) -> Result<Event<'a>, RowFault> {
    plan.event(tuple, POSITION, PgTimestamp::from_micros(5))
}

fn bytea_plan() -> Plan {
    let columns =
        [("payload", BYTEA), ("id", TEXT), ("aggregatetype", TEXT), ("aggregateid", TEXT)];
    plan(&relation(&columns), &[]).expect("the columns are there")
}

#[test]
fn a_table_may_lack_columns_that_its_records_do_not_contain() {
    let needs = Needs::NONE.requiring([Role::Id, Role::EventType, Role::Payload]);
    let plan = |names: &[&str], columns: ColumnNames| {
        let config = OutboxConfig { columns, needs, ..OutboxConfig::default() };
        Plan::new(&texts(names), &config, &HashMap::new())
    };
    let usual = ColumnNames::default;
    let whole = plan(&["id", "type", "payload", "aggregate_type"], usual()).expect("all it needs");
    let bare = plan(&["id", "type", "payload"], usual()).expect("all it needs");
    assert_eq!(bare.continues(&whole), Ok(()), "records do not need it");
    let missing = plan(&["id", "payload"], usual()).expect_err("what the topic is made of");
    assert!(missing.to_string().contains("`event_type`"), "{missing}");
    // A configured column must exist even so.
    let named = ColumnNames { aggregate_type: Some("kind".to_owned()), ..usual() };
    assert!(plan(&["id", "type", "payload"], named).is_err());
}

#[test]
fn a_row_becomes_an_event_whatever_the_order_of_its_columns() {
    let relation = texts(&[
        "payload",
        "extra",
        "aggregate_id",
        "id",
        "headers",
        "region",
        "aggregate_type",
        "type",
        "traceparent",
    ]);
    let plan = plan(&relation, &["region", "id"]).expect("the columns are there");
    let tuple = encode::texts(&[
        Some("{}"),
        Some("x"),
        Some("7"),
        Some("42"),
        None,
        Some("eu"),
        Some("Order"),
        Some("Placed"),
        Some("00-1"),
    ]);
    let event = read(&plan, &tuple).expect("an event");
    let field = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
    let expected = Event {
        position: POSITION,
        commit_time: PgTimestamp::from_micros(5),
        id: field("42"),
        aggregate_type: field("Order"),
        aggregate_id: field("7"),
        event_type: field("Placed"),
        payload: field("{}"),
        headers: None,
        traceparent: field("00-1"),
        tracestate: None,
        timestamp: None,
        schema_version: None,
        placed: vec![field("eu"), field("42")],
        types: event.types.clone(),
    };
    assert_eq!(event, expected);
    assert!(matches!(event.payload, Some(Cow::Borrowed(_))), "a payload is not copied");
}

#[test]
fn walposts_names_take_precedence_over_debeziums() {
    let relation = texts(&[
        "id",
        "aggregatetype",
        "aggregate_type",
        "aggregate_id",
        "payload",
        "type",
        "event_type",
    ]);
    let plan = plan(&relation, &[]).expect("the columns are there");
    let values = [Some("1"), Some("no"), Some("yes"), Some("2"), None, Some("no"), Some("yes")];
    let tuple = encode::texts(&values);
    let event = read(&plan, &tuple).expect("an event");
    assert_eq!(event.aggregate_type.as_deref(), Some(b"yes".as_slice()));
    assert_eq!(event.event_type.as_deref(), Some(b"yes".as_slice()));
    assert_eq!(event.payload, None);
}

#[test]
fn a_missing_column_error_lists_accepted_and_existing_names() {
    let error =
        plan(&texts(&["id", "aggregate_type", "kind", "payload"]), &[]).expect_err("no key");
    assert_eq!(
        error.to_string(),
        "table public.outbox has no column for `aggregate_id`: looked for aggregate_id and \
         aggregateid, it has id, aggregate_type, kind, payload; name the column in \
         outbox.columns.aggregate_id, or let the publication's column list include it"
    );
    let error = plan(&texts(&["id", "aggregate_type", "aggregate_id", "payload"]), &["region"])
        .expect_err("a placed column is required");
    assert!(error.to_string().contains("no column `region`"), "{error}");
}

#[test]
fn a_configured_column_must_be_there() {
    let names = ColumnNames {
        headers: Some("meta".to_owned()),
        aggregate_type: Some("kind".to_owned()),
        ..ColumnNames::default()
    };
    let with = texts(&["id", "kind", "aggregate_id", "payload", "meta"]);
    assert!(plan_of(&with, names.clone(), &[]).is_ok());
    for without in [
        texts(&["id", "kind", "aggregate_id", "payload", "headers"]),
        texts(&["id", "aggregate_type", "aggregate_id", "payload", "meta"]),
    ] {
        assert!(matches!(
            plan_of(&without, names.clone(), &[]),
            Err(PlanError::MissingColumn { .. })
        ));
    }
}

#[test]
fn one_column_may_provide_two_fields() {
    let names = ColumnNames { event_type: Some("id".to_owned()), ..ColumnNames::default() };
    let relation = texts(&["id", "aggregate_type", "aggregate_id", "payload"]);
    let plan = plan_of(&relation, names, &["id"]).expect("the columns are there");
    let tuple = encode::texts(&[Some("1"), Some("a"), Some("2"), None]);
    let event = read(&plan, &tuple).expect("an event");
    assert_eq!((&event.event_type, &event.placed[0]), (&event.id, &event.id));
}

#[test]
fn a_bytea_payload_is_decoded_and_other_bytea_is_unchanged() {
    let plan = bytea_plan();
    let tuple = encode::texts(&[Some("\\x00fFA1"), Some("\\x01"), Some("a"), Some("1")]);
    let event = read(&plan, &tuple).expect("an event");
    assert_eq!(event.payload.as_deref(), Some([0x00, 0xFF, 0xA1].as_slice()));
    assert_eq!(event.id.as_deref(), Some(b"\\x01".as_slice()));
}

#[test]
fn a_payload_of_another_type_is_passed_on_even_if_it_looks_like_bytea() {
    let plan =
        plan(&texts(&["id", "aggregate_type", "aggregate_id", "payload"]), &[]).expect("a plan");
    let tuple = encode::texts(&[Some("1"), Some("a"), Some("1"), Some("\\x00")]);
    let event = read(&plan, &tuple).expect("an event");
    assert_eq!(event.payload.as_deref(), Some(b"\\x00".as_slice()));
}

#[test]
fn bytea_that_is_not_hex_is_rejected_with_the_setting_to_change() {
    let plan = bytea_plan();
    let refused = |payload: &str| {
        let tuple = encode::texts(&[Some(payload), Some("1"), Some("a"), Some("1")]);
        read(&plan, &tuple).expect_err(payload).to_string()
    };
    assert!(refused("\\000abc").contains("bytea_output"));
    assert!(refused("\\x0").contains("half a byte"));
    assert!(refused("\\x0g").contains("hexadecimal"));
    assert!(refused("").contains("column `payload`"));
}

#[test]
fn values_that_an_insert_cannot_have_are_rejected() {
    let plan = bytea_plan();
    for value in [Value::Binary(b"1"), Value::Unchanged] {
        let tuple = encode::tuple(&[Value::Null, value, Value::Null, Value::Null]);
        let fault = read(&plan, &tuple).expect_err("a value that was not requested");
        assert!(
            matches!(&fault, RowFault::Undecodable { column, .. } if column == "id"),
            "{fault}"
        );
    }
}

#[test]
fn a_row_with_another_column_count_is_rejected() {
    let tuple = encode::texts(&[None, None, None]);
    let fault = Err(RowFault::ColumnCount { expected: 4, found: 3 });
    assert_eq!(read(&bytea_plan(), &tuple), fault);
}

proptest! {
    #[test]
    fn hex_is_decoded_to_its_bytes(bytes: Vec<u8>) {
        use std::fmt::Write;
        let mut text = String::from("\\x");
        for byte in &bytes {
            write!(text, "{byte:02x}").expect("a String takes it");
        }
        prop_assert_eq!(hex_bytes(text.as_bytes()), Ok(bytes));
    }

    #[test]
    fn any_text_is_hex_or_an_error(text: Vec<u8>) {
        let _ = hex_bytes(&text);
        let _ = hex_bytes(&[b"\\x", text.as_slice()].concat());
    }
}
