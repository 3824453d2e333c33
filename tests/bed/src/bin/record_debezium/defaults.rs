//! NULL in columns that have a default, and the effect of NOT NULL on a value.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};

const PLACEMENT: &str = "table.fields.additional.placement";

/// Types with a default each.
const COLUMNS: [(&str, &str); 20] = [
    ("t", "text DEFAULT 'x'"),
    ("t0", "text DEFAULT ''"),
    ("i", "int4 DEFAULT 7"),
    ("i8", "int8 DEFAULT 8"),
    ("b", "bool DEFAULT true"),
    ("f", "float8 DEFAULT 1.5"),
    ("n12", "numeric(12,2) DEFAULT 1.5"),
    ("n", "numeric DEFAULT 2.50"),
    ("d", "date DEFAULT '2026-01-01'"),
    ("dn", "date DEFAULT current_date"),
    ("ts", "timestamp DEFAULT '2026-01-01 00:00:00.5'"),
    ("tz", "timestamptz DEFAULT '2026-01-01 00:00:00.5+00'"),
    ("tzn", "timestamptz DEFAULT now()"),
    ("tm", "time DEFAULT '12:34'"),
    ("u", "uuid DEFAULT '6e8bc430-9c3a-11d9-9669-0800200c9a66'"),
    ("un", "uuid DEFAULT gen_random_uuid()"),
    ("j", "jsonb DEFAULT '{\"a\": 1}'"),
    ("ba", r"bytea DEFAULT '\xdead'"),
    ("a", "text[] DEFAULT '{a}'"),
    ("iv", "interval DEFAULT '1 day'"),
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let profiles = [Profile::Text, Profile::Json];
    let mut all = Vec::new();
    for profile in profiles {
        all.push(placed(profile, ""));
        all.push(placed(profile, " NOT NULL"));
        for (name, sql) in COLUMNS {
            all.push(role(
                profile,
                "key",
                name,
                &format!("id uuid, aggregatetype text, aggregateid {sql}, payload text, x text"),
                "{id}, 'order', {}, 'p', 'x'",
            ));
        }
        for (name, sql) in [
            ("text", "text DEFAULT 'none'"),
            ("jsonb", "jsonb DEFAULT '{\"a\": 1}'"),
            ("bytea", r"bytea DEFAULT '\xdead'"),
        ] {
            let columns =
                format!("id uuid, aggregatetype text, aggregateid text, payload {sql}, x text");
            all.push(role(profile, "payload", name, &columns, "{id}, 'order', 'key', {}, 'x'"));
        }
        let columns = "id uuid DEFAULT '6e8bc430-9c3a-11d9-9669-0800200c9a66', aggregatetype text, aggregateid text, payload text, x text";
        all.push(role(profile, "id", "uuid", columns, "{}, 'order', 'key', 'p', 'x'"));
        let columns =
            "id uuid, aggregatetype text DEFAULT 'none', aggregateid text, payload text, x text";
        all.push(role(profile, "route", "text", columns, "{id}, {}, 'key', 'p', 'x'"));
    }
    let columns =
        r"id uuid, aggregatetype text, aggregateid text, payload bytea DEFAULT '\xdead', x text";
    all.push(role(Profile::Binary, "payload", "bytea", columns, "{id}, 'order', 'key', {}, 'x'"));
    for profile in profiles {
        let columns =
            "id uuid, aggregatetype text, aggregateid text, payload text DEFAULT '{\"a\": 1}'";
        all.push(
            Plan::new(profile, "default/expand", columns)
                .router(&[("table.expand.json.payload", "true")])
                .rows("{id}, 'order', 'key', {}", ["NULL"])
                .done(),
        );
        all.push(
            Plan::new(profile, "default/tombstone", columns)
                .router(&[("route.tombstone.on.empty.payload", "true")])
                .rows("{id}, 'order', 'key', {}", ["NULL"])
                .done(),
        );
        all.push(
            Plan::new(profile, "default/roles", "id uuid, aggregatetype text, aggregateid text, payload text, part int4 DEFAULT 1, at timestamp DEFAULT '2026-01-01', version int4 DEFAULT 3")
                .router(&[(PLACEMENT, "part:partition,part:header,version:envelope"), ("table.field.event.timestamp", "at"), ("table.field.event.schema.version", "version")])
                .rows("{id}, 'order', 'key', 'p', {}", ["2, '2026-02-01', 1", "NULL, '2026-02-01', 1", "2, NULL, 1", "2, '2026-02-01', NULL"])
                .done(),
        );
    }
    all
}

fn placed(profile: Profile, constraint: &str) -> Scenario {
    let columns: Vec<_> =
        COLUMNS.iter().map(|(name, sql)| format!("{name} {sql}{constraint}")).collect();
    let placement: Vec<_> =
        COLUMNS.iter().map(|(name, _)| format!("{name}:header,{name}:envelope")).collect();
    let name = if constraint.is_empty() { "placed" } else { "placed_not_null" };
    let values = "'y', 'y', 1, 1, false, 2.5, 3.5, 4.50, '2026-02-02', '2026-02-02', '2026-02-02', '2026-02-02+00', '2026-02-02+00', '11:11', '00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000', '{}', '\\x00', '{b}', '2 days'";
    let nulls = vec!["NULL"; COLUMNS.len()].join(", ");
    let rows = if constraint.is_empty() { vec![values, &nulls] } else { vec![values] };
    Plan::new(
        profile,
        &format!("default/{name}"),
        &format!("id uuid{constraint}, aggregatetype text{constraint}, aggregateid text{constraint}, payload jsonb{constraint}, {}", columns.join(", ")),
    )
    .router(&[(PLACEMENT, &placement.join(","))])
    .rows("{id}, 'order', 'key', '{\"a\": 1.50}', {}", rows)
    .done()
}

fn role(profile: Profile, part: &str, name: &str, columns: &str, template: &str) -> Scenario {
    Plan::new(profile, &format!("default/{part}_{name}"), columns)
        .router(&[(PLACEMENT, "x:header")])
        .rows(template, ["NULL"])
        .done()
}
