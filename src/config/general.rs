//! The settings of walpost itself, and of Kafka.

use super::setting::Kind::{
    Boolean, Bytes, Conninfo, Duration, List, Number, Properties, Tables, Text,
};
use super::setting::{declare_settings, row};
use super::values::ADMIN_LISTEN;
use crate::record::{KeyTemplate, Policies, RecordConfig};

declare_settings! {
    /// The settings before the destinations' tables, in the order of `walpost config` and the
    /// reference page.
    impl FIRST:
    SOURCE_URL = row("source.url", Conninfo, "PostgreSQL connection string: a URL or `key=value` pairs. Without it, libpq's variables apply (`PGHOST`, `PGUSER`, …). A password in the flag is visible in the process list.")
        .details("Prefer `WALPOST_SOURCE_URL_FILE`: walpost reads that file again at each connect.")
        .flag("--source", "URL").ambient("DATABASE_URL").secret();
    SOURCE_SLOT = row("source.slot", Text, "Replication slot.")
        .details("Two instances never share a slot: the second waits until the first releases it.")
        .flag("--slot", "NAME").default("walpost");
    SOURCE_PUBLICATION = row("source.publication", Text, "Publication that contains the outbox table.")
        .flag("--publication", "NAME").default("walpost");
    SOURCE_CATCH_UP = row("source.catch_up", Text, "How to read a backlog. `auto`: read large backlogs in SQL batches; `stream`: always stream.")
        .details("A backlog is large if it exceeds `source.catch_up_threshold`. With small transactions, SQL batches are about twice as fast. walpost streams the rest.")
        .flag("--catch-up", "MODE").default("auto");
    SOURCE_CATCH_UP_THRESHOLD = row("source.catch_up_threshold", Bytes, "Amount of WAL above which a backlog is read in SQL batches. Accepts `KiB`, `MiB` and `GiB`.")
        .variable().default("64MiB");
    OUTBOX_TABLE = row("outbox.table", Tables, "Outbox table, quoted as in SQL where needed. Can be repeated.")
        .details("Example of a quoted name: `\"Sales\".\"OutBox\"`. Several tables are an array in the file, and separated by commas in the variable. An empty array or variable is for an outbox of logical messages only.")
        .flag("--table", "NAME").default("public.outbox");
    COLUMN_ID = row("outbox.columns.id", Text, "Column of the event ID. Detected if it is named `id`.").variable();
    COLUMN_AGGREGATE_TYPE = row("outbox.columns.aggregate_type", Text, "Column of the aggregate type. Detected if it is named `aggregate_type` or `aggregatetype`.").variable();
    COLUMN_AGGREGATE_ID = row("outbox.columns.aggregate_id", Text, "Column of the aggregate ID, which is the record key by default. Detected if it is named `aggregate_id` or `aggregateid`.").variable();
    COLUMN_EVENT_TYPE = row("outbox.columns.event_type", Text, "Column of the event type. Detected if it is named `event_type` or `type`.").variable();
    COLUMN_PAYLOAD = row("outbox.columns.payload", Text, "Column of the payload. Detected if it is named `payload`.").variable();
    COLUMN_HEADERS = row("outbox.columns.headers", Text, "Column of a JSON object whose members become record headers. Detected if it is named `headers`.").variable();
    COLUMN_TIMESTAMP = row("outbox.columns.timestamp", Text, "Column of the record timestamp, for `record.timestamp = \"column\"`.").variable();
    OUTBOX_MESSAGE_PREFIX = row("outbox.message_prefix", Text, "Prefix of transactional logical messages to publish as events.")
        .details("The content of such a message is a JSON object. Its members have the names of the columns.")
        .flag("--message-prefix", "PREFIX");
    OUTBOX_PLAIN_MESSAGE_PREFIX = row("outbox.plain_message_prefix", Text, "Start of the prefix of logical messages to publish as events, with type and key in the prefix, as in `PREFIX:order:A-7`, and the value as content.")
        .flag("--plain-message-prefix", "PREFIX");
    RECORD_PROFILE = row("record.profile", Text, "Record format: `walpost`, or that of Debezium's outbox event router: `debezium`, `debezium-json`, `debezium-string-json`, `debezium-binary` or `debezium-binary-json`.")
        .details("The Debezium profiles differ in the converters whose records they reproduce.")
        .flag("--profile", "NAME").default("walpost");
    RECORD_TOPIC = row("record.topic", Text, "Topic, a template over the columns of the row.")
        .details("The modifiers are `lower`, `kebab` and `snake`, as in `{aggregate_type|kebab}`.")
        .flag("--topic", "TEMPLATE").default("outbox.event.{aggregate_type}");
    RECORD_TOPIC_REGEX = row("record.topic_regex", Text, "Regular expression that rewrites the topic. Requires `record.topic_replacement`.");
    RECORD_TOPIC_REPLACEMENT = row("record.topic_replacement", Text, "Replacement for what `record.topic_regex` matches. `$1` is its first group.");
    RECORD_TOPICS_ALLOWED = row("record.topics_allowed", List, "Topics that events may be published to. `*` matches any characters, as in `outbox.event.*`.")
        .details("An event for another topic is undeliverable (`invalid_topic`). By default every topic is allowed, except those that start with `__`: no setting allows these. The setting also applies to the Debezium profiles, but not to the dead-letter topic. In the variable, separate the topics by commas.")
        .variable().default("");
    RECORD_KEY = row("record.key", Text, "Key, a template over the columns of the row.")
        .default(KeyTemplate::DEFAULT);
    RECORD_NULL_KEYS = row("record.null_keys", Text, "What to do with a key that is NULL. `allow`: send a null key; `refuse`: treat the event as undeliverable.")
        .default("refuse");
    RECORD_VALUE = row("record.value", Text, "Value format: `payload`, `envelope`, `merged`, `cloudevents` or `cloudevents-binary`.")
        .default("payload");
    RECORD_VALUE_ENCODING = row("record.value_encoding", Text, "How a value gets the prefix by which readers find its schema in a schema registry: `none`; `check`: the payload has it, and the registry has to know its schema; `frame`: the payload is serialized without it.")
        .details("For Kafka, with `record.value = \"payload\"`. See [schema registry](schema-registry.md).")
        .default("none");
    RECORD_HEADERS = row("record.headers", List, "Headers to send, in the order of the list: any of `id`, `event_type`, `headers`, `traceparent`, `tracestate` and `walpost.position`. By default all of them, in this order.")
        .details("`headers` stands for the members of the row's JSON object in the column `outbox.columns.headers`. A header that the event has no value for is not sent. An empty list sends no headers.");
    RECORD_PLACE = row("record.place", List, "Columns to send in a header, in the envelope or as the partition: `column:header[:alias]`, `column:envelope[:alias]`, `column:partition`.")
        .default("");
    RECORD_CLOUDEVENTS_SOURCE = row("record.cloudevents_source", Text, "The `source` attribute of CloudEvents, a URI reference.")
        .default(RecordConfig::CLOUDEVENTS_SOURCE);
    RECORD_TIMESTAMP = row("record.timestamp", Text, "Record timestamp. `commit`: the time of the commit; `column`: the value of `outbox.columns.timestamp`; `none`: the time at which the record is produced.")
        .details("`none` also applies to dead letters and to the Debezium profiles.")
        .default("commit");
    DEBEZIUM = row("debezium", Properties, "Options of Debezium's outbox event router, under their own names. Requires a Debezium profile.");
    SINK_KIND = row("sink.kind", Text, "Where events are published: `kafka`, `nats` (a stream of NATS JetStream), `rabbitmq` (an exchange of RabbitMQ), `redis` (a stream of Redis), `http` (a webhook) or `sqs` (a FIFO queue of Amazon SQS).")
        .details("The released program has all of them, a build from source those whose features it was built with. `nats`, `rabbitmq`, `redis`, `http` and `sqs` take the settings of [`[nats]`](#nats-nats), [`[rabbitmq]`](#rabbitmq-rabbitmq), [`[redis]`](#redis-redis), [`[http]`](#http-endpoint-http) or [`[sqs]`](#amazon-sqs-sqs); settings of another destination are then an error. See [which broker, which promise](sinks.md).")
        .flag("--sink", "KIND").default("kafka");
}

