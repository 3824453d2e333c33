//! librdkafka's configuration: walpost's defaults, overridden by the user's properties, overridden
//! by the properties that the delivery guarantee depends on.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::config::ClientConfig;

use super::features::{self, ClientError};
use crate::destination::kafka::partition::KeyHash;
use crate::outlet::RECORD_OVERHEAD_BYTES;

/// librdkafka's default limit for a message.
pub(crate) const MESSAGE_MAX_BYTES: u64 = 1_000_000;

/// librdkafka's default of `batch.size`, in bytes.
const BATCH_BYTES: u32 = 1_000_000;

/// How long a transaction may take by default: readers of committed records wait at most that long
/// after walpost was killed, if it is not started again.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// `retry.backoff.ms` of a transactional producer: how long librdkafka waits before it repeats a
/// request.
pub(super) const RETRY_BACKOFF_MS: u32 = 1000;

/// Requests in flight of a transactional producer.
const TRANSACTIONAL_IN_FLIGHT: &str = "5";

/// Properties that walpost sets unless the user does: the name, librdkafka's alias, and the value.
const DEFAULTS: [(&str, &str, &str); 7] = [
    // A topic may be named by a row, and one that brokers make when it is named has as many
    // partitions and replicas as they please.
    ("allow.auto.create.topics", "", "false"),
    ("client.id", "", "walpost"),
    // The relay hands over dense input together; a single record must not wait. Producers to distant
    // brokers have another value (`ProducerPool`).
    ("linger.ms", "queue.buffering.max.ms", "0"),
    ("reconnect.backoff.max.ms", "", "2000"),
    // How long a topic may seem to be missing before its records fail, which
    // is when walpost can say so. The default is half a minute of silence.
    ("topic.metadata.propagation.max.ms", "", "5000"),
    ("socket.keepalive.enable", "", "true"),
    // Only statistics show whether a broker is connected.
    ("statistics.interval.ms", "", "5000"),
];

/// The configuration of the Kafka sink. No `Debug`: properties may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaConfig {
    /// Comma-separated `host:port` list.
    pub bootstrap_servers: String,
    /// The user's librdkafka properties, checked to keep the delivery guarantee.
    pub properties: BTreeMap<String, String>,
    /// The relay's in-flight budget, in bytes: bounds librdkafka's queue too.
    pub in_flight_bytes: u64,
    /// The maximum number of producers.
    pub max_producers: u32,
    /// What to do about a topic that does not exist.
    pub missing_topics: MissingTopics,
}

/// What to do about a topic that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MissingTopics {
    /// The topics to wait for.
    pub waits_for: WaitsFor,
    /// How it is created; `None`: walpost creates none.
    pub creates: Option<NewTopics>,
}

impl MissingTopics {
    /// Whether a record for that topic is produced only once a lookup has found it.
    pub(crate) fn are_looked_up(&self, topic: &str) -> bool {
        self.creates.is_some() || !self.waits_for.is_it(topic)
    }
}

/// How a topic is created (KIP-464: -1 is the brokers' default).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTopics {
    /// The number of partitions, or -1.
    pub partitions: i32,
    /// The replication factor, or -1.
    pub replicas: i32,
}

impl NewTopics {
    /// The request for this topic.
    pub(crate) fn topic(self, name: &str) -> NewTopic<'_> {
        NewTopic::new(name, self.partitions, TopicReplication::Fixed(self.replicas))
    }
}

/// The topics to wait for while they do not exist. A record for another missing topic is rejected.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WaitsFor {
    /// Any.
    #[default]
    AnyTopic,
    /// Only this one: the dead-letter topic.
    Topic(String),
}

impl WaitsFor {
    /// Whether that topic is one of them.
    pub(crate) fn is_it(&self, topic: &str) -> bool {
        match self {
            Self::AnyTopic => true,
            Self::Topic(only) => only == topic,
        }
    }
}

/// How the keys of records are hashed, by librdkafka's `partitioner`; the same for as long as the sink
/// lives, whatever is reloaded.
pub(crate) fn key_hash(properties: &BTreeMap<String, String>) -> KeyHash {
    let given = properties.get("partitioner").or_else(|| properties.get("topic.partitioner"));
    given.and_then(|name| KeyHash::of_partitioner(name)).unwrap_or_default()
}

/// Checks that the client library accepts the configuration, without connecting.
pub(crate) fn accepts(config: &KafkaConfig) -> Result<(), ClientError> {
    features::require(&client_config(config))
}

