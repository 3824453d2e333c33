//! The transforms: the outbox event router's options, and all the others, which
//! walpost does not have.

use regex::Regex;

use super::draft::Draft;
use super::options::{Given, Host, Options, items};
use super::report::Verdict;
use super::rules::{self, Rule, What};

/// The event router's options
/// (<https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html>).
const ROUTER: &[Rule] = &[
    rules::text("table.field.event.id", "id"),
    rules::text("table.field.event.key", "aggregateid"),
    rules::text("table.field.event.payload", "payload"),
    rules::text("table.field.event.timestamp", ""),
    rules::text("table.field.event.schema.version", ""),
    rules::text("table.fields.additional.placement", ""),
    rules::one_of("table.field.additional.missing", &["error", "ignore"]),
    rules::one_of("table.op.invalid.behavior", &["warn", "error", "fatal"]),
    rules::flag("table.expand.json.payload"),
    rules::one_of("table.json.payload.null.behavior", &["ignore", "optional_bytes"]),
    rules::text("route.by.field", "aggregatetype"),
    rules::text("route.topic.regex", "(?<routedByValue>.*)"),
    rules::text("route.topic.replacement", "outbox.event.${routedByValue}"),
    rules::flag("route.tombstone.on.empty.payload"),
    Rule(
        "table.field.event.type",
        What::NotNeeded("the event router makes nothing of it; a placement sends the column"),
    ),
    Rule(
        "table.json.payload.empty.array.behavior",
        What::Only(
            &["ignore"],
            "Debezium's default",
            "walpost drops empty arrays, Debezium's default",
        ),
    ),
];

const ROUTER_CLASS: &str = "io.debezium.transforms.outbox.EventRouter";
const FOREIGN: &str = "walpost has no transforms besides the event router";

/// Takes up `transforms`, `predicates` and all that stands below them.
pub(super) fn take(options: &mut Options, draft: &mut Draft) {
    let list = options.take("transforms");
    let names: Vec<String> =
        items(list.as_ref().map_or("", |given| &given.value)).map(str::to_owned).collect();
    let class =
        |name: &String| options.value(&format!("transforms.{name}.type")) == Some(ROUTER_CLASS);
    let router = names.iter().find(|name| class(name)).cloned();
    match (&list, &router) {
        (Some(given), Some(router)) => {
            draft.report.carried(given, format!("record.profile and [debezium], for `{router}`"));
        }
        (Some(given), None) => draft.report.refused(given, no_router()),
        (None, _) => draft.report.absent("transforms", Verdict::Refused, &no_router()),
    }
    let mut predicates = Predicates::take(options, draft, router.as_deref());
    if let Some(router) = &router {
        for (name, given) in options.take_below(&format!("transforms.{router}.")) {
            option(options.host, draft, &mut predicates, &name, &given);
        }
    }
    for (name, given) in options.take_below("transforms.") {
        foreign(draft, &names, &name, &given);
    }
    predicates.report(draft);
}

fn no_router() -> String {
    format!(
        "without {ROUTER_CLASS} these are change events of tables, and walpost publishes events \
         of an outbox"
    )
}

/// An option of the event router.
fn option(host: Host, draft: &mut Draft, predicates: &mut Predicates, name: &str, given: &Given) {
    const NOT_SENT: &str = "Debezium Server's Kafka sink sends neither partition nor timestamp that the \
        event router chose";
    match name {
        "type" => draft.report.carried(given, "record.profile"),
        "predicate" | "negate" => predicates.of_router(draft, given),
        "table.field.event.timestamp" if host == Host::Server && !given.value.is_empty() => {
            draft.report.not_needed(given, format!("{NOT_SENT}: the timestamp is the commit's"));
        }
        "table.fields.additional.placement"
            if host == Host::Server && has_partition(&given.value) =>
        {
            draft.report.refused(
                given,
                format!("{NOT_SENT}: give it in [debezium] without `partition`, or keys will move"),
            );
        }
        _ => match rules::find(ROUTER, name) {
            Some(rule) => rules::apply(rule, draft, given),
            None => draft.report.refused(
                given,
                "unknown to walpost, of this event router: nothing is done with it",
            ),
        },
    }
}

fn has_partition(placement: &str) -> bool {
    items(placement).any(|item| {
        item.split(':').nth(1).is_some_and(|place| place.trim().eq_ignore_ascii_case("partition"))
    })
}

