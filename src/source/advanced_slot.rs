//! Who has advanced a slot that stands beyond what this instance confirmed.
//!
//! An instance that was frozen finds such a slot, and nobody who uses it, in two cases. A person
//! advanced it, and what was committed in between is lost. Or another instance took over, and is
//! just between two sessions: it replaces its producer, or connects again. That one comes back
//! within seconds, finds the slot's name locked by the first one, and vouches: it holds an
//! advisory lock that says that all up to the slot's position is delivered.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::advisory_lock::{LockClass, try_lock_shared};
use super::catalog::Facts;
use super::config::{APPLICATION_NAME, SourceConfig};
use super::connection::connect::SqlClient;
use super::error::{Holder, SourceError};
use super::resume::Resume;
use super::session_setup::{is_moved_unseen, moved};
use super::slot_lock::{Lock, LockHolder, in_use, lock};
use crate::lsn::Lsn;

/// How long another instance may be between two sessions: the longest delay before the next one, and
/// some seconds to connect.
const LONGEST_GAP: Duration = Duration::from_secs(12);

/// How often is looked whether somebody vouches.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Anybody may take such a lock: only a walpost of the same role counts.
const VOUCHER: &str = "
    SELECT l.pid FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
     WHERE a.application_name = $2 AND a.usename = session_user AND l.granted AND {lock}
     LIMIT 1";

/// Sees that no other instance has to do with the slot, which was found as `facts` say and its
/// name locked by `holder`. Gives what is to be judged then, and whether this instance has locked
/// the name. `own`: the server process that was this walpost's last; `seen`: all but who another
/// one is.
pub(super) async fn beside_others(
    client: &Arc<SqlClient>,
    config: &SourceConfig,
    resume: &Resume,
    (facts, holder): (Facts, Option<LockHolder>),
    own: Option<i32>,
    seen: Holder,
) -> Result<(Facts, bool), SourceError> {
    let slot = &config.slot;
    if config.temporary_slot || facts.halted_by.is_some() || facts.require_slot(slot).is_err() {
        return Ok((facts, false));
    }
    // One that no walpost can be is waited for by nobody.
    if let Some(holder) = holder.filter(|holder| holder.counts) {
        vouch(client, slot, resume, seen.confirmed).await?;
        config.open_state.keep_standby_session(client);
        return Err(in_use(slot, Some(holder), own, seen));
    }
    if !is_moved_unseen(&facts, resume) {
        return Ok((facts, false));
    }
    // Nobody else may begin before this one has said what it found.
    let locked = lock(client, config, own, seen.clone()).await;
    if let Err(SourceError::InUse { .. }) = &locked {
        config.open_state.keep_standby_session(client);
    }
    let is_locked = locked? == Lock::Held;
    let Some(accounted) = resume.accounted() else { return Ok((facts, is_locked)) };
    // Who is told to stop meanwhile must not leave the slot to one that knows nothing of it.
    let error = moved(slot, resume, accounted, seen.confirmed);
    config.open_state.begin_advanced_slot(client, error);
    let judged = await_voucher(client, slot, resume, (accounted, seen)).await;
    config.open_state.end_advanced_slot();
    Ok((judged?, is_locked))
}

/// An instance that has delivered all before `confirmed`, where the slot stands, says so as long as
/// `client`'s session lasts.
async fn vouch(
    client: &Client,
    slot: &str,
    resume: &Resume,
    confirmed: Lsn,
) -> Result<(), SourceError> {
    match resume {
        Resume::At { confirmed: ours, .. } if confirmed <= *ours => {}
        Resume::At { .. } | Resume::AtSlot { .. } => return Ok(()),
    }
    let said = try_lock_shared(client, LockClass::Delivered, slot).await;
    said.map(drop).map_err(|error| SourceError::query("vouching for the slot's position", &error))
}

/// Looks until another instance vouches or has the slot, or until none can be expected to any
/// more; gives what is to be judged then. This instance has locked the slot's name, if a walpost can.
async fn await_voucher(
    client: &Client,
    slot: &str,
    resume: &Resume,
    (accounted, seen): (Lsn, Holder),
) -> Result<Facts, SourceError> {
    let until = Instant::now() + LONGEST_GAP;
    let mut is_told = false;
    loop {
        let facts = Facts::read(client, slot).await?;
        if !is_moved_unseen(&facts, resume) || facts.halted_by.is_some() {
            return Ok(facts);
        }
        if let Some(pid) = voucher(client, slot).await? {
            return Err(in_use(slot, Some(LockHolder::delivered_walpost(pid)), None, seen));
        }
        if Instant::now() >= until {
            return Ok(facts);
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!(
                slot,
                confirmed = %accounted,
                stands = %seen.confirmed,
                "another client advanced the slot; waiting to see whether it is a walpost"
            );
        }
        sleep(LOOK_INTERVAL).await;
    }
}

async fn voucher(client: &Client, slot: &str) -> Result<Option<i32>, SourceError> {
    let failed = |error| SourceError::query("asking who vouches for the slot's position", &error);
    let query = VOUCHER.replace("{lock}", &LockClass::Delivered.condition("$1"));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&slot, Type::TEXT), (&APPLICATION_NAME, Type::TEXT)];
    let row = client.query_typed_opt(&query, &parameters).await.map_err(failed)?;
    row.map(|row| row.try_get(0)).transpose().map_err(failed)
}
