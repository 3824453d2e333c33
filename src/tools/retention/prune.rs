//! Deletes rows of a table, some at a time, each time in a transaction of its own (`batch`).
//!
//! A table is read once, in the order of its pages: that needs no index, and takes as long whatever
//! rows are deleted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::archive::Archive;
use super::batch::{Batches, Ctid, Outcome};
use super::error::{PruneError, database};
use super::proof::Proof;
use super::pruned_table::PrunedTable;
use crate::outbox::TableName;
use crate::source::{SqlClient, lift_limits};

/// Those of the role are not for this: a table is read as a whole, and pauses may be long.
///
/// The server ends the session if this program does not read what it sends, and then all that the session
/// has locked is free; over TCP, and where it runs on Linux. `transaction_timeout` would do so for some
/// of these waits only, and also end a session that reads over a slow link.
///
/// A statement waits at most so long for a lock: half of `deadlock_timeout`, since a session that has
/// waited for that long can be cancelled. And values in archived rows are the same whatever the
/// settings of the role and the database are.
const SETTINGS: &str = "
    SELECT pg_catalog.set_config('lock_timeout',
               least(1000, greatest(1, setting::pg_catalog.int8 / 2))::pg_catalog.text, false)
      FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout';
    SET tcp_user_timeout = '5s'; SET default_transaction_read_only = off;
    SET datestyle = 'ISO'; SET timezone = 'UTC'; SET intervalstyle = 'postgres';
    SET extra_float_digits = 1; SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET xmlbinary = 'base64'";

/// So often in a row, and nothing more is deleted.
const LOCK_TIMEOUTS_MAX: u32 = 10;

/// Pages that are read at once: at first, and at most.
const PAGES_FIRST: u64 = 64;
const PAGES_MAX: u64 = 8_192;

/// How often the lock of a table or partition is tried, and the pause in between.
pub(crate) const LOCK_ATTEMPTS: u32 = 10;
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(300);

/// How often a pause looks for a signal.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// The triggers and rules of a table that can keep rows from being deleted, in this session.
const KEEPERS: &str = "
    SELECT pg_catalog.string_agg(name, ', ' ORDER BY name)
      FROM (SELECT CASE WHEN pg_catalog.current_setting('session_replication_role') = 'replica'
                        THEN '{R,A}' ELSE '{O,A}' END::pg_catalog.\"char\"[] AS enabled) AS session,
           LATERAL (
        SELECT 'trigger ' || tgname::pg_catalog.text FROM pg_catalog.pg_trigger
         WHERE tgrelid = pg_catalog.to_regclass($1) AND NOT tgisinternal AND tgenabled = ANY (enabled)
           -- FOR EACH ROW, BEFORE, DELETE
           AND tgtype::pg_catalog.int4 & 11 = 11
         UNION ALL
        SELECT 'rule ' || rulename::pg_catalog.text FROM pg_catalog.pg_rewrite
         WHERE ev_class = pg_catalog.to_regclass($1) AND ev_type = '4' AND is_instead
           AND ev_enabled = ANY (enabled)) AS keeper (name)";

/// Locks a table against other runs, for the session: the key is this number, the bytes `walp`, and the
/// table's oid. Without the lock, the process that has it.
const LOCK: &str = "
    WITH key AS (SELECT 2002873456 AS class, c.oid
                   FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2),
         mine AS (SELECT pg_catalog.pg_try_advisory_lock(class, oid::pg_catalog.int4) AS is_mine FROM key)
    SELECT coalesce((SELECT is_mine FROM mine), true),
           (SELECT l.pid FROM pg_catalog.pg_locks l, key
             WHERE l.locktype = 'advisory' AND l.classid = key.class::pg_catalog.oid AND l.objid = key.oid
               AND l.objsubid = 2 AND l.granted
               AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                                  WHERE d.datname = pg_catalog.current_database()))";

/// How often the lag is looked at.
const LAG_INTERVAL: Duration = Duration::from_secs(1);

