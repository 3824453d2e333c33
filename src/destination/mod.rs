//! The kinds of destination: one trait, and the one table of them.
//!
//! A folder has everything of a kind: its settings, its checks, its sink, and where it keeps the position.
//! `parts` has what several of them use. Commands name no kind, except where something is for Kafka
//! alone.

pub(crate) mod dead_letters;
#[cfg(feature = "http")]
pub(crate) mod http;
pub mod kafka;
#[cfg(test)]
mod names_tests;
#[cfg(feature = "nats")]
pub(crate) mod nats;
pub(crate) mod parts;
pub(crate) mod published;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "sqs")]
pub(crate) mod sqs;

use std::sync::Arc;

use crate::config::{Config, ConfigError, Environment, Flags, Schema, Setting};
use crate::findings::Findings;
use crate::metrics::Metrics;
use crate::record::Names;
use crate::relay::StateSettings;
use crate::sink::{BoxFuture, Sink, SinkError};
use crate::state::{KeptState, StateFailure, StateKey, StateStore};

use self::dead_letters::{LettersAt, OpenLetters};
use self::parts::stored::SlotAt;
use self::parts::url::is_this_machine;
use self::published::{LocalFuture, Published};

/// The table of kinds: all names, those that this build has, and what they declare. Each is a module above,
/// with `pub(super) mod settings` that has `DECLARED`, a type that is a [`Destination`], and for tests a
/// `SAMPLE`.
macro_rules! destinations {
    ($first:ident::$First:ident, $(#[cfg($feature:meta)] $module:ident::$type:ident,)*) => {
        static ALL: &[&dyn Destination] =
            &[&$first::$First, $(#[cfg($feature)] &$module::$type),*];

        static SCHEMA: Schema = Schema {
            kinds: &[stringify!($first), $(stringify!($module)),*],
            declared: &[
                &$first::settings::DECLARED,
                $(#[cfg($feature)] &$module::settings::DECLARED),*
            ],
        };

        #[cfg(test)]
        static SAMPLES: &[(&dyn Destination, names_tests::Sample)] =
            &[$(#[cfg($feature)] (&$module::$type, $module::SAMPLE)),*];
    };
}

destinations! {
    kafka::Kafka,
    #[cfg(feature = "http")]
    http::Http,
    #[cfg(feature = "nats")]
    nats::Nats,
    #[cfg(feature = "rabbitmq")]
    rabbitmq::RabbitMq,
    #[cfg(feature = "redis")]
    redis::Redis,
    #[cfg(feature = "sqs")]
    sqs::Sqs,
}

impl Config {
    /// Reads and validates everything. Returns the first error.
    pub fn load(flags: &Flags, environment: &Environment) -> Result<Self, ConfigError> {
        Self::load_with(&SCHEMA, flags, environment)
    }
}

impl Setting {
    /// Every setting of this build, in the order of `walpost config`, `--help` and the reference page.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        SCHEMA.settings()
    }

    /// The tables of the file, with their titles on the reference page.
    pub fn tables() -> impl Iterator<Item = (&'static str, &'static str)> {
        SCHEMA.tables()
    }
}

/// The names of the kinds that this build has.
pub(crate) fn kinds() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|one| one.kind())
}

/// The configured kind. One that this build does not have is an error of the configuration before.
pub(crate) fn of(config: &Config) -> &'static dyn Destination {
    let found = ALL.iter().find(|one| one.kind() == config.sink);
    *found.unwrap_or(&ALL[0])
}

/// A kind of destination: everything that a command needs of it.
pub(crate) trait Destination: Sync {
    /// The destination's value of `sink.kind`.
    fn kind(&self) -> &'static str;

    /// How it has the names of headers, and which ones it or its clients keep for themselves.
    fn names(&self) -> Names;

    /// Makes the sink, and the store of the position if it has one. Nothing connects yet.
    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError>;

    /// The server of the events; `None`: the settings are not valid, or it has none, and the two methods below
    /// say what there is.
    fn server(&self, config: &Config) -> Option<Server> {
        let _ = config;
        None
    }

    /// The address and the stream of events, for the log.
    fn description(&self, config: &Config) -> Description {
        let endpoint = self.server(config).map(|server| server.address);
        Description { endpoint, ..Description::default() }
    }

    /// The hosts that get credentials without TLS.
    fn exposed_hosts(&self, config: &Config) -> Vec<String> {
        match self.server(config) {
            Some(Server { hosts, is_exposed: true, .. }) => hosts,
            _ => Vec::new(),
        }
    }

    /// What messages call the place where the position is kept; `None`: nowhere.
    fn place_of_position(&self, config: &Config) -> Option<String> {
        let _ = config;
        None
    }

    /// What reads and writes the position there for an operator's command.
    fn store(&self, config: &Config) -> Option<Box<dyn StateStore>> {
        let _ = config;
        None
    }

    /// Reads the position that is kept there, without disturbing a walpost at work; `None`: none is.
    fn kept_state<'a>(
        &'a self,
        config: &Config,
        key: &'a StateKey,
    ) -> Result<Option<ReadState<'a>>, ConfigError> {
        let (_, _) = (config, key);
        Ok(None)
    }

    /// What reads back the records that are published; `None`: nobody can.
    fn published(&self, config: &Config) -> Result<Option<Box<dyn Published>>, ConfigError> {
        let _ = config;
        Ok(None)
    }

    /// Opens the place of the dead letters; `None`: they cannot be taken from there.
    fn dead_letters<'a>(
        &'a self,
        config: &'a Config,
        at: &'a LettersAt,
    ) -> Option<OpenLetters<'a>> {
        let (_, _) = (config, at);
        None
    }

    /// Checks the settings and, unless `offline`, servers, rights and what is there; with a slot, the position
    /// too. Publishes nothing.
    fn check<'a>(&'a self, check: Check<'a>, findings: &'a mut Findings) -> BoxFuture<'a, ()>;
}

