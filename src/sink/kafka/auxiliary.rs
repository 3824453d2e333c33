//! Configuration and callbacks of clients beside the events' producers: those of the state topic,
//! and the consumer of the dead letters.

use std::error::Error;

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;

use super::{KafkaConfig, oauth_token};
use crate::excerpt::excerpt;

/// The user's properties, which decide how the brokers are reached.
pub(crate) fn client_config(kafka: &KafkaConfig) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("client.id", "walpost");
    for (name, value) in &kafka.properties {
        config.set(name, value);
    }
    config
        .set("bootstrap.servers", &kafka.bootstrap_servers)
        // These topics are created on purpose, with the settings that they need.
        .set("allow.auto.create.topics", "false")
        .set("statistics.interval.ms", "0");
    config
}

/// The same for a consumer, which commits offsets only on demand, and sees committed records only.
/// It joins no group: librdkafka requires a group's name all the same.
pub(crate) fn consumer_config(kafka: &KafkaConfig, group: &str) -> ClientConfig {
    let mut config = client_config(kafka);
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed");
    config
}

/// librdkafka's callbacks: its log lines become traces, and its errors are returned by calls.
///
/// A new consumer has to be polled before its first request: it gets its OAuth token by a callback
/// that a poll serves, and without a token it does not connect.
pub(crate) struct Callbacks;

impl ClientContext for Callbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        oauth_token(config)
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::trace!(target: "librdkafka", facility, "{}", excerpt(message));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{}", excerpt(reason));
    }
}

impl ConsumerContext for Callbacks {}

impl ProducerContext for Callbacks {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