/// librdkafka's configuration for the producer, and for other clients of the same brokers.
pub(crate) fn client_config(config: &KafkaConfig) -> ClientConfig {
    let records = config.in_flight_bytes / RECORD_OVERHEAD_BYTES + 1;
    // Twice the budget and one row: the budget is what stops the relay, the
    // largest row may exceed it (one for which there is never room would be
    // offered for ever), and librdkafka counts a little differently.
    let row = message_max_bytes(config);
    let kbytes = (config.in_flight_bytes / 1024 * 2 + row / 1024 + 1024).min(2_147_483_647);
    let mut client = ClientConfig::new();
    for (name, alias, value) in DEFAULTS {
        // Both names of one property would be set in no order.
        if !config.properties.contains_key(alias) {
            client.set(name, value);
        }
    }
    for (name, value) in &config.properties {
        client.set(name, value);
    }
    client
        .set("bootstrap.servers", &config.bootstrap_servers)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("enable.gapless.guarantee", "true")
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.messages", records.clamp(1000, 10_000_000).to_string())
        .set("queue.buffering.max.kbytes", kbytes.to_string());
    client
}

/// librdkafka's configuration for a transactional producer, without its `transactional.id`.
pub(crate) fn transactional_config(config: &KafkaConfig) -> ClientConfig {
    let timeout = transaction_timeout(config).as_millis().to_string();
    let mut client = client_config(config);
    if requests_in_flight(&config.properties).is_none() {
        client.set("max.in.flight.requests.per.connection", TRANSACTIONAL_IN_FLIGHT);
    }
    client
        // What it guards against makes the transaction fail.
        .set("enable.gapless.guarantee", "false")
        .set("transaction.timeout.ms", &timeout)
        // librdkafka requires a limit that is not above the transaction's.
        .set("message.timeout.ms", &timeout)
        .set("retry.backoff.ms", RETRY_BACKOFF_MS.to_string())
        .set("retry.backoff.max.ms", RETRY_BACKOFF_MS.to_string());
    client
}

/// How long brokers keep a transaction open whose producer is gone.
pub(crate) fn transaction_timeout(config: &KafkaConfig) -> Duration {
    let given = config.properties.get("transaction.timeout.ms");
    let given = given.and_then(|value| value.trim().parse().ok());
    given.map_or(TRANSACTION_TIMEOUT, Duration::from_millis)
}

/// Whether the producer lets brokers create missing topics.
pub fn asks_for_topics(config: &KafkaConfig) -> bool {
    let given = config.properties.get("allow.auto.create.topics");
    given.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "t" | "1"))
}

/// The maximum size of a record that the producer accepts, in bytes.
pub fn message_max_bytes(config: &KafkaConfig) -> u64 {
    let given = config.properties.get("message.max.bytes");
    given.and_then(|max| max.trim().parse().ok()).unwrap_or(MESSAGE_MAX_BYTES)
}

/// The user's maximum number of requests in flight per broker.
pub(crate) fn requests_in_flight(properties: &BTreeMap<String, String>) -> Option<u32> {
    let names = ["max.in.flight.requests.per.connection", "max.in.flight"];
    let mut given = names.into_iter().filter_map(|name| properties.get(name));
    given.find_map(|value| value.trim().parse().ok())
}

/// Whether the user leaves `linger.ms`, and the requests in flight that it depends on, to walpost.
pub(crate) fn is_linger_free(properties: &BTreeMap<String, String>) -> bool {
    let lingers = ["linger.ms", "queue.buffering.max.ms"];
    requests_in_flight(properties).is_none()
        && lingers.iter().all(|name| !properties.contains_key(*name))
}

/// The maximum batch size by the user's properties.
pub(crate) fn batch_bytes(properties: &BTreeMap<String, String>) -> u32 {
    let given = |name: &str| properties.get(name).and_then(|value| value.trim().parse().ok());
    let given = [given("batch.size"), given("message.max.bytes")];
    given.into_iter().flatten().fold(BATCH_BYTES, u32::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_with(properties: &[(&str, &str)]) -> ClientConfig {
        let pairs = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        client_config(&KafkaConfig {
            bootstrap_servers: "h:1".into(),
            properties: pairs.collect(),
            in_flight_bytes: 1 << 20,
            max_producers: 1,
            missing_topics: MissingTopics::default(),
        })
    }

    #[test]
    fn user_properties_override_defaults_under_either_name() {
        for (name, alias, value) in DEFAULTS {
            assert_eq!(made_with(&[]).get(name), Some(value));
            assert_eq!(made_with(&[(name, "3")]).get(name), Some("3"), "{name}");
            if !alias.is_empty() {
                let made = made_with(&[(alias, "3")]);
                assert_eq!((made.get(name), made.get(alias)), (None, Some("3")));
            }
        }
    }
}
