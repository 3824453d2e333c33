//! Who may use a slot that nobody streams from: an advisory lock of its name.
//!
//! The server lets only one session stream from a slot. Who reads a backlog in batches does
//! not stream; so it holds this lock for as long, and whoever is to stream takes it until
//! the slot is his. Between the two there is no moment at which both could begin.
//!
//! Every role that may connect can take such a lock. So one that no walpost can hold is waited for
//! by nobody: a stream begins without it, which the server keeps others from, and looks again once
//! it has the slot; a backlog is not read in batches meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::advisory_lock::{self, LockClass, end_session};
use super::config::{APPLICATION_NAME, SourceConfig};
use super::connection::connect::SqlClient;
use super::error::{Holder, HolderKind, SourceError};

/// A session whose client is gone keeps the lock until the server notices. Not for a connection
/// whose answers are large: the timeout counts a client that does not read as gone (Linux,
/// tcp(7), `TCP_USER_TIMEOUT`: data that remains unacknowledged *or unsent*).
pub(super) const NOTICED_SOON: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
                            SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";

/// Nor does the server see one behind something that holds the connection for it; so it ends
/// a session that says nothing for so long, and the client speaks in time.
const SPEAKS: &str = "SET idle_session_timeout = '60s'";
const SPEAKS_EVERY: Duration = Duration::from_secs(15);

/// Whoever may replicate could be a walpost, or use the slot without one; whatever it calls itself.
/// walpost takes the lock exclusively, in a session. One that has ended since it was seen in the
/// first view counts.
const HOLDERS: &str = "
    SELECT l.pid, coalesce(a.application_name = $2, false), a.usename::pg_catalog.text,
           coalesce(l.mode = 'ExclusiveLock' AND l.pid IS NOT NULL
             AND (a.pid IS NULL OR a.usename = session_user OR r.rolsuper OR r.rolreplication
                  OR EXISTS (SELECT FROM pg_catalog.pg_roles g
                              WHERE g.rolname = 'rds_replication'
                                AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER'))), false),
           coalesce(a.usename <> session_user, false)
      FROM pg_catalog.pg_locks l
      LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
      LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.usesysid
     WHERE l.granted AND {lock}
     ORDER BY 4 DESC, l.pid LIMIT 1";

fn failed(error: &tokio_postgres::Error) -> SourceError {
    SourceError::query("locking the slot's name", error)
}

/// Who has locked the slot's name.
pub(super) struct LockHolder {
    /// None of a prepared transaction.
    pid: Option<i32>,
    kind: HolderKind,
    role: Option<String>,
    /// That role is not this session's own.
    is_of_other_role: bool,
    /// It could be a walpost, by its role and its lock.
    pub(super) counts: bool,
}

impl LockHolder {
    /// A walpost that vouches for the slot's position, by its server process.
    pub(super) fn delivered_walpost(pid: i32) -> Self {
        Self {
            pid: Some(pid),
            kind: HolderKind::WalpostDelivered,
            role: None,
            is_of_other_role: false,
            counts: true,
        }
    }
}

/// Who has locked the slot's name, if anybody has; one that counts first.
pub(super) async fn holder(client: &Client, slot: &str) -> Result<Option<LockHolder>, SourceError> {
    let query = HOLDERS.replace("{lock}", &LockClass::Slot.condition("$1"));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&slot, Type::TEXT), (&APPLICATION_NAME, Type::TEXT)];
    let row = client.query_typed_opt(&query, &parameters).await;
    let row = row.map_err(|error| failed(&error))?;
    let holder = |row: tokio_postgres::Row| {
        Ok::<_, tokio_postgres::Error>(LockHolder {
            pid: row.try_get(0)?,
            kind: if row.try_get(1)? { HolderKind::Walpost } else { HolderKind::Unknown },
            role: row.try_get(2)?,
            counts: row.try_get(3)?,
            is_of_other_role: row.try_get(4)?,
        })
    };
    row.map(holder).transpose().map_err(|error| failed(&error))
}

/// What came of locking the slot's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// This session has the lock.
    Held,
    /// It does not, and nor can a walpost: somebody else has it.
    Blocked,
}

