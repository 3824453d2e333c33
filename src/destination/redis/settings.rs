//! The settings of a stream of Redis, as valid values.

use std::time::Duration;

use crate::config::Kind::{Number, Text};
use crate::config::{Config, ConfigError, Declared, declare_settings, row};
use crate::destination::parts::server_url::{Form, ServerUrl};
use crate::destination::parts::settings::{self, check_too_large, tls_files};
use crate::destination::redis::RedisConfig;
use crate::destination::redis::owner_key;
use crate::relay::StateSettings;

/// `[redis]`
pub(in crate::destination) const DECLARED: Declared =
    Declared { kind: "redis", title: "Redis", settings: SETTINGS, uses: &[] };

declare_settings! {
    SETTINGS:
    URL = row("redis.url", Text, "Redis server: `redis://[[user]:password@]host[:port][/database]`, or `rediss://` for TLS.")
        .details("Prefer `WALPOST_REDIS_URL_FILE`: walpost reads that file again at each connect. Characters such as `@`, `/` and `%` in a password are written percent-encoded.")
        .variable().default("redis://localhost:6379").secret();
    STREAM = row("redis.stream", Text, "Stream to which all events are added, in the order of the commits. One stream belongs to one slot.")
        .variable().default("outbox")
        .valid_if(|text| stream(text).map(drop));
    MAXLEN = row("redis.maxlen", Number, "About how many entries the stream keeps (`XADD … MAXLEN ~`). Without it, walpost removes none.")
        .details("Redis removes the oldest entries, whether consumers have read them or not.")
        .variable()
        .valid_if(|text| maxlen(text).map(drop));
    WAIT_REPLICAS = row("redis.wait_replicas", Number, "How many replicas must have an entry before it counts as delivered (`WAIT`).")
        .details("With `0`, a failover to a replica that is behind loses entries. See [what survives a crash](redis.md#what-survives-a-crash).")
        .variable().default("0")
        .valid_if(|text| wait_replicas(text).map(drop));
    CA_FILE = row("redis.ca_file", Text, "PEM file of the authorities that sign the server's certificate, for `rediss://`. Without it, those of the operating system.")
        .variable();
    CERT_FILE = row("redis.cert_file", Text, "PEM file of walpost's own certificate, for a `rediss://` server that verifies its clients. Read again at each connect.")
        .variable();
    KEY_FILE = row("redis.key_file", Text, "PEM file of the private key of `redis.cert_file`.")
        .variable();
}

const FORM: Form = Form {
    schemes: [("redis", 6379), ("rediss", 6379)],
    text: "redis://[[user]:password@]host[:port][/database], or rediss:// for TLS",
};

/// A write of the position that takes this long counts as failing.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// The name of the stream.
pub(super) fn stream_of(config: &Config) -> &str {
    config.values().text(STREAM).unwrap_or_default()
}

pub(super) fn place(config: &Config) -> String {
    format!("the state key {} in Redis", owner_key(stream_of(config)))
}

pub(super) fn state_settings(config: &Config) -> StateSettings {
    let place = place(config);
    // Nothing is committed by it.
    settings::state_settings(
        config,
        (owner_key(stream_of(config)), place),
        (Some("Redis"), WRITE_LIMIT / 3),
    )
}

/// The configured server and streams.
pub(crate) fn redis_config(config: &Config) -> Result<RedisConfig, ConfigError> {
    let url = ServerUrl::of(config, (URL, &FORM))?;
    let invalid = |reason: &str| config.invalid(URL, &reason);
    if url.user.is_some() && url.password.is_none() {
        return Err(invalid("it has a user without a password: write redis://:password@host"));
    }
    let database = url.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("0");
    let database = database.parse::<u32>().map_err(|_| invalid("the database is not a number"))?;
    let (values, dead_letters) = (config.values(), &config.poison.dead_letter_topic);
    if dead_letters == stream_of(config) {
        let reason = "dead letters go to a stream of this name (poison.dead_letter_topic): name \
                      another one";
        return Err(config.invalid(STREAM, &reason));
    }
    check_too_large(config)?;
    let tls = tls_files(
        config,
        [CA_FILE, CERT_FILE, KEY_FILE],
        (url.tls, "write rediss:// in redis.url"),
    )?;
    Ok(RedisConfig {
        url,
        database: i64::from(database),
        tls,
        stream: values.parsed(STREAM, stream)?,
        dead_letters: dead_letters.clone(),
        maxlen: values.optional(MAXLEN, maxlen)?,
        wait_replicas: values.parsed(WAIT_REPLICAS, wait_replicas)?,
    })
}

/// The name of a stream of Redis.
fn stream(text: &str) -> Result<String, String> {
    let is_plain = |sign: char| sign.is_ascii_graphic();
    if text.is_empty() || text.len() > 500 || !text.chars().all(is_plain) {
        return Err(format!("`{text}` is not 1 to 500 letters, digits and signs without spaces"));
    }
    Ok(text.to_owned())
}

/// About how many entries a stream keeps.
fn maxlen(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=i64::MAX as u64).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number of entries, at least 1"))
}

/// How many replicas must have an entry.
fn wait_replicas(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number <= 100);
    number.ok_or_else(|| format!("`{text}` is not a number of replicas, 0 to 100"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::of_toml;

    #[test]
    fn every_key_is_read() {
        let config = of_toml(
            "sink.kind = 'redis'
            [redis]
            url = 'rediss://u:s3cret@h:7/2'
            stream = '{eu}.orders'
            maxlen = 1_000_000
            wait_replicas = 2
            ca_file = 'ca.pem'
            cert_file = 'own.pem'
            key_file = 'own.key'",
        );
        let redis = redis_config(&config.expect("valid"));
        let redis = redis.expect("it can be used");
        assert_eq!((redis.url.address().as_str(), redis.database), ("h:7", 2));
        assert_eq!((redis.stream.as_str(), redis.maxlen), ("{eu}.orders", Some(1_000_000)));
        assert_eq!((redis.wait_replicas, redis.tls.roots), (2, Some("ca.pem".into())));
        assert_eq!(redis.tls.identity, Some(("own.pem".into(), "own.key".into())));
        for url in ["redis://h", "rediss://h/"] {
            let config = of_toml(&format!("sink.kind = 'redis'\nredis.url = '{url}'"));
            let redis = redis_config(&config.expect("valid")).expect("it can be used");
            assert_eq!((redis.url.address().as_str(), redis.database), ("h:6379", 0));
        }
    }
}
