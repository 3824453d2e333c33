//! Configuration and callbacks of clients beside the events' producers: those of the state topic,
//! and the consumers of dead letters and of published records.

use std::error::Error;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::FutureExt as _;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{Consumer, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::metadata::MetadataPartition;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use super::await_broker::await_broker;
use super::error::event_code;
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

/// A consumer to which partitions are assigned, and which reports their ends; with further settings.
pub(crate) fn partition_consumer(
    kafka: &KafkaConfig,
    group: &str,
    settings: &[(&str, &str)],
) -> Result<StreamConsumer<Callbacks>, KafkaError> {
    let mut config = consumer_config(kafka, group);
    config.set("enable.auto.offset.store", "false").set("enable.partition.eof", "true");
    for (name, value) in settings {
        config.set(*name, *value);
    }
    let consumer: StreamConsumer<Callbacks> = config.create_with_context(Callbacks::default())?;
    // Polls it; there is nothing to receive yet.
    let _ = consumer.recv().now_or_never();
    Ok(consumer)
}

/// The numbers of a topic's partitions; `None`: it does not exist.
pub(crate) fn partitions_of<C: Consumer<Callbacks>>(
    consumer: &C,
    topic: &str,
    timeout: Duration,
) -> Result<Option<Vec<i32>>, KafkaError> {
    let metadata = consumer.fetch_metadata(Some(topic), timeout)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(None);
    };
    match found.error().map(Code::from) {
        None => Ok(Some(found.partitions().iter().map(MetadataPartition::id).collect())),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(None),
        Some(code) => Err(KafkaError::MetadataFetch(code)),
    }
}

/// Whether a consumer that reports this error continues by itself: librdkafka reconnects. The
/// error has no text; its `callbacks` know whether the brokers have refused a login.
pub(crate) fn is_reconnecting(error: &KafkaError, callbacks: &Callbacks) -> bool {
    match error.rdkafka_error_code() {
        Some(
            Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::OperationTimedOut
            | Code::Resolve,
        ) => true,
        Some(Code::Authentication) => callbacks.refused_login().is_none(),
        _ => false,
    }
}

/// `transaction.timeout.ms`: a transaction of a killed walpost delays readers of the topic at most
/// that long, unless the next one starts before.
const TRANSACTION_TIMEOUT_MS: &str = "30000";

/// How long brokers may take to begin a transaction, in [`begins_transactions`].
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Why brokers do not begin a transaction.
pub(crate) struct NoTransactions {
    /// Whether walpost's user may not use the transactional id.
    pub(crate) is_unauthorized: bool,
    /// The error.
    pub(crate) reason: String,
}

/// librdkafka's code of an error, those of transactions too.
pub(crate) fn code_of(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::Transaction(error) => Some(error.code()),
        other => other.rdkafka_error_code(),
    }
}

/// Whether the brokers begin transactions for this `transactional.id`, which fences every other
/// producer that uses it. Blocks.
pub(crate) fn begins_transactions(
    kafka: &KafkaConfig,
    transactional_id: &str,
    topic: &str,
) -> Result<(), NoTransactions> {
    let failed = |error: KafkaError| NoTransactions {
        is_unauthorized: code_of(&error) == Some(Code::TransactionalIdAuthorizationFailed),
        reason: error.to_string(),
    };
    let config = client_config(kafka);
    let begun = transactional_producer(&config, transactional_id, topic, BEGIN_TIMEOUT);
    begun.map(drop).map_err(failed)
}

/// A producer for `topic` that has fenced all others with this `transactional.id`. Blocks. It has to
/// be polled now and then, for its OAuth tokens.
pub(crate) fn transactional_producer(
    config: &ClientConfig,
    transactional_id: &str,
    topic: &str,
    timeout: Duration,
) -> KafkaResult<BaseProducer<Callbacks>> {
    let mut config = config.clone();
    config
        .set("transactional.id", transactional_id)
        .set("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
        .set("message.timeout.ms", TRANSACTION_TIMEOUT_MS)
        .set("acks", "all")
        .set("linger.ms", "0");
    let producer: BaseProducer<Callbacks> = config.create_with_context(Callbacks::default())?;
    // Serves the request for a token.
    producer.poll(Duration::ZERO);
    await_broker(producer.client(), topic, timeout);
    producer.init_transactions(timeout)?;
    Ok(producer)
}

/// librdkafka's callbacks: its log lines become traces. Of its errors only the first failed login is
/// kept; calls return the others.
///
/// A new consumer has to be polled before its first request: it gets its OAuth token by a callback
/// that a poll serves, and without a token it does not connect.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    refused_login: OnceLock<String>,
}

impl Callbacks {
    /// Why a login failed, as far as events were polled: the brokers refuse it, or this client has
    /// nothing to log in with, such as a token.
    pub(crate) fn refused_login(&self) -> Option<&str> {
        self.refused_login.get().map(String::as_str)
    }
}

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
        if event_code(&error, reason) == Some(Code::Authentication) {
            self.refused_login.get_or_init(|| excerpt(reason));
        }
    }
}

impl ConsumerContext for Callbacks {}

impl ProducerContext for Callbacks {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
