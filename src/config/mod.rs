//! Configuration: flags, environment and file become values that are valid by
//! construction, each with its origin.
//!
//! A key is declared in one row of the table in `setting.rs`. Precedence: flag, `WALPOST_*`
//! variable, file, standard variable (`DATABASE_URL`, `KAFKA_BOOTSTRAP_SERVERS`, `RUST_LOG`),
//! default. An empty value is a value. Reads the configuration file and the files that `_FILE`
//! variables name; opens no connection.

mod display;
mod environment;
mod error;
mod file;
mod kafka_properties;
mod layer;
mod load;
mod origin;
mod records;
mod redact;
mod setting;
mod sink;
#[cfg(test)]
mod tests;
mod units;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::outbox::{ColumnNames, TableName};
use crate::record::Policies;
use crate::record::debezium::Converters;
use crate::record::{TimestampSource, ValueFormat};

pub(crate) use display::quoted;
pub use display::{DisplayValue, Displayed};
pub use environment::Environment;
pub(crate) use environment::secret_variables;
pub use error::ConfigError;
pub use kafka_properties::{KafkaProperties, rejection};
pub use layer::Flags;
pub use origin::Origin;
#[doc(hidden)]
pub use records::profile;
pub(crate) use records::{columns, is_typed, option_error, outbox, outbox_with_ids};
pub(crate) use redact::is_hidden;
pub(crate) use setting::nearest;
pub use setting::{Setting, TABLES};
pub(crate) use units::{parse_bytes, parse_duration, show_bytes, show_duration};
pub use values::LogFormat;

/// The whole configuration. Its `Debug` contains no secret.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[source]`
    pub source: Source,
    /// `[outbox]`
    pub outbox: Outbox,
    /// `[record]`
    pub record: Record,
    /// `[debezium]`: the event router's options by name, each with its origin.
    pub debezium: BTreeMap<String, (String, Origin)>,
    /// `sink.kind`
    pub sink: SinkKind,
    /// `[nats]`
    pub nats: Nats,
    /// `[rabbitmq]`
    pub rabbitmq: RabbitMq,
    /// `[redis]`
    pub redis: Redis,
    /// `[http]`
    pub http: Http,
    /// `[sqs]`
    pub sqs: Sqs,
    /// `[kafka]`
    pub kafka: Kafka,
    /// `[delivery]`
    pub delivery: Delivery,
    /// `[poison]`
    pub poison: Policies,
    /// `[admin]`
    pub admin: Admin,
    /// `[log]`
    pub log: Log,
    /// `[process]`
    pub process: Process,
    displayed: Vec<Displayed>,
    flags: Flags,
}

/// The source database.
#[derive(Debug, Clone)]
pub struct Source {
    /// Connection string, URL or `key=value`; `None`: libpq's own variables.
    pub url: Option<SecretString>,
    /// Replication slot.
    pub slot: String,
    /// Publication.
    pub publication: String,
    /// How a backlog is read.
    pub catch_up: CatchUpMode,
    /// Bytes of WAL above which a backlog is read in SQL batches.
    pub catch_up_threshold: u64,
}

/// How a backlog is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUpMode {
    /// In SQL batches if it exceeds the threshold.
    Auto,
    /// Always by streaming.
    Stream,
}

impl CatchUpMode {
    /// The modes by their names.
    pub(crate) const NAMES: [(&str, Self); 2] = [("auto", Self::Auto), ("stream", Self::Stream)];
}

/// Where events are stored.
#[derive(Debug, Clone)]
pub struct Outbox {
    /// Tables, without duplicates; empty only if there is a message prefix.
    pub tables: Vec<TableName>,
    /// Columns that are not detected by their names.
    pub columns: ColumnNames,
    /// Prefix of the logical messages that are events; `None`: there are none.
    pub message_prefix: Option<String>,
    /// Start of the prefixes of logical messages that carry type and key in the prefix;
    /// `None`: there are none.
    pub plain_message_prefix: Option<String>,
}

/// How a record is built.
#[derive(Debug, Clone)]
pub struct Record {
    /// A Debezium profile; `None`: walpost's own format, which the other fields describe.
    pub profile: Option<Converters>,
    /// Topic template, not yet parsed.
    pub topic: String,
    /// Regular expression and replacement that rewrite the topic, not yet parsed.
    pub topic_rewrite: Option<(String, String)>,
    /// Patterns of the allowed topics, not yet parsed; empty: all.
    pub topics_allowed: Vec<String>,
    /// Key template, not yet parsed.
    pub key: String,
    /// Whether a key that is NULL is sent as a null key.
    pub null_keys: bool,
    /// Format of the value.
    pub value: ValueFormat,
    /// Headers to send, not yet parsed; `None`: all.
    pub headers: Option<Vec<String>>,
    /// Further columns to send, not yet parsed.
    pub place: Vec<String>,
    /// A `CloudEvent`'s `source`.
    pub cloudevents_source: String,
    /// Where its timestamp comes from.
    pub timestamp: TimestampSource,
}