/// A position that is being read.
pub(crate) type ReadState<'a> = LocalFuture<'a, Result<KeptState, StateFailure>>;

/// What a destination is opened with.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) metrics: Arc<Metrics>,
}

/// A destination that events can be published to.
pub(crate) struct Opened {
    pub(crate) sink: Box<dyn Sink>,
    /// The store of the position, with its settings.
    pub(crate) state: Option<(Box<dyn StateStore>, StateSettings)>,
    /// Whether the core is to publish in transactions.
    pub(crate) is_exactly_once: bool,
}

impl Opened {
    /// A destination that keeps no position.
    pub(crate) fn without_position(sink: impl Sink + 'static) -> Self {
        Self { sink: Box::new(sink), state: None, is_exactly_once: false }
    }

    /// The same with a store of the position.
    pub(crate) fn keeping(self, store: impl StateStore + 'static, settings: StateSettings) -> Self {
        Self { state: Some((Box::new(store), settings)), ..self }
    }
}

/// Where a destination is.
pub(crate) struct Server {
    /// The address, without secrets.
    pub(crate) address: String,
    /// Without ports.
    pub(crate) hosts: Vec<String>,
    /// Whether credentials are sent there without TLS.
    pub(crate) is_exposed: bool,
}

/// The address and the stream of events, for the log.
#[derive(Debug, Default)]
pub(crate) struct Description {
    /// The brokers of Kafka.
    pub(crate) bootstrap_servers: Option<String>,
    /// The stream.
    pub(crate) stream: Option<String>,
    /// The address of another server or the URL of a queue, without secrets.
    pub(crate) endpoint: Option<String>,
}

/// What to check.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) config: &'a Config,
    /// The settings alone.
    pub(crate) offline: bool,
    /// The slot, if `run` could use it.
    pub(crate) slot: Option<&'a SlotAt>,
}

/// Why a relay cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// An invalid value in the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What the destination's client refuses.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

