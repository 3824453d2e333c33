//! The list of what can be set: for each setting its key in the file, its
//! flag, its environment variables, and the shape of its value.
//!
//! The one place where these names stand. It reads nothing and knows no values.

/// How a setting's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A string.
    Text,
    /// A number: an integer, or a string, with a unit perhaps.
    Size,
    /// One table name, or several.
    Tables,
    /// An array of strings.
    List,
    /// A table of names and values.
    Properties,
}

/// One thing that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is named after its key in the file: see `Setting::key`")]
pub enum Setting {
    SourceUrl,
    SourceSlot,
    SourcePublication,
    SourceCatchUp,
    SourceCatchUpThreshold,
    OutboxTable,
    ColumnId,
    ColumnAggregateType,
    ColumnAggregateId,
    ColumnEventType,
    ColumnPayload,
    ColumnHeaders,
    ColumnTimestamp,
    OutboxMessagePrefix,
    OutboxPlainMessagePrefix,
    RecordProfile,
    RecordTopic,
    RecordTopicRegex,
    RecordTopicReplacement,
    RecordTopicsAllowed,
    RecordKey,
    RecordNullKeys,
    RecordValue,
    RecordHeaders,
    RecordPlace,
    RecordCloudeventsSource,
    RecordTimestamp,
    Debezium,
    KafkaBootstrapServers,
    KafkaProperties,
    DeliveryInFlightBytes,
    DeliveryDrainTimeout,
    PoisonTooLarge,
    PoisonMissingField,
    PoisonInvalidTopic,
    PoisonMissingTopic,
    PoisonRefused,
    PoisonUndecodable,
    PoisonDeadLetterTopic,
    PoisonRetries,
    AdminListen,
    ProcessCoreDumps,
    LogLevel,
    LogFormat,
}

