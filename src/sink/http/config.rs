//! The configuration of the sink, and where it is read again.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;

use super::signature::Signers;
use super::url::HttpUrl;

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

/// Resolves the configuration. It reads all sources again each time, so that a changed file takes
/// effect with the next connection.
#[derive(Clone)]
pub struct HttpSource(Arc<dyn Fn() -> Result<HttpConfig, String> + Send + Sync>);

impl HttpSource {
    /// Resolves by this function, which reads everything again. Its error is shown to the operator.
    pub fn new(read: impl Fn() -> Result<HttpConfig, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The current configuration.
    pub(crate) fn read(&self) -> Result<HttpConfig, String> {
        (self.0)()
    }
}

impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpSource")
    }
}
