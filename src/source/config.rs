//! What a session is opened on: the server, the slot, the publication, the tables.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

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
    /// When a backlog is read in batches.
    pub catch_up: CatchUp,
}

/// When a backlog is read in batches.
#[derive(Debug, Clone, Default)]
pub struct CatchUp {
    /// Above so many bytes of log; `None`: never.
    threshold: Option<u64>,
    /// Not before then, since the server would not do it. Of all clones.
    barred: Arc<Mutex<Option<Instant>>>,
}

/// How long batches are left alone once the server has refused one.
const BARRED: Duration = Duration::from_secs(600);

/// How long where nobody takes anything: a stream is to hold the slot.
const PAUSED: Duration = Duration::from_secs(10);

/// A backlog of so many bytes at most is left to the stream by who has read the rest.
const LITTLE: u64 = 64 << 10;

impl CatchUp {
    /// Above so many bytes of log.
    pub fn above(threshold: u64) -> Self {
        Self { threshold: Some(threshold), barred: Arc::default() }
    }

    /// Whether so many bytes of log are a backlog for batches now.
    pub fn is_for(&self, behind: u64) -> bool {
        let barred = *self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        self.threshold.is_some_and(|threshold| behind > threshold)
            && barred.is_none_or(|until| Instant::now() >= until)
    }

    /// How many bytes of log are left to the stream.
    pub fn little(&self) -> u64 {
        LITTLE.max(self.threshold.unwrap_or_default() / 8)
    }

    /// The server would not do it.
    pub fn bar(&self) {
        self.bar_for(BARRED);
    }

    /// Nobody takes anything.
    pub fn pause(&self) {
        self.bar_for(PAUSED);
    }

    fn bar_for(&self, time: Duration) {
        let mut barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        *barred = (*barred).max(Some(Instant::now() + time));
    }
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
    fn a_backlog_is_what_is_above_the_threshold_until_the_server_refuses() {
        assert!(!CatchUp::default().is_for(u64::MAX), "never");
        let (catch_up, other) = (CatchUp::above(1 << 20), CatchUp::above(1 << 20));
        let clone = catch_up.clone();
        assert!(catch_up.is_for((1 << 20) + 1) && !catch_up.is_for(1 << 20));
        catch_up.bar();
        assert!(!clone.is_for(u64::MAX), "of all clones");
        assert!(other.is_for(u64::MAX));
        assert_eq!((catch_up.little(), CatchUp::above(1024).little()), (1 << 17, LITTLE));
    }

    #[test]
    fn how_to_connect_shows_no_secret_in_debug() {
        let source = ConnInfoSource::new(|| Err("s3cret".to_owned()));
        assert!(!format!("{source:?}").contains("s3cret"));
        assert_eq!(source.resolve().err(), Some(SourceError::Access("s3cret".to_owned())));
    }
}