/// Locks the slot's name until this session ends or [`unlock`]; an error where a session has it
/// that could be another walpost's. `own`: the server process that was this walpost's last. `seen`:
/// all but who that other one is.
pub(super) async fn lock(
    client: &Client,
    config: &SourceConfig,
    own: Option<i32>,
    seen: Holder,
) -> Result<Lock, SourceError> {
    let slot = config.slot.as_str();
    let locked = advisory_lock::try_lock(client, LockClass::Slot, slot).await;
    if locked.map_err(|error| failed(&error))? {
        config.catch_up.blocked_by(None);
        return Ok(Lock::Held);
    }
    match holder(client, slot).await? {
        Some(holder) if !holder.counts => {
            warn(config, &holder);
            Ok(Lock::Blocked)
        }
        holder => Err(in_use(slot, holder, own, seen)),
    }
}

/// After a stream has begun without the lock: an error where another walpost came to have it
/// before.
pub(super) async fn require_no_other(
    client: &Client,
    slot: &str,
    own: Option<i32>,
    seen: Holder,
) -> Result<(), SourceError> {
    match holder(client, slot).await? {
        Some(holder) if holder.counts => Err(in_use(slot, Some(holder), own, seen)),
        _ => Ok(()),
    }
}

/// The slot is in use by who has locked its name.
pub(super) fn in_use(
    slot: &str,
    holder: Option<LockHolder>,
    own: Option<i32>,
    seen: Holder,
) -> SourceError {
    let pid = holder.as_ref().and_then(|holder| holder.pid);
    let is_walpost = |kind| matches!(kind, HolderKind::Walpost | HolderKind::WalpostDelivered);
    let other_role =
        holder.as_ref().filter(|holder| is_walpost(holder.kind) && holder.is_of_other_role);
    let other_role = other_role.and_then(|holder| holder.role.clone()).or(seen.other_role.clone());
    let kind = match holder {
        // Whoever has the slot itself can move it.
        _ if seen.kind == HolderKind::Other => HolderKind::Other,
        // This process's own last session may take a while to end.
        Some(holder) if holder.pid != own => holder.kind,
        _ => HolderKind::Unknown,
    };
    let holder = Some(Box::new(Holder { kind, other_role, ..seen }));
    SourceError::InUse { slot: slot.to_owned(), pid, holder }
}

/// Once for each holder.
fn warn(config: &SourceConfig, holder: &LockHolder) {
    let LockHolder { pid, role, .. } = holder;
    let remedy = match pid {
        Some(pid) => end_session(*pid),
        None => "end the prepared transaction: ROLLBACK PREPARED with its gid out of \
                 pg_prepared_xacts"
            .to_owned(),
    };
    if config.catch_up.blocked_by(Some(pid.unwrap_or_default())) {
        tracing::warn!(
            slot = %config.slot,
            pid,
            role,
            remedy,
            "another role holds the advisory lock on the slot's name: streaming without it; a \
             backlog is not read in batches until it is released"
        );
    }
}

/// Keeps the lock for longer than a moment: for as long as the task that it gives runs, and the
/// server sees its client.
pub(super) async fn keep(client: Arc<SqlClient>) -> Result<JoinHandle<()>, SourceError> {
    client.batch_execute(SPEAKS).await.map_err(|error| failed(&error))?;
    Ok(tokio::spawn(async move {
        while client.simple_query("").await.is_ok() {
            sleep(SPEAKS_EVERY).await;
        }
    }))
}

/// Lets go of it: the server itself keeps others from the slot now.
pub(super) async fn unlock(client: &Client, slot: &str) -> Result<(), SourceError> {
    let unlocked = advisory_lock::unlock(client, LockClass::Slot, slot).await;
    unlocked.map_err(|error| failed(&error))
}