declare_settings! {
    /// `[kafka]`
    impl KAFKA:
    KAFKA_BOOTSTRAP_SERVERS = row("kafka.bootstrap_servers", Text, "Kafka bootstrap servers, `host:port`, separated by commas.")
        .flag("--bootstrap-servers", "LIST").ambient("KAFKA_BOOTSTRAP_SERVERS").default("localhost:9092");
    KAFKA_CREATE_TOPICS = row("kafka.create_topics", Text, "Creates a topic that does not exist, with this many partitions and replicas, such as `6:3`; `default`: as the brokers are set.")
        .details("Without it, what was committed after the first event of such a topic waits until somebody creates the topic. Rows name their topics, so it requires `record.topics_allowed`, unless all events have one topic. The Kafka user needs the ACL operation CREATE on the topics: without it `poison.missing_topic` holds. Where brokers are missing, or a quota is reached, what follows waits whatever that says.")
        .flag("--create-topics", "PARTITIONS:REPLICAS");
    KAFKA_MAX_PRODUCERS = row("kafka.max_producers", Number, "Maximum number of producers that send at the same time, each with its own connections to the brokers.")
        .details("From 1 to 32. walpost starts with one and adds producers while the brokers are far away and the rate is high: each partition belongs to one of them, so the order per key is kept. `1` keeps a single producer. See [performance](performance.md#brokers-far-away).")
        .variable().default("8");
    KAFKA_PROPERTIES = row("kafka.properties", Properties, "librdkafka properties, under their own names. Can be repeated. walpost rejects those that would break its guarantee.")
        .details("walpost sets these defaults: `allow.auto.create.topics` false, `linger.ms` 0, `reconnect.backoff.max.ms` 2000, `topic.metadata.propagation.max.ms` 5000, `socket.keepalive.enable` true, `statistics.interval.ms` 5000, `client.id` walpost. `max.in.flight.requests.per.connection` is 1, and 5 while the brokers are far away; `linger.ms` is then 1. In the variable, write one `key=value` per line; `bootstrap.servers` there counts if nothing else names the brokers.")
        .flag("-X", "KEY=VALUE").secret();
}

