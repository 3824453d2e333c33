//! Settings that several destinations have.

use std::time::Duration;

use crate::config::{self, Config, ConfigError, Setting};
use crate::destination::parts::Reread;
use crate::destination::parts::dial::Tls;
use crate::record::Policy;
use crate::relay::{CommitLimits, StateSettings};
use crate::source;
use crate::state::ConfiguredLayout;

/// What the configuration contributes to the numbers of events.
pub(crate) fn layout(config: &Config) -> ConfiguredLayout {
    ConfiguredLayout {
        tables: config.outbox.tables.clone(),
        message_prefix: config.outbox.message_prefix.clone(),
        plain_message_prefix: config.outbox.plain_message_prefix.clone(),
        publication: config.source.publication.clone(),
    }
}

/// The part of a configuration that `read` returns, which can be read again.
pub(crate) fn reread<T: 'static>(
    config: &Config,
    read: fn(&Config) -> Result<T, ConfigError>,
) -> Reread<T> {
    let config = config.clone();
    Reread::new(move || read(&config).map_err(|error| error.to_string()))
}

/// A duration that is not zero.
pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    let duration = config::duration(text)?;
    if duration.is_zero() { Err("it is 0".to_owned()) } else { Ok(duration) }
}

/// A dead letter is no smaller than its event.
pub(crate) fn check_too_large(config: &Config) -> Result<(), ConfigError> {
    if config.poison.too_large != Policy::DeadLetter {
        return Ok(());
    }
    let reason = "a dead letter has the payload of its event, and the destination does not accept that \
                  either: set `halt` or `skip`";
    Err(config.invalid(Setting::POISON_TOO_LARGE, &reason))
}

/// The files of TLS to a destination, by the settings of authorities, certificate and private key. They
/// are errors if the URL asks for no TLS, which `how` says how to do.
pub(crate) fn tls_files(
    config: &Config,
    settings: [Setting; 3],
    (is_tls, how): (bool, &str),
) -> Result<Tls, ConfigError> {
    let path = |setting| config.path(setting);
    if let Some(setting) = settings.into_iter().find(|one| path(*one).is_some() && !is_tls) {
        let reason = format!("has no effect without TLS: {how}");
        return Err(config.invalid(setting, &reason));
    }
    let [roots, cert_setting, key_setting] = settings;
    let identity = match (path(cert_setting), path(key_setting)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            let reason = format!("needs its private key: set {}", key_setting.key());
            return Err(config.invalid(cert_setting, &reason));
        }
        (None, Some(_)) => {
            let reason = format!("needs its certificate: set {}", cert_setting.key());
            return Err(config.invalid(key_setting, &reason));
        }
    };
    let (named, roots) = (roots.key(), path(roots).or_else(source::system_bundle));
    Ok(Tls { roots, named, identity })
}

/// How the position is kept under this name, in a place that messages call `place`. A transaction
/// commits within `timeout`; `lossy_store` is what keeps the position beside the events, and may lose both.
pub(crate) fn state_settings(
    config: &Config,
    (name, place): (String, String),
    (lossy_store, timeout): (Option<&'static str>, Duration),
) -> StateSettings {
    StateSettings {
        delivery_id: config.delivery.id.clone(),
        name,
        place,
        layout: layout(config),
        skips: config.poison.include(Policy::Skip),
        lossy_store,
        rows: None,
        commits: CommitLimits {
            interval: config.delivery.commit_interval,
            bytes: config.delivery.transaction_bytes,
            timeout,
        },
    }
}
