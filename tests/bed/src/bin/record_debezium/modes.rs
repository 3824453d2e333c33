//! The connector's options for how types are represented.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};

const MODES: [(&str, &str); 14] = [
    ("decimal.handling.mode", "precise"),
    ("decimal.handling.mode", "double"),
    ("decimal.handling.mode", "string"),
    ("time.precision.mode", "adaptive_time_microseconds"),
    ("time.precision.mode", "connect"),
    ("time.precision.mode", "isostring"),
    ("time.precision.mode", "microseconds"),
    ("time.precision.mode", "nanoseconds"),
    ("binary.handling.mode", "base64"),
    ("binary.handling.mode", "base64-url-safe"),
    ("binary.handling.mode", "hex"),
    ("interval.handling.mode", "string"),
    ("hstore.handling.mode", "map"),
    ("include.unknown.datatypes", "true"),
];

/// Names and types; all are headers, and all are in the envelope too.
const PLACED: [(&str, &str); 17] = [
    ("d", "date"),
    ("t", "time"),
    ("t3", "time(3)"),
    ("ttz", "timetz"),
    ("ts", "timestamp"),
    ("ts3", "timestamp(3)"),
    ("tstz", "timestamptz"),
    ("n", "numeric"),
    ("n12", "numeric(12,2)"),
    ("m", "money"),
    ("b", "bytea"),
    ("i", "interval"),
    ("h", "hstore"),
    ("r", "tsvector"),
    ("na", "numeric(12,2)[]"),
    ("tsa", "timestamp[]"),
    ("da", "date[]"),
];

const ROWS: [&str; 3] = [
    r#"'2026-11-21', '12:34:56.789012', '12:34:56.789', '12:34:56.789012+02',
        '2026-11-21 12:34:56.789012', '2026-11-21 12:34:56.789', '2026-11-21 12:34:56.789012+02',
        1.50, 1.50, 1.50, '\xfbff00', '1 year 2 months 3 days 04:05:06.789012',
        'a=>1, "b c"=>NULL', 'fat cat', '{1.50,NULL}', '{2026-11-21 12:34:56.7}', '{2026-11-21}'"#,
    r"'1969-12-31', '00:00', '24:00', '24:00-15:59', '1969-12-31 23:59:59.999999',
        '0001-12-31 23:59:59.999 BC', '0001-12-31 23:59:59+00 BC', 123456789012345678901234567890.1,
        -9999999999.99, -0.01, '\x', '-1 month 00:00:00.000001', '', '', '{}', '{}', '{}'",
    r"'infinity', '23:59:59.999999', '12:00', '12:00+00', 'infinity', '-infinity', '-infinity',
        'NaN', 'NaN', 0, NULL, '0', NULL, NULL, NULL, NULL, NULL",
];

/// The same for arrays and domains.
const NESTED: [(&str, &str); 13] = [
    ("na", "numeric[]"),
    ("n12a", "numeric(12,2)[]"),
    ("da", "date[]"),
    ("ta", "time[]"),
    ("t3a", "time(3)[]"),
    ("ttza", "timetz[]"),
    ("tsa", "timestamp[]"),
    ("ts3a", "timestamp(3)[]"),
    ("tstza", "timestamptz[]"),
    ("ba", "bytea[]"),
    ("price", "price"),
    ("millis", "millis"),
    ("blob", "blob"),
];

const NESTED_ROWS: [&str; 2] = [
    r"'{1.50,100,NULL}', '{1.50,NULL}', '{2026-11-21,NULL}', '{12:34:56.789012,24:00}',
        '{12:34:56.789}', '{12:34:56.789012+02}', '{2026-11-21 12:34:56.789012}',
        '{2026-11-21 12:34:56.789}', '{2026-11-21 12:34:56.789012+02}', ARRAY['\xfbff'::bytea],
        1.50, '2026-11-21 12:34:56.789', '\xfbff'",
    r"'{NaN}', '{NaN,1}', '{infinity}', '{00:00}', '{}', '{}', '{}', '{}', '{infinity}', '{}',
        'NaN', 'infinity', NULL",
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    for profile in [Profile::Text, Profile::Json] {
        for mode in MODES {
            all.push(scenario("mode", &PLACED, &ROWS, mode, profile));
            let is_nested = ["decimal", "time.", "binary"].iter().any(|it| mode.0.starts_with(it));
            if is_nested && mode.1 != "connect" {
                all.push(scenario("nested", &NESTED, &NESTED_ROWS, mode, profile));
            }
        }
    }
    all
}

fn scenario(
    part: &str,
    placed: &[(&str, &str)],
    rows: &[&str],
    (mode, value): (&str, &str),
    profile: Profile,
) -> Scenario {
    let columns: Vec<_> = placed.iter().map(|(name, sql)| format!("{name} {sql}")).collect();
    let placement: Vec<_> =
        placed.iter().map(|(name, _)| format!("{name}:header,{name}:envelope")).collect();
    let name = mode.split('.').next().unwrap_or(mode);
    Plan::new(
        profile,
        &format!("{part}/{name}_{value}"),
        &format!(
            "id uuid, aggregatetype text, aggregateid text, payload jsonb, {}",
            columns.join(", ")
        ),
    )
    .before(if part == "mode" {
        "CREATE EXTENSION hstore"
    } else {
        "CREATE DOMAIN price AS numeric(12,2);
            CREATE DOMAIN millis AS timestamp(3); CREATE DOMAIN blob AS bytea"
    })
    .connector(&[(mode, value)])
    .router(&[("table.fields.additional.placement", &placement.join(","))])
    .rows(r#"{id}, 'order', 'key', '{"a": 1.50}', {}"#, rows.iter().copied())
    .done()
}
