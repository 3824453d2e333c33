//! The settings of an HTTP endpoint, as valid values.

use secrecy::{ExposeSecret as _, SecretString};

use crate::config::Kind::{Duration as Time, Number, Text};
use crate::config::{Config, ConfigError, Declared, Setting, declare_settings, row};
use crate::destination::http::{HttpConfig, HttpUrl, Signers};
use crate::destination::parts::settings::{check_too_large, positive, tls_files};
use crate::record::Policy;

/// `[http]`
pub(in crate::destination) const DECLARED: Declared = Declared {
    kind: "http",
    title: "HTTP endpoint",
    settings: SETTINGS,
    uses: &[Setting::POISON_MISSING_TOPIC],
};

declare_settings! {
    SETTINGS:
    URL = row("http.url", Text, "URL to which each event is sent by POST. `{topic}` in path or query stands for the record's topic.")
        .details("Prefer `WALPOST_HTTP_URL_FILE` if it contains a token: walpost reads that file again at each connect.")
        .variable().hidden();
    SECRET = row("http.secret", Text, "Secret that signs the requests, as Standard Webhooks describes: `whsec_` and 24 to 64 bytes in base64.")
        .details("Two, separated by a space, sign each request twice, while receivers change from one to the other. `WALPOST_HTTP_SECRET_FILE` is read again at each connect, and a connection is used for five minutes at most.")
        .variable().hidden();
    AUTHORIZATION = row("http.authorization", Text, "Value of the header `authorization`, for instance `Bearer …`.")
        .details("`WALPOST_HTTP_AUTHORIZATION_FILE` is read again at each connect.")
        .variable().hidden();
    LANES = row("http.lanes", Number, "How many requests may be in flight, each of another key.")
        .details("From 1 to 1024.")
        .variable().default("16")
        .valid_if(|text| lanes(text).map(drop));
    TIMEOUT = row("http.timeout", Time, "How long an answer may take. Accepts `ms`, `s` and `min`.")
        .details("Then the event is sent again.")
        .variable().default("30s")
        .valid_if(|text| positive(text).map(drop));
    GIVE_UP_AFTER = row("http.give_up_after", Time, "After which time an event that is always answered 5xx, 408, 421, 423, 424 or 425, or not within `http.timeout`, counts as rejected (`poison.refused`), if others are accepted. Accepts `s`, `min` and `h`.")
        .details("Without it, the event is sent again until the endpoint takes it. See [answers](http.md#answers).")
        .variable()
        .valid_if(|text| positive(text).map(drop));
    CA_FILE = row("http.ca_file", Text, "PEM file of the authorities that sign the server's certificate, for `https://`. Without it, those of the operating system.")
        .variable();
    CERT_FILE = row("http.cert_file", Text, "PEM file of walpost's own certificate, for an `https://` server that verifies its clients. Read again at each connect.")
        .variable();
    KEY_FILE = row("http.key_file", Text, "PEM file of the private key of `http.cert_file`.")
        .variable();
}

/// The configured endpoint.
pub(crate) fn http_config(config: &Config) -> Result<HttpConfig, ConfigError> {
    let (values, current) = (config.values(), |setting| config.current(setting));
    let invalid = |setting, reason: &str| config.invalid(setting, &reason);
    let url = current(URL)?.unwrap_or_default();
    let url = url.expose_secret();
    if url.is_empty() {
        return Err(invalid(URL, "is needed with sink.kind = \"http\""));
    }
    let url = HttpUrl::parse(url).map_err(|error| invalid(URL, &error))?;
    check_too_large(config)?;
    if config.poison.missing_topic.is_some() && !url.names_topic() {
        let reason = "has no effect without {topic} in http.url: remove it";
        return Err(invalid(Setting::POISON_MISSING_TOPIC, reason));
    }
    if config.poison.include(Policy::DeadLetter) && !url.names_topic() {
        let reason = "a policy is `dead_letter`: {topic} has to be part of the URL, so that dead \
                      letters (poison.dead_letter_topic) go elsewhere";
        return Err(invalid(URL, reason));
    }
    let tls =
        tls_files(config, [CA_FILE, CERT_FILE, KEY_FILE], (url.tls, "write https:// in http.url"))?;
    let signers = current(SECRET)?.map(|secret| Signers::parse(secret.expose_secret()));
    let signers = signers.transpose().map_err(|error| invalid(SECRET, &error))?;
    let is_header = |text: &SecretString| {
        text.expose_secret().bytes().all(|byte| (b' '..=b'~').contains(&byte))
    };
    let authorization = current(AUTHORIZATION)?;
    if !authorization.as_ref().is_none_or(is_header) {
        let reason = "it is not one line of ASCII";
        return Err(invalid(AUTHORIZATION, reason));
    }
    Ok(HttpConfig {
        url,
        tls,
        signers: signers.unwrap_or_default(),
        authorization,
        lanes: values.parsed(LANES, lanes)?,
        timeout: values.parsed(TIMEOUT, positive)?,
        give_up_after: values.optional(GIVE_UP_AFTER, positive)?,
        waits_for_topic: config.poison.missing_topic.is_none(),
        dead_letters: config.poison.dead_letter_topic.clone(),
    })
}

/// How many requests may be in flight.
fn lanes(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number of lanes, 1 to 1024"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::of_toml;

    #[test]
    fn every_key_is_read() {
        let config = of_toml(
            "sink.kind = 'http'
            [http]
            url = 'https://h/events'
            secret = 'whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz'
            authorization = 'Bearer s3cret'
            lanes = 3
            timeout = '2s'
            give_up_after = '1h'
            ca_file = 'ca.pem'
            cert_file = 'own.pem'
            key_file = 'own.key'",
        );
        let http = http_config(&config.expect("valid"));
        let http = http.expect("it can be used");
        assert_eq!((http.url.host.as_str(), http.lanes, http.timeout.as_secs()), ("h", 3, 2));
        assert_eq!(http.give_up_after, Some(Duration::from_secs(3600)));
        let authorization = http.authorization.expect("a header");
        assert_eq!(authorization.expose_secret(), "Bearer s3cret");
        assert_eq!((http.signers.is_empty(), http.tls.roots), (false, Some("ca.pem".into())));
        assert_eq!(http.tls.identity, Some(("own.pem".into(), "own.key".into())));
    }
}
