//! The configured Kafka client, and where its properties are read again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::{Config, Declared, KAFKA, Setting};
use crate::destination::kafka::{
    self, KafkaConfig, KafkaSource, MissingTopics, NewTopics, WaitsFor,
};
use crate::record::Profile;
use crate::source;

/// `[kafka]`
pub(in crate::destination) const DECLARED: Declared = Declared {
    kind: KAFKA,
    title: "Kafka",
    settings: Setting::KAFKA,
    uses: &[
        Setting::DELIVERY_STATE_TOPIC,
        Setting::DELIVERY_MODE,
        Setting::DELIVERY_COMMIT_INTERVAL,
        Setting::DELIVERY_TRANSACTION_BYTES,
        Setting::POISON_RETRIES,
        Setting::POISON_MISSING_TOPIC,
    ],
};

/// The configured Kafka client.
pub fn kafka(config: &Config) -> KafkaConfig {
    let properties = config.kafka.properties.iter();
    let mut properties = properties.map(|(name, value)| (name.into(), value.into())).collect();
    trust(&mut properties, source::system_bundle());
    KafkaConfig {
        bootstrap_servers: config.kafka.bootstrap_servers.clone(),
        properties,
        in_flight_bytes: config.delivery.in_flight_bytes,
        max_producers: config.kafka.max_producers,
        missing_topics: MissingTopics {
            waits_for: match config.poison.missing_topic {
                None => WaitsFor::AnyTopic,
                Some(_) => WaitsFor::Topic(config.poison.dead_letter_topic.clone()),
            },
            creates: config
                .kafka
                .create_topics
                .map(|(partitions, replicas)| NewTopics { partitions, replicas }),
        },
    }
}

/// The current properties, for the same brokers, and with the same partition of each key.
pub(super) fn kafka_source(config: &Config) -> KafkaSource {
    let config = config.clone();
    KafkaSource::new(move || {
        let now = config.reload().map_err(|error| error.to_string())?;
        let (first, properties) = (kafka(&config), kafka(&now).properties);
        if kafka::key_hash(&properties) != kafka::key_hash(&first.properties) {
            return Err("another partitioner takes effect with a restart only".to_owned());
        }
        Ok(KafkaConfig { properties, ..first })
    })
}

/// Uses the operating system's CA bundle for Kafka if none is configured, as for PostgreSQL. A
/// statically linked OpenSSL would not find it by itself.
fn trust(properties: &mut BTreeMap<String, String>, system: Option<PathBuf>) {
    let Some(system) = system.and_then(|path| path.into_os_string().into_string().ok()) else {
        return;
    };
    let is = |properties: &BTreeMap<String, String>, name: &str, text: &str| {
        properties.get(name).is_some_and(|value| value.to_ascii_lowercase().ends_with(text))
    };
    for (asks, value, place, instead) in [
        ("security.protocol", "ssl", "ssl.ca.location", "ssl.ca.pem"),
        ("sasl.oauthbearer.method", "oidc", "https.ca.location", "https.ca.pem"),
    ] {
        if is(properties, asks, value) && !properties.contains_key(instead) {
            properties.entry(place.to_owned()).or_insert_with(|| system.clone());
        }
    }
}

/// The brokers that get a login without TLS.
pub(super) fn exposed_hosts(config: &Config) -> Vec<String> {
    let is_exposed = config.kafka.properties.iter().any(|(name, value)| {
        name == "security.protocol" && value.eq_ignore_ascii_case("sasl_plaintext")
    });
    if !is_exposed {
        return Vec::new();
    }
    let host = |broker: &str| {
        let address = broker.rsplit_once("://").map_or(broker, |(_, address)| address);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_matches(['[', ']', ' ']).to_owned()
    };
    config.kafka.bootstrap_servers.split(',').map(host).collect()
}

/// What a state topic is called in messages.
pub(crate) fn state_topic(topic: &str) -> String {
    format!("state topic {topic}")
}

/// Why walpost can create no topics with this configuration.
pub(crate) fn no_creation(config: &Config, profile: &Profile) -> Option<&'static str> {
    let token = config.kafka.properties.value(kafka::TOKEN_PROPERTY);
    if config.record.topics_allowed.is_empty() && profile.topic_of_all().is_none() {
        Some(
            "rows name their topics: list those that may be created in record.topics_allowed, for \
             example [\"outbox.event.*\"]",
        )
    } else if token.is_some_and(|value| kafka::token_file(value).is_some()) {
        Some(
            "a client that presents a token from a file cannot create topics: create them yourself",
        )
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_ca_bundle_is_used_unless_kafka_has_its_own() {
        let place = |given: &[(&str, &str)]| {
            let pairs = given.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let mut properties = pairs.collect();
            trust(&mut properties, Some("/system.crt".into()));
            ["ssl.ca.location", "https.ca.location"].map(|name| properties.remove(name))
        };
        let system = || Some("/system.crt".to_owned());
        assert_eq!(place(&[]), [None, None]);
        assert_eq!(place(&[("security.protocol", "sasl_plaintext")]), [None, None]);
        for protocol in ["SSL", "sasl_ssl"] {
            assert_eq!(place(&[("security.protocol", protocol)]), [system(), None]);
        }
        let oidc = ("sasl.oauthbearer.method", "OIDC");
        assert_eq!(place(&[("security.protocol", "SASL_SSL"), oidc]), [system(), system()]);
        let own = [("security.protocol", "SSL"), ("ssl.ca.location", "/own.crt")];
        assert_eq!(place(&own), [Some("/own.crt".to_owned()), None]);
        let own = [("security.protocol", "SSL"), ("ssl.ca.pem", "-----BEGIN")];
        assert_eq!(place(&own), [None, None]);
    }
}