/// Where events are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkKind {
    /// Topics of a Kafka cluster.
    Kafka,
    /// A stream of NATS.
    Nats,
    /// An exchange of RabbitMQ.
    RabbitMq,
    /// A stream of a Redis server.
    Redis,
    /// An HTTP endpoint.
    Http,
    /// A FIFO queue of Amazon SQS.
    Sqs,
}

impl SinkKind {
    /// The kinds by their names.
    pub(crate) const NAMES: [(&str, Self); 6] = [
        ("kafka", Self::Kafka),
        ("nats", Self::Nats),
        ("rabbitmq", Self::RabbitMq),
        ("redis", Self::Redis),
        ("http", Self::Http),
        ("sqs", Self::Sqs),
    ];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
            Self::Redis => "redis",
            Self::Http => "http",
            Self::Sqs => "sqs",
        }
    }

    /// Whether this build can publish there.
    pub(crate) fn is_built_in(self) -> bool {
        match self {
            Self::Kafka => true,
            Self::Nats => cfg!(feature = "nats"),
            Self::RabbitMq => cfg!(feature = "rabbitmq"),
            Self::Redis => cfg!(feature = "redis"),
            Self::Http => cfg!(feature = "http"),
            Self::Sqs => cfg!(feature = "sqs"),
        }
    }
}

/// The NATS servers.
#[derive(Debug, Clone)]
pub struct Nats {
    /// Their URLs, not yet parsed.
    pub url: SecretString,
    /// The stream.
    pub stream: String,
    /// The template of the subject, not yet parsed.
    pub subject: String,
    /// How long the servers may keep a message without syncing it.
    pub sync_interval: Duration,
    /// A JWT with its seed, or the seed of an NKey.
    pub credentials_file: Option<PathBuf>,
    /// The authorities that sign the servers' certificates; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate.
    pub cert_file: Option<PathBuf>,
    /// The private key of the client's certificate.
    pub key_file: Option<PathBuf>,
}

/// RabbitMQ.
#[derive(Debug, Clone)]
pub struct RabbitMq {
    /// Its URL, not yet parsed.
    pub url: SecretString,
    /// The exchange; empty: the default exchange.
    pub exchange: String,
    /// The template of the routing key, not yet parsed.
    pub routing_key: String,
    /// The authorities that sign its certificate; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate.
    pub cert_file: Option<PathBuf>,
    /// Its private key.
    pub key_file: Option<PathBuf>,
}

/// The Redis server.
#[derive(Debug, Clone)]
pub struct Redis {
    /// Its URL, not yet parsed.
    pub url: SecretString,
    /// The stream.
    pub stream: String,
    /// About how many entries it keeps; `None`: all.
    pub maxlen: Option<u64>,
    /// How many replicas must have an entry.
    pub wait_replicas: u32,
    /// The authorities that sign its certificate; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate.
    pub cert_file: Option<PathBuf>,
    /// The private key of the client's certificate.
    pub key_file: Option<PathBuf>,
}

/// The HTTP endpoint.
#[derive(Debug, Clone)]
pub struct Http {
    /// Its URL, not yet parsed.
    pub url: Option<SecretString>,
    /// What signs the requests, not yet parsed.
    pub secret: Option<SecretString>,
    /// The value of the header `authorization`.
    pub authorization: Option<SecretString>,
    /// How many requests may be in flight.
    pub lanes: u16,
    /// How long an answer may take.
    pub timeout: Duration,
    /// After which time an event that gets errors which usually pass counts as rejected; `None`: never.
    pub give_up_after: Option<Duration>,
    /// The authorities that sign its certificate; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate.
    pub cert_file: Option<PathBuf>,
    /// The private key of the client's certificate.
    pub key_file: Option<PathBuf>,
}

/// The queues of Amazon SQS.
#[derive(Debug, Clone)]
pub struct Sqs {
    /// The URL of the queue, not yet parsed.
    pub queue_url: Option<String>,
    /// That of the queue of the dead letters.
    pub dead_letter_queue_url: Option<String>,
    /// The server, if it is not that of the URL; not yet parsed.
    pub endpoint: Option<String>,
    /// The region, if neither the URL nor the environment has it.
    pub region: Option<String>,
    /// The authorities that sign its certificate; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
}

/// The Kafka cluster.
#[derive(Debug, Clone)]
pub struct Kafka {
    /// `host:port`, separated by commas.
    pub bootstrap_servers: String,
    /// The partitions and replicas of the topics that walpost creates, -1 for the brokers' default;
    /// `None`: it creates none.
    pub create_topics: Option<(i32, i32)>,
    /// Maximum number of producers that send at the same time.
    pub max_producers: u32,
    /// librdkafka properties, none of which breaks the guarantee.
    pub properties: KafkaProperties,
}

/// How records are delivered.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Maximum number of bytes in flight.
    pub in_flight_bytes: u64,
    /// How long a shutdown waits for in-flight records.
    pub drain_timeout: Duration,
    /// Identifies this installation in the state topic.
    pub id: String,
    /// The state topic; `None`: off.
    pub state_topic: Option<String>,
    /// How often an event may be published.
    pub mode: DeliveryMode,
    /// The time after which a Kafka transaction is committed, between two PostgreSQL transactions.
    pub commit_interval: Duration,
    /// Bytes from which on a Kafka transaction is committed at once.
    pub transaction_bytes: u64,
    /// Whether a transaction is published only once other sessions see it.
    pub wait_until_visible: bool,
}

