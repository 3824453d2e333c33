//! The settings of a stream of NATS, as valid values.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::ExposeSecret as _;

use crate::config::{Config, ConfigError, Environment, Setting};
use crate::destination::nats::{KEY, bucket, check_subject};
use crate::destination::nats::{NatsConfig, NatsSource, NatsUrl, SubjectTemplate};
use crate::destination::parts::settings::{self, check_too_large, tls_files};
use crate::relay::StateSettings;

/// A write that takes this long has failed already.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn place(config: &Config) -> String {
    format!("the state key {KEY} in the NATS bucket {}", bucket(&config.nats.stream))
}

pub(super) fn state_settings(config: &Config) -> StateSettings {
    let key = format!("{}/{KEY}", bucket(&config.nats.stream));
    settings::state_settings(config, (key, place(config)), (Some("NATS"), WRITE_LIMIT))
}

/// The configured servers and stream.
pub(crate) fn nats_config(
    config: &Config,
    environment: &Environment,
) -> Result<NatsConfig, ConfigError> {
    let url = config.nats_url(environment)?;
    let url = NatsUrl::parse(url.expose_secret())
        .map_err(|error| config.invalid(Setting::NatsUrl, &error))?;
    let (nats, dead_letters) = (&config.nats, &config.poison.dead_letter_topic);
    let subject: SubjectTemplate = nats
        .subject
        .parse()
        .map_err(|error: String| config.invalid(Setting::NatsSubject, &error))?;
    if let Err(reason) = check_subject(dead_letters) {
        let reason = format!("is the subject of dead letters: {reason}");
        return Err(config.invalid(Setting::PoisonDeadLetterTopic, &reason));
    }
    check_too_large(config)?;
    let (roots, identity) = tls_files(
        config,
        environment,
        [
            (Setting::NatsCaFile, &nats.ca_file),
            (Setting::NatsCertFile, &nats.cert_file),
            (Setting::NatsKeyFile, &nats.key_file),
        ],
        (url.requires_tls(), "write tls:// in nats.url"),
    )?;
    if nats.credentials_file.is_some() && url.has_login() {
        let reason = "nats.url has a login too: give one of the two";
        return Err(config.invalid(Setting::NatsCredentialsFile, &reason));
    }
    let own = |path: &PathBuf| environment.path(path);
    Ok(NatsConfig {
        url,
        credentials: nats.credentials_file.as_ref().map(own),
        roots,
        identity,
        stream: nats.stream.clone(),
        subject,
        dead_letters: dead_letters.clone(),
        sync_interval: nats.sync_interval,
    })
}

pub(super) fn nats_source(config: &Config, environment: &Environment) -> NatsSource {
    let (config, environment) = (config.clone(), environment.clone());
    NatsSource::new(move || nats_config(&config, &environment).map_err(|error| error.to_string()))
}
