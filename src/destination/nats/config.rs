//! The configuration of the sink, and where it is read again.

use std::path::PathBuf;
use std::time::Duration;

use super::subject::SubjectTemplate;
use super::url::NatsUrl;
use crate::destination::parts::Reread;
use crate::destination::parts::dial::Tls;

/// The servers, and the stream on them.
#[derive(Debug, Clone)]
pub(crate) struct NatsConfig {
    /// The servers.
    pub url: NatsUrl,
    /// A file with a JWT and the seed of its key, or with the seed of an NKey alone.
    pub credentials: Option<PathBuf>,
    /// How TLS is set up, if the URL asks for it.
    pub tls: Tls,
    /// The stream.
    pub stream: String,
    /// The subject of an event.
    pub subject: SubjectTemplate,
    /// The subject of dead letters.
    pub dead_letters: String,
    /// How long the servers may keep a message without syncing it.
    pub sync_interval: Duration,
}

/// The configuration of servers and stream, which can be read again.
pub(crate) type NatsSource = Reread<NatsConfig>;

/// The key-value bucket beside a stream, which has walpost's position.
pub(crate) fn bucket(stream: &str) -> String {
    format!("walpost_{stream}")
}
