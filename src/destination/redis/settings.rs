//! The settings of a stream of Redis, as valid values.

use std::time::Duration;

use secrecy::ExposeSecret as _;

use crate::config::{Config, ConfigError, Environment, Setting};
use crate::destination::parts::settings::{self, check_too_large, tls_files};
use crate::destination::redis::owner_key;
use crate::destination::redis::{RedisConfig, RedisSource, RedisUrl};
use crate::relay::StateSettings;

/// A write of the position that takes this long counts as failing.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

pub(super) fn place(config: &Config) -> String {
    format!("the state key {} in Redis", owner_key(&config.redis.stream))
}

pub(super) fn state_settings(config: &Config) -> StateSettings {
    let place = place(config);
    // Nothing is committed by it.
    settings::state_settings(
        config,
        (owner_key(&config.redis.stream), place),
        (Some("Redis"), WRITE_LIMIT / 3),
    )
}

/// The configured server and streams.
pub(crate) fn redis_config(
    config: &Config,
    environment: &Environment,
) -> Result<RedisConfig, ConfigError> {
    let url = config.redis_url(environment)?;
    let url = RedisUrl::parse(url.expose_secret())
        .map_err(|error| config.invalid(Setting::RedisUrl, &error))?;
    let (redis, dead_letters) = (&config.redis, &config.poison.dead_letter_topic);
    if *dead_letters == redis.stream {
        let reason = "dead letters go to a stream of this name (poison.dead_letter_topic): name \
                      another one";
        return Err(config.invalid(Setting::RedisStream, &reason));
    }
    check_too_large(config)?;
    let (roots, identity) = tls_files(
        config,
        environment,
        [
            (Setting::RedisCaFile, &redis.ca_file),
            (Setting::RedisCertFile, &redis.cert_file),
            (Setting::RedisKeyFile, &redis.key_file),
        ],
        (url.tls, "write rediss:// in redis.url"),
    )?;
    Ok(RedisConfig {
        url,
        roots,
        identity,
        stream: redis.stream.clone(),
        dead_letters: dead_letters.clone(),
        maxlen: redis.maxlen,
        wait_replicas: redis.wait_replicas,
    })
}

pub(super) fn redis_source(config: &Config, environment: &Environment) -> RedisSource {
    let (config, environment) = (config.clone(), environment.clone());
    RedisSource::new(move || redis_config(&config, &environment).map_err(|error| error.to_string()))
}