/// A row of the list: key, flag, variable, ambient variable, shape.
type Row = (&'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>, Shape);

impl Setting {
    /// Every setting, in the order in which they are shown.
    pub const ALL: [Self; 44] = [
        Self::SourceUrl,
        Self::SourceSlot,
        Self::SourcePublication,
        Self::SourceCatchUp,
        Self::SourceCatchUpThreshold,
        Self::OutboxTable,
        Self::ColumnId,
        Self::ColumnAggregateType,
        Self::ColumnAggregateId,
        Self::ColumnEventType,
        Self::ColumnPayload,
        Self::ColumnHeaders,
        Self::ColumnTimestamp,
        Self::OutboxMessagePrefix,
        Self::OutboxPlainMessagePrefix,
        Self::RecordProfile,
        Self::RecordTopic,
        Self::RecordTopicRegex,
        Self::RecordTopicReplacement,
        Self::RecordTopicsAllowed,
        Self::RecordKey,
        Self::RecordNullKeys,
        Self::RecordValue,
        Self::RecordHeaders,
        Self::RecordPlace,
        Self::RecordCloudeventsSource,
        Self::RecordTimestamp,
        Self::Debezium,
        Self::KafkaBootstrapServers,
        Self::KafkaProperties,
        Self::DeliveryInFlightBytes,
        Self::DeliveryDrainTimeout,
        Self::PoisonTooLarge,
        Self::PoisonMissingField,
        Self::PoisonInvalidTopic,
        Self::PoisonMissingTopic,
        Self::PoisonRefused,
        Self::PoisonUndecodable,
        Self::PoisonDeadLetterTopic,
        Self::PoisonRetries,
        Self::AdminListen,
        Self::ProcessCoreDumps,
        Self::LogLevel,
        Self::LogFormat,
    ];

    #[rustfmt::skip]
    const fn row(self) -> Row {
        use Shape::{List, Properties, Size, Tables, Text};
        match self {
            Self::SourceUrl => ("source.url", Some("--source"), Some("WALPOST_SOURCE_URL"), Some("DATABASE_URL"), Text),
            Self::SourceSlot => ("source.slot", Some("--slot"), Some("WALPOST_SOURCE_SLOT"), None, Text),
            Self::SourcePublication => ("source.publication", Some("--publication"), Some("WALPOST_SOURCE_PUBLICATION"), None, Text),
            Self::SourceCatchUp => ("source.catch_up", Some("--catch-up"), Some("WALPOST_SOURCE_CATCH_UP"), None, Text),
            Self::SourceCatchUpThreshold => ("source.catch_up_threshold", None, Some("WALPOST_SOURCE_CATCH_UP_THRESHOLD"), None, Size),
            Self::OutboxTable => ("outbox.table", Some("--table"), Some("WALPOST_OUTBOX_TABLE"), None, Tables),
            Self::ColumnId => ("outbox.columns.id", None, None, None, Text),
            Self::ColumnAggregateType => ("outbox.columns.aggregate_type", None, None, None, Text),
            Self::ColumnAggregateId => ("outbox.columns.aggregate_id", None, None, None, Text),
            Self::ColumnEventType => ("outbox.columns.event_type", None, None, None, Text),
            Self::ColumnPayload => ("outbox.columns.payload", None, None, None, Text),
            Self::ColumnHeaders => ("outbox.columns.headers", None, None, None, Text),
            Self::ColumnTimestamp => ("outbox.columns.timestamp", None, None, None, Text),
            Self::OutboxMessagePrefix => ("outbox.message_prefix", Some("--message-prefix"), Some("WALPOST_OUTBOX_MESSAGE_PREFIX"), None, Text),
            Self::RecordProfile => ("record.profile", Some("--profile"), Some("WALPOST_RECORD_PROFILE"), None, Text),
            Self::OutboxPlainMessagePrefix => ("outbox.plain_message_prefix", Some("--plain-message-prefix"), Some("WALPOST_OUTBOX_PLAIN_MESSAGE_PREFIX"), None, Text),
            Self::RecordTopic => ("record.topic", Some("--topic"), Some("WALPOST_RECORD_TOPIC"), None, Text),
            Self::RecordTopicRegex => ("record.topic_regex", None, None, None, Text),
            Self::RecordTopicReplacement => ("record.topic_replacement", None, None, None, Text),
            Self::RecordTopicsAllowed => ("record.topics_allowed", None, Some("WALPOST_RECORD_TOPICS_ALLOWED"), None, List),
            Self::RecordKey => ("record.key", None, None, None, Text),
            Self::RecordNullKeys => ("record.null_keys", None, None, None, Text),
            Self::RecordValue => ("record.value", None, None, None, Text),
            Self::RecordPlace => ("record.place", None, None, None, List),
            Self::RecordCloudeventsSource => ("record.cloudevents_source", None, None, None, Text),
            Self::RecordHeaders => ("record.headers", None, None, None, List),
            Self::RecordTimestamp => ("record.timestamp", None, None, None, Text),
            Self::Debezium => ("debezium", None, None, None, Properties),
            Self::KafkaBootstrapServers => ("kafka.bootstrap_servers", Some("--bootstrap-servers"), Some("WALPOST_KAFKA_BOOTSTRAP_SERVERS"), Some("KAFKA_BOOTSTRAP_SERVERS"), Text),
            Self::KafkaProperties => ("kafka.properties", Some("-X"), Some("WALPOST_KAFKA_PROPERTIES"), None, Properties),
            Self::DeliveryInFlightBytes => ("delivery.in_flight_bytes", Some("--in-flight-bytes"), Some("WALPOST_DELIVERY_IN_FLIGHT_BYTES"), None, Size),
            Self::DeliveryDrainTimeout => ("delivery.drain_timeout", Some("--drain-timeout"), Some("WALPOST_DELIVERY_DRAIN_TIMEOUT"), None, Text),
            Self::PoisonTooLarge => ("poison.too_large", None, None, None, Text),
            Self::PoisonMissingField => ("poison.missing_field", None, None, None, Text),
            Self::PoisonInvalidTopic => ("poison.invalid_topic", None, None, None, Text),
            Self::PoisonMissingTopic => ("poison.missing_topic", None, None, None, Text),
            Self::PoisonRefused => ("poison.refused", None, None, None, Text),
            Self::PoisonUndecodable => ("poison.undecodable", None, None, None, Text),
            Self::PoisonDeadLetterTopic => ("poison.dead_letter_topic", None, None, None, Text),
            Self::PoisonRetries => ("poison.retries", None, None, None, Size),
            Self::AdminListen => ("admin.listen", Some("--admin-listen"), Some("WALPOST_ADMIN_LISTEN"), None, Text),
            Self::ProcessCoreDumps => ("process.core_dumps", None, Some("WALPOST_PROCESS_CORE_DUMPS"), None, Text),
            Self::LogLevel => ("log.level", Some("--log-level"), Some("WALPOST_LOG_LEVEL"), Some("RUST_LOG"), Text),
            Self::LogFormat => ("log.format", Some("--log-format"), Some("WALPOST_LOG_FORMAT"), None, Text),
        }
    }

    /// The key in the file, dotted: `source.slot`.
    pub const fn key(self) -> &'static str {
        self.row().0
    }

    /// The flag, with its dashes.
    pub const fn flag(self) -> Option<&'static str> {
        self.row().1
    }

    /// The environment variable of its own.
    pub const fn variable(self) -> Option<&'static str> {
        self.row().2
    }

    /// The variable that other programs share, read when nothing else is given.
    pub const fn ambient(self) -> Option<&'static str> {
        self.row().3
    }

    /// What it does, in a sentence or two for those who set it.
    #[rustfmt::skip]
    pub const fn about(self) -> &'static str {
        match self {
            Self::SourceUrl => "PostgreSQL, as URL or `key=value` as libpq reads it. Without it libpq's own variables count (`PGHOST`, `PGUSER`, …). A password in the flag shows in the process list: prefer `WALPOST_SOURCE_URL_FILE`, which is read at each connect.",
            Self::SourceSlot => "The replication slot. Two relays never share one: the second waits until the first is gone.",
            Self::SourcePublication => "The publication that has the outbox table.",
            Self::SourceCatchUp => "How a backlog is read: `auto` reads one above the threshold in batches by SQL, with small transactions about twice as fast, and streams the rest; `stream` always streams.",
            Self::SourceCatchUpThreshold => "How many bytes of log are a backlog for batches. Takes `KiB`, `MiB`, `GiB`.",
            Self::OutboxTable => "The outbox table, with schema and with SQL's quotes where needed: `\"Sales\".\"OutBox\"`. An array for several; in the variable parted by commas. An empty array is for an outbox of logical messages alone.",
            Self::ColumnId => "Column of the event's id. Found by name where it is `id`.",
            Self::ColumnAggregateType => "Column of the aggregate's type. Found by name where it is `aggregate_type` or `aggregatetype`.",
            Self::ColumnAggregateId => "Column of the aggregate's id, the record's key. Found by name where it is `aggregate_id` or `aggregateid`.",
            Self::ColumnEventType => "Column of the event's type. Found by name where it is `event_type` or `type`.",
            Self::ColumnPayload => "Column of the payload. Found by name where it is `payload`.",
            Self::ColumnHeaders => "Column of a JSON object whose members become headers. Found by name where it is `headers`.",
            Self::ColumnTimestamp => "Column of the record's timestamp, for `record.timestamp = \"column\"`.",
            Self::OutboxMessagePrefix => "Prefix of the transactional logical messages that are events too, as JSON objects with the names of the columns.",
            Self::OutboxPlainMessagePrefix => "What prefixes of logical messages begin with that carry type and key themselves, as in `PREFIX:order:A-7`, and the value as content.",
            Self::RecordProfile => "Whose records: walpost's own, or those of Debezium's outbox event router by its converters: `debezium`, `debezium-json`, `debezium-binary`, `debezium-binary-json`.",
            Self::RecordTopic => "The topic, a template over the row's columns; modifiers `lower`, `kebab`, `snake`, as in `{aggregate_type|kebab}`.",
            Self::RecordTopicRegex => "A regular expression that rewrites the topic, with `record.topic_replacement`.",
            Self::RecordTopicReplacement => "What takes the place of what `record.topic_regex` matched; `$1` is its first group.",
            Self::RecordTopicsAllowed => "The topics that events may go to: names in which `*` stands for any characters, such as `outbox.event.*`. An event of another topic is poison (`invalid_topic`). Without it, all but those that begin with `__`, which no setting allows. It holds for Debezium's records too, and not for the dead-letter topic. In the variable parted by commas.",
            Self::RecordKey => "The key, a template over the row's columns.",
            Self::RecordNullKeys => "Whether a key that is NULL is sent as a null key, `allow`, or is an event that cannot be delivered, `refuse`.",
            Self::RecordValue => "What the value is: `payload`, `envelope`, `merged`, `cloudevents` or `cloudevents-binary`.",
            Self::RecordPlace => "Further columns in headers, the envelope or as partition: `column:header[:alias]`, `column:envelope[:alias]`, `column:partition`.",
            Self::RecordCloudeventsSource => "A CloudEvent's `source`, a URI reference.",
            Self::RecordHeaders => "The headers to send, of those that there are. Without it: all of them.",
            Self::RecordTimestamp => "Where a record's timestamp comes from: the commit, `commit`, or `outbox.columns.timestamp`, `column`; with `none` it is the time at which the record is produced, and dead letters likewise. `none` holds for Debezium's records too.",
            Self::Debezium => "The event router's own option names with their values, for the Debezium profiles.",
            Self::KafkaBootstrapServers => "Brokers to begin with, `host:port`, parted by commas.",
            Self::KafkaProperties => "Any property of librdkafka, under its own name, but for those on which the guarantee rests. Where they are not given walpost sets `allow.auto.create.topics` false, `linger.ms` 0, `max.in.flight.requests.per.connection` 1, `reconnect.backoff.max.ms` 2000, `topic.metadata.propagation.max.ms` 5000, `socket.keepalive.enable` true, `statistics.interval.ms` 5000, `client.id` walpost. In the variable one `key=value` a line.",
            Self::DeliveryInFlightBytes => "Budget of bytes in flight to the brokers; when it is spent walpost stops reading. Takes `KiB`, `MiB`, `GiB`.",
            Self::DeliveryDrainTimeout => "How long a stop may take to deliver and confirm what is in flight. Keep it below the supervisor's own limit. Takes `ms`, `s`, `min`.",
            Self::PoisonTooLarge => "What to do about an event that is too large for the producer or the topic: `halt`, `dead_letter` or `skip`.",
            Self::PoisonMissingField => "The same for one that lacks its key, or what its topic is made of.",
            Self::PoisonInvalidTopic => "The same for one whose topic has no valid name, or is none of `record.topics_allowed`.",
            Self::PoisonMissingTopic => "What to do about an event whose topic does not exist: `wait`, so that it and all behind it are delivered once somebody creates the topic, or `halt`, `dead_letter`, `skip`, which let no row hold up the others by the topic that it names.",
            Self::PoisonRefused => "The same for one that the brokers refuse for good.",
            Self::PoisonUndecodable => "The same for one with a field that cannot be read.",
            Self::PoisonDeadLetterTopic => "The topic of the dead letters.",
            Self::PoisonRetries => "How often a record is tried again that the brokers refuse for a reason that may pass, a policy of theirs, before it is put aside. What cannot pass (size, timestamp, an invalid record or topic) is put aside at once.",
            Self::ProcessCoreDumps => "Whether the kernel may write a core dump of `run`, and a debugger of the same user attach to it: `refuse`, since its memory holds passwords and payloads, or `allow`.",
            Self::AdminListen => "Where `/livez`, `/readyz`, `/metrics` and `/status` are served, `host:port`, or `off`.",
            Self::LogLevel => "`error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter such as `info,walpost=debug`. Read again at SIGHUP.",
            Self::LogFormat => "`text` or `json`. Without it: text on a terminal, else JSON.",
        }
    }

    pub(crate) const fn shape(self) -> Shape {
        self.row().4
    }

    /// The setting of that key.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.key() == key)
    }
}

