//! The settings of an exchange of RabbitMQ, as valid values.

use secrecy::ExposeSecret as _;

use crate::config::{Config, ConfigError, Environment, Setting};
use crate::destination::parts::settings::{check_too_large, tls_files};
use crate::destination::rabbitmq::{RabbitConfig, RabbitSource, RabbitUrl, RoutingKeyTemplate};

/// The configured broker and exchange.
pub(crate) fn rabbit_config(
    config: &Config,
    environment: &Environment,
) -> Result<RabbitConfig, ConfigError> {
    let invalid = |setting, reason: &str| config.invalid(setting, &reason);
    let url = config.rabbitmq_url(environment)?;
    let url = RabbitUrl::parse(url.expose_secret())
        .map_err(|error| invalid(Setting::RabbitmqUrl, &error))?;
    let rabbit = &config.rabbitmq;
    let routing_key: RoutingKeyTemplate = rabbit
        .routing_key
        .parse()
        .map_err(|error: String| invalid(Setting::RabbitmqRoutingKey, &error))?;
    if rabbit.exchange.is_empty() && routing_key.begins_with_key() {
        let reason = "begins with {key}, and the default exchange (rabbitmq.exchange = \"\") routes \
                      to the queue of this name: a row could choose any queue. Begin it with \
                      {topic} or a text of its own, or name an exchange";
        return Err(invalid(Setting::RabbitmqRoutingKey, reason));
    }
    check_too_large(config)?;
    let (roots, identity) = tls_files(
        config,
        environment,
        [
            (Setting::RabbitmqCaFile, &rabbit.ca_file),
            (Setting::RabbitmqCertFile, &rabbit.cert_file),
            (Setting::RabbitmqKeyFile, &rabbit.key_file),
        ],
        (url.tls, "write amqps:// in rabbitmq.url"),
    )?;
    Ok(RabbitConfig {
        url,
        roots,
        identity,
        exchange: rabbit.exchange.clone(),
        routing_key,
        dead_letters: config.poison.dead_letter_topic.clone(),
    })
}

pub(super) fn rabbit_source(config: &Config, environment: &Environment) -> RabbitSource {
    let (config, environment) = (config.clone(), environment.clone());
    RabbitSource::new(move || {
        rabbit_config(&config, &environment).map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    #[test]
    fn row_cannot_choose_the_queue_by_its_key() {
        let of = |toml: &str| {
            let directory = tempfile::tempdir().expect("a directory");
            let toml = format!("sink.kind = 'rabbitmq'\n[rabbitmq]\n{toml}");
            std::fs::write(directory.path().join("walpost.toml"), toml).expect("it is written");
            let environment = Environment::new([], directory.path());
            let config = Config::load(&Flags::default(), &environment).expect("it is read");
            rabbit_config(&config, &environment).map(drop).map_err(|error| error.to_string())
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