/// How often an event may be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    /// More than once, after a failure.
    AtLeastOnce,
    /// Once, for consumers that read committed records only.
    ExactlyOnce,
}

impl DeliveryMode {
    /// The modes by their names.
    pub(crate) const NAMES: [(&str, Self); 2] =
        [("at-least-once", Self::AtLeastOnce), ("exactly-once", Self::ExactlyOnce)];
}

/// The HTTP endpoints.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Listen address; `None`: off.
    pub listen: Option<String>,
}

/// The process itself.
#[derive(Debug, Clone)]
pub struct Process {
    /// Whether the kernel may write a core dump.
    pub core_dumps: CoreDumps,
}

/// Whether the kernel may write a core dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreDumps {
    /// It may not.
    Refuse,
    /// It may.
    Allow,
}

/// A text for a log line, without the logins of URLs in it.
pub(crate) fn without_logins(text: &str) -> String {
    redact::logins(text)
}

/// A text that may be a PostgreSQL connection string, without its secrets.
pub(crate) fn conninfo(text: &str) -> String {
    redact::conninfo(text)
}

/// Logging.
#[derive(Debug, Clone)]
pub struct Log {
    /// A level or a filter, as in `tracing_subscriber::EnvFilter`.
    pub level: String,
    /// `None`: text on a terminal, otherwise JSON.
    pub format: Option<LogFormat>,
}

impl Config {
    /// Every effective value without secrets, in the order of [`Setting::ALL`].
    pub fn display(&self) -> &[Displayed] {
        &self.displayed
    }

    /// Where a setting was given.
    pub fn origin(&self, setting: Setting) -> &Origin {
        let row = self.displayed.iter().find(|row| row.key == setting.key());
        row.map_or(&Origin::Default, |row| &row.origin)
    }

    /// The current configuration: reads the file, and those that `_FILE` variables name, again.
    pub fn reload(&self, environment: &Environment) -> Result<Self, ConfigError> {
        Self::load(&self.flags, environment)
    }

    /// The current connection string: if a `_FILE` variable names its file, reads that file
    /// again.
    pub fn source_url(
        &self,
        environment: &Environment,
    ) -> Result<Option<SecretString>, ConfigError> {
        let text = self.read_again(Setting::SourceUrl, environment)?;
        Ok(text.or_else(|| self.source.url.clone()))
    }

    /// The current URL of Redis: if a `_FILE` variable names its file, reads that file again.
    pub fn redis_url(&self, environment: &Environment) -> Result<SecretString, ConfigError> {
        let text = self.read_again(Setting::RedisUrl, environment)?;
        Ok(text.unwrap_or_else(|| self.redis.url.clone()))
    }

    /// The current URL of RabbitMQ: if a `_FILE` variable names its file, reads that file again.
    pub fn rabbitmq_url(&self, environment: &Environment) -> Result<SecretString, ConfigError> {
        let text = self.read_again(Setting::RabbitmqUrl, environment)?;
        Ok(text.unwrap_or_else(|| self.rabbitmq.url.clone()))
    }

    /// The current URL of NATS: if a `_FILE` variable names its file, reads that file again.
    pub fn nats_url(&self, environment: &Environment) -> Result<SecretString, ConfigError> {
        let text = self.read_again(Setting::NatsUrl, environment)?;
        Ok(text.unwrap_or_else(|| self.nats.url.clone()))
    }

    /// `[http]` with its current secrets: of those whose files `_FILE` variables name, the files are
    /// read again.
    pub fn http_now(&self, environment: &Environment) -> Result<Http, ConfigError> {
        let again = |setting, then: &Option<SecretString>| {
            let text = self.read_again(setting, environment)?;
            Ok::<_, ConfigError>(text.or_else(|| then.clone()))
        };
        let http = &self.http;
        Ok(Http {
            url: again(Setting::HttpUrl, &http.url)?,
            secret: again(Setting::HttpSecret, &http.secret)?,
            authorization: again(Setting::HttpAuthorization, &http.authorization)?,
            ..http.clone()
        })
    }

    /// The text of the file that a setting's `_FILE` variable names; `None`: there is none.
    fn read_again(
        &self,
        setting: Setting,
        environment: &Environment,
    ) -> Result<Option<SecretString>, ConfigError> {
        match (self.origin(setting), setting.variable()) {
            (Origin::VariableFile { .. }, Some(name)) => {
                Ok(environment.text_or_file(name)?.map(|(text, _)| text.into()))
            }
            _ => Ok(None),
        }
    }

    /// The error for a value that a later check rejects (a topic template, a connection string),
    /// with its origin.
    pub fn invalid(&self, setting: Setting, reason: &impl ToString) -> ConfigError {
        ConfigError::Invalid {
            origin: self.origin(setting).clone(),
            key: setting.key().to_owned(),
            reason: reason.to_string(),
        }
    }
}
