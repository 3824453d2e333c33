//! Finds out who advanced a slot that is ahead of what this instance confirmed.
//!
//! An instance that was suspended may find such a slot without an active client in two cases.
//! Either an operator or another program advanced it, and what was committed in between is lost. Or
//! another walpost took over and is between two sessions, because it replaces its producer or
//! reconnects. That walpost returns within seconds and finds the slot's advisory lock held by this
//! instance. It then takes the lock of [`LockClass::Delivered`], which means that everything up to
//! the slot's position is delivered.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::lsn::Lsn;
use crate::source::catalog::CatalogState;
use crate::source::config::{APPLICATION_NAME, SourceConfig};
use crate::source::connection::connect::SqlClient;
use crate::source::error::{Holder, SourceError};
use crate::source::identity::resume::Resume;
use crate::source::instances::advisory_lock::{LockClass, try_lock_shared};
use crate::source::instances::slot_lock::{Lock, LockHolder, in_use, lock};
use crate::source::open::session_setup::{advanced_error, is_advanced_by_unknown};

/// How long another instance may be between two sessions: the longest reconnect delay, and some
/// seconds to connect.
const RECONNECT_LIMIT: Duration = Duration::from_secs(12);

/// How often the locks are read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Any role can take such a lock, so only a walpost of the same role counts.
const DELIVERED_WALPOST: &str = "
    SELECT l.pid FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
     WHERE a.application_name = $2 AND a.usename = session_user AND l.granted AND {lock}
     LIMIT 1";

/// Checks that no other instance uses the slot, given the slot's `facts` and the holder of its
/// advisory lock. Returns the facts to check next, and whether this instance holds the lock. `own`
/// is the server process of this walpost's last session; `seen` is what the catalogs showed of the
/// slot's holder, for the error.
pub(in crate::source) async fn check_other_instances(
    client: &Arc<SqlClient>,
    config: &SourceConfig,
    resume: &Resume,
    (facts, holder): (CatalogState, Option<LockHolder>),
    own: Option<i32>,
    seen: Holder,
) -> Result<(CatalogState, bool), SourceError> {
    let slot = &config.slot;
    if config.temporary_slot || facts.halted_by.is_some() || facts.require_slot(slot).is_err() {
        return Ok((facts, false));
    }
    // A holder that cannot be a walpost is ignored.
    if let Some(holder) = holder.filter(|holder| holder.may_be_walpost) {
        announce_delivered(client, slot, resume, seen.confirmed).await?;
        config.open_state.keep_standby_session(client);
        return Err(in_use(slot, Some(holder), own, seen));
    }
    if !is_advanced_by_unknown(&facts, resume) {
        return Ok((facts, false));
    }
    // No other instance may start before this one has announced what it found.
    let locked = lock(client, config, own, seen.clone()).await;
    if let Err(SourceError::InUse { .. }) = &locked {
        config.open_state.keep_standby_session(client);
    }
    let is_locked = locked? == Lock::Held;
    let Some(accounted) = resume.accounted() else { return Ok((facts, is_locked)) };
    // A stop in the meantime must not leave the slot to an instance that is unaware of this.
    let error = advanced_error(slot, resume, accounted, seen.confirmed);
    config.open_state.begin_advanced_slot(client, error);
    let facts = await_delivered_walpost(client, slot, resume, (accounted, seen)).await;
    config.open_state.end_advanced_slot();
    Ok((facts?, is_locked))
}

/// If this instance has delivered everything before `confirmed`, the slot's position, takes the
/// lock that announces it, for the session of `client`.
async fn announce_delivered(
    client: &Client,
    slot: &str,
    resume: &Resume,
    confirmed: Lsn,
) -> Result<(), SourceError> {
    match resume {
        Resume::At { confirmed: ours, .. } if confirmed <= *ours => {}
        Resume::At { .. } | Resume::AtSlot { .. } => return Ok(()),
    }
    let locked = try_lock_shared(client, LockClass::Delivered, slot).await;
    locked
        .map(drop)
        .map_err(|error| SourceError::query("announcing that everything is delivered", &error))
}

/// Waits until another instance announces that it has delivered everything, until one holds the
/// slot, or until none can be expected any more; returns the facts as of then. This instance holds
/// the slot's advisory lock, unless no walpost can.
async fn await_delivered_walpost(
    client: &Client,
    slot: &str,
    resume: &Resume,
    (accounted, seen): (Lsn, Holder),
) -> Result<CatalogState, SourceError> {
    let until = Instant::now() + RECONNECT_LIMIT;
    let mut is_logged = false;
    loop {
        let facts = CatalogState::read(client, slot).await?;
        if !is_advanced_by_unknown(&facts, resume) || facts.halted_by.is_some() {
            return Ok(facts);
        }
        if let Some(pid) = delivered_walpost(client, slot).await? {
            return Err(in_use(slot, Some(LockHolder::delivered_walpost(pid)), None, seen));
        }
        if Instant::now() >= until {
            return Ok(facts);
        }
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(
                slot,
                confirmed = %accounted,
                confirmed_flush_lsn = %seen.confirmed,
                "another client advanced the slot; waiting to see whether it is a walpost"
            );
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn delivered_walpost(client: &Client, slot: &str) -> Result<Option<i32>, SourceError> {
    let failed = |error| SourceError::query("querying which instance delivered everything", &error);
    let query = DELIVERED_WALPOST.replace("{lock}", &LockClass::Delivered.condition("$1"));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&slot, Type::TEXT), (&APPLICATION_NAME, Type::TEXT)];
    let row = client.query_typed_opt(&query, &parameters).await.map_err(failed)?;
    row.map(|row| row.try_get(0)).transpose().map_err(failed)
}
