//! Each type as the payload: unchanged, expanded, and with tombstones.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};
use crate::values::{KINDS, Kind};

const ROW: &str = "{id}, 'order', 'key', {}";

/// The types that outboxes have as their payload; of the others a few values do.
const USUAL: [&str; 5] = ["json", "jsonb", "text", "varchar", "bytea"];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    for kind in KINDS {
        let usual = USUAL.contains(&kind.name);
        let count = if usual { kind.values.len() } else { 2 };
        for profile in [Profile::Text, Profile::Json] {
            all.push(payload(profile, "payload", kind, count, &[]));
        }
        if usual || ["uuid", "int8"].contains(&kind.name) {
            let count = if kind.name == "bytea" { count } else { 2 };
            all.push(payload(Profile::Binary, "payload", kind, count, &[]));
            all.push(payload(Profile::TextJson, "payload", kind, 2, &[]));
            let tombstones = [("route.tombstone.on.empty.payload", "true")];
            for profile in [Profile::Text, Profile::Json, Profile::TextJson, Profile::Binary] {
                all.push(payload(profile, "tombstone", kind, 2, &tombstones));
            }
        }
    }
    all.extend(empty_texts());
    all.extend(expanded());
    all.extend(["bytea", "text"].map(by_debeziums_converter));
    all.extend(["bytea", "text", "jsonb", "int8"].map(|sql| by_its_delegate(sql, "delegate", &[])));
    let envelope = [("table.fields.additional.placement", "id:envelope:event")];
    all.extend(["bytea", "jsonb"].map(|sql| by_its_delegate(sql, "delegate_envelope", &envelope)));
    all.push(by_its_delegate("jsonb", "delegate_expand", &[("table.expand.json.payload", "true")]));
    all
}

fn payload(
    profile: Profile,
    folder: &str,
    kind: &Kind,
    count: usize,
    router: &[(&str, &str)],
) -> Scenario {
    let Kind { name, sql, before, values } = kind;
    Plan::new(profile, &format!("{folder}/{name}"), &columns(sql))
        .before(before)
        .router(router)
        .rows(ROW, values.iter().copied().take(count).chain(["NULL"]))
        .done()
}

/// The converter that Debezium brings along for bytes.
fn by_debeziums_converter(sql: &str) -> Scenario {
    let converter = "io.debezium.converters.BinaryDataConverter";
    Plan::new(Profile::Binary, &format!("converter/{sql}"), &columns(sql))
        .connector(&[("value.converter", converter)])
        .rows(ROW, [r"'\x00ff'", "''", "NULL"])
        .done()
}

