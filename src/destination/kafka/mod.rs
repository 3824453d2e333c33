//! The Kafka sink: idempotent librdkafka producers, and diagnosis of the brokers.
//!
//! `producer` accepts records and replaces its producers. The other files decide how it handles
//! the results (pure), or query the brokers.

mod ack_age;
mod ack_monitor;
mod auxiliary;
mod await_broker;
mod batch_size;
mod check;
mod check_topics;
mod config;
mod dead_letters;
mod delivery_reports;
mod diagnostics;
mod drop_on_threads;
mod error;
mod features;
mod first_batch_gate;
mod held_records;
mod metadata;
mod oauth_token;
mod partition;
mod partition_spread;
mod placement;
mod poll_interval;
mod pool_size;
mod producer;
mod published;
mod reload;
mod round_trip;
pub(super) mod settings;
#[cfg(feature = "traces")]
mod spans;
#[cfg(not(feature = "traces"))]
#[path = "no_spans.rs"]
mod spans;
mod state;
mod statistics;
mod topic_lookup;

use std::panic::resume_unwind;
use std::sync::Arc;

use super::dead_letters::{LettersAt, OpenLetters, open_letters};
use super::parts;
use super::published::Published;
use super::{AssemblyError, Check, Context, Description, Destination, Opened, ReadState};
use crate::config::{Config, ConfigError, DeliveryMode, KAFKA, without_logins};
use crate::findings::Findings;
use crate::record::Names;
use crate::sink::BoxFuture;
use crate::state::{StateKey, StateStore};

pub(crate) use auxiliary::{
    Callbacks, begins_transactions, client_config, code_of, consumer_config, is_reconnecting,
    partition_consumer, partitions_of, transactional_producer,
};
pub use config::{
    KafkaConfig, MissingTopics, NewTopics, WaitsFor, asks_for_topics, message_max_bytes,
};
pub(crate) use config::{accepts, key_hash, transaction_timeout};
pub(crate) use drop_on_threads::drop_on_threads;
pub(crate) use error::TopicAt;
pub(crate) use metadata::CORRECT_ADVERTISED;
pub use metadata::{
    Brokers, ConnectionFailure, MetadataClient, NotCreated, PartitionState, TlsFailure, TopicError,
    TopicState, accepts_connections,
};
pub(crate) use oauth_token::{
    PROPERTY as TOKEN_PROPERTY, file as token_file, token as oauth_token,
};
pub use partition::KeyHash;
pub use producer::{KafkaSink, TransactionalSink, Transactions};
use published::Topics;
pub use reload::KafkaSource;
pub use settings::kafka;
use settings::kafka_source;
pub(crate) use settings::{no_creation, state_topic};
use state::kafka_state_with_events;
pub(crate) use state::{kafka_state, read_newest};

/// The features of this build's Kafka client library: librdkafka's `builtin.features`.
pub fn features() -> String {
    let native = rdkafka::ClientConfig::new().create_native_config();
    native.map(|native| features::built_in(&native)).unwrap_or_default()
}

/// Topics of a Kafka cluster.
pub(super) struct Kafka;

impl Destination for Kafka {
    fn kind(&self) -> &'static str {
        KAFKA
    }

    fn names(&self) -> Names {
        Names::KAFKA
    }

    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError> {
        let Context { config, metrics } = context;
        let (kafka, properties) = (kafka(config), kafka_source(config));
        let (metrics, again) = (Arc::clone(metrics), properties.clone());
        let topic = config.delivery.state_topic.as_deref();
        let (opened, store) = match config.delivery.mode {
            DeliveryMode::AtLeastOnce => {
                let sink = KafkaSink::new(&kafka, metrics)?.reloading_from(again);
                let store = topic.map(|topic| kafka_state(properties, topic));
                (Opened::without_position(sink), store)
            }
            DeliveryMode::ExactlyOnce => {
                let sink = TransactionalSink::new(&kafka, metrics)?;
                let transactions = sink.transactions();
                let store =
                    topic.map(|topic| kafka_state_with_events(properties, topic, transactions));
                let opened = Opened::without_position(sink.reloading_from(again));
                (Opened { is_exactly_once: true, ..opened }, store)
            }
        };
        let Some((topic, store)) = topic.zip(store) else { return Ok(opened) };
        let at = (topic.to_owned(), state_topic(topic));
        let timeout = transaction_timeout(&kafka) / 3;
        let settings = parts::settings::state_settings(config, at, (None, timeout));
        Ok(opened.keeping(store, settings))
    }

    fn description(&self, config: &Config) -> Description {
        let servers = without_logins(&config.kafka.bootstrap_servers);
        Description { bootstrap_servers: Some(servers), ..Description::default() }
    }

    fn exposed_hosts(&self, config: &Config) -> Vec<String> {
        settings::exposed_hosts(config)
    }

    fn place_of_position(&self, config: &Config) -> Option<String> {
        config.delivery.state_topic.as_deref().map(state_topic)
    }

    fn store(&self, config: &Config) -> Option<Box<dyn StateStore>> {
        let topic = config.delivery.state_topic.as_ref()?;
        let properties = kafka(config);
        let source = KafkaSource::new(move || Ok(properties.clone()));
        Some(Box::new(kafka_state(source, topic)))
    }

    fn kept_state<'a>(
        &'a self,
        config: &Config,
        key: &'a StateKey,
    ) -> Result<Option<ReadState<'a>>, ConfigError> {
        let Some(topic) = config.delivery.state_topic.clone() else { return Ok(None) };
        let (kafka, key) = (kafka(config), key.clone());
        Ok(Some(Box::pin(async move {
            // The client blocks.
            let read = tokio::task::spawn_blocking(move || read_newest(&kafka, &topic, &key)).await;
            read.unwrap_or_else(|error| resume_unwind(error.into_panic()))
        })))
    }

    fn published(&self, config: &Config) -> Result<Option<Box<dyn Published>>, ConfigError> {
        Ok(Some(Box::new(Topics::new(kafka(config)))))
    }

    fn dead_letters<'a>(
        &'a self,
        config: &'a Config,
        at: &'a LettersAt,
    ) -> Option<OpenLetters<'a>> {
        open_letters(async move { dead_letters::open(config, at) })
    }

    fn check<'a>(&'a self, check: Check<'a>, findings: &'a mut Findings) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Check { config, offline, slot } = check;
            let (config, slot) = (config.clone(), slot.cloned());
            // The client blocks.
            let checked = tokio::task::spawn_blocking(move || {
                let mut found = Findings::default();
                check::check(&config, (offline, slot.as_ref()), &mut found);
                found
            });
            findings
                .append(checked.await.unwrap_or_else(|error| resume_unwind(error.into_panic())));
        })
    }
}
