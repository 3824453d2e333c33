//! The table of settings: one row for each configuration key. Flag, variable, key in the file,
//! default, `walpost config`, `--help` and the reference page come from it.

use std::sync::LazyLock;

use super::values::ADMIN_LISTEN;
use crate::record::Policies;
use crate::record::{KeyTemplate, RecordConfig};

/// How a setting's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// A PostgreSQL connection string.
    Conninfo,
    /// A boolean, or a string that holds one.
    Boolean,
    /// An integer, or a string that holds one.
    Number,
    /// A number of bytes: an integer, or a string with a unit.
    Bytes,
    /// A string with a unit of time.
    Duration,
    /// One table name or several.
    Tables,
    /// An array of strings.
    List,
    /// A table of names and values.
    Properties,
}

/// A row of the table.
struct Row {
    key: &'static str,
    kind: Kind,
    help: &'static str,
    details: &'static str,
    flag: Option<(&'static str, &'static str)>,
    has_variable: bool,
    ambient: Option<&'static str>,
    default: Option<&'static str>,
    is_secret: bool,
}

/// A setting that can only be set in the file and has no default. `help` is shown by `--help` and
/// starts the entry on the reference page.
const fn row(key: &'static str, kind: Kind, help: &'static str) -> Row {
    Row {
        key,
        kind,
        help,
        details: "",
        flag: None,
        has_variable: false,
        ambient: None,
        default: None,
        is_secret: false,
    }
}

impl Row {
    /// Text that follows `help` on the reference page.
    const fn details(self, details: &'static str) -> Self {
        Self { details, ..self }
    }

    /// A flag, with the name of its value in `--help`, and a variable named after the key.
    const fn flag(self, flag: &'static str, value: &'static str) -> Self {
        Self { flag: Some((flag, value)), has_variable: true, ..self }
    }

    /// A variable named after the key.
    const fn variable(self) -> Self {
        Self { has_variable: true, ..self }
    }

    /// A standard variable, used if nothing else sets the value.
    const fn ambient(self, variable: &'static str) -> Self {
        Self { ambient: Some(variable), ..self }
    }

    /// The default, written as in a variable. An empty one is an empty list.
    const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// A file that holds the value must not be readable by everyone.
    const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }
}

macro_rules! settings {
    ($($setting:ident = $row:expr;)*) => {
        /// A configuration setting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each is named after its key: see `Setting::key`")]
        pub enum Setting { $($setting),* }

        const ROWS: &[Row] = &[$($row),*];

        impl Setting {
            /// Every setting, in the order of `walpost config`, `--help` and the reference page.
            pub const ALL: [Self; ROWS.len()] = [$(Self::$setting),*];
        }
    };
}

use Kind::{Boolean, Bytes, Conninfo, Duration, List, Number, Properties, Tables, Text};

