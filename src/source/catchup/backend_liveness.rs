//! A connection whose server process may work for minutes before it sends anything.
//!
//! If there is much WAL to read, the server takes minutes to decode a batch or to advance the slot.
//! A dead connection looks the same to the client. Another connection to the same server shows
//! whether the server process is still working.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::source::connection::connect::{Control, SqlClient};
use crate::source::error::SourceError;

/// Whether a server process does anything but wait for its client.
const IS_BUSY: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
                                WHERE pid = $1 AND wait_event_type IS DISTINCT FROM 'Client')";

/// A connection in addition to the control connection.
pub(crate) struct AuxConnection {
    pub(crate) control: Control,
    pub(crate) peer: Backend,
}

/// A connection and its server process.
#[derive(Clone)]
pub(crate) struct Backend {
    pub(crate) client: Arc<SqlClient>,
    /// The server process of `client`.
    pub(crate) pid: i32,
    /// The connection that queries the state of the server process.
    observer: Arc<SqlClient>,
    /// How long the server process may be idle before an answer counts as lost.
    idle_limit: Duration,
}

impl Backend {
    /// The server process of `client`, which `observer` watches.
    pub(crate) async fn new(
        client: Arc<SqlClient>,
        observer: Arc<SqlClient>,
        idle_limit: Duration,
    ) -> Result<Self, tokio_postgres::Error> {
        let row = client.query_typed_one("SELECT pg_catalog.pg_backend_pid()", &[]).await?;
        let pid = row.try_get(0)?;
        Ok(Self { client, pid, observer, idle_limit })
    }

    /// Waits for an answer on `client`; fails if none will follow.
    pub(crate) async fn awaited<F: Future>(&self, answer: F) -> Result<F::Output, SourceError> {
        let mut answer = pin!(answer);
        let mut last_busy = Instant::now();
        loop {
            if let Ok(answer) = timeout(self.idle_limit / 4, &mut answer).await {
                return Ok(answer);
            }
            if self.is_busy().await? {
                last_busy = Instant::now();
            } else if last_busy.elapsed() >= self.idle_limit {
                let (pid, limit) = (self.pid, self.idle_limit);
                return Err(SourceError::Lost(format!(
                    "server process {pid} is idle and has sent nothing for {limit:?}"
                )));
            }
        }
    }

    async fn is_busy(&self) -> Result<bool, SourceError> {
        let failed = |error| SourceError::query("querying the state of a server process", &error);
        let row = self.observer.query_one(IS_BUSY, &[&self.pid]).await.map_err(failed)?;
        row.try_get(0).map_err(failed)
    }
}
