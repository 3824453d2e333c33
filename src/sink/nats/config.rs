//! The configuration of the sink, and where it is read again.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::subject::SubjectTemplate;
use super::url::NatsUrl;

/// The servers, and the stream on them.
#[derive(Debug, Clone)]
pub struct NatsConfig {
    /// The servers.
    pub url: NatsUrl,
    /// A file with a JWT and the seed of its key, or with the seed of an NKey alone.
    pub credentials: Option<PathBuf>,
    /// The certificates of the authorities that sign the servers'; `None`: there are none.
    pub roots: Option<PathBuf>,
    /// The stream.
    pub stream: String,
    /// The subject of an event.
    pub subject: SubjectTemplate,
    /// The subject of dead letters.
    pub dead_letters: String,
}

/// Resolves the configuration. It reads all sources again each time, so that a changed file takes
/// effect with the next connection.
#[derive(Clone)]
pub struct NatsSource(Arc<dyn Fn() -> Result<NatsConfig, String> + Send + Sync>);

impl NatsSource {
    /// Resolves by this function, which reads everything again. Its error is shown to the operator.
    pub fn new(read: impl Fn() -> Result<NatsConfig, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The current configuration.
    pub(crate) fn read(&self) -> Result<NatsConfig, String> {
        (self.0)()
    }
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NatsSource")
    }
}

/// The key-value bucket beside a stream, which has walpost's position.
pub(crate) fn bucket(stream: &str) -> String {
    format!("walpost_{stream}")
}
