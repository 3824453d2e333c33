//! Preflight checks of an HTTP endpoint. They send no request: an endpoint is told nothing but
//! events.

use std::time::Duration;

use super::settings::http_config;
use crate::config::{Config, Environment};
use crate::destination::http::HttpConfig;
use crate::destination::http::connect;
use crate::findings::{Finding, Findings};

const SUBJECT: &str = "HTTP endpoint";

/// Timeout for the connection.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Checks the configuration and, unless `offline`, whether the server can be reached.
pub(super) async fn check(config: &Config, offline: bool, findings: &mut Findings) {
    let http = match http_config(config, &Environment::of_process()) {
        Ok(http) => http,
        Err(error) => {
            let finding = Finding::error((SUBJECT, "http_config"), error.to_string());
            return findings.add(finding.why("`run` would not start"));
        }
    };
    check_secrets(&http, findings);
    if offline {
        let text = "whether the server can be reached was not checked";
        return findings.add(Finding::skipped((SUBJECT, "http"), text));
    }
    let address = http.url.address();
    let connected = async { connect(&http).await?.is_wanted().await };
    let reason = match tokio::time::timeout(TIMEOUT, connected).await {
        Ok(Ok(())) => {
            let text = format!("{address} accepts connections; no request was sent");
            return findings.add(Finding::ok((SUBJECT, "http_server"), text));
        }
        Ok(Err(failure)) => failure.to_string(),
        Err(_) => format!("{address}: no connection within {TIMEOUT:?}"),
    };
    findings.add(
        Finding::error((SUBJECT, "http_unreachable"), reason)
            .why("nothing can be delivered, and PostgreSQL retains WAL meanwhile")
            .advice("correct http.url, and see that the server can be reached from here"),
    );
}

fn check_secrets(http: &HttpConfig, findings: &mut Findings) {
    if !http.signers.is_empty() || http.authorization.is_some() {
        let text = "requests are signed, or carry an authorization";
        findings.add(Finding::ok((SUBJECT, "http_secrets"), text));
    } else {
        let text = "neither http.secret nor http.authorization is set";
        findings.add(
            Finding::warning((SUBJECT, "http_unsigned"), text)
                .why("the receiver cannot tell walpost's requests from those of others")
                .advice("set http.secret, and let the receiver verify the signature"),
        );
    }
    let is_local = ["127.0.0.1", "::1", "localhost"].contains(&http.url.host.as_str());
    if !http.url.tls && !is_local {
        findings.add(
            Finding::warning((SUBJECT, "http_plain"), "http.url is not https://")
                .why("events, and http.authorization, can be read on the network")
                .advice("use https://, unless the network is trusted"),
        );
    }
}