/// An option of another transform, `name` being `TRANSFORM.OPTION`.
fn foreign(draft: &mut Draft, listed: &[String], name: &str, given: &Given) {
    let of = |transform: &&String| {
        name.strip_prefix(transform.as_str()).is_some_and(|rest| rest.starts_with('.'))
    };
    let Some(transform) = listed.iter().find(of) else {
        let text = "this transform is not in `transforms`, so Kafka Connect does not use it either";
        return draft.report.not_needed(given, text);
    };
    if &name[transform.len()..] != ".type" {
        return draft.report.refused(given, format!("part of the transform `{transform}`"));
    }
    let instead = match given.value.rsplit('.').next().unwrap_or_default() {
        "RegexRouter" | "ByLogicalTableRouter" => {
            "put the topic's name into route.topic.regex and route.topic.replacement"
        }
        "InsertHeader" | "InsertField$Value" | "HeaderFrom$Value" => {
            "put what it adds into a column of the outbox, and place that by \
             table.fields.additional.placement"
        }
        "Filter" => "leave out of the outbox what shall not be sent",
        "TimestampConverter$Value" | "Cast$Value" | "ReplaceField$Value" | "MaskField$Value" => {
            "write the payload as it shall be"
        }
        "ExtractNewRecordState" => {
            "what the event router made has no change event around it that this would take off"
        }
        "ActivateTracingSpan" => {
            "walpost makes no spans; a column with a traceparent can be placed as a header"
        }
        "EventRouter" => "one event router is carried over; another runs as a walpost of its own",
        _ => "do in the outbox's rows, or in the consumers, what it does",
    };
    draft.report.refused(given, format!("{FOREIGN}: {instead}"));
}

/// The predicates, and which of them the event router is used under.
struct Predicates {
    given: Vec<(String, Given)>,
    /// The router's own.
    of_router: Option<String>,
    /// Whether it lets the outbox's rows through, all of them.
    is_harmless: bool,
}

impl Predicates {
    fn take(options: &mut Options, draft: &Draft, router: Option<&str>) -> Self {
        let value = |name: String| options.value(&name).map(str::to_owned);
        let of_router = router.and_then(|it| value(format!("transforms.{it}.predicate")));
        let negated = router.and_then(|it| value(format!("transforms.{it}.negate")));
        let is_harmless = of_router.as_ref().is_some_and(|name| {
            let class = value(format!("predicates.{name}.type")).unwrap_or_default();
            let pattern = value(format!("predicates.{name}.pattern")).unwrap_or_default();
            let prefix = value("topic.prefix".to_owned()).unwrap_or_default();
            negated.is_none_or(|negated| negated == "false")
                && class.ends_with(".TopicNameMatches")
                && matches_all(&pattern, &prefix, &draft.tables)
        });
        let list = options.take("predicates").map(|given| (String::new(), given));
        let given = list.into_iter().chain(options.take_below("predicates.")).collect();
        Self { given, of_router, is_harmless }
    }

    fn of_router(&mut self, draft: &mut Draft, given: &Given) {
        if self.is_harmless || self.of_router.is_none() {
            draft.report.not_needed(
                given,
                "the event router is used for the outbox, and walpost reads nothing else",
            );
        } else {
            draft.report.refused(
                given,
                "walpost makes a record of every row of the outbox: where this chooses among tables, \
                 name the outbox in outbox.table; the other tables need their connector still",
            );
        }
    }

    fn report(self, draft: &mut Draft) {
        for (_, given) in &self.given {
            match (&self.of_router, self.is_harmless) {
                (Some(_), false) => draft.report.refused(given, "walpost has no predicates"),
                (Some(_), true) => draft
                    .report
                    .not_needed(given, "it chooses the outbox, which outbox.table names"),
                (None, _) => {
                    draft.report.not_needed(given, "the event router is not used under it")
                }
            }
        }
    }
}

/// Whether an expression matches the names that Debezium gives the topics of all
/// tables, and there are some.
fn matches_all(pattern: &str, prefix: &str, tables: &[String]) -> bool {
    let Ok(pattern) = Regex::new(&format!("^(?:{pattern})$")) else { return false };
    !tables.is_empty() && tables.iter().all(|table| pattern.is_match(&format!("{prefix}.{table}")))
}