declare_settings! {
    /// `[registry]`
    impl REGISTRY:
    REGISTRY_URL = row("registry.url", Text, "Addresses of the schema registry, `https://host[:port][/path]`, separated by commas: they are tried in this order.")
        .variable();
    REGISTRY_AUTHORIZATION = row("registry.authorization", Text, "Value of the header `authorization` to the registry, for instance `Basic …` or `Bearer …`.")
        .details("`WALPOST_REGISTRY_AUTHORIZATION_FILE` is read again with each question.")
        .variable().hidden();
    REGISTRY_CA_FILE = row("registry.ca_file", Text, "PEM file of the authorities that sign the registry's certificate, for `https://`. Without it, those of the operating system.")
        .variable();
    REGISTRY_CERT_FILE = row("registry.cert_file", Text, "PEM file of walpost's own certificate, for a registry that verifies its clients.")
        .variable();
    REGISTRY_KEY_FILE = row("registry.key_file", Text, "PEM file of the private key of `registry.cert_file`.")
        .variable();
    REGISTRY_TIMEOUT = row("registry.timeout", Duration, "How long an answer of the registry may take. Accepts `ms`, `s` and `min`.")
        .variable().default("10s");
    REGISTRY_REFRESH = row("registry.refresh", Duration, "How often walpost asks for the latest version of a subject in use. Accepts `ms`, `s` and `min`.")
        .details("A schema that is known stays in use while the registry does not answer.")
        .variable().default("1min");
    REGISTRY_VALUE_SUBJECT = row("registry.value_subject", Text, "Subject of a value's schema, with `record.value_encoding = \"frame\"`: a template over the record's `{topic}` and the columns of the row.")
        .default("{topic}-value");
    REGISTRY_VALUE_VERSION = row("registry.value_version", Number, "Version of that subject, or `latest`.")
        .details("With `latest`, an event that is published a second time may have the id of a newer version.")
        .default("latest");
    REGISTRY_VALUE_ID = row("registry.value_id", Number, "Id of the schema of all values, in the place of a subject.");
}

