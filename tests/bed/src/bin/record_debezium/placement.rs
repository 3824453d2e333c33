//! Additional columns: placed in headers, in the envelope, or as the partition.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};

const PLACEMENT: &str = "table.fields.additional.placement";
const COLUMNS: &str = "id uuid, aggregatetype text, aggregateid text, payload jsonb,
    type text, tenant int4, at timestamptz, \"mixedCase\" text";
const ROWS: [&str; 4] = [
    "'Placed', 7, '2026-11-21 12:34:56.789+00', 'Mixed'",
    "'', -7, '2026-11-21 12:34:56+00', ''",
    "NULL, 7, NULL, 'Größe 😀'",
    "NULL, NULL, NULL, NULL",
];

/// What one can get wrong.
const MISTAKEN: [(&str, &str); 8] = [
    ("place", "type:nowhere"),
    ("no_place", "type"),
    ("capitals", "type:HEADER"),
    ("many_parts", "type:header:a:b"),
    ("empty_item", "type:header,,tenant:header"),
    ("comma_at_the_end", "type:header,"),
    ("envelope_named_payload", "type:envelope:payload"),
    ("envelope_twice", "type:envelope:a,tenant:envelope:a"),
];

/// Names of columns and aliases that are not plain, and columns that play a part already.
fn named(profile: Profile) -> Vec<Scenario> {
    let columns = "id uuid, aggregatetype text, aggregateid text, payload jsonb, \"a.b\" text,
        \"a b\" text, \"größe\" text, \"Q\"\"q\" text, \"$x\" int4";
    [
        ("odd_names", "a.b:header,a.b:envelope,größe:header,größe:envelope,$x:header,$x:envelope"),
        ("odd_blank", "a b:header,a b:envelope"),
        ("odd_quote", "Q\"q:header,Q\"q:envelope"),
        ("odd_aliases", "a.b:header:größe,a.b:envelope:größe,$x:header:x-y.z/@,$x:envelope:x=,y"),
        (
            "roles",
            "id:header:i,id:envelope,aggregatetype:header,aggregatetype:envelope,\
            aggregateid:header,aggregateid:envelope:k,payload:header,payload:envelope:p",
        ),
        ("both", "$x:header,$x:envelope,$x:partition,$x:header:again"),
    ]
    .map(|(name, list)| {
        Plan::new(profile, &format!("placement/{name}"), columns)
            .router(&[(PLACEMENT, list)])
            .rows(
                "{id}, 'order', {}",
                [
                    "'key', '{\"a\": 1.50}', 'dot', 'blank', 'Maß', 'quote', 1",
                    r"E'\u0001\u001f\u007f', '[]', '', '', '', '', 2",
                    "repeat('key', 20000), NULL, NULL, NULL, NULL, NULL, 0",
                ],
            )
            .done()
    })
    .into()
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all: Vec<_> = [Profile::Text, Profile::Json].into_iter().flat_map(named).collect();
    for profile in [Profile::Text, Profile::Json] {
        all.extend(
            [
                ("none", ""),
                ("header", "type:header"),
                ("headers", "type:header:eventType,tenant:header,at:header,mixedCase:header"),
                ("headers_turned", "mixedCase:header:m,at:header:a,tenant:header:t,type:header"),
                ("header_twice", "type:header,type:header:again,type:header"),
                ("header_named_id", "tenant:header:id"),
                ("header_of_the_rest", "id:header:uuid,aggregatetype:header,aggregateid:header,payload:header"),
                ("blanks", " type : header : eventType , tenant : header "),
                ("envelope", "type:envelope"),
                ("envelopes", "type:envelope:eventType,tenant:envelope,at:envelope"),
                ("envelopes_turned", "at:envelope,tenant:envelope:t,type:envelope"),
                ("envelope_of_the_rest", "id:envelope,aggregatetype:envelope:a,aggregateid:envelope,payload:envelope:again"),
                ("mixed", "tenant:envelope,type:header:eventType,at:envelope:when,tenant:header"),
            ]
            .map(|(name, placement)| placed(profile, name, placement)),
        );
    }
    let (text, binary) = (Profile::Text, Profile::Binary);
    all.push(placed_bytes("headers", "type:header:eventType,tenant:header,at:header"));
    all.push(placed_bytes("envelope", "type:envelope"));
    all.extend([text, Profile::Json, binary].map(partition));
    all.extend(["int2", "int8", "text", "numeric(3,0)"].map(partition_of_type));
    all.extend(missing());
    all.extend(MISTAKEN.map(|(name, placement)| {
        let plan = Plan::new(text, &format!("placement/mistaken_{name}"), COLUMNS);
        let plan = plan.router(&[(PLACEMENT, placement)]);
        plan.rows("{id}, 'order', 'key', '{\"a\": 1.50}', {}", [ROWS[0]]).done()
    }));
    all
}

fn placed(profile: Profile, name: &str, placement: &str) -> Scenario {
    let plan = Plan::new(profile, &format!("placement/{name}"), COLUMNS);
    let plan = if placement.is_empty() { plan } else { plan.router(&[(PLACEMENT, placement)]) };
    plan.rows("{id}, 'order', 'key', '{\"a\": 1.50}', {}", ROWS).done()
}

fn placed_bytes(name: &str, placement: &str) -> Scenario {
    let columns = COLUMNS.replace("jsonb", "bytea");
    Plan::new(Profile::Binary, &format!("placement/{name}"), &columns)
        .router(&[(PLACEMENT, placement)])
        .rows(r"{id}, 'order', 'key', '\xdeadbeef', {}", ROWS)
        .done()
}

/// Kafka's topic has three of them.
fn partition(profile: Profile) -> Scenario {
    let payload = if profile == Profile::Binary { "bytea" } else { "jsonb" };
    let columns =
        format!("id uuid, aggregatetype text, aggregateid text, payload {payload}, part int4");
    let values = [
        "'key', '\"x\"', 0",
        "'key', '\"x\"', 1",
        "'key', '\"x\"', 2",
        "'key', '\"x\"', NULL",
        "'key', '\"x\"', -1",
        "NULL, '\"x\"', 1",
        "'after', NULL, 2",
    ];
    // That there is no such partition takes long to see, and is the same in every profile.
    let beyond = (profile == Profile::Text).then_some("'key', '\"x\"', 3");
    Plan::new(profile, "placement/partition", &columns)
        .router(&[(PLACEMENT, "part:partition,part:header")])
        .rows("{id}, 'order', {}", values.into_iter().chain(beyond))
        .done()
}

fn partition_of_type(sql: &str) -> Scenario {
    let name = format!("placement/partition_{}", sql.split('(').next().unwrap_or(sql));
    let columns =
        format!("id uuid, aggregatetype text, aggregateid text, payload jsonb, part {sql}");
    Plan::new(Profile::Text, &name, &columns)
        .router(&[(PLACEMENT, "part:partition")])
        .rows("{id}, 'order', 'key', '\"x\"', {}", ["'1'", "NULL"])
        .done()
}

/// A column that the table does not have.
fn missing() -> Vec<Scenario> {
    let mut all = Vec::new();
    for placement in ["header", "envelope", "partition"] {
        for behavior in ["error", "ignore"] {
            let name = format!("placement/missing_{placement}_{behavior}");
            let list = format!("tenant:header,nowhere:{placement},type:header");
            let plan = Plan::new(Profile::Text, &name, COLUMNS)
                .router(&[(PLACEMENT, &list), ("table.field.additional.missing", behavior)]);
            all.push(plan.rows("{id}, 'order', 'key', '{\"a\": 1.50}', {}", [ROWS[0]]).done());
        }
    }
    all
}
