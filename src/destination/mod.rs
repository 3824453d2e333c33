//! The kinds of destination: one trait, and the one table of them.
//!
//! A folder has everything of a kind: its settings, its checks, its sink, and where it keeps the position.
//! `parts` has what several of them use. Commands name no kind, except where something is for Kafka
//! alone.

#[cfg(feature = "http")]
pub(crate) mod http;
pub mod kafka;
#[cfg(test)]
mod names_tests;
#[cfg(feature = "nats")]
pub(crate) mod nats;
pub(crate) mod parts;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "sqs")]
pub(crate) mod sqs;

use std::net::IpAddr;
use std::sync::Arc;

use crate::config::{Config, ConfigError, Environment, SinkKind};
use crate::findings::Findings;
use crate::metrics::Metrics;
use crate::record::Names;
use crate::relay::StateSettings;
use crate::sink::{BoxFuture, Sink, SinkError};
use crate::state::{StateStore, UnfinishedRows};

use self::parts::stored::SlotAt;

/// The kinds that this build has.
static ALL: &[&dyn Destination] = &[
    &kafka::Kafka,
    #[cfg(feature = "http")]
    &http::Http,
    #[cfg(feature = "nats")]
    &nats::Nats,
    #[cfg(feature = "rabbitmq")]
    &rabbitmq::RabbitMq,
    #[cfg(feature = "redis")]
    &redis::Redis,
    #[cfg(feature = "sqs")]
    &sqs::Sqs,
];

/// The configured kind. One that this build does not have is an error of the configuration before.
pub(crate) fn of(config: &Config) -> &'static dyn Destination {
    let found = ALL.iter().find(|one| one.kind() == config.sink);
    *found.unwrap_or(&ALL[0])
}

/// A kind of destination: everything that a command needs of it.
pub(crate) trait Destination: Sync {
    /// Its value of `sink.kind`.
    fn kind(&self) -> SinkKind;

    /// How it has the names of headers, and which ones it or its clients keep for themselves.
    fn names(&self) -> Names;

    /// Makes the sink, and the store of the position if it has one. Nothing connects yet.
    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError>;

    /// Where events go, for the log.
    fn description(&self, config: &Config) -> Description;

    /// The hosts that get credentials without TLS.
    fn exposed_hosts(&self, config: &Config) -> Vec<String>;

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

    /// Checks the settings and, unless `offline`, servers, rights and what is there; with a slot, the position
    /// too. Publishes nothing.
    fn check<'a>(&'a self, check: Check<'a>, findings: &'a mut Findings) -> BoxFuture<'a, ()>;
}

/// What a destination is opened with.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) environment: &'a Environment,
    pub(crate) metrics: Arc<Metrics>,
    /// Rows that the slot does not send, if these are published.
    pub(crate) rows: Option<UnfinishedRows>,
}

/// A destination that events can be published to.
pub(crate) struct Opened {
    pub(crate) sink: Box<dyn Sink>,
    /// Where the position is kept, and how.
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

/// Where events go, for the log.
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
    /// An invalid property of Kafka's client.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

/// The hosts to which credentials are sent without TLS, but for this machine; empty: none.
pub(crate) fn exposed_hosts(config: &Config) -> Vec<String> {
    let mut hosts = of(config).exposed_hosts(config);
    hosts.retain(|host| !is_this_machine(host));
    hosts
}

fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    fn is_built_in(name: &str) -> bool {
        ALL.iter().any(|one| one.kind().name() == name)
    }

    fn exposed(toml: &str) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let flags = Flags::new(Some(file.path().to_owned()));
        let config = Config::load(&flags, &crate::config::Environment::of_process());
        exposed_hosts(&config.unwrap_or_else(|error| panic!("{toml}: {error}")))
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
            if !is_built_in(kind) {
                continue;
            }
            let of =
                |url: &str| exposed(&format!("sink.kind = '{kind}'\n{setting}.url = '{url}'\n"));
            assert_eq!(of(open), ["b"], "{open}");
            assert!(of(closed).is_empty(), "{closed}");
        }
    }
}
