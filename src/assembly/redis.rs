//! A relay to a stream of Redis.

use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret as _;

use super::other_sinks::{check_too_large, tls_files};
use super::{AssemblyError, relay_settings, stored_beside};
use crate::config::{Config, ConfigError, Environment, Setting};
use crate::metrics::Metrics;
use crate::relay::{Relay, StateSettings, StopHandle, Until, stop_channel};
use crate::sink::redis::{Claims, owner_key};
use crate::sink::{ConfiguredSink, RedisConfig, RedisSink, RedisSource, RedisUrl};
use crate::source::Source;
use crate::state::{StateStore, redis_state};
use walpost_core::relay::Core;

/// A write of the position that takes this long counts as failing.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

pub(super) fn relay_from<P: Source>(
    (source, core): (P, Core),
    config: &Config,
    environment: &Environment,
    (until, metrics): (Option<Until>, Arc<Metrics>),
) -> Result<(Relay<P, ConfiguredSink>, StopHandle), AssemblyError> {
    let redis = redis_config(config, environment)?;
    let (source_of_redis, claims) = (redis_source(config, environment), Claims::default());
    let store = redis_state(source_of_redis.clone(), claims.clone(), true);
    let sink = RedisSink::new(&redis, source_of_redis, claims, Arc::clone(&metrics))?;
    let (handle, stop) = stop_channel();
    let settings = relay_settings(config, until);
    let relay = Relay::new(core, ConfiguredSink::Redis(sink), source, settings, stop);
    let relay = relay.with_metrics(metrics);
    Ok((relay.with_state(Box::new(store), state_settings(config)), handle))
}

/// Where an operator's command finds the position, and what that is called.
pub(super) fn state_store(config: &Config) -> (Box<dyn StateStore>, String) {
    let source = redis_source(config, &Environment::of_process());
    (Box::new(redis_state(source, Claims::default(), false)), place(config))
}

pub(super) fn place(config: &Config) -> String {
    format!("the state key {} in Redis", owner_key(&config.redis.stream))
}

fn state_settings(config: &Config) -> StateSettings {
    let place = place(config);
    // Nothing is committed by it.
    stored_beside(config, (owner_key(&config.redis.stream), place), ("Redis", WRITE_LIMIT / 3))
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

fn redis_source(config: &Config, environment: &Environment) -> RedisSource {
    let (config, environment) = (config.clone(), environment.clone());
    RedisSource::new(move || redis_config(&config, &environment).map_err(|error| error.to_string()))
}
