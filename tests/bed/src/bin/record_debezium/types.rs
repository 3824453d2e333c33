//! Each type as the key, as a header and inside the envelope, with the ends of
//! its range.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};

pub(crate) struct Kind {
    /// The file's name.
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
    before: &'static str,
    pub(crate) values: &'static [&'static str],
}

const fn kind(name: &'static str, sql: &'static str, values: &'static [&'static str]) -> Kind {
    Kind { name, sql, before: "", values }
}

pub(crate) const KINDS: &[Kind] = &[
    kind(
        "uuid",
        "uuid",
        &[
            "'6e8bc430-9c3a-11d9-9669-0800200c9a66'",
            "'00000000-0000-0000-0000-000000000000'",
            "'FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF'",
        ],
    ),
    kind(
        "text",
        "text",
        &[
            "'plain'",
            "''",
            "'  blanks  '",
            "'Grüße aus Köln'",
            "'日本語'",
            r"U&'clef \+01D11E and face \+01F600'",
            r"U&'last of the BMP \FFFD\FFFF, first and last above \+010000\+10FFFF'",
            r#"'a "quote", an ''apostrophe'''"#,
            r"'back\slash \n \u0041'",
            r"E'tab\tnewline\nreturn\rbackspace\bfeed\f'",
            r"E'\u0001\u0007\u001f\u007f\u0080\u009f'",
            r"U&'separators \2028\2029, mark \FEFF, no-break \00A0'",
            r"'<a href=x>&</a> %s $1 ${x} /'",
            "'null'",
            "'true'",
            "'42'",
            "'1.50'",
            r#"'{"looks": "like JSON"}'"#,
            "'[1, 2]'",
            r#"'"quoted"'"#,
            "'2026-11-21T00:00:00Z'",
        ],
    ),
    kind("varchar", "varchar(20)", &["'plain'", "''", "'blanks  '", "'größe'", "'42'"]),
    kind("char", "char(8)", &["'plain'", "''", "'12345678'", "'ü'"]),
    kind("int2", "int2", &["0", "1", "-1", "'-32768'", "32767"]),
    kind("int4", "int4", &["0", "1", "-1", "'-2147483648'", "2147483647"]),
    kind(
        "int8",
        "int8",
        &["0", "1", "-1", "9007199254740993", "'-9223372036854775808'", "9223372036854775807"],
    ),
    kind("bool", "bool", &["true", "false"]),
    kind(
        "float4",
        "float4",
        &[
            "0",
            "'-0'",
            "1",
            "1.5",
            "-1.5",
            "0.1",
            "100",
            "16777216",
            "9999999",
            "1e7",
            "1.2345e10",
            "0.001",
            "0.00099",
            "1e-10",
            "3.4028235e38",
            "1.1754944e-38",
            "1e-45",
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
        ],
    ),
    kind(
        "float8",
        "float8",
        &[
            "0",
            "'-0'",
            "1",
            "1.5",
            "-1.5",
            "0.1",
            "0.1::float8 + 0.2::float8",
            "100",
            "9999999",
            "1e7",
            "12345678.9",
            "9007199254740993",
            "1e21",
            "1e23",
            "2e23",
            "0.001",
            "0.00099",
            "1e-7",
            "1.7976931348623157e308",
            "2.2250738585072014e-308",
            "5e-324",
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
        ],
    ),
    kind(
        "numeric_12_2",
        "numeric(12,2)",
        &[
            "0",
            "1.5",
            "-1.5",
            "0.01",
            "-0.01",
            "1.27",
            "1.28",
            "-1.28",
            "-1.29",
            "1000",
            "9999999999.99",
            "-9999999999.99",
            "'NaN'",
        ],
    ),
    kind(
        "numeric",
        "numeric",
        &[
            "0",
            "0.00",
            "1",
            "1.50",
            "-1.50",
            "100",
            "1e30",
            "1e-30",
            "0.000001",
            "0.0000001",
            "123456789012345678901234567890.123456789",
            "-123456789012345678901234567890.123456789",
            "1e200",
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
        ],
    ),
    kind(
        "numeric_38_0",
        "numeric(38,0)",
        &["0", "1", "-1", "99999999999999999999999999999999999999"],
    ),
    kind(
        "date",
        "date",
        &[
            "'1970-01-01'",
            "'2026-11-21'",
            "'1969-12-31'",
            "'1582-10-15'",
            "'1582-10-04'",
            "'1500-03-01'",
            "'0001-01-01'",
            "'0001-12-31 BC'",
            "'4713-11-24 BC'",
            "'9999-12-31'",
            "'10000-01-01'",
            "'5874897-12-31'",
            "'infinity'",
            "'-infinity'",
        ],
    ),
    kind("time", "time", TIMES),
    kind("time_3", "time(3)", TIMES),
    kind("time_0", "time(0)", TIMES),
    kind("time_4", "time(4)", TIMES),
    kind("timetz", "timetz", ZONED_TIMES),
    kind("timetz_3", "timetz(3)", ZONED_TIMES),
    kind("timestamp", "timestamp", TIMESTAMPS),
    kind("timestamp_3", "timestamp(3)", TIMESTAMPS),
    kind("timestamp_0", "timestamp(0)", TIMESTAMPS),
    kind("timestamp_4", "timestamp(4)", &["'2026-11-21 12:34:56.78905'", "'2026-11-21 12:34'"]),
    kind("timestamp_6", "timestamp(6)", &["'2026-11-21 12:34:56.789012'", "'2026-11-21 12:34'"]),
    kind("timestamptz", "timestamptz", ZONED_TIMESTAMPS),
    kind("timestamptz_3", "timestamptz(3)", ZONED_TIMESTAMPS),
    kind("timestamptz_0", "timestamptz(0)", ZONED_TIMESTAMPS),
    kind(
        "timestamptz_2",
        "timestamptz(2)",
        &["'2026-11-21 12:34:56.7+00'", "'2026-11-21 12:34+00'"],
    ),
    kind(
        "timestamptz_6",
        "timestamptz(6)",
        &["'2026-11-21 12:34:56.7+00'", "'2026-11-21 12:34+00'"],
    ),
    kind(
        "interval",
        "interval",
        &[
            "'0'",
            "'1 microsecond'",
            "'1 day'",
            "'1 month'",
            "'1 year'",
            "'1 year 2 months 3 days 04:05:06.789012'",
            "'-1 year -2 months +3 days -04:05:06.789012'",
            "'1 month -1 day'",
            "'100:00:00'",
            "'178000000 years'",
            "'-178000000 years'",
            "'200000 years'",
            "'300000 years'",
            "'infinity'",
            "'-infinity'",
        ],
    ),
    kind("json", "json", DOCUMENTS),
    kind("jsonb", "jsonb", DOCUMENTS),
    kind(
        "bytea",
        "bytea",
        &[r"'\x'", r"'\x00'", r"'\xdeadbeef'", r"'\x7b7d'", r"'\xfbff'", r"'\xc3a4'", r"'\xff'"],
    ),
    Kind {
        before: r#"CREATE TYPE mood AS ENUM ('calm', '', 'Größe', 'a "quote"', '42')"#,
        ..kind("enum", "mood", &["'calm'", "''", "'Größe'", r#"'a "quote"'"#, "'42'"])
    },
    kind(
        "text_array",
        "text[]",
        &[
            "'{}'",
            "'{a}'",
            "'{a,b}'",
            r#"ARRAY['a, b', NULL, 'a "quote"', '', 'NULL', 'back\slash', E'new\nline']"#,
            "ARRAY['Größe', '日本', U&'\\+01F600']",
            "'{{a,b},{c,d}}'",
            "'[2:3]={a,b}'",
        ],
    ),
    kind(
        "int_array",
        "int[]",
        &["'{}'", "'{1}'", "'{1,NULL,-3}'", "'{-2147483648,2147483647}'", "'{{1,2},{3,4}}'"],
    ),
];

const TIMES: &[&str] = &[
    "'00:00'",
    "'12:34:56.789012'",
    "'12:34:56.7'",
    "'12:34'",
    "'23:59:59.999'",
    "'23:59:59.999999'",
    "'24:00:00'",
];

const ZONED_TIMES: &[&str] = &[
    "'00:00+00'",
    "'12:34:56.789012+00'",
    "'12:34:56.789012+02'",
    "'12:34:56.7-05:30'",
    "'12:34+01'",
    "'00:30+15:59'",
    "'23:30-15:59'",
    "'12:00+05:30:15'",
    "'23:59:59.999999+00'",
    "'24:00:00+00'",
];

const TIMESTAMPS: &[&str] = &[
    "'1970-01-01'",
    "'2026-11-21 12:34:56.789012'",
    "'2026-11-21 12:34:56.7'",
    "'2026-11-21 12:34:56'",
    "'1969-12-31 23:59:59.999999'",
    "'1582-10-15 00:00'",
    "'1582-10-04 12:00'",
    "'1500-03-01 00:00'",
    "'0001-01-01 00:00'",
    "'0001-12-31 23:59:59 BC'",
    "'4713-11-24 00:00 BC'",
    "'9999-12-31 23:59:59.999999'",
    "'10000-01-01 00:00'",
    "'294276-12-31 23:59:59'",
    "'294247-01-10 04:00:54.775807'",
    "'294247-01-10 04:00:54.775808'",
    "'infinity'",
    "'-infinity'",
];

const ZONED_TIMESTAMPS: &[&str] = &[
    "'1970-01-01 00:00+00'",
    "'2026-11-21 12:34:56.789012+00'",
    "'2026-11-21 12:34:56.7+02'",
    "'2026-11-21 12:34:56-08'",
    "'2026-11-21 12:34+00'",
    "'2026-11-21 12:34:56.78+00'",
    "'2026-11-21 12:34:56.789+00'",
    "'2026-11-21 12:34:56.78901+00'",
    "'1969-12-31 23:59:59.999999+00'",
    "'1582-10-15 00:00+00'",
    "'1582-10-04 12:00+00'",
    "'1500-03-01 00:00+00'",
    "'0001-01-01 00:00+00'",
    "'0001-12-31 23:59:59+00 BC'",
    "'4713-11-24 00:00+00 BC'",
    "'9999-12-31 23:59:59.999999+00'",
    "'10000-01-01 00:00+00'",
    "'294276-12-31 23:59:59+00'",
    "'infinity'",
    "'-infinity'",
];

const DOCUMENTS: &[&str] = &[
    r#"'{"b": 1,  "a": [1, 2.50, null, ""], "b": 2}'"#,
    "'{}'",
    "'[]'",
    "'null'",
    r#"'"text"'"#,
    "'1.50'",
    "'true'",
    r#"'"Gr\u00fc\u00dfe \ud83d\ude00 \"quote\" \\ \n"'"#,
    r#"'{"größe":"日本"}'"#,
    "' [1 , 2 ] '",
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let placed = [Profile::Text, Profile::Json];
    KINDS.iter().flat_map(|kind| placed.map(|profile| placed_everywhere(kind, profile))).collect()
}

/// The same value as the key, as a header and inside the envelope.
fn placed_everywhere(kind: &Kind, profile: Profile) -> Scenario {
    let Kind { name, sql, before, values } = kind;
    let columns =
        format!("id uuid, aggregatetype text, aggregateid {sql}, payload jsonb, placed {sql}");
    Plan::new(profile, &format!("type/{name}"), &columns)
        .before(before)
        .router(&[("table.fields.additional.placement", "placed:header,placed:envelope:inside")])
        .rows(r#"{id}, 'order', {}, '{"a": 1.50}', {}"#, values.iter().copied().chain(["NULL"]))
        .done()
}