/// The name among `known` that somebody who wrote `wrong` most likely meant.
///
/// The last part of a dotted name counts as the name itself, so that `slot`
/// finds `source.slot`.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let wrong_last = last(wrong);
    if let Some(same) = known.clone().find(|name| last(name) == wrong_last) {
        return Some(same);
    }
    known
        .map(|name| {
            let whole = strsim::damerau_levenshtein(wrong, name);
            let part = strsim::damerau_levenshtein(&wrong_last, &last(name));
            // Where both are as near, the one in the same table is meant.
            (whole.min(part), whole, name)
        })
        .min()
        .filter(|(distance, ..)| *distance <= 2 || *distance * 3 <= wrong_last.len())
        .map(|(.., name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_settings_share_a_name() {
        let all = Setting::ALL;
        let keys: BTreeSet<_> = all.into_iter().map(Setting::key).collect();
        assert_eq!(keys.len(), all.len());
        let variables: Vec<_> = all.into_iter().filter_map(Setting::variable).collect();
        assert_eq!(variables.iter().collect::<BTreeSet<_>>().len(), variables.len());
        let flags: Vec<_> = all.into_iter().filter_map(Setting::flag).collect();
        assert_eq!(flags.iter().collect::<BTreeSet<_>>().len(), flags.len());
    }

    #[test]
    fn a_variable_is_named_after_its_key() {
        for setting in Setting::ALL {
            if let Some(variable) = setting.variable() {
                let expected = setting.key().replace('.', "_").to_uppercase();
                assert_eq!(variable, format!("WALPOST_{expected}"));
            }
        }
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_name_that_was_meant() {
        let keys = Setting::ALL.into_iter().map(Setting::key);
        assert_eq!(nearest("source.slto", keys.clone()), Some("source.slot"));
        assert_eq!(nearest("slot", keys.clone()), Some("source.slot"));
        assert_eq!(
            nearest("kafka.bootstrap.servers", keys.clone()),
            Some("kafka.bootstrap_servers")
        );
        assert_eq!(nearest("colour", keys), None);
    }
}
