//! Configuration: flags, environment and file become values that are valid by
//! construction, each with its origin.
//!
//! A key is declared in one row: in `general.rs`, or with its destination. Precedence: flag, `WALPOST_*`
//! variable, file, standard variable (`DATABASE_URL`, `KAFKA_BOOTSTRAP_SERVERS`, `RUST_LOG`),
//! default. An empty value is a value. Reads the configuration file and the files that `_FILE`
//! variables name; opens no connection.

mod display;
mod encoding;
mod environment;
mod error;
mod file;
mod general;
mod kafka_properties;
mod layer;
mod load;
mod origin;
mod records;
mod redact;
mod schema;
mod setting;
#[cfg(test)]
mod tests;
mod units;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use self::load::Values;
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
pub(crate) use schema::{Declared, Schema};
pub use setting::Setting;
pub(crate) use setting::nearest;
#[allow(unused_imports, reason = "a build with Kafka alone declares its settings here")]
pub(crate) use setting::{Kind, Row, declare_settings, row};
#[cfg(test)]
pub(crate) use tests::of_toml;
pub(crate) use units::{parse_bytes, show_bytes, show_duration};
pub use values::LogFormat;
pub(crate) use values::duration;

/// `sink.kind` of Kafka.
pub(crate) const KAFKA: &str = "kafka";

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
    pub sink: &'static str,
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
    values: Values,
    schema: &'static Schema,
    displayed: Vec<Displayed>,
    flags: Flags,
    environment: Environment,
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
    /// SQL batches if the backlog exceeds the threshold, otherwise a stream.
    Auto,
    /// Always by streaming.
    Stream,
}

impl CatchUpMode {
    /// The modes by their names.
    pub(crate) const NAMES: [(&str, Self); 2] = [("auto", Self::Auto), ("stream", Self::Stream)];
}

/// The outbox: the tables and messages that contain events.
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
    /// The source of a record's timestamp.
    pub timestamp: TimestampSource,
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
    /// Whether `/` is a page for browsers.
    pub page: bool,
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
    /// Core dumps are prevented.
    Refuse,
    /// Core dumps are permitted.
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
    /// Every effective value without secrets, in the order of the reference page.
    pub fn display(&self) -> &[Displayed] {
        &self.displayed
    }

    /// The source of a setting's value.
    pub fn origin(&self, setting: Setting) -> &Origin {
        self.values.origin(setting)
    }

    /// The current configuration: reads the file, and those that `_FILE` variables name, again.
    pub fn reload(&self) -> Result<Self, ConfigError> {
        Self::load_with(self.schema, &self.flags, &self.environment)
    }

    /// The environment that it was read from.
    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The values as they were written.
    #[allow(dead_code, reason = "those of Kafka are fields")]
    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Whether events go to Kafka.
    pub(crate) fn is_kafka(&self) -> bool {
        self.sink == KAFKA
    }

    /// The current connection string: if a `_FILE` variable names its file, reads that file again.
    pub fn source_url(&self) -> Result<Option<SecretString>, ConfigError> {
        self.current(Setting::SOURCE_URL)
    }

    /// The text of a setting: if a `_FILE` variable names its file, reads that file again.
    pub(crate) fn current(&self, setting: Setting) -> Result<Option<SecretString>, ConfigError> {
        if let (Origin::VariableFile { .. }, Some(name)) =
            (self.origin(setting), setting.variable())
            && let Some((text, _)) = self.environment.text_or_file(&name)?
        {
            return Ok(Some(text.into()));
        }
        Ok(self.values.text(setting).map(SecretString::from))
    }

    /// The path that a setting is, relative to the environment's directory.
    pub(crate) fn path(&self, setting: Setting) -> Option<PathBuf> {
        self.values.text(setting).map(|text| self.environment.path(text.as_ref()))
    }

    /// The variables that name a file with a secret that any user can read, and the file.
    pub(crate) fn open_secrets(&self) -> Vec<(String, PathBuf)> {
        self.environment.open_secrets(self.schema)
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
