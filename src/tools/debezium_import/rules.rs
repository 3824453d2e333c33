//! Tables of options that are handled by name and value alone.
//!
//! The names are those of Debezium's PostgreSQL connector
//! (<https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-connector-properties>)
//! and of Kafka Connect's source connectors
//! (<https://kafka.apache.org/documentation/#sourceconnectconfigs>).

use super::draft::Draft;
use super::options::LayerValue;

/// A name, which may end in `*`, and how options of that name are handled.
pub(crate) struct Rule(pub(crate) &'static str, pub(crate) What);

/// How an option is handled.
pub(crate) enum What {
    /// Not needed, whatever its value.
    NotNeeded(&'static str),
    /// Not supported, whatever its value.
    Refused(&'static str),
    /// Not needed, for the first reason, if it has one of these values or none; otherwise not
    /// supported, for the second reason.
    Only(&'static [&'static str], &'static str, &'static str),
    /// Copied to `[debezium]`, unless it has this value.
    Text(&'static str),
    /// Copied to `[debezium]` if it is one of these and not the first; otherwise not supported, for
    /// this reason.
    OneOf(&'static [&'static str], &'static str),
    /// Copied to `[debezium]` if it is `true`.
    Flag,
}

use What::{NotNeeded, Only, Refused};

/// An option of `[debezium]` with its default.
pub(crate) const fn text(name: &'static str, default: &'static str) -> Rule {
    Rule(name, What::Text(default))
}

/// An option of `[debezium]` with its values, the default first.
pub(crate) const fn one_of(name: &'static str, values: &'static [&'static str]) -> Rule {
    Rule(name, What::OneOf(values, "walpost does not support that value"))
}

/// The same, with the reason why other values are not supported.
pub(crate) const fn one_of_or(
    name: &'static str,
    values: &'static [&'static str],
    why_not: &'static str,
) -> Rule {
    Rule(name, What::OneOf(values, why_not))
}

/// An option of `[debezium]` that is false by default.
pub(crate) const fn flag(name: &'static str) -> Rule {
    Rule(name, What::Flag)
}

const SLOT_ONLY: &str = "the slot's confirmed position is the only one that walpost knows";
const NO_SNAPSHOT: &str = "walpost takes no snapshots";
const RETRIES: &str = "walpost retries with increasing delays";
const NO_QUEUE: &str = "walpost has one budget of bytes in flight, delivery.in_flight_bytes";
const INTERNAL_TOPICS: &str =
    "it names topics that walpost does not have; routed topics do not have it";
const INSERTS: &str = "walpost reads inserts only";
const CHANGED: &str = "walpost sends the row's content: write it in the required form";
const WATCHED: &str = "walpost reports what it does in its log";
const RECORDS: &str = "it makes other records than the profiles: remove it in Debezium first, \
    or keep Debezium";
const SCHEMA_NAMES: &str = "it is part of schemas, which the profiles do not send";
const TOPICS: &str =
    "set kafka.create_topics to PARTITIONS:REPLICAS, or create the topics before the first event";

/// All other known options. The first matching rule applies.
pub(crate) const OPTIONS: &[Rule] = &[
    // How values are written.
    one_of("decimal.handling.mode", &["precise", "string", "double"]),
    one_of_or(
        "time.precision.mode",
        &["adaptive", "adaptive_time_microseconds", "isostring", "microseconds", "nanoseconds"],
        "`connect` writes dates and times as Java prints them, which walpost does not",
    ),
    one_of("binary.handling.mode", &["bytes", "base64", "base64-url-safe", "hex"]),
    one_of("interval.handling.mode", &["numeric", "string"]),
    one_of_or(
        "hstore.handling.mode",
        &["json"],
        "the members of a `map` have no order that could be kept",
    ),
    Rule("include.unknown.datatypes", Only(&["false"], "Debezium's default", RECORDS)),
    Rule("money.fraction.digits", Only(&["2"], "Debezium's default", RECORDS)),
    Rule("field.name.adjustment.mode", Only(&["none"], "Debezium's default", RECORDS)),
    Rule("schema.name.adjustment.mode", NotNeeded(SCHEMA_NAMES)),
    Rule("column.propagate.source.type", NotNeeded(SCHEMA_NAMES)),
    Rule("datatype.propagate.source.type", NotNeeded(SCHEMA_NAMES)),
    Rule("include.schema.comments", NotNeeded(SCHEMA_NAMES)),
    Rule("column.mask.*", Refused(CHANGED)),
    Rule("column.truncate.*", Refused(CHANGED)),
    Rule(
        "column.include.list",
        NotNeeded("walpost sends the columns that the event router's options name, and no other"),
    ),
    Rule(
        "column.exclude.list",
        NotNeeded("walpost sends the columns that the event router's options name, and no other"),
    ),
    Rule(
        "extended.headers.enabled",
        Only(
            &["false"],
            "walpost does not send these headers",
            "walpost does not send the four headers __debezium.context.*: see that no consumer reads them",
        ),
    ),
    Rule(
        "provide.transaction.metadata",
        Only(&["false"], "Debezium's default", "walpost writes no topic of transactions"),
    ),
    Rule("transaction.metadata.factory", NotNeeded("walpost writes no topic of transactions")),
    Rule(
        "message.prefix.*",
        Refused(
            "Debezium sends logical messages to a topic of their own; to walpost those of \
             outbox.message_prefix are events of the outbox",
        ),
    ),
    Rule(
        "skipped.operations",
        Only(&["none", "t", "u", "d", "u,d", "u,d,t", "t,u,d"], INSERTS, RECORDS),
    ),
    Rule("skip.messages.without.change", NotNeeded(INSERTS)),
    Rule(
        "tombstones.on.delete",
        NotNeeded("walpost reads inserts only, so a row may be deleted without a record"),
    ),
    Rule("message.key.columns", NotNeeded("the event router chooses the key")),
    Rule("unavailable.value.placeholder", NotNeeded("an insert has all values")),
    Rule("replica.identity.autoset.values", NotNeeded("inserts need no replica identity")),
    Rule("sourceinfo.struct.maker", NotNeeded("the event router sends no block `source`")),
    Rule(
        "converters",
        Refused("walpost has no custom converters: write the columns as they shall be sent"),
    ),
    Rule(
        "post.processors",
        Refused("walpost has no post processors: write the rows as they shall be sent"),
    ),
    // Slot, publication, position.
    Rule(
        "slot.drop.on.stop",
        Only(
            &["false"],
            "walpost never drops a slot",
            "set it to false before the connector is stopped, or the slot goes and what is not yet sent with it",
        ),
    ),
    Rule("slot.failover", NotNeeded("the slot stays what it is")),
    Rule(
        "slot.stream.params",
        Only(&[], "it is empty", "walpost chooses pgoutput's parameters itself"),
    ),
    Rule("slot.max.retries", NotNeeded(RETRIES)),
    Rule("slot.retry.delay.ms", NotNeeded(RETRIES)),
    Rule("slot.seek.to.known.offset.on.start", NotNeeded(SLOT_ONLY)),
    Rule("offset.*", NotNeeded(SLOT_ONLY)),
    Rule("offsets.storage.topic", NotNeeded(SLOT_ONLY)),
    Rule("log.position.check.enable", NotNeeded(SLOT_ONLY)),
    Rule(
        "lsn.flush.mode",
        Only(
            &["connector", "connector_and_driver"],
            "walpost confirms to the slot what the brokers have acknowledged",
            "walpost confirms to the slot itself: stop everything else that advances it, and \
             check its position first",
        ),
    ),
    Rule(
        "flush.lsn.source",
        Only(
            &["true"],
            "walpost confirms to the slot what the brokers have acknowledged",
            "walpost confirms to the slot itself: stop everything else that advances it, and \
             check its position first",
        ),
    ),
    Rule("lsn.flush.timeout*", NotNeeded("walpost confirms in the replication session")),
    Rule("publish.via.partition.root", NotNeeded("the publication has it")),
    Rule("status.update.interval.ms", NotNeeded("walpost confirms when brokers have acknowledged")),
    Rule("xmin.fetch.interval.ms", NotNeeded("walpost does not use it")),
    Rule("heartbeat.*", NotNeeded("walpost confirms the position of an idle outbox by itself")),
    // Snapshots and signals.
    Rule(
        "snapshot.mode",
        Only(
            &["no_data", "never", "initial", "when_needed"],
            "walpost takes no snapshot: it starts at the slot's position, and the connector took \
             its own at its first start",
            "walpost takes no snapshots: rows that were there before the slot are not sent again",
        ),
    ),
    Rule("snapshot.*", NotNeeded(NO_SNAPSHOT)),
    Rule("incremental.snapshot.*", NotNeeded(NO_SNAPSHOT)),
    Rule("legacy.snapshot.*", NotNeeded(NO_SNAPSHOT)),
    Rule("signal.*", NotNeeded("walpost takes no signals")),
    Rule("read.only", NotNeeded("walpost takes no signals, and writes nothing to the database")),
    Rule("notification.*", NotNeeded(WATCHED)),
    Rule("schema.history.internal*", NotNeeded("PostgreSQL sends the columns along")),
    Rule("database.history.*", NotNeeded("PostgreSQL sends the columns along")),
    Rule("schema.refresh.mode", NotNeeded("PostgreSQL sends the columns along")),
    Rule("include.schema.changes", NotNeeded("Debezium does not send them for PostgreSQL either")),
    Rule("table.ignore.builtin", NotNeeded("outbox.table names the table")),
    // The connection, in addition to its URL.
    Rule(
        "database.tcpKeepAlive",
        NotNeeded("connections are kept alive; libpq's keepalives go into source.url"),
    ),
    Rule("database.query.timeout.ms", NotNeeded("walpost asks the catalogs only")),
    Rule("connection.validation.timeout.ms", NotNeeded("connect_timeout in source.url")),
    Rule("database.sslpassword", Refused("walpost reads no encrypted key: decrypt it")),
    Rule(
        "database.initial.statements",
        Refused(
            "walpost runs no statements: settings of the session go into source.url, as options=-c NAME=VALUE",
        ),
    ),
    Rule(
        "driver.*",
        Refused("a setting of the JDBC driver: libpq's parameters go into source.url"),
    ),
    // How the connector works.
    Rule("max.batch.size", NotNeeded(NO_QUEUE)),
    Rule("max.queue.size*", NotNeeded(NO_QUEUE)),
    Rule("queue.provider.*", NotNeeded(NO_QUEUE)),
    Rule("query.fetch.size", NotNeeded("walpost queries no tables")),
    Rule("poll.*", NotNeeded("walpost does not poll")),
    Rule("streaming.delay.ms", NotNeeded("walpost begins at once")),
    Rule(
        "executor.shutdown.timeout.ms",
        NotNeeded("delivery.drain_timeout is how long a stop may take"),
    ),
    Rule("retriable.restart.connector.wait.ms", NotNeeded(RETRIES)),
    Rule("custom.retriable.exception", NotNeeded(RETRIES)),
    Rule("custom.metric.tags", NotNeeded(WATCHED)),
    Rule("advanced.metrics.enable", NotNeeded(WATCHED)),
    Rule("statistics.metrics.enabled", NotNeeded(WATCHED)),
    Rule("custom.sanitize.pattern", NotNeeded("walpost logs no secret")),
    Rule("guardrail.collections.*", NotNeeded("outbox.table names the table")),
    Rule(
        "openlineage.integration.enabled",
        Only(&["false"], "Debezium's default", "walpost sends no lineage"),
    ),
    Rule("openlineage.*", NotNeeded("walpost sends no lineage")),
    // Topics.
    Rule("topic.creation.*", Refused(TOPICS)),
    Rule("topic.*", NotNeeded(INTERNAL_TOPICS)),
    Rule("database.server.name", NotNeeded(INTERNAL_TOPICS)),
    // Errors.
    Rule(
        "event.processing.failure.handling.mode",
        Only(
            &["fail"],
            "walpost halts too",
            "walpost halts where an event cannot be delivered: `skip` or `dead_letter`, by cause, is in [poison]",
        ),
    ),
    Rule(
        "event.converting.failure.handling.mode",
        NotNeeded("what cannot be read is poison.undecodable"),
    ),
    Rule(
        "errors.tolerance",
        Only(
            &["none"],
            "walpost halts too where an event cannot be delivered",
            "Kafka Connect silently drops a record that a transform or a converter fails at; walpost halts, unless \
             poison.missing_field, poison.invalid_topic and poison.undecodable are `skip`, or better `dead_letter`",
        ),
    ),
    Rule(
        "errors.deadletterqueue.*",
        NotNeeded(
            "Kafka Connect has a dead-letter queue for sinks only; walpost's is poison.dead_letter_topic, \
             for the causes that are `dead_letter`",
        ),
    ),
    Rule("errors.retry.*", NotNeeded(RETRIES)),
    Rule("errors.max.retries", NotNeeded(RETRIES)),
    Rule("errors.log.*", NotNeeded("walpost logs what it puts aside, and never a payload")),
    Rule(
        "exactly.once.support",
        Only(
            &["requested"],
            "walpost delivers at least once",
            "walpost delivers at least once: see docs/guarantee.md",
        ),
    ),
    Rule("transaction.boundary*", NotNeeded("walpost produces without Kafka's transactions")),
    // Kafka Connect and Debezium Server themselves.
    Rule("config.action.reload", NotNeeded("there is no Kafka Connect to reload")),
    Rule(
        "config.providers*",
        NotNeeded("walpost has none: `*_FILE` variables name files with secrets"),
    ),
    Rule("connector.plugin.version", NotNeeded("there is no plugin")),
    Rule("tasks.max.enforce", NotNeeded("there is one walpost for a slot")),
    Rule("initial_state", NotNeeded("walpost runs when it is started")),
    Rule("consumer.override.*", NotNeeded("walpost has no consumer")),
    Rule("admin.override.*", NotNeeded("walpost has no admin client")),
    Rule("sink.kafka.wait.message.delivery.timeout.ms", NotNeeded(RETRIES)),
    Rule("engine.*", NotNeeded("of Debezium Server's own engine")),
    Rule("record.processing.*", NotNeeded("walpost keeps the order of the commits")),
    Rule("api.*", NotNeeded("of Debezium Server's own interface")),
    Rule("quarkus.*", NotNeeded("of Debezium Server's own framework")),
];

/// The rule for that name.
pub(crate) fn find<'a>(rules: &'a [Rule], name: &str) -> Option<&'a Rule> {
    rules.iter().find(|Rule(pattern, _)| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *pattern,
    })
}

