//! Preflight checks of an HTTP endpoint. They send no request: an endpoint is told nothing but
//! events.

use std::time::Duration;

use tokio::time::timeout;

use super::settings::http_config;
use super::sink::ENDPOINT;
use crate::config::Config;
use crate::destination::http::HttpConfig;
use crate::destination::http::connect;
use crate::destination::parts::Failure;
use crate::destination::parts::check::{Subject, subject};
use crate::findings::{Finding, Findings};

const NAME: &str = "HTTP endpoint";

const SUBJECT: Subject = subject!(NAME, "http", "http.url", &ENDPOINT);

/// Timeout for the connection.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Checks the configuration and, unless `offline`, whether the server can be reached.
pub(super) async fn check(config: &Config, offline: bool, findings: &mut Findings) {
    let read = http_config(config);
    let Some(http) = SUBJECT.settings(read, findings) else { return };
    check_secrets(&http, findings);
    SUBJECT.check_encryption((http.url.tls, &http.url.host), "https://", findings);
    if offline {
        return SUBJECT.skips("the server was", findings);
    }
    let address = http.url.address();
    let connected = async { connect(&http).await?.is_wanted().await };
    let late = || Failure::Unreachable(format!("{address}: no connection within {TIMEOUT:?}"));
    findings.add(match timeout(TIMEOUT, connected).await.unwrap_or_else(|_| Err(late())) {
        Ok(()) => {
            let text = format!("{address} accepts connections; no request was sent");
            Finding::ok((NAME, "http_server"), text)
        }
        Err(failure) => SUBJECT.unusable(&address, &failure),
    });
}

fn check_secrets(http: &HttpConfig, findings: &mut Findings) {
    if !http.signers.is_empty() || http.authorization.is_some() {
        let text = "requests are signed, or carry an authorization";
        findings.add(Finding::ok((NAME, "http_secrets"), text));
    } else {
        let text = "neither http.secret nor http.authorization is set";
        findings.add(
            Finding::warning((NAME, "http_unsigned"), text)
                .why("the receiver cannot tell walpost's requests from those of others")
                .advice("set http.secret, and let the receiver verify the signature"),
        );
    }
}