settings! {
    SourceUrl = row("source.url", Conninfo, "PostgreSQL connection string: a URL or `key=value` pairs. Without it, libpq's variables apply (`PGHOST`, `PGUSER`, …). A password in the flag is visible in the process list.")
        .details("Prefer `WALPOST_SOURCE_URL_FILE`: walpost reads that file again at each connect.")
        .flag("--source", "URL").ambient("DATABASE_URL").secret();
    SourceSlot = row("source.slot", Text, "Replication slot.")
        .details("Two instances never share a slot: the second waits until the first releases it.")
        .flag("--slot", "NAME").default("walpost");
    SourcePublication = row("source.publication", Text, "Publication that contains the outbox table.")
        .flag("--publication", "NAME").default("walpost");
    SourceCatchUp = row("source.catch_up", Text, "How to read a backlog. `auto`: read large backlogs in SQL batches; `stream`: always stream.")
        .details("A backlog is large if it exceeds `source.catch_up_threshold`. With small transactions, SQL batches are about twice as fast. walpost streams the rest.")
        .flag("--catch-up", "MODE").default("auto");
    SourceCatchUpThreshold = row("source.catch_up_threshold", Bytes, "Amount of WAL above which a backlog is read in SQL batches. Accepts `KiB`, `MiB` and `GiB`.")
        .variable().default("64MiB");
    OutboxTable = row("outbox.table", Tables, "Outbox table, quoted as in SQL where needed. Can be repeated.")
        .details("Example of a quoted name: `\"Sales\".\"OutBox\"`. Several tables are an array in the file, and separated by commas in the variable. An empty array or variable is for an outbox of logical messages only.")
        .flag("--table", "NAME").default("public.outbox");
    ColumnId = row("outbox.columns.id", Text, "Column of the event ID. Detected if it is named `id`.").variable();
    ColumnAggregateType = row("outbox.columns.aggregate_type", Text, "Column of the aggregate type. Detected if it is named `aggregate_type` or `aggregatetype`.").variable();
    ColumnAggregateId = row("outbox.columns.aggregate_id", Text, "Column of the aggregate ID, which is the record key by default. Detected if it is named `aggregate_id` or `aggregateid`.").variable();
    ColumnEventType = row("outbox.columns.event_type", Text, "Column of the event type. Detected if it is named `event_type` or `type`.").variable();
    ColumnPayload = row("outbox.columns.payload", Text, "Column of the payload. Detected if it is named `payload`.").variable();
    ColumnHeaders = row("outbox.columns.headers", Text, "Column of a JSON object whose members become record headers. Detected if it is named `headers`.").variable();
    ColumnTimestamp = row("outbox.columns.timestamp", Text, "Column of the record timestamp, for `record.timestamp = \"column\"`.").variable();
    OutboxMessagePrefix = row("outbox.message_prefix", Text, "Prefix of transactional logical messages to publish as events.")
        .details("The content of such a message is a JSON object. Its members have the names of the columns.")
        .flag("--message-prefix", "PREFIX");
    OutboxPlainMessagePrefix = row("outbox.plain_message_prefix", Text, "Start of the prefix of logical messages to publish as events, with type and key in the prefix, as in `PREFIX:order:A-7`, and the value as content.")
        .flag("--plain-message-prefix", "PREFIX");
    RecordProfile = row("record.profile", Text, "Record format: `walpost`, or that of Debezium's outbox event router: `debezium`, `debezium-json`, `debezium-string-json`, `debezium-binary` or `debezium-binary-json`.")
        .details("The Debezium profiles differ in the converters whose records they reproduce.")
        .flag("--profile", "NAME").default("walpost");
    RecordTopic = row("record.topic", Text, "Topic, a template over the columns of the row.")
        .details("The modifiers are `lower`, `kebab` and `snake`, as in `{aggregate_type|kebab}`.")
        .flag("--topic", "TEMPLATE").default("outbox.event.{aggregate_type}");
    RecordTopicRegex = row("record.topic_regex", Text, "Regular expression that rewrites the topic. Requires `record.topic_replacement`.");
    RecordTopicReplacement = row("record.topic_replacement", Text, "Replacement for what `record.topic_regex` matches. `$1` is its first group.");
    RecordTopicsAllowed = row("record.topics_allowed", List, "Topics that events may be published to. `*` matches any characters, as in `outbox.event.*`.")
        .details("An event for another topic is undeliverable (`invalid_topic`). By default every topic is allowed, except those that start with `__`: no setting allows these. The setting also applies to the Debezium profiles, but not to the dead-letter topic. In the variable, separate the topics by commas.")
        .variable().default("");
    RecordKey = row("record.key", Text, "Key, a template over the columns of the row.")
        .default(KeyTemplate::DEFAULT);
    RecordNullKeys = row("record.null_keys", Text, "What to do with a key that is NULL. `allow`: send a null key; `refuse`: treat the event as undeliverable.")
        .default("refuse");
    RecordValue = row("record.value", Text, "Value format: `payload`, `envelope`, `merged`, `cloudevents` or `cloudevents-binary`.")
        .default("payload");
    RecordHeaders = row("record.headers", List, "Headers to send, in the order of the list: any of `id`, `event_type`, `headers`, `traceparent`, `tracestate` and `walpost.position`. By default all of them, in this order.")
        .details("`headers` stands for the members of the row's JSON object in the column `outbox.columns.headers`. A header that the event has no value for is not sent. An empty list sends no headers.");
    RecordPlace = row("record.place", List, "Columns to send in a header, in the envelope or as the partition: `column:header[:alias]`, `column:envelope[:alias]`, `column:partition`.")
        .default("");
    RecordCloudeventsSource = row("record.cloudevents_source", Text, "The `source` attribute of CloudEvents, a URI reference.")
        .default(RecordConfig::CLOUDEVENTS_SOURCE);
    RecordTimestamp = row("record.timestamp", Text, "Record timestamp. `commit`: the time of the commit; `column`: the value of `outbox.columns.timestamp`; `none`: the time at which the record is produced.")
        .details("`none` also applies to dead letters and to the Debezium profiles.")
        .default("commit");
    Debezium = row("debezium", Properties, "Options of Debezium's outbox event router, under their own names. Requires a Debezium profile.");
    SinkKind = row("sink.kind", Text, "Where events are published: `kafka`, `nats` (a stream of NATS JetStream), `rabbitmq` (an exchange of RabbitMQ), `redis` (a stream of Redis), `http` (a webhook) or `sqs` (a FIFO queue of Amazon SQS).")
        .details("The released program has all of them, a build from source those whose features it was built with. `nats`, `rabbitmq`, `redis`, `http` and `sqs` take the settings of [`[nats]`](#nats-nats), [`[rabbitmq]`](#rabbitmq-rabbitmq), [`[redis]`](#redis-redis), [`[http]`](#http-endpoint-http) or [`[sqs]`](#amazon-sqs-sqs); settings of another destination are then an error. See [which broker, which promise](sinks.md).")
        .flag("--sink", "KIND").default("kafka");
    NatsUrl = row("nats.url", Text, "NATS servers: `nats://[user:password@|token@]host[:port]`, or `tls://` for TLS. Separate several servers of a cluster by commas.")
        .details("Prefer `WALPOST_NATS_URL_FILE`: walpost reads that file again at each connect. Signs such as `@`, `/` and `,` in a password are written percent-encoded. The login is written at the first server.")
        .variable().default("nats://localhost:4222").secret();
    NatsStream = row("nats.stream", Text, "Stream to which all events are published, in the order of the commits. One stream belongs to one slot, and nobody else publishes to it.")
        .variable().default("outbox");
    NatsSubject = row("nats.subject", Text, "Subject of an event, with the placeholders `{topic}`, `{key}` and `{partition(N)}`.")
        .details("`{topic}` is what `record.topic` makes; its dots separate tokens. `{key}` is one token, percent-encoded where a subject could not have it; `{partition(8)}` is a number from 0 to 7 that depends on the key alone. The stream must have the subjects. Dead letters have the subject `poison.dead_letter_topic`. See [subjects](nats.md#subjects).")
        .variable().default("{topic}");
    NatsSyncInterval = row("nats.sync_interval", Duration, "The servers' `jetstream.sync_interval`, which clients cannot see: for that long a crash of a machine may lose acknowledged messages, so walpost confirms them to PostgreSQL only then. `0s` for `always`. Accepts `ms`, `s` and `min`.")
        .details("Only WAL waits, not delivery. See [what survives a crash](nats.md#what-survives-a-crash).")
        .variable().default("2min");
    NatsCredentialsFile = row("nats.credentials_file", Text, "File with a JWT and its seed (`.creds`), or with the seed of an NKey. Read again at each connect.")
        .variable();
    NatsCaFile = row("nats.ca_file", Text, "PEM file of the authorities that sign the servers' certificates, for `tls://`. Without it, those of the operating system.")
        .variable();
    NatsCertFile = row("nats.cert_file", Text, "PEM file of walpost's own certificate, for `tls://` servers that verify their clients. Read again at each connect.")
        .variable();
    NatsKeyFile = row("nats.key_file", Text, "PEM file of the private key of `nats.cert_file`.")
        .variable();
    RabbitmqUrl = row("rabbitmq.url", Text, "RabbitMQ: `amqp://[user:password@]host[:port][/vhost]`, or `amqps://` for TLS.")
        .details("Prefer `WALPOST_RABBITMQ_URL_FILE`: walpost reads that file again at each connect. Signs such as `@`, `/` and `:` in a password or a vhost are written percent-encoded. Without a vhost, `/` is used; without a login, `guest`, which RabbitMQ accepts from its own machine only.")
        .variable().default("amqp://localhost:5672").secret();
    RabbitmqExchange = row("rabbitmq.exchange", Text, "Exchange to which all events are published. It has to exist; an empty name is the default exchange, which routes to the queue that the routing key names.")
        .variable().default("outbox");
    RabbitmqRoutingKey = row("rabbitmq.routing_key", Text, "Routing key of an event, with the placeholders `{topic}`, `{key}` and `{partition(N)}`.")
        .details("`{topic}` is what `record.topic` makes, `{key}` what `record.key` makes, as one word: with `.` percent-encoded; `{partition(8)}` is a number from 0 to 7 that depends on the key alone. At most 255 bytes. Dead letters go to the queue `poison.dead_letter_topic`, through the default exchange. See [exchanges and queues](rabbitmq.md#exchanges-and-queues).")
        .variable().default("{key}");
    RabbitmqCaFile = row("rabbitmq.ca_file", Text, "PEM file of the authorities that sign the broker's certificate, for `amqps://`. Without it, those of the operating system.")
        .variable();
    RabbitmqCertFile = row("rabbitmq.cert_file", Text, "PEM file of walpost's own certificate, for `amqps://`. Without a login in `rabbitmq.url`, walpost logs in by it (`EXTERNAL`).")
        .variable();
    RabbitmqKeyFile = row("rabbitmq.key_file", Text, "PEM file of the private key of `rabbitmq.cert_file`.")
        .variable();
    RedisUrl = row("redis.url", Text, "Redis server: `redis://[[user]:password@]host[:port][/database]`, or `rediss://` for TLS.")
        .details("Prefer `WALPOST_REDIS_URL_FILE`: walpost reads that file again at each connect. Signs such as `@` and `/` in a password are written percent-encoded.")
        .variable().default("redis://localhost:6379").secret();
    RedisStream = row("redis.stream", Text, "Stream to which all events are added, in the order of the commits. One stream belongs to one slot.")
        .variable().default("outbox");
    RedisMaxlen = row("redis.maxlen", Number, "About how many entries the stream keeps (`XADD … MAXLEN ~`). Without it, walpost removes none.")
        .details("Redis removes the oldest entries, whether consumers have read them or not.")
        .variable();
    RedisWaitReplicas = row("redis.wait_replicas", Number, "How many replicas must have an entry before it counts as delivered (`WAIT`).")
        .details("With `0`, a failover to a replica that is behind loses entries. See [what survives a crash](redis.md#what-survives-a-crash).")
        .variable().default("0");
    RedisCaFile = row("redis.ca_file", Text, "PEM file of the authorities that sign the server's certificate, for `rediss://`. Without it, those of the operating system.")
        .variable();
    RedisCertFile = row("redis.cert_file", Text, "PEM file of walpost's own certificate, for a `rediss://` server that verifies its clients. Read again at each connect.")
        .variable();
    RedisKeyFile = row("redis.key_file", Text, "PEM file of the private key of `redis.cert_file`.")
        .variable();
    HttpUrl = row("http.url", Text, "URL to which each event is sent by POST. `{topic}` in path or query stands for the record's topic.")
        .details("Prefer `WALPOST_HTTP_URL_FILE` if it contains a token: walpost reads that file again at each connect.")
        .variable().secret();
    HttpSecret = row("http.secret", Text, "Secret that signs the requests, as Standard Webhooks describes: `whsec_` and 24 to 64 bytes in base64.")
        .details("Two, separated by a space, sign each request twice, while receivers change from one to the other. `WALPOST_HTTP_SECRET_FILE` is read again at each connect, and a connection is used for five minutes at most.")
        .variable().secret();
    HttpAuthorization = row("http.authorization", Text, "Value of the header `authorization`, for instance `Bearer …`.")
        .details("`WALPOST_HTTP_AUTHORIZATION_FILE` is read again at each connect.")
        .variable().secret();
    HttpLanes = row("http.lanes", Number, "How many requests may be in flight, each of another key.")
        .details("From 1 to 1024.")
        .variable().default("16");
    HttpTimeout = row("http.timeout", Duration, "How long an answer may take. Accepts `ms`, `s` and `min`.")
        .details("Then the event is sent again.")
        .variable().default("30s");
    HttpGiveUpAfter = row("http.give_up_after", Duration, "After which time an event that is always answered 5xx, 408, 421, 423, 424 or 425, or not within `http.timeout`, counts as rejected (`poison.refused`), if others are accepted. Accepts `s`, `min` and `h`.")
        .details("Without it, the event is sent again until the endpoint takes it. See [answers](http.md#answers).")
        .variable();
    HttpCaFile = row("http.ca_file", Text, "PEM file of the authorities that sign the server's certificate, for `https://`. Without it, those of the operating system.")
        .variable();
    HttpCertFile = row("http.cert_file", Text, "PEM file of walpost's own certificate, for an `https://` server that verifies its clients. Read again at each connect.")
        .variable();
    HttpKeyFile = row("http.key_file", Text, "PEM file of the private key of `http.cert_file`.")
        .variable();
    SqsQueueUrl = row("sqs.queue_url", Text, "URL of the FIFO queue to which all events are sent: `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo`.")
        .details("Credentials are those of the AWS SDKs' standard variables, files and services: see [credentials](sqs.md#credentials-and-policy).")
        .variable();
    SqsDeadLetterQueueUrl = row("sqs.dead_letter_queue_url", Text, "URL of the FIFO queue of dead letters. Required if a policy is `dead_letter`.")
        .variable();
    SqsEndpoint = row("sqs.endpoint", Text, "Server that requests are sent to: `https://host[:port]`. Without it, that of `sqs.queue_url`.")
        .details("For VPC endpoints without a private name, proxies, and servers other than Amazon's.")
        .variable();
    SqsRegion = row("sqs.region", Text, "Region for which requests are signed. Without it, that in the name of the server, then `AWS_REGION` and the AWS profile.")
        .variable();
    SqsCaFile = row("sqs.ca_file", Text, "PEM file of the authorities that sign the server's certificate. Without it, those of the operating system.")
        .variable();
    KafkaBootstrapServers = row("kafka.bootstrap_servers", Text, "Kafka bootstrap servers, `host:port`, separated by commas.")
        .flag("--bootstrap-servers", "LIST").ambient("KAFKA_BOOTSTRAP_SERVERS").default("localhost:9092");
    KafkaCreateTopics = row("kafka.create_topics", Text, "Creates a topic that does not exist, with this many partitions and replicas, such as `6:3`; `default`: as the brokers are set.")
        .details("Without it, what was committed after the first event of such a topic waits until somebody creates the topic. Rows name their topics, so it requires `record.topics_allowed`, unless all events have one topic. The Kafka user needs the ACL operation CREATE on the topics: without it `poison.missing_topic` holds. Where brokers are missing, or a quota is reached, what follows waits whatever that says.")
        .flag("--create-topics", "PARTITIONS:REPLICAS");
    KafkaMaxProducers = row("kafka.max_producers", Number, "Maximum number of producers that send at the same time, each with its own connections to the brokers.")
        .details("From 1 to 32. walpost starts with one and adds producers while the brokers are far away and the rate is high: each partition belongs to one of them, so the order per key is kept. `1` keeps a single producer. See [performance](performance.md#brokers-far-away).")
        .variable().default("8");
    KafkaProperties = row("kafka.properties", Properties, "librdkafka properties, under their own names. Can be repeated. walpost rejects those that would break its guarantee.")
        .details("walpost sets these defaults: `allow.auto.create.topics` false, `linger.ms` 0, `reconnect.backoff.max.ms` 2000, `topic.metadata.propagation.max.ms` 5000, `socket.keepalive.enable` true, `statistics.interval.ms` 5000, `client.id` walpost. `max.in.flight.requests.per.connection` is 1, and 5 while the brokers are far away; `linger.ms` is then 1. In the variable, write one `key=value` per line; `bootstrap.servers` there counts if nothing else names the brokers.")
        .flag("-X", "KEY=VALUE").secret();
    DeliveryInFlightBytes = row("delivery.in_flight_bytes", Bytes, "Maximum number of bytes in flight to the brokers. Accepts `KiB`, `MiB` and `GiB`.")
        .details("walpost stops reading while the maximum is reached.")
        .flag("--in-flight-bytes", "SIZE").default("32MiB");
    DeliveryDrainTimeout = row("delivery.drain_timeout", Duration, "How long a shutdown waits until in-flight records are delivered and confirmed. Accepts `ms`, `s` and `min`.")
        .details("Keep it shorter than the supervisor's own timeout.")
        .flag("--drain-timeout", "DURATION").default("20s");
    DeliveryId = row("delivery.id", Text, "Identifies this installation in the state topic. Letters, digits, `.`, `_` and `-`.")
        .details("A copy of the database server, such as a staging clone, that uses the same Kafka cluster needs another one: otherwise it stops the original from writing its position.")
        .flag("--delivery-id", "ID").default("walpost");
    DeliveryStateTopic = row("delivery.state_topic", Text, "Topic in which walpost keeps its position, or `off`.")
        .details("With it, walpost detects at the start that the slot was created again or advanced while walpost was not running. `walpost init --apply` creates the topic and writes the new slot's position; for an existing slot `walpost adopt --apply` does. `run` does not start without that. With `off`, rows that such a slot skips are not noticed.")
        .flag("--state-topic", "TOPIC").default("walpost.state");
    DeliveryMode = row("delivery.mode", Text, "How often an event may be published: `at-least-once`, or `exactly-once` for consumers that read committed records only (`isolation.level=read_committed`).")
        .details("`exactly-once` publishes in Kafka transactions, together with walpost's position in the state topic, which it needs. See [the guarantee](guarantee.md#exactly-once).")
        .flag("--delivery", "MODE").default("at-least-once");
    DeliveryCommitInterval = row("delivery.commit_interval", Duration, "With `exactly-once`: the time after which a Kafka transaction is committed, once the PostgreSQL transaction that is being read ends. Accepts `ms`, `s` and `min`.")
        .details("If there is nothing more to read, it is committed at once.")
        .variable().default("500ms");
    DeliveryTransactionBytes = row("delivery.transaction_bytes", Bytes, "With `exactly-once`: bytes of records from which on a Kafka transaction is committed at once. Accepts `KiB`, `MiB` and `GiB`.")
        .details("A larger PostgreSQL transaction is published in several Kafka transactions: exactly once, but consumers may see the first part before the rest.")
        .variable().default("64MiB");
    DeliveryWaitUntilVisible = row("delivery.wait_until_visible", Boolean, "Whether a transaction is published only once other sessions on the primary see its rows: `true` or `false`.")
        .details("For consumers that read the writer's database when an event arrives. See [what it does and costs](consumers.md#events-and-the-writers-database). walpost must then read from the primary, not from a standby.")
        .variable().default("false");
    PoisonTooLarge = row("poison.too_large", Text, "Policy for an event that is larger than the producer or the topic accepts: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    PoisonMissingField = row("poison.missing_field", Text, "Policy for an event without a key, or without a field that its topic needs: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    PoisonInvalidTopic = row("poison.invalid_topic", Text, "Policy for an event whose topic has an invalid name, or is not in `record.topics_allowed`: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    PoisonMissingTopic = row("poison.missing_topic", Text, "Policy for an event whose topic does not exist or may not be written to: `wait`, `halt`, `dead_letter` or `skip`.")
        .details("With RabbitMQ it is for an event that no queue takes, with NATS for one whose subject the stream does not have, with HTTP for one that is answered 404 if `http.url` contains `{topic}`. With `wait`, the event and all events behind it are delivered once the topic is created. With `dead_letter` and `skip`, a row that names a topic which does not exist blocks others only until another event is accepted.")
        .default("wait");
    PoisonRefused = row("poison.refused", Text, "Policy for an event that the brokers reject permanently: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    PoisonUndecodable = row("poison.undecodable", Text, "Policy for an event with a field that cannot be decoded: `halt`, `dead_letter` or `skip`.")
        .default("halt");
    PoisonDeadLetterTopic = row("poison.dead_letter_topic", Text, "Dead-letter topic.")
        .default(Policies::DEAD_LETTER_TOPIC);
    PoisonRetries = row("poison.retries", Number, "How often to retry a record that the brokers reject for a reason that may be temporary, such as a policy of theirs.")
        .details("After that, `poison.refused` applies. A permanent reason (size, timestamp, an invalid record or topic) is not retried.")
        .default("10");
    AdminListen = row("admin.listen", Text, "Address and port of the HTTP endpoints `/livez`, `/readyz`, `/metrics` and `/status`, or `off`.")
        .flag("--admin-listen", "ADDR").default(ADMIN_LISTEN);
    ProcessCoreDumps = row("process.core_dumps", Text, "Whether the kernel may write a core dump of walpost, and whether a debugger of the same user may attach to it: `refuse` or `allow`.")
        .details("The memory of every command that connects contains passwords, and payloads.")
        .variable().default("refuse");
    LogLevel = row("log.level", Text, "Log level: `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter such as `info,walpost=debug`.")
        .details("SIGHUP reloads it.")
        .flag("--log-level", "LEVEL").ambient("RUST_LOG").default("info");
    LogFormat = row("log.format", Text, "Log format: `text` or `json`. Default: text on a terminal, otherwise JSON.")
        .flag("--log-format", "FORMAT");
}

/// The tables of the file, with their titles on the reference page.
pub const TABLES: [(&str, &str); 16] = [
    ("source", "Source database"),
    ("outbox", "Outbox"),
    ("record", "Records"),
    ("debezium", "Debezium's outbox event router"),
    ("sink", "Destination"),
    ("nats", "NATS"),
    ("rabbitmq", "RabbitMQ"),
    ("redis", "Redis"),
    ("http", "HTTP endpoint"),
    ("sqs", "Amazon SQS"),
    ("kafka", "Kafka"),
    ("delivery", "Delivery"),
    ("poison", "Undeliverable events"),
    ("admin", "HTTP endpoints"),
    ("process", "Process"),
    ("log", "Logging"),
];

impl Setting {
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The key in the file, dotted: `source.slot`.
    pub const fn key(self) -> &'static str {
        self.row().key
    }

    /// The flag, with its dashes.
    pub fn flag(self) -> Option<&'static str> {
        self.row().flag.map(|(flag, _)| flag)
    }

    /// The name of the flag's value in `--help`.
    pub fn value_name(self) -> Option<&'static str> {
        self.row().flag.map(|(_, value)| value)
    }

    /// The environment variable of its own, named after the key.
    pub fn variable(self) -> Option<&'static str> {
        static NAMES: LazyLock<[String; ROWS.len()]> = LazyLock::new(|| {
            let name = |key: &str| format!("WALPOST_{}", key.replace('.', "_").to_uppercase());
            Setting::ALL.map(|setting| name(setting.key()))
        });
        self.row().has_variable.then(|| NAMES[self as usize].as_str())
    }

    /// The standard variable, used if nothing else sets the value.
    pub const fn ambient(self) -> Option<&'static str> {
        self.row().ambient
    }

    /// The default, written as in a variable.
    pub const fn default(self) -> Option<&'static str> {
        self.row().default
    }

    /// Its description for `--help`.
    pub const fn help(self) -> &'static str {
        self.row().help
    }

    /// Additional text for the reference page; may be empty.
    pub const fn details(self) -> &'static str {
        self.row().details
    }

    /// Whether its flag can be repeated.
    pub fn is_repeatable(self) -> bool {
        matches!(self.kind(), Kind::Tables | Kind::List | Kind::Properties)
    }

    pub(crate) const fn kind(self) -> Kind {
        self.row().kind
    }

    pub(crate) const fn is_secret(self) -> bool {
        self.row().is_secret
    }

    /// The setting of that key.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.key() == key)
    }
}

