//! What a session is opened on: the server, the slot, the publication, the tables.

use std::fmt;
use std::sync::Arc;

use super::SourceError;
use crate::conninfo::ConnInfo;
use crate::outbox::TableName;

/// What the server's views show of walpost.
pub(crate) const APPLICATION_NAME: &str = "walpost";

/// What a session is opened on.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// The server and the database, asked for at each connect.
    pub conninfo: ConnInfoSource,
    /// The replication slot, as stored in the catalog.
    pub slot: String,
    /// The publication, as stored in the catalog.
    pub publication: String,
    /// The outbox tables that it has to publish.
    pub tables: Vec<TableName>,
    /// Make a temporary slot of that name, which goes with the session.
    pub temporary_slot: bool,
}

/// Says how to connect, anew each time, so that a password that was changed in
/// its file is taken up without a restart.
#[derive(Clone)]
pub struct ConnInfoSource(Arc<dyn Fn() -> Result<ConnInfo, String> + Send + Sync>);

impl ConnInfoSource {
    /// From a function that reads everything again; its error is for people.
    pub fn new(resolve: impl Fn() -> Result<ConnInfo, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(resolve))
    }

    /// What holds now.
    pub fn resolve(&self) -> Result<ConnInfo, SourceError> {
        (self.0)().map_err(SourceError::Access)
    }
}

impl fmt::Debug for ConnInfoSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnInfoSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_to_connect_shows_no_secret_in_debug() {
        let source = ConnInfoSource::new(|| Err("s3cret".to_owned()));
        assert!(!format!("{source:?}").contains("s3cret"));
        assert_eq!(source.resolve().err(), Some(SourceError::Access("s3cret".to_owned())));
    }
}
