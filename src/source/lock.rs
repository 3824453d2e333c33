//! Who may use a slot that nobody streams from: an advisory lock of its name.
//!
//! The server lets only one session stream from a slot. Who reads a backlog in batches does
//! not stream; so it holds this lock for as long, and whoever is to stream takes it until
//! the slot is his. Between the two there is no moment at which both could begin.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::config::APPLICATION_NAME;
use super::error::{Holder, SourceError};

/// The first half of the lock's key, of all that walpost locks: `walp`. The second is of the
/// slot; two slots may share one, and then wait for each other.
const CLASS: i32 = 0x7761_6c70;

const LOCK: &str = "SELECT pg_catalog.pg_try_advisory_lock($1, pg_catalog.hashtext($2))";
const UNLOCK: &str = "SELECT pg_catalog.pg_advisory_unlock($1, pg_catalog.hashtext($2))";

/// A session whose client is gone keeps the lock until the server notices. Not for a connection
/// whose answers are large: the timeout counts a client that does not read as gone (Linux,
/// tcp(7), `TCP_USER_TIMEOUT`: data that remains unacknowledged *or unsent*).
pub(super) const NOTICED_SOON: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
                            SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";

/// Nor does the server see one behind something that holds the connection for it; so it ends
/// a session that says nothing for so long, and the client speaks in time.
const SPEAKS: &str = "SET idle_session_timeout = '60s'";
const SPEAKS_EVERY: Duration = Duration::from_secs(15);

const HOLDER: &str = "
    SELECT l.pid, coalesce(a.application_name = $3, false)
      FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
     WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
       AND l.classid::pg_catalog.int8 = $1::pg_catalog.int4::pg_catalog.int8
       AND l.objid::pg_catalog.int8 = pg_catalog.hashtext($2)::pg_catalog.int8 & 4294967295
       AND l.database = (SELECT oid FROM pg_catalog.pg_database
                          WHERE datname = pg_catalog.current_database())";

fn failed(error: &tokio_postgres::Error) -> SourceError {
    SourceError::query("locking the slot's name", error)
}

/// Who has locked the slot's name.
pub(super) struct LockHolder {
    pub(super) pid: i32,
    /// By the name that its client gave itself.
    pub(super) is_walpost: bool,
}

/// Who has locked the slot's name, if anybody has.
pub(super) async fn holder(client: &Client, slot: &str) -> Result<Option<LockHolder>, SourceError> {
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&CLASS, Type::INT4), (&slot, Type::TEXT), (&APPLICATION_NAME, Type::TEXT)];
    let row = client.query_typed_opt(HOLDER, &parameters).await;
    let row = row.map_err(|error| failed(&error))?;
    let holder = |row: tokio_postgres::Row| {
        Ok::<_, tokio_postgres::Error>(LockHolder {
            pid: row.try_get(0)?,
            is_walpost: row.try_get(1)?,
        })
    };
    row.map(holder).transpose().map_err(|error| failed(&error))
}

/// Locks the slot's name until this session ends or [`unlock`]; an error where another
/// session has it. `own`: the server process that was this walpost's last. `seen`: all but who
/// that other one is.
pub(super) async fn lock(
    client: &Client,
    slot: &str,
    own: Option<i32>,
    seen: Holder,
) -> Result<(), SourceError> {
    let key: [(&(dyn ToSql + Sync), Type); 2] = [(&CLASS, Type::INT4), (&slot, Type::TEXT)];
    let (noticed, row) = tokio::join!(
        biased;
        client.batch_execute(NOTICED_SOON),
        client.query_typed_one(LOCK, &key)
    );
    noticed.map_err(|error| failed(&error))?;
    if row.and_then(|row| row.try_get(0)).map_err(|error| failed(&error))? {
        return Ok(());
    }
    Err(in_use(slot, holder(client, slot).await?, own, seen))
}

/// The slot is in use by who has locked its name.
pub(super) fn in_use(
    slot: &str,
    holder: Option<LockHolder>,
    own: Option<i32>,
    seen: Holder,
) -> SourceError {
    let pid = holder.as_ref().map(|holder| holder.pid);
    // This process's own last session may take a while to end.
    let is_walpost = holder.is_some_and(|holder| holder.is_walpost && Some(holder.pid) != own);
    let holder = Some(Box::new(Holder { is_walpost, ..seen }));
    SourceError::InUse { slot: slot.to_owned(), pid, holder }
}

/// Keeps the lock for longer than a moment: for as long as the task that it gives runs, and the
/// server sees its client.
pub(super) async fn keep(client: Arc<Client>) -> Result<JoinHandle<()>, SourceError> {
    client.batch_execute(SPEAKS).await.map_err(|error| failed(&error))?;
    Ok(tokio::spawn(async move {
        while client.simple_query("").await.is_ok() {
            sleep(SPEAKS_EVERY).await;
        }
    }))
}

/// Lets go of it: the server itself keeps others from the slot now.
pub(super) async fn unlock(client: &Client, slot: &str) -> Result<(), SourceError> {
    let key: [(&(dyn ToSql + Sync), Type); 2] = [(&CLASS, Type::INT4), (&slot, Type::TEXT)];
    client.query_typed_one(UNLOCK, &key).await.map(drop).map_err(|error| failed(&error))
}
