//! A relay to a stream of NATS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret as _;

use super::other_sinks::{check_too_large, tls_files};
use super::{AssemblyError, relay_settings, stored_beside};
use crate::config::{Config, ConfigError, Environment, Setting};
use crate::metrics::Metrics;
use crate::relay::{Relay, StopHandle, Until, stop_channel};
use crate::sink::nats::{Claims, KEY, bucket, check_subject};
use crate::sink::{ConfiguredSink, NatsConfig, NatsSink, NatsSource, NatsUrl, SubjectTemplate};
use crate::source::Source;
use crate::state::{StateStore, nats_state};
use walpost_core::relay::Core;

/// A write that takes this long has failed already.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn relay_from<P: Source>(
    (source, core): (P, Core),
    config: &Config,
    environment: &Environment,
    (until, metrics): (Option<Until>, Arc<Metrics>),
) -> Result<(Relay<P, ConfiguredSink>, StopHandle), AssemblyError> {
    let nats = nats_config(config, environment)?;
    let (source_of_nats, claims) = (nats_source(config, environment), Claims::default());
    let store = nats_state(source_of_nats.clone(), claims.clone(), true);
    let sink = NatsSink::new(&nats, source_of_nats, claims, Arc::clone(&metrics))?;
    let (handle, stop) = stop_channel();
    let settings = relay_settings(config, until);
    let relay = Relay::new(core, ConfiguredSink::Nats(sink), source, settings, stop);
    let relay = relay.with_metrics(metrics);
    let key = format!("{}/{KEY}", bucket(&config.nats.stream));
    let state = stored_beside(config, (key, place(config)), ("NATS", WRITE_LIMIT));
    Ok((relay.with_state(Box::new(store), state), handle))
}

/// Where an operator's command finds the position, and what that is called.
pub(super) fn state_store(config: &Config) -> (Box<dyn StateStore>, String) {
    let source = nats_source(config, &Environment::of_process());
    (Box::new(nats_state(source, Claims::default(), false)), place(config))
}

pub(super) fn place(config: &Config) -> String {
    format!("the state key {KEY} in the NATS bucket {}", bucket(&config.nats.stream))
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

fn nats_source(config: &Config, environment: &Environment) -> NatsSource {
    let (config, environment) = (config.clone(), environment.clone());
    NatsSource::new(move || nats_config(&config, &environment).map_err(|error| error.to_string()))
}
