//! The event router's other options, and other changes to an outbox table.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};

const COLUMNS: &str = "id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload jsonb";
const ROW: &str = "{id}, 'order', 'key', '{\"a\": 1.50}'";

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = vec![names(), keys(Profile::Text), keys(Profile::Json), ids(), many_rows()];
    all.extend(absent_columns());
    all.extend(operations());
    all.extend(timestamps());
    all.extend(schema_versions());
    all
}

/// Other names for the columns.
fn names() -> Scenario {
    let columns = "number int8, kind varchar(20), subject int4, body text, aggregatetype text,
        aggregateid text, payload text, id uuid";
    Plan::new(Profile::Text, "option/names", columns)
        .router(&[
            ("table.field.event.id", "number"),
            ("table.field.event.key", "subject"),
            ("table.field.event.payload", "body"),
            ("route.by.field", "kind"),
        ])
        .row("1, 'order', 7, 'the body', 'not this', 'nor this', 'nor this', NULL")
        .row("NULL, 'order', NULL, NULL, NULL, NULL, NULL, NULL")
        .done()
}

/// Keys choose the partition by their bytes.
fn keys(profile: Profile) -> Scenario {
    let keys = [
        "'a'",
        "'b'",
        "'c'",
        "'d'",
        "'order-1'",
        "'order-2'",
        "'42'",
        "''",
        "' '",
        "'größe'",
        "'😀'",
        "repeat('k', 200)",
        "NULL",
    ];
    Plan::new(profile, "option/keys", COLUMNS)
        .rows("{id}, 'order', {}, '{\"a\": 1.50}'", keys)
        .done()
}

fn ids() -> Scenario {
    Plan::new(Profile::Text, "option/no_id", &COLUMNS.replace(" PRIMARY KEY", ""))
        .row("NULL, 'order', 'key', '1'")
        .done()
}

fn many_rows() -> Scenario {
    let rows: Vec<_> = (1..=5)
        .map(|at| format!("('00000000-0000-0000-0000-{at:012}', 'order', 'key', '{at}')"))
        .collect();
    let rows = rows.join(", ");
    let first = rows.trim_start_matches('(').trim_end_matches(')');
    Plan::new(Profile::Text, "option/many_rows", COLUMNS).row(first).done()
}

/// A column that an option names and the table does not have.
fn absent_columns() -> Vec<Scenario> {
    let options = [
        "table.field.event.id",
        "table.field.event.key",
        "table.field.event.payload",
        "route.by.field",
        "table.field.event.timestamp",
        "table.field.event.schema.version",
    ];
    let plan = |option: &str| {
        let name = format!("option/absent_{}", option.rsplit('.').next().unwrap_or(option));
        let name = name.replace("absent_field", "absent_route");
        Plan::new(Profile::Text, &name, COLUMNS)
            .router(&[(option, "nowhere")])
            .rows(ROW, [""])
            .done()
    };
    options.map(plan).into()
}

/// Other steps than inserts.
fn operations() -> Vec<Scenario> {
    let update =
        "UPDATE outbox SET payload = '2' WHERE id = '00000000-0000-0000-0000-000000000001'";
    let plan = |behavior: &str| {
        let is_survived = behavior != "fatal";
        Plan::new(Profile::Text, &format!("option/operations_{behavior}"), COLUMNS)
            .router(&[("table.op.invalid.behavior", behavior)])
            .rows(ROW, ["", ""])
            .step(update, is_survived)
            .row("'00000000-0000-0000-0000-000000000003', 'order', 'key', '3'")
            .step("DELETE FROM outbox WHERE payload = '3'", true)
            .row("'00000000-0000-0000-0000-000000000004', 'order', 'key', '4'")
            .step("TRUNCATE outbox", true)
            .row("'00000000-0000-0000-0000-000000000005', 'order', 'key', '5'")
            .done()
    };
    ["warn", "error", "fatal"].map(plan).into()
}

/// The record's timestamp from a column.
fn timestamps() -> Vec<Scenario> {
    let plan = |(name, sql, values): (&str, &str, &[&str])| {
        Plan::new(
            Profile::Text,
            &format!("option/timestamp_{name}"),
            &format!("{COLUMNS}, at {sql}"),
        )
        .router(&[("table.field.event.timestamp", "at")])
        .rows("{id}, 'order', 'key', '{\"a\": 1.50}', {}", values.iter().copied())
        .done()
    };
    let moments: &[&str] = &[
        "'2020-02-03 12:34:56.789012'",
        "'2020-02-03 12:34:56.7'",
        "'2020-02-03 12:34:56'",
        "'1970-01-01'",
        "'1970-01-01 00:00:00.001999'",
        "'1969-12-31 23:59:59.999999'",
        "'1969-12-31 23:59:59.998'",
        "'0001-01-01'",
        "'9999-12-31 23:59:59.999999'",
        "'infinity'",
        "'-infinity'",
        "'2020-02-03'",
        "NULL",
    ];
    vec![
        plan(("6", "timestamp", moments)),
        plan(("3", "timestamp(3)", moments)),
        plan(("tz", "timestamptz", &["'2020-02-03 12:34:56.789+00'", "NULL"])),
        plan(("int8", "int8", &["1580733296789"])),
        plan(("int4", "int4", &["1580733"])),
        plan(("date", "date", &["'2020-02-03'"])),
        plan(("time", "time", &["'12:34:56'"])),
        plan(("text", "text", &["'2020-02-03 12:34:56'"])),
    ]
}

/// The version is in the schema, which none of the profiles' converters writes.
fn schema_versions() -> Vec<Scenario> {
    let plan = |(name, sql, placement): (&str, &str, &str)| {
        let columns = format!("{COLUMNS}, version {sql}");
        let mut plan = Plan::new(Profile::Json, &format!("option/version_{name}"), &columns)
            .router(&[("table.field.event.schema.version", "version")]);
        if !placement.is_empty() {
            plan = plan.router(&[("table.fields.additional.placement", placement)]);
        }
        plan.rows("{id}, 'order', 'key', '{\"a\": 1.50}', {}", ["'1'", "'2'", "NULL"]).done()
    };
    [
        ("bare", "int4", ""),
        ("envelope", "int4", "version:envelope"),
        ("header", "int4", "version:header"),
        ("bare_text", "text", ""),
        ("envelope_int2", "int2", "version:envelope"),
        ("envelope_int8", "int8", "version:envelope"),
        ("envelope_text", "text", "version:envelope"),
    ]
    .map(plan)
    .into()
}