/// The hosts to which credentials are sent without TLS, but for this machine; empty: none.
pub(crate) fn exposed_hosts(config: &Config) -> Vec<String> {
    let mut hosts = of(config).exposed_hosts(config);
    hosts.retain(|host| !is_this_machine(host));
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::of_toml;

    fn has(kind: &str) -> bool {
        kinds().any(|one| one == kind)
    }

    #[test]
    fn kinds_that_this_build_does_not_have_are_refused() {
        for kind in SCHEMA.kinds {
            for toml in [format!("[{kind}]\nurl = 'x'"), format!("sink.kind = '{kind}'")] {
                let error = of_toml(&toml).err().map(|error| error.to_string()).unwrap_or_default();
                let names_feature = error.contains(&format!("without the feature `{kind}`"));
                assert_eq!(names_feature, !has(kind), "{toml}: {error}");
            }
            let variable = format!("WALPOST_{}_CA_FILE", kind.to_uppercase());
            let environment = Environment::new([(&*variable, "x")], "/nowhere".as_ref());
            let error = Config::load(&Flags::default(), &environment).expect_err("of another");
            let names_feature = error.to_string().contains("without the feature");
            assert_eq!(names_feature, !has(kind), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (kind, toml) in [
            (
                "http",
                "url = 'https://h/s3cret'\nsecret = 's3cret'\nauthorization = 'Bearer s3cret'",
            ),
            ("nats", "url = 'tls://u:s3cret@h:7'"),
            ("rabbitmq", "url = 'amqps://u:s3cret@h:7/eu'"),
            ("redis", "url = 'rediss://u:s3cret@h:7/2'"),
        ] {
            if !has(kind) {
                continue;
            }
            let config = of_toml(&format!("sink.kind = '{kind}'\n[{kind}]\n{toml}")).expect(kind);
            let shown = format!("{:?} {config:?}", config.display());
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn settings_of_another_destination_are_rejected_where_they_are_given() {
        for (needs, toml, part) in [
            ("redis", "redis.stream = 'x'", "walpost.toml:1: `redis.stream`"),
            ("redis", "redis.wait_replicas = 0", "sink.kind = \"kafka\""),
            ("kafka", "sink.kind = 'rabbit'", "`rabbit` is not one of `kafka`, "),
            ("nats", "nats.stream = 'x'", "walpost.toml:1: `nats.stream`"),
            ("nats", "sink.kind = 'nats'\nnats.stream = 'a.b'", "`nats.stream`"),
            ("redis", "sink.kind = 'redis'\nkafka.max_producers = 8", ":2: `kafka.max_producers`"),
            (
                "redis",
                "sink.kind = 'redis'\npoison.missing_topic = 'halt'",
                ":2: `poison.missing_topic`",
            ),
            ("redis", "sink.kind = 'redis'\ndelivery.mode = 'exactly-once'", ":2: `delivery.mode`"),
            ("redis", "sink.kind = 'redis'\nredis.maxlen = 0", "`redis.maxlen`"),
            ("redis", "sink.kind = 'redis'\nredis.stream = 'a b'", "`redis.stream`"),
        ] {
            if has(needs) {
                let error = of_toml(toml).expect_err(toml).to_string();
                assert!(error.contains(part), "{toml}: {error}");
            }
        }
    }

    /// What is said of settings with which nothing can be published.
    fn refusal(toml: &str) -> String {
        let config = match of_toml(toml) {
            Ok(config) => config,
            Err(error) => return error.to_string(),
        };
        let context = Context { config: &config, metrics: Arc::default() };
        let opened = of(&config).open(&context);
        opened.err().map_or_else(|| panic!("{toml} fits"), |error| error.to_string())
    }

    #[test]
    fn values_that_do_not_fit_are_errors() {
        let queues = "queue_url = 'https://h/1/o.fifo'\ndead_letter_queue_url";
        let rows = [
            ("redis", "stream = 'dead'\n[poison]\ndead_letter_topic = 'dead'", "`redis.stream`"),
            ("nats", "subject = 'a.{tenant}'", "`nats.subject`"),
            ("nats", "[poison]\ndead_letter_topic = 'a..b'", "empty part"),
            ("redis", "ca_file = '/x'", "rediss://"),
            ("nats", "ca_file = '/x'", "tls://"),
            ("rabbitmq", "ca_file = '/x'", "amqps://"),
            ("rabbitmq", "routing_key = '{tenant}'", "`rabbitmq.routing_key`"),
            ("rabbitmq", "url = 'amqp://h/'", "/%2F"),
            ("rabbitmq", "url = 'amqp://u:s3cret@h?x=1'", "certificates are settings"),
            ("rabbitmq", "url = 'amqp://s3cret@h'", "both user and password"),
            ("rabbitmq", "url = 'h'", "amqp://"),
            ("redis", "url = 'redis://s3cret@h'", "redis://:password@host"),
            ("redis", "url = 'redis://h/s3cret'", "not a number"),
            ("redis", "url = 'h'", "redis://"),
            ("rabbitmq", "url = 'amqps://h'\ncert_file = '/x'", "set rabbitmq.key_file"),
            ("rabbitmq", "url = 'amqps://h'\nkey_file = '/x'", "set rabbitmq.cert_file"),
            ("http", "", "`http.url`"),
            ("http", "url = 'http://h'\ncert_file = '/x'\nkey_file = '/x'", "https://"),
            ("http", "url = 'http://h'\nsecret = 's3cret'", "openssl rand"),
            ("http", "url = 'http://h'\nlanes = 0", "`http.lanes`"),
            ("http", "url = 'http://h'\ntimeout = '0s'", "`http.timeout`"),
            ("http", "url = 'http://h'\nauthorization = \"s3cret\\n\"", "`http.authorization`"),
            ("http", "url = 'http://h'\n[poison]\nrefused = 'dead_letter'", "{topic}"),
            ("sqs", "", "`sqs.queue_url`"),
            ("sqs", "queue_url = 'https://h/1/o'", "create-queue"),
            ("sqs", "queue_url = 'http://h/1/o.fifo'\nca_file = '/x'", "https://"),
            ("sqs", "queue_url = 'http://h/1/o.fifo'\nendpoint = 'h'", "`sqs.endpoint`"),
            ("sqs", "region = 'EU (Frankfurt)'", "`sqs.region`"),
            ("sqs", &format!("{queues} = 'http://h/1/letters'"), "not a FIFO queue"),
            ("sqs", &format!("{queues} = 'http://h/1/l.fifo'"), "another server"),
            ("sqs", &format!("{queues} = 'https://h/1/o.fifo'"), "the queue of the events"),
            (
                "sqs",
                "queue_url = 'https://h/1/o.fifo'\n[poison]\nrefused = 'dead_letter'",
                "`sqs.dead_letter_queue_url`",
            ),
        ];
        for (kind, toml, part) in rows.into_iter().filter(|(kind, ..)| has(kind)) {
            let said = refusal(&format!("sink.kind = '{kind}'\n[{kind}]\n{toml}"));
            assert!(said.contains(part) && !said.contains("s3cret"), "{toml}: {said}");
        }
    }

    #[test]
    fn variables_for_other_programs_are_no_settings_of_another_destination() {
        let around = [("KAFKA_BOOTSTRAP_SERVERS", "around:1"), ("WALPOST_SINK_KIND", "redis")];
        let environment = Environment::new(around, "/nowhere".as_ref());
        let loaded = Config::load(&Flags::default(), &environment);
        assert!(!has("redis") || loaded.is_ok_and(|config| config.sink == "redis"));
    }

    fn exposed(toml: &str) -> Vec<String> {
        exposed_hosts(&of_toml(toml).unwrap_or_else(|error| panic!("{toml}: {error}")))
    }

    #[test]
    fn credentials_without_tls_to_another_machine_are_found_for_each_destination() {
        let kafka = |protocol: &str| {
            format!(
                "kafka.bootstrap_servers = 'b:9092,[::1]:9092'\n[kafka.properties]\n\
                 'security.protocol' = '{protocol}'\n'sasl.password' = 'x'\n"
            )
        };
        assert_eq!(exposed(&kafka("SASL_PLAINTEXT")), ["b"]);
        assert!(exposed(&kafka("SASL_SSL")).is_empty());
        for (kind, setting, open, closed) in [
            ("http", "http.authorization = 'x'\nhttp", "http://b", "https://b"),
            ("nats", "nats", "nats://u:p@b", "tls://u:p@b"),
            ("nats", "nats", "nats://token@b", "nats://b"),
            ("rabbitmq", "rabbitmq", "amqp://u:p@b", "amqps://u:p@b"),
            ("redis", "redis", "redis://:p@b", "rediss://:p@b"),
            ("redis", "redis", "redis://:p@b", "redis://:p@127.0.0.1"),
        ] {
            if !has(kind) {
                continue;
            }
            let of =
                |url: &str| exposed(&format!("sink.kind = '{kind}'\n{setting}.url = '{url}'\n"));
            assert_eq!(of(open), ["b"], "{open}");
            assert!(of(closed).is_empty(), "{closed}");
        }
    }
}
