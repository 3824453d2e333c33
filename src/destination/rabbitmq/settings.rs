//! The settings of an exchange of RabbitMQ, as valid values.

use crate::config::Kind::Text;
use crate::config::{Config, ConfigError, Declared, Setting, declare_settings, row};
use crate::destination::parts::server_url::{Form, ServerUrl};
use crate::destination::parts::settings::{check_too_large, tls_files};
use crate::destination::rabbitmq::{RabbitConfig, RoutingKeyTemplate};

/// `[rabbitmq]`
pub(in crate::destination) const DECLARED: Declared = Declared {
    kind: "rabbitmq",
    title: "RabbitMQ",
    settings: SETTINGS,
    uses: &[Setting::POISON_MISSING_TOPIC],
};

declare_settings! {
    SETTINGS:
    URL = row("rabbitmq.url", Text, "RabbitMQ: `amqp://[user:password@]host[:port][/vhost]`, or `amqps://` for TLS.")
        .details("Prefer `WALPOST_RABBITMQ_URL_FILE`: walpost reads that file again at each connect. Characters such as `@`, `/`, `:` and `%` in a password or a vhost are written percent-encoded. Without a vhost, `/` is used; without a login, `guest`, which RabbitMQ accepts from its own machine only.")
        .variable().default("amqp://localhost:5672").secret();
    EXCHANGE = row("rabbitmq.exchange", Text, "Exchange to which all events are published. It has to exist; an empty name is the default exchange, which routes to the queue that the routing key names.")
        .variable().default("outbox")
        .valid_if(|text| exchange(text).map(drop));
    ROUTING_KEY = row("rabbitmq.routing_key", Text, "Routing key of an event, with the placeholders `{topic}`, `{key}` and `{partition(N)}`.")
        .details("`{topic}` is what `record.topic` makes, `{key}` what `record.key` makes, as one word: with `.` percent-encoded; `{partition(8)}` is a number from 0 to 7 that depends on the key alone. At most 255 bytes. Dead letters go to the queue `poison.dead_letter_topic`, through the default exchange. See [exchanges and queues](rabbitmq.md#exchanges-and-queues).")
        .variable().default("{key}");
    CA_FILE = row("rabbitmq.ca_file", Text, "PEM file of the authorities that sign the broker's certificate, for `amqps://`. Without it, those of the operating system.")
        .variable();
    CERT_FILE = row("rabbitmq.cert_file", Text, "PEM file of walpost's own certificate, for `amqps://`. Without a login in `rabbitmq.url`, walpost logs in by it (`EXTERNAL`).")
        .variable();
    KEY_FILE = row("rabbitmq.key_file", Text, "PEM file of the private key of `rabbitmq.cert_file`.")
        .variable();
}

/// The form of URLs of RabbitMQ (<https://www.rabbitmq.com/docs/uri-spec>).
const FORM: Form = Form {
    schemes: [("amqp", 5672), ("amqps", 5671)],
    text: "amqp://[user:password@]host[:port][/vhost], or amqps:// for TLS",
};

/// The configured broker and exchange.
pub(crate) fn rabbit_config(config: &Config) -> Result<RabbitConfig, ConfigError> {
    let invalid = |setting, reason: &str| config.invalid(setting, &reason);
    let url = ServerUrl::of(config, (URL, &FORM))?;
    if url.user.is_some() != url.password.is_some() {
        return Err(invalid(URL, "its login has not both user and password"));
    }
    let vhost = url.path.clone().unwrap_or_else(|| "/".to_owned());
    if vhost.is_empty() || vhost.len() > 255 {
        let reason = "its virtual host has no name, or more than 255 bytes: write `/%2F` for the virtual host \
                      `/`, or nothing";
        return Err(invalid(URL, reason));
    }
    let values = config.values();
    let exchange = values.parsed(EXCHANGE, exchange)?;
    let routing_key = values.parsed(ROUTING_KEY, str::parse::<RoutingKeyTemplate>)?;
    if exchange.is_empty() && routing_key.begins_with_key() {
        let reason = "begins with {key}, and the default exchange (rabbitmq.exchange = \"\") routes \
                      to the queue of this name: a row could choose any queue. Begin it with \
                      {topic} or a text of its own, or name an exchange";
        return Err(invalid(ROUTING_KEY, reason));
    }
    check_too_large(config)?;
    let tls = tls_files(
        config,
        [CA_FILE, CERT_FILE, KEY_FILE],
        (url.tls, "write amqps:// in rabbitmq.url"),
    )?;
    Ok(RabbitConfig {
        url,
        vhost,
        tls,
        exchange,
        routing_key,
        dead_letters: config.poison.dead_letter_topic.clone(),
    })
}

/// The name of an exchange of RabbitMQ.
fn exchange(text: &str) -> Result<String, String> {
    if text.len() > 255 || text.chars().any(char::is_control) {
        return Err(format!(
            "`{text}` is not the name of an exchange: at most 255 bytes, in one line"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::of_toml;

    #[test]
    fn every_key_is_read() {
        let config = of_toml(
            "sink.kind = 'rabbitmq'
            [rabbitmq]
            url = 'amqps://u:s3cret@h:7/eu'
            exchange = 'orders'
            routing_key = '{topic}.{key}'
            ca_file = 'ca.pem'
            cert_file = 'own.pem'
            key_file = 'own.key'",
        );
        let rabbit = rabbit_config(&config.expect("valid"));
        let rabbit = rabbit.expect("it can be used");
        assert_eq!((rabbit.url.host.as_str(), rabbit.vhost.as_str()), ("h", "eu"));
        assert_eq!(rabbit.routing_key, "{topic}.{key}".parse().expect("a template"));
        assert_eq!((rabbit.exchange.as_str(), rabbit.tls.roots), ("orders", Some("ca.pem".into())));
        assert_eq!(rabbit.tls.identity, Some(("own.pem".into(), "own.key".into())));
        for (url, port) in [("amqp://h", 5672), ("amqps://h/%2f", 5671)] {
            let config = of_toml(&format!("sink.kind = 'rabbitmq'\nrabbitmq.url = '{url}'"));
            let rabbit = rabbit_config(&config.expect("valid")).expect("it can be used");
            assert_eq!((rabbit.url.port, rabbit.vhost.as_str()), (port, "/"));
        }
    }

    #[test]
    fn row_cannot_choose_the_queue_by_its_key() {
        let of = |toml: &str| {
            let config = of_toml(&format!("sink.kind = 'rabbitmq'\n[rabbitmq]\n{toml}"));
            let config = config.expect("it is read");
            let rabbit = rabbit_config(&config);
            rabbit.map(drop).map_err(|error| error.to_string())
        };
        for (toml, refused) in [
            ("exchange = ''", true),
            ("exchange = ''\nrouting_key = '{key}.x'", true),
            ("exchange = ''\nrouting_key = '{topic}'", false),
            ("exchange = ''\nrouting_key = 'orders.{key}'", false),
            ("routing_key = '{key}'", false),
        ] {
            let error = of(toml).err().unwrap_or_default();
            assert_eq!(error.contains("a row could choose any queue"), refused, "{toml}: {error}");
        }
    }
}
