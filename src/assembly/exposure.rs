//! Whether the destination gets credentials over a connection that others can read.

use std::net::IpAddr;

#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use crate::config::Environment;
use crate::config::{Config, SinkKind};

/// The hosts to which credentials are sent without TLS, but for this machine; empty: none.
pub(crate) fn exposed_hosts(config: &Config) -> Vec<String> {
    let mut hosts = hosts(config);
    hosts.retain(|host| !is_this_machine(host));
    hosts
}

fn hosts(config: &Config) -> Vec<String> {
    #[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
    let environment = Environment::of_process();
    match config.sink {
        SinkKind::Kafka => brokers(config),
        #[cfg(feature = "http")]
        SinkKind::Http => match super::http::http_config(config, &environment) {
            Ok(http) if !http.url.tls && http.authorization.is_some() => vec![http.url.host],
            _ => Vec::new(),
        },
        #[cfg(feature = "nats")]
        SinkKind::Nats => match super::nats::nats_config(config, &environment) {
            // A key of a credentials file signs, and is not sent.
            Ok(nats) if !nats.url.requires_tls() && nats.url.has_login() => nats.url.hosts(),
            _ => Vec::new(),
        },
        #[cfg(feature = "rabbitmq")]
        SinkKind::RabbitMq => match super::rabbitmq::rabbit_config(config, &environment) {
            Ok(rabbit) if !rabbit.url.tls && rabbit.url.user.is_some() => vec![rabbit.url.host],
            _ => Vec::new(),
        },
        #[cfg(feature = "redis")]
        SinkKind::Redis => match super::redis::redis_config(config, &environment) {
            Ok(redis) if !redis.url.tls && redis.url.password.is_some() => vec![redis.url.host],
            _ => Vec::new(),
        },
        // Requests to SQS are signed.
        _ => Vec::new(),
    }
}

/// The brokers that get a login without TLS.
fn brokers(config: &Config) -> Vec<String> {
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

fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

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
            #[cfg(feature = "http")]
            ("http", "http.authorization = 'x'\nhttp", "http://b", "https://b"),
            #[cfg(feature = "nats")]
            ("nats", "nats", "nats://u:p@b", "tls://u:p@b"),
            #[cfg(feature = "nats")]
            ("nats", "nats", "nats://token@b", "nats://b"),
            #[cfg(feature = "rabbitmq")]
            ("rabbitmq", "rabbitmq", "amqp://u:p@b", "amqps://u:p@b"),
            #[cfg(feature = "redis")]
            ("redis", "redis", "redis://:p@b", "rediss://:p@b"),
            #[cfg(feature = "redis")]
            ("redis", "redis", "redis://:p@b", "redis://:p@127.0.0.1"),
        ] {
            let of =
                |url: &str| exposed(&format!("sink.kind = '{kind}'\n{setting}.url = '{url}'\n"));
            assert_eq!(of(open), ["b"], "{open}");
            assert!(of(closed).is_empty(), "{closed}");
        }
    }
}