/// When to stop, and how much to do at once.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// How many rows a transaction deletes at most.
    pub(crate) batch: u64,
    /// The pause after each transaction.
    pub(crate) pause: Duration,
    /// How long it may take.
    pub(crate) duration: Option<Duration>,
    /// How many bytes of WAL the slot may have before it.
    pub(crate) lag_bytes: u64,
    /// How long writers of a partitioned table may wait for a lock at once.
    pub(crate) lock: Duration,
}

/// Why it ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// A signal.
    Signal,
    /// The time limit of the command.
    Duration,
    /// The slot is too far behind, in bytes.
    Lag(u64),
    /// Other sessions keep rows locked.
    Locks,
}

/// What was done in a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    /// Rows that were deleted.
    pub(crate) rows: u64,
    /// Pages that were read, and all there are.
    pub(crate) pages: (u64, u64),
    /// Rows that were left out, since other sessions had them locked.
    pub(crate) locked: u64,
    /// Pages that were left out, since other sessions had something locked that their rows need.
    pub(crate) locked_pages: u64,
    /// Rows that a command has got, and that other sessions have changed or locked meanwhile.
    pub(crate) changed: u64,
    /// `None`: it is done.
    pub(crate) stopped: Option<Stopped>,
}

/// Rows to delete.
pub(crate) struct Prune<'a> {
    pub(super) client: &'a SqlClient,
    pub(super) proof: &'a Proof,
    /// Rows that were written before this time, in PostgreSQL's notation.
    pub(super) before: &'a str,
    slot: &'a str,
    /// The archive that rows go to first.
    archive: Option<Archive<'a>>,
    pub(super) limits: Limits,
    began: Instant,
    looked_at_lag: Option<Instant>,
    /// A signal sets it.
    pub(crate) is_stopped: &'a AtomicBool,
}

