//! Which librdkafka properties can be set, and which ones would break walpost's guarantee.
//!
//! Names and values are librdkafka's
//! (<https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md>).
//! Whether a name exists at all is left to librdkafka: this only rejects.

use std::collections::BTreeMap;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};

use super::redact;

const ACKS: &str = "a record counts as delivered only when all in-sync replicas have it: \
     omit it, walpost sets `all`";
const IDEMPOTENCE: &str = "without idempotence a retry can reorder or duplicate records: \
     omit it, walpost sets `true`";
const IN_FLIGHT: &str = "retries preserve the order only with 1 to 5 requests in flight";
const TIMEOUT: &str = "a record that times out during an outage of the brokers would be lost: \
     omit it, walpost sets 0, no limit";
const RETRIES: &str =
    "a record that is given up would be lost: omit it, walpost retries without limit";
const PARTITIONER: &str = "the records of a key would be in no order: omit it for the partitions that \
     Java's clients choose, or set `consistent_random` or `fnv1a_random` for those that another producer chose";
const BUDGET: &str =
    "the queue follows the in-flight budget: set `delivery.in_flight_bytes` instead";
const TRANSACTIONS: &str = "walpost derives it from `delivery.id`: omit it";
const GAPLESS: &str = "walpost itself blocks the records behind a rejected one: omit it";
const REPORTS: &str =
    "walpost confirms a position only when the delivery of its records is reported: omit it";
const STATISTICS: &str =
    "walpost uses the statistics, every 5 s, to see whether a broker is connected: omit it";
const SERVERS: &str = "set `kafka.bootstrap_servers` instead";
const QUEUEING: &str = "records would be sent out of order: omit it";
const MOCK: &str = "records would go to brokers that exist in memory only";
const UNSIGNED: &str = "an unsigned token proves nothing, and would not be renewed: \
     set sasl.oauthbearer.config to file=PATH, where PATH contains a signed token";
const CODE: &str = "its value is code, which a configuration cannot contain";

/// librdkafka's alternative names for properties, and the names used here.
const ALIASES: [(&str, &str); 4] = [
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("compression.codec", "compression.type"),
    ("sasl.mechanisms", "sasl.mechanism"),
];

/// The partitioners by which a key always has the same partition.
const PARTITIONERS: [&str; 6] =
    ["murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a"];

/// Why `name` may not be set to `value`; `None` if it may.
///
/// An empty value resets a property to librdkafka's own default, so only values known to be
/// harmless are allowed.
pub fn rejection(name: &str, value: &str) -> Option<&'static str> {
    // librdkafka accepts `topic.acks` for `acks`.
    let bare = name.strip_prefix("topic.").unwrap_or(name);
    let one_of = |allowed: &[&str]| allowed.iter().any(|one| one.eq_ignore_ascii_case(value));
    let (allowed, reason) = match bare {
        "acks" | "request.required.acks" => (one_of(&["all", "-1"]), ACKS),
        "enable.idempotence" => (one_of(&["true", "t", "1"]), IDEMPOTENCE),
        "max.in.flight" | "max.in.flight.requests.per.connection" => {
            (one_of(&["1", "2", "3", "4", "5"]), IN_FLIGHT)
        }
        "message.timeout.ms" | "delivery.timeout.ms" => (one_of(&["0"]), TIMEOUT),
        "retries" | "message.send.max.retries" => (one_of(&["2147483647"]), RETRIES),
        "partitioner" => (one_of(&PARTITIONERS), PARTITIONER),
        "queue.buffering.max.messages" | "queue.buffering.max.kbytes" => (false, BUDGET),
        "transactional.id" => (false, TRANSACTIONS),
        "enable.gapless.guarantee" => (one_of(&["false", "f", "0"]), GAPLESS),
        "delivery.report.only.error" => (one_of(&["false", "f", "0"]), REPORTS),
        "statistics.interval.ms" => (false, STATISTICS),
        "bootstrap.servers" | "metadata.broker.list" => (false, SERVERS),
        "queuing.strategy" => (one_of(&["fifo"]), QUEUEING),
        "test.mock.num.brokers" => (one_of(&["0"]), MOCK),
        "enable.sasl.oauthbearer.unsecure.jwt" => (one_of(&["false", "f", "0"]), UNSIGNED),
        "opaque" | "default_topic_conf" | "interceptors" | "enabled_events" => (false, CODE),
        code if code.ends_with("_cb") => (false, CODE),
        _ => (true, ""),
    };
    (!allowed).then_some(reason)
}

