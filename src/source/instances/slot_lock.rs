//! The advisory lock on a slot's name: which instance may use a slot that has no walsender.
//!
//! PostgreSQL lets only one session stream from a slot. A catch-up does not stream, so it holds
//! this lock while it runs. A session that is about to stream holds the lock until its walsender
//! has the slot. So at no moment can two instances start.
//!
//! Any role that may connect can take such a lock. A holder that cannot be a walpost is not waited
//! for: a stream starts without the lock, because PostgreSQL protects the slot, and checks the lock
//! again once it has the slot. A catch-up does not start meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::source::config::{APPLICATION_NAME, SourceConfig};
use crate::source::connection::connect::SqlClient;
use crate::source::error::{Holder, HolderKind, SourceError};
use crate::source::instances::advisory_lock::{self, LockClass, end_session};

/// Makes the server detect a dead client soon: until then its session keeps the lock. Not for a
/// connection with large results: the timeout treats a client that does not read as dead (Linux,
/// tcp(7), `TCP_USER_TIMEOUT`: data that remains unacknowledged *or unsent*).
pub(in crate::source) const DEAD_CLIENT_SETTINGS: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
                            SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";

/// The server does not detect a dead client behind a proxy that keeps the connection open. So it
/// ends a session that is idle this long, and the client sends an empty query in time.
const IDLE_SESSION_SETTING: &str = "SET idle_session_timeout = '60s'";
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A holder may be a walpost if its role may replicate, whatever its `application_name`: such a
/// role can use the slot anyway. walpost takes the lock exclusively, in a session. A holder that
/// has ended between the reads of the two views counts as a walpost.
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

/// Takes the lock for the session of `client`; false if another session holds it.
pub(crate) async fn try_lock_slot(client: &Client, slot: &str) -> Result<bool, SourceError> {
    let locked = advisory_lock::try_lock(client, LockClass::Slot, slot).await;
    locked.map_err(|error| failed(&error))
}

/// The session, or the prepared transaction, that holds the lock.
pub(in crate::source) struct LockHolder {
    /// `None` for a prepared transaction.
    pid: Option<i32>,
    kind: HolderKind,
    role: Option<String>,
    /// Whether that role differs from this session's.
    is_of_other_role: bool,
    /// Whether it may be a walpost, by its role and its lock.
    pub(in crate::source) may_be_walpost: bool,
}

impl LockHolder {
    /// The walpost with this server process, which has delivered everything up to the slot's
    /// position.
    pub(in crate::source) fn delivered_walpost(pid: i32) -> Self {
        Self {
            pid: Some(pid),
            kind: HolderKind::WalpostDelivered,
            role: None,
            is_of_other_role: false,
            may_be_walpost: true,
        }
    }
}

/// The holder of the lock, if any; a holder that may be a walpost takes precedence.
pub(in crate::source) async fn holder(
    client: &Client,
    slot: &str,
) -> Result<Option<LockHolder>, SourceError> {
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
            may_be_walpost: row.try_get(3)?,
            is_of_other_role: row.try_get(4)?,
        })
    };
    row.map(holder).transpose().map_err(|error| failed(&error))
}

/// The result of an attempt to take the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) enum Lock {
    /// This session has the lock.
    Held,
    /// Neither this session nor another walpost can get it: another client holds it.
    Blocked,
}

/// Takes the lock until this session ends or calls [`unlock`]; fails if a session holds it that may
/// be another walpost's. `own` is the server process of this walpost's last session; `seen` is what
/// the catalogs showed of the slot's holder; the error combines it with the lock's holder.
pub(in crate::source) async fn lock(
    client: &Client,
    config: &SourceConfig,
    own: Option<i32>,
    seen: Holder,
) -> Result<Lock, SourceError> {
    let slot = config.slot.as_str();
    if try_lock_slot(client, slot).await? {
        config.catch_up.blocked_by(None);
        return Ok(Lock::Held);
    }
    match holder(client, slot).await? {
        Some(holder) if !holder.may_be_walpost => {
            warn(config, &holder);
            Ok(Lock::Blocked)
        }
        holder => Err(in_use(slot, holder, own, seen)),
    }
}

/// Checks a stream that has started without the lock: an error if another walpost took the lock
/// before.
pub(in crate::source) async fn require_no_other_holder(
    client: &Client,
    slot: &str,
    own: Option<i32>,
    seen: Holder,
) -> Result<(), SourceError> {
    match holder(client, slot).await? {
        Some(holder) if holder.may_be_walpost => Err(in_use(slot, Some(holder), own, seen)),
        _ => Ok(()),
    }
}

/// The error that the slot is in use by the holder of its lock.
pub(in crate::source) fn in_use(
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
        // A client that holds the slot itself can advance it.
        _ if seen.kind == HolderKind::Other => HolderKind::Other,
        // This process's own last session may take a while to end.
        Some(holder) if holder.pid != own => holder.kind,
        _ => HolderKind::Unknown,
    };
    let holder = Some(Box::new(Holder { kind, other_role, ..seen }));
    SourceError::InUse { slot: slot.to_owned(), pid, holder }
}

/// Logs each holder once.
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

/// Keeps the session open, and with it the lock, while the returned task runs.
pub(in crate::source) async fn keep_alive(
    client: Arc<SqlClient>,
) -> Result<JoinHandle<()>, SourceError> {
    client.batch_execute(IDLE_SESSION_SETTING).await.map_err(|error| failed(&error))?;
    Ok(tokio::spawn(async move {
        while client.simple_query("").await.is_ok() {
            sleep(KEEPALIVE_INTERVAL).await;
        }
    }))
}

/// Releases the lock: the walsender has the slot now, or the session failed.
pub(in crate::source) async fn unlock(client: &Client, slot: &str) -> Result<(), SourceError> {
    let unlocked = advisory_lock::unlock(client, LockClass::Slot, slot).await;
    unlocked.map_err(|error| failed(&error))
}