impl<'a> Prune<'a> {
    /// A run in a session that `prepare` has prepared.
    pub(crate) fn new(
        client: &'a SqlClient,
        (proof, before, slot): (&'a Proof, &'a str, &'a str),
        archive: Option<Archive<'a>>,
        limits: Limits,
        is_stopped: &'a AtomicBool,
    ) -> Self {
        let (began, looked_at_lag) = (Instant::now(), None);
        Self { client, proof, before, slot, archive, limits, began, looked_at_lag, is_stopped }
    }

    /// Deletes the rows of a table. Calls `report` after each transaction. What was done until an error
    /// is returned with it.
    pub(crate) async fn table(
        &mut self,
        table: &PrunedTable,
        report: impl FnMut(&Pruned),
    ) -> (Pruned, Result<(), PruneError>) {
        let mut pruned = Pruned::default();
        let ended = self.chunks(table, &mut pruned, report).await;
        (pruned, ended)
    }

    async fn chunks(
        &mut self,
        table: &PrunedTable,
        pruned: &mut Pruned,
        mut report: impl FnMut(&Pruned),
    ) -> Result<(), PruneError> {
        let Some(mut pages) = self.pages_if_free(table).await? else {
            pruned.stopped = Some(Stopped::Locks);
            return Ok(());
        };
        pruned.pages.1 = pages;
        let (mut after, mut step, mut timeouts) = (Ctid::default(), PAGES_FIRST, 0);
        let mut limit = self.limits.batch;
        let Self { client, proof, before, archive, .. } = *self;
        let batches = Batches { client, proof, before, archive };
        while after.page < pages {
            pruned.stopped = self.stopped(&table.name).await?;
            if pruned.stopped.is_some() {
                break;
            }
            let end = (after.page + step).min(pages);
            match batches.delete(table, (after, end), limit).await? {
                Outcome::Done(batch) => {
                    timeouts = 0;
                    pruned.rows += batch.deleted;
                    pruned.locked += batch.locked;
                    pruned.changed += batch.changed;
                    // The rows were locked.
                    if batch.deleted < batch.chosen {
                        table.require_same(client).await?;
                        let (chosen, deleted) = (batch.chosen, batch.deleted);
                        let keepers = self.keepers(table).await?;
                        let keepers = keepers.unwrap_or_else(|| "something".to_owned());
                        let table = table.name.clone();
                        return Err(PruneError::Kept { table, chosen, deleted, keepers });
                    }
                    if let Some(last) = batch.last.filter(|_| batch.has_more) {
                        // Large rows: no more of them are looked at than a command gets.
                        limit = limit.min(batch.found);
                        step = (end - after.page).div_ceil(2);
                        after = last;
                    } else {
                        step = next_step(end - after.page, batch.found, self.limits.batch);
                        after = Ctid { page: end, item: 0 };
                    }
                    if batch.found >= limit {
                        limit = (limit * 2).min(self.limits.batch);
                    }
                    pruned.pages.0 = after.page;
                }
                Outcome::Rewritten => {
                    let Some(found) = self.pages_if_free(table).await? else {
                        pruned.stopped = Some(Stopped::Locks);
                        break;
                    };
                    pages = found;
                    pruned.pages = (0, pages);
                    after = Ctid::default();
                }
                Outcome::Locked | Outcome::Busy if timeouts + 1 >= LOCK_TIMEOUTS_MAX => {
                    pruned.stopped = Some(Stopped::Locks);
                    break;
                }
                Outcome::Locked => {
                    timeouts += 1;
                    pause(LOCK_PAUSE, self.is_stopped).await;
                }
                // The rows of the other pages need nothing that is locked.
                Outcome::Busy if end - after.page > 1 => {
                    timeouts += 1;
                    step = (end - after.page).div_ceil(8);
                }
                Outcome::Busy => {
                    timeouts += 1;
                    pruned.locked_pages += 1;
                    pruned.pages.0 = end;
                    after = Ctid { page: end, item: 0 };
                }
            }
            report(pruned);
            if after.page < pages {
                self.pause().await;
            }
        }
        Ok(())
    }

    /// How many pages a table has; `None`: other sessions keep it locked.
    async fn pages_if_free(&self, table: &PrunedTable) -> Result<Option<u64>, PruneError> {
        unless_locked(self.is_stopped, async || pages_of(self.client, &table.name).await).await
    }

    /// Pauses between transactions, at most until it has taken as long as it may, or is stopped.
    pub(crate) async fn pause(&self) {
        let left = self.limits.duration.map(|limit| limit.saturating_sub(self.began.elapsed()));
        let length = left.map_or(self.limits.pause, |left| left.min(self.limits.pause));
        pause(length, self.is_stopped).await;
    }

    /// What can keep rows of a table.
    async fn keepers(&self, table: &PrunedTable) -> Result<Option<String>, PruneError> {
        let failed = database(&table.name, "looking for triggers");
        let row = self.client.query_one(KEEPERS, &[&table.name.regclass_text()]).await;
        row.and_then(|row| row.try_get(0)).map_err(failed)
    }

    /// Whether rows go somewhere first.
    pub(crate) fn archives(&self) -> bool {
        self.archive.is_some()
    }

    pub(super) async fn stopped(
        &mut self,
        table: &TableName,
    ) -> Result<Option<Stopped>, PruneError> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(Some(Stopped::Signal));
        }
        if self.limits.duration.is_some_and(|limit| self.began.elapsed() >= limit) {
            return Ok(Some(Stopped::Duration));
        }
        if self.looked_at_lag.is_some_and(|then| then.elapsed() < LAG_INTERVAL) {
            return Ok(None);
        }
        self.looked_at_lag = Some(Instant::now());
        let failed = database(table, "looking at the slot");
        // Deleting writes WAL, which the slot has to get past.
        let sql = "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), confirmed_flush_lsn)
                          ::pg_catalog.int8
                     FROM pg_catalog.pg_replication_slots WHERE slot_name::pg_catalog.text = $1";
        let row = self.client.query_opt(sql, &[&self.slot]).await.map_err(&failed)?;
        let lag: Option<i64> =
            row.map(|row| row.try_get(0)).transpose().map_err(&failed)?.flatten();
        let lag = lag.map_or(u64::MAX, |lag| u64::try_from(lag).unwrap_or_default());
        Ok((lag > self.limits.lag_bytes).then_some(Stopped::Lag(lag)))
    }
}