/// The same with a `JsonConverter` for what is no bytes.
fn by_its_delegate(sql: &str, folder: &str, router: &[(&str, &str)]) -> Scenario {
    let values: &[&str] = match sql {
        "bytea" => &[r"'\x00ff'", "''", "NULL"],
        "int8" => &["9007199254740993", "NULL"],
        "jsonb" => &[r#"'{"b": [1, 2.50], "a": "é\"\\"}'"#, "'[]'", "NULL"],
        _ => &["'a \"b\"'", "''", "NULL"],
    };
    Plan::new(Profile::BinaryJson, &format!("{folder}/{sql}"), &columns(sql))
        .router(router)
        .rows(ROW, values.iter().copied())
        .done()
}

fn columns(payload: &str) -> String {
    format!("id uuid, aggregatetype text, aggregateid text, payload {payload}")
}

/// What counts as empty where tombstones are on.
fn empty_texts() -> Vec<Scenario> {
    let values = ["''", "' '", r"E'\t\n'", r"U&'\00A0'", r"E'\u0001'", "'x'", "NULL"];
    let plan = |profile| {
        Plan::new(profile, "tombstone/empty_text", &columns("text"))
            .router(&[("route.tombstone.on.empty.payload", "true")])
            .rows(ROW, values)
            .done()
    };
    [Profile::Text, Profile::Json].map(plan).into()
}

const EXPAND: (&str, &str) = ("table.expand.json.payload", "true");
const KEEP_EMPTY: (&str, &str) = ("table.json.payload.empty.array.behavior", "optional_string");
const KEEP_NULLS: (&str, &str) = ("table.json.payload.null.behavior", "optional_bytes");

fn expanded() -> Vec<Scenario> {
    let json = Profile::Json;
    let plan = |name: &str, sql: &str, router: &[(&str, &str)]| {
        Plan::new(json, &format!("expand/{name}"), &columns(sql)).router(router)
    };
    let documents = || DOCUMENTS.iter().copied();
    let envelope = |profile| {
        Plan::new(
            profile,
            "expand/envelope",
            "id uuid, aggregatetype text, aggregateid text,
                payload jsonb, kind text, data jsonb",
        )
        .router(&[
            EXPAND,
            ("table.fields.additional.placement", "kind:envelope,data:envelope,kind:header"),
        ])
        .rows(
            "{id}, 'order', 'key', {}, 'placed', '{\"a\": 1.50}'",
            ["'{\"b\": 1, \"a\": [1, 2]}'", "'[1, 2]'", "'{}'", "'1'", "'{\"c\": 1}'", "NULL"],
        )
        .done()
    };
    let text = DOCUMENTS.iter().chain(NO_DOCUMENTS).copied();
    vec![
        plan("jsonb", "jsonb", &[EXPAND]).rows(ROW, documents()).done(),
        plan("json", "json", &[EXPAND]).rows(ROW, documents()).done(),
        plan("text", "text", &[EXPAND]).rows(ROW, text).done(),
        plan("bytea", "bytea", &[EXPAND]).rows(ROW, [r"'\x7b7d'", "NULL"]).done(),
        plan("keep_nulls", "jsonb", &[EXPAND, KEEP_NULLS]).rows(ROW, documents()).done(),
        plan("keep_empty_arrays", "jsonb", &[EXPAND, KEEP_EMPTY]).rows(ROW, documents()).done(),
        plan("keep_both", "jsonb", &[EXPAND, KEEP_NULLS, KEEP_EMPTY]).rows(ROW, documents()).done(),
        plan("tombstone", "text", &[EXPAND, ("route.tombstone.on.empty.payload", "true")])
            .rows(ROW, ["'{}'", "'[]'", "''", "'null'", r#"'""'"#, "NULL"])
            .done(),
        envelope(json),
        envelope(Profile::TextJson),
        Plan::new(Profile::Text, "expand/jsonb", &columns("jsonb"))
            .router(&[EXPAND])
            .rows(
                ROW,
                [
                    r#"'{"b": 1, "a": [1, 2.50], "n": null, "o": {"t": "x y"}}'"#,
                    r#"'{"b": 1, "a": [1, 2], "n": null, "o": {"t": "x y"}}'"#,
                    "'[1, 2]'",
                    "'[]'",
                    r#"'"text"'"#,
                    "NULL",
                ],
            )
            .done(),
    ]
}

/// Objects in an array are alike, or one begins with the members of the other: the order in
/// which Debezium merges others is that of a hash of addresses.
const DOCUMENTS: &[&str] = &[
    "NULL",
    "'{}'",
    "'[]'",
    "'null'",
    "'true'",
    "'42'",
    r#"'"text"'"#,
    r#"'""'"#,
    "' {\"blank\": \"before\"} '",
    r#"'{"b": 1, "a": 2, "aa": 3, "B": 4}'"#,
    r#"'{"text": "x", "empty": "", "yes": true, "no": false, "nothing": null}'"#,
    r#"'{"nothing": null}'"#,
    r#"'{"inner": {"nothing": null}, "empty": {}, "deep": {"er": {"still": [1]}}}'"#,
    r#"'{"n": [0, 1, -1, 2147483647, 2147483648, -2147483648, -2147483649]}'"#,
    r#"'{"n": 2147483647}'"#,
    r#"'{"n": 2147483648}'"#,
    r#"'{"n": 9223372036854775807, "m": -9223372036854775808}'"#,
    r#"'{"n": 9223372036854775808}'"#,
    r#"'{"n": -9223372036854775809}'"#,
    r#"'{"n": 123456789012345678901234567890}'"#,
    r#"'{"a": 1.50, "b": 1.0, "c": -0.0, "d": 0.1, "e": 0.10, "f": 100.00}'"#,
    r#"'{"a": 1e3, "b": 1E-7, "c": 1.5e300, "d": 12345678.9, "e": 0.0001, "f": 1e21}'"#,
    r#"'{"a": 0.12345678901234567890, "b": 123456789.123456789}'"#,
    r#"'{"a": 1e400}'"#,
    r#"'{"a": 1e-400}'"#,
    "'[1, 2, 3]'",
    "'[1, 2.5]'",
    "'[1, 2147483648]'",
    "'[2147483648, 1]'",
    "'[1, \"a\"]'",
    "'[\"a\", null, \"b\"]'",
    "'[null]'",
    "'[null, null]'",
    "'[null, 1]'",
    "'[true, false]'",
    "'[[1, 2], [3]]'",
    "'[[]]'",
    "'[[], [1]]'",
    "'[{}]'",
    r#"'[{"a": 1}, {"a": 2}]'"#,
    r#"'[{"a": 1}, {"b": 2}]'"#,
    r#"'[{"a": 1}, {"a": "x"}]'"#,
    r#"'[{"a": 1}, {"a": null}]'"#,
    r#"'[{"a": null}, {"a": 1}]'"#,
    r#"'[{"a": 1}, null]'"#,
    r#"'[{"a": 1}, 2]'"#,
    r#"'[{"a": {"b": 1}}, {"a": {"c": 2}}]'"#,
    r#"'{"empty": []}'"#,
    r#"'{"empty": [], "x": 1}'"#,
    r#"'{"x": 1, "y_empty": []}'"#,
    r#"'{"x": 1, "y_empty": [], "z_last": 2}'"#,
    r#"'{"inner": {"empty": []}, "x": 1}'"#,
    r#"'{"nulls": [null]}'"#,
    r#"'{"x": 1, "y_nulls": [null]}'"#,
    r#"'{"a": [1], "b": ["x", null]}'"#,
    r#"'{"a": [null, "x"]}'"#,
    r#"'{"a": [true, false]}'"#,
    r#"'{"a": [1.5, 2.25]}'"#,
    r#"'{"a": [1, 2.5]}'"#,
    r#"'{"a": [2147483648, 2147483649]}'"#,
    r#"'{"a": [1, "x"], "b": 1}'"#,
    r#"'{"a": [{}]}'"#,
    r#"'{"a": [{"b": 1}, {"b": "x"}]}'"#,
    r#"'{"a": [{"b": 1}, null]}'"#,
    r#"'{"a": [{"b": null}, {"b": 1}]}'"#,
    r#"'{"a": [{"b": [1]}, {"b": []}]}'"#,
    r#"'{"a": [[1, 2], [3]]}'"#,
    r#"'{"a": [["x"], [1]]}'"#,
    r#"'{"a": [[], [1]]}'"#,
    r#"'{"a": [{"b": {"c": 1}}, {"b": {"c": 2}}]}'"#,
    r#"'{"items": [{"sku": "a", "n": 1, "price": 2.50}, {"sku": "b", "n": 2, "price": 3.0}]}'"#,
    r#"'{"items": [{"sku": "a"}, {"sku": "b", "unit": 2}]}'"#,
    r#"'{"items": [{"sku": "b", "unit": 2}, {"sku": "a"}, null]}'"#,
    r#"'{"matrix": [[1, 2], [3, 4]], "ragged": [[1], ["a"]]}'"#,
    r#"'{"matrix": [[{"a": 1}], [{"b": 2}]]}'"#,
    r#"'{"größe": "Köln", "日本": "語", "face": "\ud83d\ude00", "clef": "𝄞"}'"#,
    r#"'{"a b": 1, "a.b": 2, "a-b": 4, "$a": 5, "1": 7, "_": 9}'"#,
    r#"'{"": 3}'"#,
    r#"'{"\"q\"": 6, "\\": 7}'"#,
    r#"'{"😀": 8}'"#,
    r#"'{"quote": "\"", "back": "\\", "slash": "\/", "tab": "\t", "bell": "\u0007", "del": "\u007f"}'"#,
    r#"'{"html": "<a>&</a>", "line": "\u2028"}'"#,
    r#"'{"a": 1, "a": 2}'"#,
    r#"'{"uuid": "6e8bc430-9c3a-11d9-9669-0800200c9a66", "when": "2026-11-21T00:00:00Z"}'"#,
];

/// What only a text can hold.
const NO_DOCUMENTS: &[&str] = &[
    "''",
    "' '",
    "'plain'",
    "'{'",
    "'{\"a\": 1'",
    "'{\"a\": 1} and more'",
    "'{\"a\": 1} {\"b\": 2}'",
    "'{a: 1}'",
    "'{''a'': 1}'",
    "'{\"a\": NaN}'",
    "'{\"a\": 01}'",
    "'{\"a\": .5}'",
    "'{\"a\": 1,}'",
    "'[1, 2'",
    "'[1, 2,]'",
    r#"E'{"a": "line\nfeed"}'"#,
    r#"E'\n{"a": 1}'"#,
    r#"E'\uFEFF{"a": 1}'"#,
    r#"'{"lone": "\ud83d"}'"#,
    "'// comment'",
    "'{/* comment */}'",
];
