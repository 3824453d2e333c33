//! How an instance that halts for a person to decide keeps a standby instance from continuing.
//!
//! Exit code 3 means that the slot, the publication or the server is not what it was. An instance
//! that waits for the slot cannot see all that the active one saw: that somebody moved the slot, for
//! example. So the active one holds an advisory lock before it lets go of the slot. A standby
//! instance looks again and again, finds that lock, and ends with code 3 too.
//!
//! How long a look takes depends on the way to the server. So each instance holds another lock from
//! before it looks until the next look of its has been made, and who halts waits until all
//! sessions are gone that had that lock when it began to say so: each of these instances has looked
//! since, or has gone.
//!
//! Every role that may connect can hold either lock so that nobody else gets it. An instance that
//! does not get the first one says by its session's name that it halts, which no other role can
//! keep it from. While somebody has the other one, who looks cannot be seen and is not waited for.

use std::time::Duration;

use postgres_protocol::escape::escape_literal;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::advisory_lock::{self, LockClass, end_session, try_lock_shared};
use super::config::APPLICATION_NAME;
use super::error::SourceError;
use super::slot_error::SlotError;

/// What the session's name begins with that cannot have the lock; the hash of the slot's name
/// follows.
pub(super) const NAME: &str = "walpost halted ";

/// For how long it is held at least, and at most: an instance that is frozen is not waited for.
const ANNOUNCED_FOR: Duration = Duration::from_secs(4);
const ANNOUNCED_FOR_AT_MOST: Duration = Duration::from_secs(60);

/// How often is seen who has looked.
const INTERVAL: Duration = Duration::from_millis(250);

const ANNOUNCE_BY_NAME: &str = "
    SELECT pg_catalog.set_config('application_name'::pg_catalog.text,
                                 pg_catalog.concat($1, pg_catalog.hashtext($2)), false)";

/// Who keeps others from a lock; of a prepared transaction there is no process.
const HOLDER: &str = "
    SELECT l.pid, a.usename::pg_catalog.text
      FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
     WHERE l.mode = 'ExclusiveLock' AND {lock}
     ORDER BY l.granted DESC, l.pid LIMIT 1";

/// The sessions that look, but for this one and for those that halt as well. Anybody may take such a
/// lock: only a walpost of the same role counts.
const LOOKING: &str = "
    WITH held AS MATERIALIZED (
        SELECT l.pid, {check} AS checks, {halt} AS halts
          FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
         WHERE a.application_name = $2 AND a.usename = session_user
           AND l.pid <> pg_catalog.pg_backend_pid() AND l.granted)
    SELECT pid FROM held WHERE checks EXCEPT SELECT pid FROM held WHERE halts";

/// The statement by which a session says that it looks whether another one halts.
pub(super) fn looks(slot: &str) -> String {
    let slot = escape_literal(slot);
    let class = LockClass::HaltCheck.key();
    format!("SELECT pg_catalog.pg_try_advisory_lock_shared({class}, pg_catalog.hashtext({slot}))")
}

/// It looks no more: it works.
pub(super) async fn looks_no_more(client: &Client, slot: &str) -> Result<(), SourceError> {
    let ended = advisory_lock::unlock_shared(client, LockClass::HaltCheck, slot).await;
    ended.map_err(|error| SourceError::query("beginning to work", &error))
}

/// Lets the instances that wait for the slot see that this one halts, for as long as they need to
/// see it, and no longer than a minute: the server may say nothing more.
pub(super) async fn announce(client: &Client, slot: &str) {
    match timeout(ANNOUNCED_FOR_AT_MOST, hold(client, slot)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot announce this halt to standby instances");
        }
        Err(_) => tracing::warn!(
            "a standby instance did not look in time, or PostgreSQL says nothing: it may not see \
             that this one halts"
        ),
    }
}

/// Holds the lock as long as `client`'s session lasts; completes once all who wait have seen it.
async fn hold(client: &Client, slot: &str) -> Result<(), SourceError> {
    let failed = |error| SourceError::query("announcing that this instance halts", &error);
    // Several may halt at once. The server may have no room for another lock either.
    if !try_lock_shared(client, LockClass::Halt, slot).await.unwrap_or(false) {
        let name = [(&NAME as &(dyn ToSql + Sync), Type::TEXT), (&slot, Type::TEXT)];
        client.query_typed_one(ANNOUNCE_BY_NAME, &name).await.map_err(failed)?;
        let query = HOLDER.replace("{lock}", &LockClass::Halt.condition("$1"));
        let holder = client.query_typed_opt(&query, &[(&slot, Type::TEXT)]).await;
        warn(slot, holder.map_err(failed)?.as_ref());
    }
    let since = Instant::now();
    let mut unaware = looking(client, slot).await?;
    while since.elapsed() < ANNOUNCED_FOR || !unaware.is_empty() {
        sleep(INTERVAL).await;
        let looking = looking(client, slot).await?;
        unaware.retain(|pid| looking.contains(pid));
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
         announcing it by the session's application_name"
    );
}

/// The server processes of the sessions that look.
async fn looking(client: &Client, slot: &str) -> Result<Vec<i32>, SourceError> {
    let failed = |error| SourceError::query("asking who waits for the slot", &error);
    let query = LOOKING
        .replace("{check}", &LockClass::HaltCheck.condition("$1"))
        .replace("{halt}", &LockClass::Halt.condition("$1"));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&slot, Type::TEXT), (&APPLICATION_NAME, Type::TEXT)];
    let rows = client.query_typed(&query, &parameters).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

/// What an instance ends with that found the lock, held by server process `pid`.
pub(super) fn found(slot: &str, pid: i32) -> SourceError {
    SourceError::Slot(SlotError::OtherInstanceHalted { slot: slot.to_owned(), pid })
}
