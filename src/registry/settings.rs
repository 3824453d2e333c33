//! The settings of a schema registry, as valid values.

use std::time::Duration;

use hyper::Uri;
use secrecy::{ExposeSecret as _, SecretString};

use crate::config::{Config, ConfigError, Setting};
use crate::destination::parts::dial::Tls;
use crate::destination::parts::http_server::HttpServer;
use crate::destination::parts::settings::{positive, tls_files};
use crate::destination::parts::url;

/// The registry.
#[derive(Debug, Clone)]
pub(crate) struct RegistryConfig {
    /// Its addresses: at least one.
    pub(super) urls: Vec<RegistryUrl>,
    /// How TLS is set up, for the addresses that ask for it.
    pub(super) tls: Tls,
    /// The value of the header `authorization`.
    pub(super) authorization: Option<SecretString>,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    /// How long the latest version of a subject is believed to be that.
    pub(super) refresh: Duration,
}

impl RegistryConfig {
    /// An address to which credentials are sent without TLS, on another machine.
    pub(super) fn exposed(&self) -> Option<String> {
        let is_open =
            |url: &&RegistryUrl| !url.server.tls && !url::is_this_machine(&url.server.host);
        self.authorization.as_ref().and(self.urls.iter().find(is_open)).map(RegistryUrl::address)
    }
}

/// An address of the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegistryUrl {
    pub(super) server: HttpServer,
    /// The path before those of the interface, without `/` at its end.
    pub(super) path: String,
}

impl RegistryUrl {
    /// Parses `http://host[:port][/path]` or `https://…`. The error does not repeat the URL.
    fn parse(text: &str) -> Result<Self, String> {
        let form = "it is not of the form https://host[:port][/path]";
        let uri: Uri = text.parse().map_err(|_| form)?;
        let server = HttpServer::of(&uri, form, "registry.authorization")?;
        if uri.query().is_some() || text.contains('#') {
            return Err("it has a query or a fragment".to_owned());
        }
        Ok(Self { server, path: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Host and port, for messages.
    pub(super) fn address(&self) -> String {
        self.server.address()
    }
}

/// The configured registry.
pub(crate) fn registry_config(config: &Config) -> Result<RegistryConfig, ConfigError> {
    let values = config.values();
    let invalid = |setting, reason: &str| config.invalid(setting, &reason);
    let urls = values.text(Setting::REGISTRY_URL).unwrap_or_default();
    if urls.is_empty() {
        let reason = "is needed with record.value_encoding";
        return Err(invalid(Setting::REGISTRY_URL, reason));
    }
    let urls = urls.split(',').map(|url| RegistryUrl::parse(url.trim()));
    let urls: Result<Vec<_>, _> = urls.collect();
    let urls = urls.map_err(|error| invalid(Setting::REGISTRY_URL, &error))?;
    let files =
        [Setting::REGISTRY_CA_FILE, Setting::REGISTRY_CERT_FILE, Setting::REGISTRY_KEY_FILE];
    let is_tls = urls.iter().any(|url| url.server.tls);
    let tls = tls_files(config, files, (is_tls, "write https:// in registry.url"))?;
    let authorization = config.current(Setting::REGISTRY_AUTHORIZATION)?;
    let is_header = |text: &SecretString| {
        let text = text.expose_secret();
        !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    };
    if !authorization.as_ref().is_none_or(is_header) {
        let reason = "it is not one line of ASCII";
        return Err(invalid(Setting::REGISTRY_AUTHORIZATION, reason));
    }
    Ok(RegistryConfig {
        urls,
        tls,
        authorization,
        timeout: values.parsed(Setting::REGISTRY_TIMEOUT, positive)?,
        refresh: values.parsed(Setting::REGISTRY_REFRESH, positive)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::of_toml;

    #[test]
    fn every_key_is_read() {
        let config = of_toml(
            "record.value_encoding = 'frame'
            [registry]
            url = 'https://a:8081/apis/ccompat/v7/, http://[::1]'
            authorization = 'Basic s3cret'
            ca_file = 'ca.pem'
            cert_file = 'own.pem'
            key_file = 'own.key'
            timeout = '2s'
            refresh = '5s'
            value_subject = '{topic}-{tenant}'
            value_version = 3",
        );
        let config = config.expect("valid");
        let registry = registry_config(&config).expect("it can be used");
        let of = |url: &RegistryUrl| (url.server.tls, url.address(), url.path.clone());
        let urls: Vec<_> = registry.urls.iter().map(of).collect();
        assert_eq!(urls[0], (true, "a:8081".to_owned(), "/apis/ccompat/v7".to_owned()));
        assert_eq!(urls[1], (false, "[::1]:80".to_owned(), String::new()));
        assert_eq!((registry.timeout.as_secs(), registry.refresh.as_secs()), (2, 5));
        assert!(!format!("{registry:?}").contains("s3cret"));
    }

    #[test]
    fn wrong_values_are_errors() {
        for (toml, part) in [
            ("", "is needed"),
            ("registry.url = 'a:8081'", "not of the form"),
            ("registry.url = 'http://u:p@a'", "a login"),
            ("registry.url = 'http://a?x'", "a query"),
            ("registry.url = 'http://a:0'", "its port"),
            ("[registry]\nurl = 'http://a'\nca_file = 'x'", "https://"),
            ("[registry]\nurl = 'http://a'\nauthorization = ''", "one line"),
            ("[registry]\nurl = 'http://a'\ntimeout = '0s'", "it is 0"),
        ] {
            let config = of_toml(toml).expect(toml);
            let error = registry_config(&config).map(drop).expect_err(toml).to_string();
            assert!(error.contains(part) && !error.contains("u:p"), "{toml}: {error}");
        }
    }
}
