//! A connection whose server process may work for long before it sends anything.
//!
//! To decode a batch, or to advance the slot, takes the server minutes if there is much WAL to
//! read. A dead connection looks the same from here; another connection to the same server shows
//! whether the server process is still working.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::source::connection::connect::{Control, SqlClient};
use crate::source::error::SourceError;

/// Whether a server process does anything else than wait for its client.
const AT_WORK: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
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
    /// The connection over which the server process is observed.
    asked: Arc<SqlClient>,
    /// How long the server process may be idle before an answer counts as lost.
    limit: Duration,
}

impl Backend {
    /// Over `client`, beside `asked`.
    pub(crate) async fn new(
        client: Arc<SqlClient>,
        asked: Arc<SqlClient>,
        limit: Duration,
    ) -> Result<Self, tokio_postgres::Error> {
        let row = client.query_typed_one("SELECT pg_catalog.pg_backend_pid()", &[]).await?;
        let pid = row.try_get(0)?;
        Ok(Self { client, pid, asked, limit })
    }

    /// The answer that `client` waits for; an error if none will follow.
    pub(crate) async fn awaited<F: Future>(&self, answer: F) -> Result<F::Output, SourceError> {
        let mut answer = pin!(answer);
        let mut at_work = Instant::now();
        loop {
            if let Ok(answer) = timeout(self.limit / 4, &mut answer).await {
                return Ok(answer);
            }
            if self.is_at_work().await? {
                at_work = Instant::now();
            } else if at_work.elapsed() >= self.limit {
                let (pid, limit) = (self.pid, self.limit);
                return Err(SourceError::Lost(format!(
                    "nothing came from server process {pid} for {limit:?}, and it is not at work"
                )));
            }
        }
    }

    async fn is_at_work(&self) -> Result<bool, SourceError> {
        let failed = |error| SourceError::query("asking what a server process does", &error);
        let row = self.asked.query_one(AT_WORK, &[&self.pid]).await.map_err(failed)?;
        row.try_get(0).map_err(failed)
    }
}