declare_settings! {
    /// The settings after the destinations' tables.
    impl LAST:
    DELIVERY_IN_FLIGHT_BYTES = row("delivery.in_flight_bytes", Bytes, "Maximum number of bytes in flight to the brokers. Accepts `KiB`, `MiB` and `GiB`.")
        .details("walpost stops reading while the maximum is reached.")
        .flag("--in-flight-bytes", "SIZE").default("32MiB");
    DELIVERY_DRAIN_TIMEOUT = row("delivery.drain_timeout", Duration, "How long a shutdown waits until in-flight records are delivered and confirmed. Accepts `ms`, `s` and `min`.")
        .details("Keep it shorter than the supervisor's own timeout.")
        .flag("--drain-timeout", "DURATION").default("20s");
    DELIVERY_ID = row("delivery.id", Text, "Identifies this installation in the state topic. Letters, digits, `.`, `_` and `-`.")
        .details("A copy of the database server, such as a staging clone, that uses the same Kafka cluster needs another one: otherwise it stops the original from writing its position.")
        .flag("--delivery-id", "ID").default("walpost");
    DELIVERY_STATE_TOPIC = row("delivery.state_topic", Text, "Topic in which walpost keeps its position, or `off`.")
        .details("With it, walpost detects at the start that the slot was created again or advanced while walpost was not running. `walpost init --apply` creates the topic and writes the new slot's position; for an existing slot `walpost adopt --apply` does. `run` does not start without that. With `off`, rows that such a slot skips are not noticed.")
        .flag("--state-topic", "TOPIC").default("walpost.state");
    DELIVERY_MODE = row("delivery.mode", Text, "How often an event may be published: `at-least-once`, or `exactly-once` for consumers that read committed records only (`isolation.level=read_committed`).")
        .details("`exactly-once` publishes in Kafka transactions, together with walpost's position in the state topic, which it needs. See [the guarantee](guarantee.md#exactly-once).")
        .flag("--delivery", "MODE").default("at-least-once");
    DELIVERY_COMMIT_INTERVAL = row("delivery.commit_interval", Duration, "With `exactly-once`: the time after which a Kafka transaction is committed, once the PostgreSQL transaction that is being read ends. Accepts `ms`, `s` and `min`.")
        .details("If there is nothing more to read, it is committed at once.")
        .variable().default("500ms");
    DELIVERY_TRANSACTION_BYTES = row("delivery.transaction_bytes", Bytes, "With `exactly-once`: bytes of records from which on a Kafka transaction is committed at once. Accepts `KiB`, `MiB` and `GiB`.")
        .details("A larger PostgreSQL transaction is published in several Kafka transactions: exactly once, but consumers may see the first part before the rest.")
        .variable().default("64MiB");
    DELIVERY_WAIT_UNTIL_VISIBLE = row("delivery.wait_until_visible", Boolean, "Whether a transaction is published only once other sessions on the primary see its rows: `true` or `false`.")
        .details("For consumers that read the writer's database when an event arrives. See [what it does and costs](consumers.md#events-and-the-writers-database). walpost must then read from the primary, not from a standby.")
        .variable().default("false");
    POISON_TOO_LARGE = row("poison.too_large", Text, "Policy for an event that is larger than the producer or the topic accepts: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    POISON_MISSING_FIELD = row("poison.missing_field", Text, "Policy for an event without a key, or without a field that its topic needs: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    POISON_INVALID_TOPIC = row("poison.invalid_topic", Text, "Policy for an event whose topic has an invalid name, or is not in `record.topics_allowed`: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    POISON_MISSING_TOPIC = row("poison.missing_topic", Text, "Policy for an event whose topic does not exist or may not be written to: `wait`, `halt`, `dead_letter` or `skip`.")
        .details("With RabbitMQ it is for an event that no queue takes, with NATS for one whose subject the stream does not have, with HTTP for one that is answered 404 if `http.url` contains `{topic}`. With `wait`, the event and all events behind it are delivered once the topic is created. With `dead_letter` and `skip`, a row that names a topic which does not exist blocks others only until another event is accepted.")
        .default("wait");
    POISON_REFUSED = row("poison.refused", Text, "Policy for an event that the brokers reject permanently: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    POISON_UNDECODABLE = row("poison.undecodable", Text, "Policy for an event with a field that cannot be decoded: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    POISON_MISSING_SCHEMA = row("poison.missing_schema", Text, "Policy for an event whose schema the schema registry does not have: `wait`, `halt`, `dead_letter` or `skip`.")
        .details("With `wait`, the event and all events behind it are delivered once the schema is registered.")
        .default("wait");
    POISON_SCHEMA_MISMATCH = row("poison.schema_mismatch", Text, "Policy for an event whose value cannot have its schema, or whose schema walpost cannot use: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    POISON_DEAD_LETTER_TOPIC = row("poison.dead_letter_topic", Text, "Dead-letter topic.")
        .default(Policies::DEAD_LETTER_TOPIC);
    POISON_RETRIES = row("poison.retries", Number, "How often to retry a record that the brokers reject for a reason that may be temporary, such as a policy of theirs.")
        .details("After that, `poison.refused` applies. A permanent reason (size, timestamp, an invalid record or topic) is not retried.")
        .default("10");
    ADMIN_LISTEN = row("admin.listen", Text, "Address and port of the HTTP endpoints `/livez`, `/readyz`, `/metrics`, `/status` and the page at `/`, or `off`.")
        .flag("--admin-listen", "ADDR").default(ADMIN_LISTEN);
    ADMIN_PAGE = row("admin.page", Text, "Whether `/` shows a page to browsers: `on` or `off`. It shows what `/status` has, the last quarter of an hour, and the settings without secrets.")
        .variable().default("on");
    PROCESS_CORE_DUMPS = row("process.core_dumps", Text, "Whether the kernel may write a core dump of walpost, and whether a debugger of the same user may attach to it: `refuse` or `allow`.")
        .details("The memory of every command that connects contains passwords, and payloads.")
        .variable().default("refuse");
    LOG_LEVEL = row("log.level", Text, "Log level: `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter such as `info,walpost=debug`.")
        .details("SIGHUP reloads it.")
        .flag("--log-level", "LEVEL").ambient("RUST_LOG").default("info");
    LOG_FORMAT = row("log.format", Text, "Log format: `text` or `json`. Default: text on a terminal, otherwise JSON.")
        .flag("--log-format", "FORMAT");
}

/// The tables of [`Setting::FIRST`], with their titles on the reference page.
pub(super) const FIRST_TABLES: [(&str, &str); 5] = [
    ("source", "Source database"),
    ("outbox", "Outbox"),
    ("record", "Records"),
    ("debezium", "Debezium's outbox event router"),
    ("sink", "Destination"),
];

/// The tables of [`Setting::LAST`].
pub(super) const LAST_TABLES: [(&str, &str); 6] = [
    ("registry", "Schema registry"),
    ("delivery", "Delivery"),
    ("poison", "Undeliverable events"),
    ("admin", "HTTP endpoints"),
    ("process", "Process"),
    ("log", "Logging"),
];
