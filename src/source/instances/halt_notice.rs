//! How an instance that halts keeps a standby instance from continuing in its place.
//!
//! Exit code 3 means that the slot, the publication or the server has changed. A standby instance
//! cannot see everything that the active one saw, for example that another client advanced the
//! slot. So the active instance takes an advisory lock ([`LockClass::Halt`]) before it releases the
//! slot. A standby instance checks for that lock in each attempt, and also exits with code 3.
//!
//! How long a check takes depends on the network. So each instance holds another lock
//! ([`LockClass::HaltCheck`]) from before its check until its next check is complete. The halting
//! instance waits until all sessions have ended that held this lock when the announcement began:
//! each of these instances has checked since, or has ended.
//!
//! Any role that may connect can hold either lock exclusively, so that no walpost gets it. An
//! instance that does not get the first one announces the halt in its session's `application_name`,
//! which no other role can prevent. While another role holds the second one, checking instances are
//! invisible, and the halting instance does not wait for them.

use std::time::Duration;

use postgres_protocol::escape::escape_literal;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::source::config::APPLICATION_NAME;
use crate::source::error::SourceError;
use crate::source::instances::advisory_lock::{self, LockClass, end_session, try_lock_shared};
use crate::source::slot_error::SlotError;

/// The prefix of the `application_name` of an instance that does not get the lock; the hash of the
/// slot's name follows.
pub(in crate::source) const NAME: &str = "walpost halted ";

/// The minimum and maximum time to hold the lock: a suspended instance is not waited for.
const ANNOUNCED_AT_LEAST: Duration = Duration::from_secs(4);
const ANNOUNCED_AT_MOST: Duration = Duration::from_secs(60);

/// How long the server may take to count the standby instances.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How often to read the checking sessions.
const INTERVAL: Duration = Duration::from_millis(250);

const ANNOUNCE_BY_NAME: &str = "
    SELECT pg_catalog.set_config('application_name'::pg_catalog.text,
                                 pg_catalog.concat($1, pg_catalog.hashtext($2)), false)";

/// The exclusive holder of the lock; a prepared transaction has no process.
const HOLDER: &str = "
    SELECT l.pid, a.usename::pg_catalog.text
      FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
     WHERE l.mode = 'ExclusiveLock' AND {lock}
     ORDER BY l.granted DESC, l.pid LIMIT 1";

/// The sessions that check whether an instance halts, except this one and those that halt too. Any
/// role can take such a lock, so only a walpost of the same role counts.
const CHECKING_SESSIONS: &str = "
    WITH held AS MATERIALIZED (
        SELECT l.pid, {check} AS checks, {halt} AS halts
          FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
         WHERE a.application_name = $2 AND a.usename = session_user
           AND l.pid <> pg_catalog.pg_backend_pid() AND l.granted)
    SELECT pid FROM held WHERE checks EXCEPT SELECT pid FROM held WHERE halts";

/// The statement that takes the lock of a session that checks whether another instance halts.
pub(in crate::source) fn lock_for_check(slot: &str) -> String {
    let slot = escape_literal(slot);
    let class = LockClass::HaltCheck.key();
    format!("SELECT pg_catalog.pg_try_advisory_lock_shared({class}, pg_catalog.hashtext({slot}))")
}

/// Releases the lock of the check: this instance is active from now on.
pub(in crate::source) async fn end_check(client: &Client, slot: &str) -> Result<(), SourceError> {
    let ended = advisory_lock::unlock_shared(client, LockClass::HaltCheck, slot).await;
    ended.map_err(|error| SourceError::query("releasing the lock of the halt check", &error))
}

/// Announces to standby instances that this one halts, until they have seen it, but for a minute at
/// most: the server may have stopped responding.
pub(in crate::source) async fn announce(client: &Client, slot: &str) {
    match timeout(ANNOUNCED_AT_MOST, announce_until_seen(client, slot)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot announce this halt to standby instances");
        }
        Err(_) => tracing::warn!(
            "a standby instance did not look in time, or PostgreSQL does not answer: it may not see \
             that this one halts"
        ),
    }
}

/// Takes the lock for the session of `client`; completes once all standby instances have seen it.
async fn announce_until_seen(client: &Client, slot: &str) -> Result<(), SourceError> {
    let failed = |error| SourceError::query("announcing that this instance halts", &error);
    // In share mode, because several instances may halt at once. An error counts as not getting the
    // lock: the server's lock table may be full.
    if !try_lock_shared(client, LockClass::Halt, slot).await.unwrap_or(false) {
        let name = [(&NAME as &(dyn ToSql + Sync), Type::TEXT), (&slot, Type::TEXT)];
        client.query_typed_one(ANNOUNCE_BY_NAME, &name).await.map_err(failed)?;
        let query = HOLDER.replace("{lock}", &LockClass::Halt.condition("$1"));
        let holder = client.query_typed_opt(&query, &[(&slot, Type::TEXT)]).await;
        warn(slot, holder.map_err(failed)?.as_ref());
    }
    let since = Instant::now();
    let mut unaware = checking_sessions(client, slot).await?;
    while since.elapsed() < ANNOUNCED_AT_LEAST || !unaware.is_empty() {
        sleep(INTERVAL).await;
        let checking_sessions = checking_sessions(client, slot).await?;
        unaware.retain(|pid| checking_sessions.contains(pid));
    }
    Ok(())
}

fn warn(slot: &str, holder: Option<&Row>) {
    let pid: Option<i32> = holder.and_then(|row| row.try_get(0).ok());
    let role: Option<String> = holder.and_then(|row| row.try_get(1).ok());
    let remedy = match pid {
        Some(pid) => end_session(pid),
        None => "see pg_prepared_xacts and max_locks_per_transaction".to_owned(),
    };
    tracing::warn!(
        slot,
        pid,
        role,
        remedy,
        "another session holds the advisory lock by which this instance announces that it halts: \
         announcing it by the session's `application_name`"
    );
}

/// The server processes of the checking sessions.
async fn checking_sessions(client: &Client, slot: &str) -> Result<Vec<i32>, SourceError> {
    let failed = |error| SourceError::query("querying the standby sessions", &error);
    let query = CHECKING_SESSIONS
        .replace("{check}", &LockClass::HaltCheck.condition("$1"))
        .replace("{halt}", &LockClass::Halt.condition("$1"));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&slot, Type::TEXT), (&APPLICATION_NAME, Type::TEXT)];
    let rows = client.query_typed(&query, &parameters).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

/// How many instances stand by for the one of this session: a standby always holds the lock of the check,
/// and for a moment by two sessions, so the lower one of two readings counts.
pub(in crate::source) async fn standby_instances(
    client: &Client,
    slot: &str,
) -> Result<u64, SourceError> {
    let read = async {
        let before = checking_sessions(client, slot).await?.len();
        sleep(INTERVAL).await;
        Ok::<_, SourceError>(before.min(checking_sessions(client, slot).await?.len()))
    };
    match timeout(ANSWER_LIMIT, read).await {
        Ok(count) => Ok(count? as u64),
        Err(_) => Err(SourceError::Lost("PostgreSQL does not answer".to_owned())),
    }
}

/// The error of an instance that found the lock, held by server process `pid`.
pub(in crate::source) fn found(slot: &str, pid: i32) -> SourceError {
    SourceError::Slot(SlotError::OtherInstanceHalted { slot: slot.to_owned(), pid })
}
