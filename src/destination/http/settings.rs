//! The settings of an HTTP endpoint, as valid values.

use secrecy::{ExposeSecret as _, SecretString};

use crate::config::{Config, ConfigError, Environment, Setting};
use crate::destination::http::{HttpConfig, HttpSource, HttpUrl, Signers};
use crate::destination::parts::settings::{check_too_large, tls_files};
use crate::record::Policy;

/// The configured endpoint.
pub(crate) fn http_config(
    config: &Config,
    environment: &Environment,
) -> Result<HttpConfig, ConfigError> {
    let http = config.http_now(environment)?;
    let invalid = |setting, reason: &str| config.invalid(setting, &reason);
    let url = http.url.as_ref().map_or("", |url| url.expose_secret());
    if url.is_empty() {
        return Err(invalid(Setting::HttpUrl, "is needed with sink.kind = \"http\""));
    }
    let url = HttpUrl::parse(url).map_err(|error| invalid(Setting::HttpUrl, &error))?;
    check_too_large(config)?;
    if config.poison.missing_topic.is_some() && !url.names_topic() {
        let reason = "has no effect without {topic} in http.url: remove it";
        return Err(invalid(Setting::PoisonMissingTopic, reason));
    }
    if config.poison.include(Policy::DeadLetter) && !url.names_topic() {
        let reason = "a policy is `dead_letter`: {topic} has to be part of the URL, so that dead \
                      letters (poison.dead_letter_topic) go elsewhere";
        return Err(invalid(Setting::HttpUrl, reason));
    }
    let (roots, identity) = tls_files(
        config,
        environment,
        [
            (Setting::HttpCaFile, &http.ca_file),
            (Setting::HttpCertFile, &http.cert_file),
            (Setting::HttpKeyFile, &http.key_file),
        ],
        (url.tls, "write https:// in http.url"),
    )?;
    let signers = http.secret.as_ref().map(|secret| Signers::parse(secret.expose_secret()));
    let signers = signers.transpose().map_err(|error| invalid(Setting::HttpSecret, &error))?;
    let is_header = |text: &SecretString| {
        text.expose_secret().bytes().all(|byte| (b' '..=b'~').contains(&byte))
    };
    if !http.authorization.as_ref().is_none_or(is_header) {
        let reason = "it is not one line of ASCII";
        return Err(invalid(Setting::HttpAuthorization, reason));
    }
    Ok(HttpConfig {
        url,
        roots,
        identity,
        signers: signers.unwrap_or_default(),
        authorization: http.authorization,
        lanes: http.lanes,
        timeout: http.timeout,
        give_up_after: http.give_up_after,
        waits_for_topic: config.poison.missing_topic.is_none(),
        dead_letters: config.poison.dead_letter_topic.clone(),
    })
}

pub(super) fn http_source(config: &Config, environment: &Environment) -> HttpSource {
    let (config, environment) = (config.clone(), environment.clone());
    HttpSource::new(move || http_config(&config, &environment).map_err(|error| error.to_string()))
}
