//! The configuration of the sink, and where it is read again.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::signature::Signers;
use super::url::HttpUrl;
use crate::sink::Reread;

/// The endpoint, and what it is sent.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// The endpoint.
    pub url: HttpUrl,
    /// The certificates of the authorities that sign the server's; `None`: there are none.
    pub roots: Option<PathBuf>,
    /// What signs the requests.
    pub signers: Signers,
    /// The value of the header `authorization`.
    pub authorization: Option<SecretString>,
    /// How many requests may be in flight.
    pub lanes: u16,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl HttpConfig {
    /// What an endpoint says, without what is secret in walpost's own request: some repeat it.
    pub(super) fn redacted(&self, said: &str) -> String {
        let secret = self.authorization.as_ref().map_or("", |secret| secret.expose_secret());
        let mut text = said.to_owned();
        // The value, and the token behind its scheme.
        for part in [Some(secret), secret.split_whitespace().last()].into_iter().flatten() {
            if !part.is_empty() {
                text = text.replace(part, "[redacted]");
            }
        }
        text
    }
}

/// Where the endpoint is read again.
pub type HttpSource = Reread<HttpConfig>;