/// Applies the rule.
pub(crate) fn apply(rule: &Rule, draft: &mut Draft, given: &LayerValue) {
    let Rule(name, what) = rule;
    let value = given.value.to_ascii_lowercase();
    match what {
        NotNeeded(why) => draft.report.not_needed(given, *why),
        Refused(why) => draft.report.refused(given, *why),
        Only(values, why, why_not) => {
            let compact: String = value.split_whitespace().collect();
            if compact.is_empty() || values.contains(&compact.as_str()) {
                draft.report.not_needed(given, *why);
            } else {
                draft.report.refused(given, *why_not);
            }
        }
        What::Text(default) => {
            let Some(value) = draft.literal(given, &format!("{name} in [debezium]")) else {
                return;
            };
            let is_default = value.is_empty() || value == *default;
            keep(draft, name, given, (!is_default).then(|| value.into()));
        }
        What::OneOf(values, why_not) => {
            let Some(index) = values.iter().position(|one| *one == value) else {
                let text = format!("{why_not}; there is {}", values.join(", "));
                return draft.report.refused(given, text);
            };
            keep(draft, name, given, (index > 0).then(|| value.into()));
        }
        What::Flag => match value.as_str() {
            "true" => keep(draft, name, given, Some(true.into())),
            "false" => keep(draft, name, given, None),
            _ => draft.report.refused(given, "it is neither true nor false"),
        },
    }
}

/// Copies the value to `[debezium]`, unless it is the default.
fn keep(draft: &mut Draft, name: &'static str, given: &LayerValue, value: Option<toml::Value>) {
    match value {
        Some(value) => {
            draft.report.carried(given, format!("debezium.{name}"));
            draft.debezium.push((name, value));
        }
        None => draft.report.not_needed(given, "the default, of Debezium and of [debezium]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_hides_another() {
        for (index, Rule(pattern, _)) in OPTIONS.iter().enumerate() {
            let before = find(OPTIONS, pattern.trim_end_matches('*'));
            let before = before.map(|Rule(name, _)| *name);
            let hidden = before.filter(|before| before != pattern);
            // Names that start with a longer pattern must match that pattern first.
            let is_part = hidden.is_some_and(|hidden| {
                let first = OPTIONS.iter().position(|Rule(name, _)| *name == hidden);
                first.is_none_or(|first| first < index)
            });
            assert!(!is_part, "{pattern} is never reached: {hidden:?}");
        }
    }
}