/// The name among `known` that is most similar to `wrong`.
///
/// The last part of a dotted name counts as the name itself, so that `slot`
/// finds `source.slot`.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    // As other programs call them.
    let wrong = wrong.replace("brokers", "bootstrap_servers");
    let wrong = wrong.replace("BROKERS", "BOOTSTRAP_SERVERS");
    let wrong = wrong.as_str();
    let wrong_last = last(wrong);
    if let Some(same) = known.clone().find(|name| last(name) == wrong_last) {
        return Some(same);
    }
    let mut longer = known.clone().filter(|name| name.starts_with(wrong));
    if let (Some(only), None) = (longer.next(), longer.next()) {
        return Some(only);
    }
    known
        .map(|name| {
            let whole = strsim::damerau_levenshtein(wrong, name);
            let part = strsim::damerau_levenshtein(&wrong_last, &last(name));
            // If two are equally similar, the one in the same table wins.
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
        assert_eq!(Setting::SourceSlot.variable(), Some("WALPOST_SOURCE_SLOT"));
        assert_eq!(Setting::RecordKey.variable(), None);
    }

    #[test]
    fn every_setting_is_in_a_titled_table_and_described_in_sentences() {
        for setting in Setting::ALL {
            let table = setting.key().split('.').next().unwrap();
            assert!(TABLES.iter().any(|(name, _)| *name == table), "{setting:?}");
            assert!(setting.help().ends_with('.'), "{setting:?}");
            assert!(setting.details().is_empty() || setting.details().ends_with('.'));
        }
    }

    #[test]
    fn a_misspelt_name_yields_the_nearest_known_one() {
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