/// The name used here.
pub(super) fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// Validated properties by name. `Debug` does not show their values, which may be secrets.
#[derive(Clone, Default)]
pub struct KafkaProperties(BTreeMap<String, SecretString>);

impl KafkaProperties {
    /// Names and values, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.expose_secret()))
    }

    /// The value of one property.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(ExposeSecret::expose_secret)
    }

    /// Sets a property, unless it is rejected; a later value wins.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        if let Some(reason) = rejection(name, value) {
            return Err(reason);
        }
        // Under the canonical name, so that the later of two values wins.
        self.0.insert(canonical(name).to_owned(), value.into());
        Ok(())
    }
}

impl fmt::Debug for KafkaProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(name, value)| (name, redact::property(name, value))))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_break_the_guarantee_are_rejected_under_every_name() {
        for (name, value) in [
            ("acks", "1"),
            ("acks", "0"),
            ("acks", ""),
            ("request.required.acks", "1"),
            ("topic.acks", "1"),
            ("topic.request.required.acks", "1"),
            ("enable.idempotence", "false"),
            ("enable.idempotence", ""),
            ("max.in.flight", "6"),
            ("max.in.flight.requests.per.connection", "1000000"),
            ("max.in.flight", ""),
            ("message.timeout.ms", "300000"),
            ("delivery.timeout.ms", "1"),
            ("topic.message.timeout.ms", "1"),
            ("retries", "3"),
            ("message.send.max.retries", "0"),
            ("partitioner", "random"),
            ("partitioner", ""),
            ("topic.partitioner", "random"),
            ("queue.buffering.max.messages", "1"),
            ("queue.buffering.max.kbytes", "1"),
            ("transactional.id", "x"),
            ("enable.gapless.guarantee", "true"),
            ("delivery.report.only.error", "true"),
            ("statistics.interval.ms", "0"),
            ("bootstrap.servers", "elsewhere:9092"),
            ("metadata.broker.list", "elsewhere:9092"),
            ("queuing.strategy", "lifo"),
            ("test.mock.num.brokers", "3"),
            ("enable.sasl.oauthbearer.unsecure.jwt", "true"),
            ("dr_cb", "x"),
            ("dr_msg_cb", "x"),
            ("partitioner_cb", "x"),
        ] {
            assert!(rejection(name, value).is_some(), "{name}={value}");
        }
    }

    #[test]
    fn values_that_keep_the_guarantee_are_accepted() {
        for (name, value) in [
            ("acks", "all"),
            ("acks", "-1"),
            ("enable.idempotence", "true"),
            ("max.in.flight", "5"),
            ("max.in.flight.requests.per.connection", "1"),
            ("message.timeout.ms", "0"),
            ("retries", "2147483647"),
            ("partitioner", "murmur2"),
            ("linger.ms", "5"),
            ("compression.type", "zstd"),
            ("message.copy.max.bytes", "0"),
            ("topic.metadata.refresh.interval.ms", "1000"),
            ("sasl.password", "x"),
        ] {
            assert_eq!(rejection(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn the_later_value_of_a_property_with_two_names_wins() {
        for (alias, name) in ALIASES {
            let mut properties = KafkaProperties::default();
            properties.set(name, "1").unwrap();
            properties.set(alias, "2").unwrap();
            assert_eq!(properties.iter().collect::<Vec<_>>(), [(name, "2")]);
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let mut properties = KafkaProperties::default();
        properties.set("sasl.password", "hunter2").unwrap();
        properties.set("linger.ms", "5").unwrap();
        let shown = format!("{properties:?}");
        assert!(!shown.contains("hunter2") && shown.contains("linger.ms"), "{shown}");
    }
}
