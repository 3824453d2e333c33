//! The settings of a stream of NATS, as valid values.

use std::time::Duration;

use secrecy::ExposeSecret as _;

use crate::config::Kind::{Duration as Time, Text};
use crate::config::{Config, ConfigError, Declared, Setting, declare_settings, duration, row};
use crate::destination::nats::{KEY, bucket, check_subject};
use crate::destination::nats::{NatsConfig, NatsUrl, SubjectTemplate};
use crate::destination::parts::settings::{self, check_too_large, tls_files};
use crate::relay::StateSettings;

/// `[nats]`
pub(in crate::destination) const DECLARED: Declared = Declared {
    kind: "nats",
    title: "NATS",
    settings: SETTINGS,
    uses: &[Setting::POISON_MISSING_TOPIC],
};

declare_settings! {
    SETTINGS:
    URL = row("nats.url", Text, "NATS servers: `nats://[user:password@|token@]host[:port]`, or `tls://` for TLS. Separate several servers of a cluster by commas.")
        .details("Prefer `WALPOST_NATS_URL_FILE`: walpost reads that file again at each connect. Characters such as `@`, `/`, `,` and `%` in a password are written percent-encoded. The login is written at the first server.")
        .variable().default("nats://localhost:4222").secret();
    STREAM = row("nats.stream", Text, "Stream to which all events are published, in the order of the commits. One stream belongs to one slot, and nobody else publishes to it.")
        .variable().default("outbox")
        .valid_if(|text| stream(text).map(drop));
    SUBJECT = row("nats.subject", Text, "Subject of an event, with the placeholders `{topic}`, `{key}` and `{partition(N)}`.")
        .details("`{topic}` is what `record.topic` makes; its dots separate tokens. `{key}` is one token, percent-encoded where a subject could not have it; `{partition(8)}` is a number from 0 to 7 that depends on the key alone. The stream must have the subjects. Dead letters have the subject `poison.dead_letter_topic`. See [subjects](nats.md#subjects).")
        .variable().default("{topic}");
    SYNC_INTERVAL = row("nats.sync_interval", Time, "The servers' `jetstream.sync_interval`, which clients cannot see: for that long a crash of a machine may lose acknowledged messages, so walpost confirms them to PostgreSQL only then. `0s` for `always`. Accepts `ms`, `s` and `min`.")
        .details("Only WAL waits, not delivery. See [what survives a crash](nats.md#what-survives-a-crash).")
        .variable().default("2min")
        .valid_if(|text| duration(text).map(drop));
    CREDENTIALS_FILE = row("nats.credentials_file", Text, "File with a JWT and its seed (`.creds`), or with the seed of an NKey. Read again at each connect.")
        .variable();
    CA_FILE = row("nats.ca_file", Text, "PEM file of the authorities that sign the servers' certificates, for `tls://`. Without it, those of the operating system.")
        .variable();
    CERT_FILE = row("nats.cert_file", Text, "PEM file of walpost's own certificate, for `tls://` servers that verify their clients. Read again at each connect.")
        .variable();
    KEY_FILE = row("nats.key_file", Text, "PEM file of the private key of `nats.cert_file`.")
        .variable();
}

/// A write that takes this long has failed already.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

/// The name of the stream.
pub(super) fn stream_of(config: &Config) -> &str {
    config.values().text(STREAM).unwrap_or_default()
}

pub(super) fn place(config: &Config) -> String {
    format!("the state key {KEY} in the NATS bucket {}", bucket(stream_of(config)))
}

pub(super) fn state_settings(config: &Config) -> StateSettings {
    let key = format!("{}/{KEY}", bucket(stream_of(config)));
    settings::state_settings(config, (key, place(config)), (Some("NATS"), WRITE_LIMIT))
}

/// The configured servers and stream.
pub(crate) fn nats_config(config: &Config) -> Result<NatsConfig, ConfigError> {
    let url = config.current(URL)?.unwrap_or_default();
    let url = NatsUrl::parse(url.expose_secret()).map_err(|error| config.invalid(URL, &error))?;
    let (values, dead_letters) = (config.values(), &config.poison.dead_letter_topic);
    let subject = values.parsed(SUBJECT, str::parse::<SubjectTemplate>)?;
    if let Err(reason) = check_subject(dead_letters) {
        let reason = format!("is the subject of dead letters: {reason}");
        return Err(config.invalid(Setting::POISON_DEAD_LETTER_TOPIC, &reason));
    }
    check_too_large(config)?;
    let tls = tls_files(
        config,
        [CA_FILE, CERT_FILE, KEY_FILE],
        (url.first.tls, "write tls:// in nats.url"),
    )?;
    let credentials = config.path(CREDENTIALS_FILE);
    if credentials.is_some() && url.first.has_login() {
        let reason = "nats.url has a login too: give one of the two";
        return Err(config.invalid(CREDENTIALS_FILE, &reason));
    }
    Ok(NatsConfig {
        url,
        credentials,
        tls,
        stream: values.parsed(STREAM, stream)?,
        subject,
        dead_letters: dead_letters.clone(),
        sync_interval: values.parsed(SYNC_INTERVAL, duration)?,
    })
}

/// The name of a stream of NATS, which is also a part of a bucket's name.
fn stream(text: &str) -> Result<String, String> {
    let is_allowed = |sign: char| sign.is_ascii_alphanumeric() || "_-".contains(sign);
    if text.is_empty() || text.len() > 200 || !text.chars().all(is_allowed) {
        return Err(format!("`{text}` is not 1 to 200 letters, digits, `_` and `-`"));
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
            "sink.kind = 'nats'
            [nats]
            url = 'tls://h:7'
            stream = 'orders'
            subject = 'eu.{topic}.{key}'
            sync_interval = '5s'
            credentials_file = 'user.creds'
            ca_file = 'ca.pem'
            cert_file = 'own.pem'
            key_file = 'own.key'",
        );
        let nats = nats_config(&config.expect("valid"));
        let nats = nats.expect("it can be used");
        assert_eq!((nats.url.address(), nats.stream.as_str()), ("h:7".to_owned(), "orders"));
        assert_eq!(nats.subject, "eu.{topic}.{key}".parse().expect("a template"));
        assert_eq!(nats.sync_interval, Duration::from_secs(5));
        assert_eq!(
            [nats.credentials, nats.tls.roots],
            ["user.creds", "ca.pem"].map(|it| Some(it.into()))
        );
        assert_eq!(nats.tls.identity, Some(("own.pem".into(), "own.key".into())));
    }
}