/// Prepares a session, before anything is asked that can wait for a lock.
pub(crate) async fn prepare(client: &Client) -> Result<(), tokio_postgres::Error> {
    lift_limits(client).await?;
    client.batch_execute(SETTINGS).await
}

/// Makes sure that no writer is cancelled because of a deadlock: a session that has waited for
/// `deadlock_timeout` is, and this one gives up before.
pub(crate) async fn require_short_waits(
    client: &Client,
    table: &TableName,
    lock: Duration,
) -> Result<(), PruneError> {
    let failed = database(table, "asking for deadlock_timeout");
    let sql = "SELECT setting::pg_catalog.int8 FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'";
    let row = client.query_one(sql, &[]).await;
    let milliseconds: i64 = row.and_then(|row| row.try_get(0)).map_err(failed)?;
    let deadlock = Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default());
    if lock * 2 > deadlock {
        return Err(PruneError::LockTimeout { lock, deadlock });
    }
    Ok(())
}

/// Tries something until no other session has what it needs locked for too long; `None`: it was locked
/// each time, or a signal has come.
pub(crate) async fn unless_locked<T>(
    is_stopped: &AtomicBool,
    attempt: impl AsyncFn() -> Result<T, PruneError>,
) -> Result<Option<T>, PruneError> {
    for number in 0..LOCK_ATTEMPTS {
        if number > 0 && !pause(LOCK_PAUSE, is_stopped).await {
            break;
        }
        match attempt().await {
            Err(error) if error.is_locked() => {}
            done => return done.map(Some),
        }
    }
    Ok(None)
}

/// Makes sure that no other run works on these tables, until the session ends.
pub(crate) async fn lock_out_others(
    client: &Client,
    tables: &[TableName],
) -> Result<(), PruneError> {
    for name in tables {
        let failed = database(name, "locking it against other runs");
        let row = client.query_one(LOCK, &[&name.schema, &name.name]).await.map_err(&failed)?;
        let is_mine: bool = row.try_get(0).map_err(&failed)?;
        // It may have ended in between.
        let pid: Option<i32> = row.try_get(1).map_err(&failed)?;
        if !is_mine {
            let (table, pid) = (name.clone(), pid.unwrap_or_default());
            return Err(PruneError::InUse { table, pid });
        }
    }
    Ok(())
}

/// Pauses; false once it is stopped.
pub(super) async fn pause(length: Duration, is_stopped: &AtomicBool) -> bool {
    let began = Instant::now();
    loop {
        if is_stopped.load(Ordering::Relaxed) {
            return false;
        }
        let left = length.saturating_sub(began.elapsed());
        if left.is_zero() {
            return true;
        }
        tokio::time::sleep(left.min(STOP_INTERVAL)).await;
    }
}

pub(super) async fn pages_of(client: &Client, table: &TableName) -> Result<u64, PruneError> {
    let failed = database(table, "asking for its size");
    let sql = "SELECT pg_catalog.pg_relation_size(pg_catalog.to_regclass($1))
                      / pg_catalog.current_setting('block_size')::pg_catalog.int8";
    let row = client.query_one(sql, &[&table.regclass_text()]).await.map_err(&failed)?;
    // It may be dropped meanwhile.
    let pages: Option<i64> = row.try_get(0).map_err(&failed)?;
    Ok(pages.and_then(|pages| u64::try_from(pages).ok()).unwrap_or_default())
}

/// How many pages to read next, so that about `batch` rows are deleted.
fn next_step(step: u64, rows: u64, batch: u64) -> u64 {
    let next = step.saturating_mul(batch).checked_div(rows).unwrap_or(step * 2);
    // Twice as many at most: the next pages may have more rows to delete.
    next.clamp(1, (step * 2).min(PAGES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_the_rows_that_they_have() {
        assert_eq!(next_step(64, 0, 2_000), 128);
        assert_eq!(next_step(64, 4_000, 2_000), 32);
        assert_eq!(next_step(64, 100, 2_000), 128);
        assert_eq!(next_step(1, 290, 2), 1);
        assert_eq!(next_step(PAGES_MAX, 0, 2_000), PAGES_MAX);
    }
}
