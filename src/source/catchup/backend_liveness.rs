//! A connection whose server process may be at work for long before anything comes.
//!
//! To decode a batch, or to move the slot, takes the server minutes where there is much log to
//! read. A connection whose other end has gone without a word looks the same from here; another
//! connection to the same server tells whether there is anything to wait for.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::source::connection::connect::{Control, SqlClient};
use crate::source::error::SourceError;

/// Whether a server process does anything but wait for its client.
const AT_WORK: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
                                WHERE pid = $1 AND wait_event_type IS DISTINCT FROM 'Client')";

/// A connection beside the first one.
pub(crate) struct AuxConnection {
    pub(crate) control: Control,
    pub(crate) peer: Backend,
}

/// Who is waited for.
#[derive(Clone)]
pub(crate) struct Backend {
    pub(crate) client: Arc<SqlClient>,
    /// The server process of `client`.
    pub(crate) pid: i32,
    /// Whom to ask for it.
    asked: Arc<SqlClient>,
    /// For how long nothing may come though it does nothing else.
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

    /// What comes, which `client` was asked for; an error where nothing will.
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
