//! The transforms: the outbox event router's options, and all others, which walpost does not
//! support.

use regex::Regex;

use super::draft::Draft;
use super::options::{Host, LayerValue, Options, items};
use super::report::Mapping;
use super::rules;
use super::rules::{Rule, What};
use crate::outbox::TableName;

/// The event router's options
/// (<https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html>).
pub(crate) const ROUTER: &[Rule] = &[
    rules::text("table.field.event.id", "id"),
    rules::text("table.field.event.key", "aggregateid"),
    rules::text("table.field.event.payload", "payload"),
    rules::text("table.field.event.timestamp", ""),
    rules::text("table.field.event.schema.version", ""),
    rules::text("table.fields.additional.placement", ""),
    rules::one_of("table.field.additional.missing", &["error", "ignore"]),
    rules::one_of_or(
        "table.op.invalid.behavior",
        &["warn", "error"],
        "walpost passes over an UPDATE or DELETE of the outbox, as with `warn`, and does not stop at it",
    ),
    rules::flag("table.expand.json.payload"),
    rules::one_of("table.json.payload.null.behavior", &["ignore", "optional_bytes"]),
    rules::one_of("table.json.payload.empty.array.behavior", &["ignore", "optional_string"]),
    rules::text("route.by.field", "aggregatetype"),
    rules::text("route.topic.regex", "(?<routedByValue>.*)"),
    rules::text("route.topic.replacement", "outbox.event.${routedByValue}"),
    rules::flag("route.tombstone.on.empty.payload"),
    Rule(
        "table.field.event.type",
        What::NotNeeded("the event router makes nothing of it; a placement sends the column"),
    ),
];

const ROUTER_CLASS: &str = "io.debezium.transforms.outbox.EventRouter";
const FOREIGN: &str = "walpost has no transforms besides the event router";

/// Converts `transforms`, `predicates` and all options below them.
pub(crate) fn take(options: &mut Options, draft: &mut Draft) {
    let has_choice = choice(options).is_some();
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
        (None, _) => draft.report.absent("transforms", Mapping::Refused, &no_router()),
    }
    let predicates = Predicates::take(options, draft, router.as_deref(), has_choice);
    if let Some(router) = &router {
        for (name, given) in options.take_below(&format!("transforms.{router}.")) {
            option(options.host, draft, &predicates, &name, &given);
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
fn option(host: Host, draft: &mut Draft, predicates: &Predicates, name: &str, given: &LayerValue) {
    const NOT_SENT: &str = "Debezium Server's Kafka sink sends neither partition nor timestamp that the \
        event router chose";
    match name {
        "type" => draft.report.carried(given, "[debezium], and record.profile by the converters"),
        "predicate" | "negate" => predicates.of_router(draft, given),
        "table.field.event.timestamp" if host == Host::Server && !given.value.is_empty() => {
            draft.report.not_needed(given, format!("{NOT_SENT}: the timestamp is the commit's"));
        }
        "table.fields.additional.placement"
            if host == Host::Server && places(&given.value, "partition") =>
        {
            draft.report.refused(
                given,
                format!("{NOT_SENT}: give it in [debezium] without `partition`, or keys will move"),
            );
        }
        "table.fields.additional.placement"
            if draft.profile == Some("debezium-binary") && places(&given.value, "envelope") =>
        {
            draft.report.refused(
                given,
                "an envelope cannot be written by a ByteArrayConverter: Debezium's task dies of it too",
            );
        }
        "route.topic.regex" if Regex::new(&given.value).is_err() => draft.report.refused(
            given,
            "walpost has no look-around, no back-references and no possessive quantifiers: write it without",
        ),
        _ => match rules::find(ROUTER, name) {
            Some(rule) => rules::apply(rule, draft, given),
            None => draft.report.refused(
                given,
                "unknown to walpost, of this event router: nothing is done with it",
            ),
        },
    }
}

/// Whether a placement puts a column at that target.
fn places(placement: &str, target: &str) -> bool {
    items(placement).any(|item| {
        item.split(':').nth(1).is_some_and(|place| place.trim().eq_ignore_ascii_case(target))
    })
}

/// An option of another transform; `name` is `TRANSFORM.OPTION`.
fn foreign(draft: &mut Draft, listed: &[String], name: &str, given: &LayerValue) {
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
        "Filter" => "do not insert into the outbox what must not be sent",
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

/// The topic names that the event router's predicate selects, if it has one that matches names.
pub(crate) fn choice(options: &Options) -> Option<Choice> {
    let router = items(options.value("transforms")?)
        .find(|name| options.value(&format!("transforms.{name}.type")) == Some(ROUTER_CLASS))?;
    let predicate = options.value(&format!("transforms.{router}.predicate"))?;
    let is_negated = options.value(&format!("transforms.{router}.negate"));
    let class = options.value(&format!("predicates.{predicate}.type"))?;
    if is_negated.is_some_and(|negate| negate != "false") || !class.ends_with(".TopicNameMatches") {
        return None;
    }
    let pattern = options.value(&format!("predicates.{predicate}.pattern"))?;
    let pattern = Regex::new(&format!("^(?:{pattern})$")).ok()?;
    Some(Choice { prefix: options.value("topic.prefix")?.to_owned(), pattern })
}

/// Tables by the topic names that Debezium would use for them.
pub(crate) struct Choice {
    prefix: String,
    pattern: Regex,
}

impl Choice {
    pub(crate) fn takes(&self, table: &TableName) -> bool {
        self.pattern.is_match(&format!("{}.{}.{}", self.prefix, table.schema, table.name))
    }
}

/// The predicates, and the effect of the event router's own.
struct Predicates {
    given: Vec<(String, LayerValue)>,
    router: Use,
}

/// How a predicate restricts the event router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Never,
    /// A predicate that selects the outbox, and nothing else is captured.
    ForAll,
    /// A predicate that excludes some of what is captured.
    ForSome,
    /// Unknown.
    Unknown,
}

impl Predicates {
    fn take(options: &mut Options, draft: &Draft, router: Option<&str>, has_choice: bool) -> Self {
        let own = router.and_then(|it| options.value(&format!("transforms.{it}.predicate")));
        let router = match (own, has_choice) {
            (None, _) => Use::Never,
            (Some(_), true) if !draft.excluded.is_empty() => Use::ForSome,
            (Some(_), true) if !draft.tables.is_empty() => Use::ForAll,
            (Some(_), _) => Use::Unknown,
        };
        let list = options.take("predicates").map(|given| (String::new(), given));
        let given = list.into_iter().chain(options.take_below("predicates.")).collect();
        Self { given, router }
    }

    fn of_router(&self, draft: &mut Draft, given: &LayerValue) {
        match self.router {
            Use::Never | Use::ForAll => {
                draft.report.not_needed(
                    given,
                    "outbox.table names what it chooses, and all that is captured",
                );
            }
            Use::ForSome => {
                let text = format!(
                    "it passes over {}, whose changes walpost does not publish: they need their connector \
                     still, with a slot of its own",
                    draft.excluded.join(", ")
                );
                draft.report.refused(given, text);
            }
            Use::Unknown => draft.report.refused(
                given,
                "walpost makes a record of every row of the outbox, whatever a predicate says",
            ),
        }
    }

    fn report(self, draft: &mut Draft) {
        for (_, given) in &self.given {
            match self.router {
                Use::Never => {
                    draft.report.not_needed(given, "the event router is not used under it");
                }
                Use::ForAll | Use::ForSome => {
                    draft.report.not_needed(given, "outbox.table names what it chooses");
                }
                Use::Unknown => draft.report.refused(given, "walpost has no predicates"),
            }
        }
    }
}
