//! From the aggregate type to the topic.

use walpost_bed::golden::Scenario;

use crate::plan::{Plan, Profile};
use crate::values::KINDS;

const COLUMNS: &str = "id uuid, aggregatetype text, aggregateid text, payload jsonb";
const ROW: &str = "{id}, {}, 'key', '\"x\"'";

const NAMES: [&str; 25] = [
    "'order'",
    "'Order'",
    "'order.item'",
    "'order_item-2'",
    "'42'",
    "''",
    "'.'",
    "'-'",
    "'order item'",
    "' order'",
    "'order '",
    "'größe'",
    "'日本'",
    "'a/b'",
    "'a:b'",
    "'a,b'",
    r"'a\b'",
    "'$1'",
    "'${routedByValue}'",
    r"E'order\n'",
    r"E'or\nder'",
    "repeat('x', 236)",
    "repeat('x', 237)",
    "NULL",
    "'after'",
];

/// Types that can be routed by.
const ROUTED_BY: [&str; 16] = [
    "uuid",
    "varchar",
    "char",
    "enum",
    "int2",
    "int4",
    "int8",
    "bool",
    "numeric",
    "jsonb",
    "bytea",
    "timestamptz",
    "inet",
    "name",
    "citext",
    "domain_varchar",
];

/// Name, expression, replacement, and values of which some match.
type Route = (&'static str, &'static str, &'static str, &'static [&'static str]);

const ROUTES: [Route; 28] = [
    ("static", "(?<routedByValue>.*)", "all.events", &["'order'", "''", "'x y'"]),
    ("prefix", "(?<routedByValue>.*)", "shop.${routedByValue}.events", &["'order'", "''"]),
    (
        "bare",
        "(?<routedByValue>.*)",
        "${routedByValue}",
        &["'order'", "'order.item'", "''", "'.'", "'..'"],
    ),
    (
        "numbered",
        r"([a-z]+)\.([a-z]+)",
        "$2.$1",
        &["'order.item'", "'order'", "'Order.item'", "'a.b.c'"],
    ),
    (
        "named",
        r"outbox-(?<kind>\w+)",
        "events.${kind}",
        &["'outbox-order'", "'order'", "'outbox-'", "'outbox-größe'"],
    ),
    ("whole", "ord.*", "got.$0", &["'order'", "'an order'"]),
    ("part_only", "ord", "got", &["'order'", "'ord'"]),
    ("alternatives", "(a)|(b)", "x.$1.$2", &["'a'", "'b'", "'c'"]),
    ("optional_group", "(a)?b", "x$1y", &["'ab'", "'b'"]),
    ("lazy", "(.+?)(Event)?", "e.$1", &["'OrderEvent'", "'Order'", "'Event'"]),
    ("case_insensitive", "(?i)order(.*)", "o$1", &["'ORDER.x'", "'order'"]),
    ("escaped", r"(.*)", r"\$1.$1\.x", &["'order'"]),
    ("group_digits", r"(.*)", "t.$10", &["'order'"]),
    ("no_group", r"(.*)", "t.$2", &["'order'"]),
    ("no_name", r"(.*)", "t.${kind}", &["'order'"]),
    ("not_an_expression", "([a-z", "t.$1", &["'order'"]),
    ("lookahead", "(?!internal)(.*)", "t.$1", &["'order'", "'internal-order'"]),
    ("backreference", r"(\w+)-\1", "twice.$1", &["'a-a'", "'a-b'"]),
    ("possessive", "([a-z]*+)(.*)", "t.$1.$2", &["'order9'"]),
    ("classes", r"\p{Lu}(\w*)\d", "t.$1", &["'Order9'", "'order9'", "'Orde_r9'"]),
    ("word", r"(\w+)", "t.word", &["'order'", "'größe'", "'o_9'"]),
    ("no_word", r"o(\W+)r", "t.x", &["'o-r'", "'oßr'"]),
    ("digit", r"order\d", "t.x", &["'order9'", "U&'order\\0663'"]),
    ("alpha", r"\p{Alpha}+", "t.x", &["'order'", "'größe'"]),
    ("kelvin", "(?i)k(.*)", "t.x", &["'K'", "U&'\\212A'"]),
    ("dot", "o.r", "t.x", &["'o-r'", r"E'o\rr'", "U&'o\\2028r'"]),
    ("anchors", "^(order)$", "t.$1", &["'order'", "'orders'"]),
    ("unfinished_replacement", "(.*)", "t.$", &["'order'"]),
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = vec![
        Plan::new(Profile::Text, "route/default", COLUMNS).rows(ROW, NAMES).done(),
        Plan::new(Profile::Json, "route/default", COLUMNS)
            .rows(ROW, ["'order'", "'Order'", "''", "'order item'", "NULL", "'after'"])
            .done(),
    ];
    all.extend(ROUTES.iter().map(|(name, regex, replacement, values)| {
        Plan::new(Profile::Text, &format!("route/{name}"), COLUMNS)
            .router(&[("route.topic.regex", regex), ("route.topic.replacement", replacement)])
            .rows(ROW, values.iter().copied())
            .done()
    }));
    // Whatever column it is, Debezium wants a string.
    let kinds = KINDS.iter().filter(|kind| ROUTED_BY.contains(&kind.name));
    all.extend(kinds.map(|kind| {
        let columns = format!("id uuid, aggregateid text, payload jsonb, route_by {}", kind.sql);
        Plan::new(Profile::Text, &format!("route/by_{}", kind.name), &columns)
            .before(kind.before)
            .router(&[("route.by.field", "route_by")])
            .rows("{id}, 'key', '\"x\"', {}", kind.values.iter().copied().take(1))
            .done()
    }));
    all
}
