//! Guards against silent data loss: an LSN is confirmed only after a later read of the publication
//! shows that it is still the one from the session's start.
//!
//! The stream does not show that a table is removed from the publication, or, on PostgreSQL 18,
//! that the publication is dropped. The server skips what is committed without it, and the next
//! commit or keepalive would confirm the loss. The catalogs show it: each change of a publication,
//! or of a table's membership in one, creates a new row version. So equal fingerprints
//! ([`PublicationFingerprint`]) in two reads mean that nothing changed in between, not even back
//! and forth. Whatever was received before a read was committed before it, so it was decoded under
//! the publication of that fingerprint. For three things only the current state is visible, so a
//! change that is undone between two reads is not detected: a table that is published through its
//! schema or FOR ALL TABLES, which table has the outbox's name, and which partition or other
//! table has rows that are never sent.
//!
//! A change may be in the WAL, and decoded, before a read can see it: between the flush of its
//! commit record and the end of its transaction, while it waits for synchronous standbys. A row
//! version that such a transaction replaces already has its `xmax`. A read that finds one is not
//! conclusive, unless that transaction was rolled back.
//!
//! The reads also show whether the server still has walpost's session, and whether a standby was
//! promoted. Nothing else shows that while the session is not read.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::Statement;

use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::source::catalog::unsent_parts::UnsentPart;
use crate::source::catalog::{found_tables, parts_of, published_tables};
use crate::source::config::SourceConfig;
use crate::source::connection::connect::SqlClient;
use crate::source::connection::deadline::answered;
use crate::source::error::{PublicationChange, SourceError};
use crate::source::identity::publication_fingerprint::PublicationFingerprint;

/// Minimum time between two reads: absolute, and as a multiple of a read's duration, which is long
/// with thousands of partitions. It is that of the shorter one of the last two reads: a single slow
/// one, during which the server was frozen or the connection dead, says nothing about the next. It
/// delays a confirmation by half of it on average, so a killed walpost repeats that much more. For a
/// plain table a read costs the server 0.1 ms, so at most a thousandth of a core.
const READ_INTERVAL: Duration = Duration::from_millis(100);
const READ_DURATIONS: u32 = 10;

/// Maximum time between two reads: a change is detected this soon even if nothing is to be
/// confirmed.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);

/// The name of the reads' connection in errors.
const CONTROL: &str = "the control connection";

/// How long reads may be inconclusive before that is logged.
const UNSETTLED_LIMIT: Duration = Duration::from_secs(60);

/// One read of the catalogs.
#[derive(Debug)]
pub(in crate::source) struct CatalogCheck {
    pub(in crate::source) fingerprint: PublicationFingerprint,
    /// Whether no open transaction has changed any part of it.
    pub(in crate::source) settled: bool,
    /// Whether a transaction that the slot has yet to decode changed any part of it.
    pub(in crate::source) recent: bool,
    /// The server process that streams from the slot.
    walsender: Option<i32>,
    /// Whether the server is a standby.
    in_recovery: bool,
}

/// The parts of a table whose schema is published as a whole; since PostgreSQL 15.
const SCHEMAS: &str = "
        UNION ALL
        SELECT 'schema ' || e.oid::pg_catalog.text || ' ' || e.xmin::pg_catalog.text, e.xmin, e.xmax
          FROM publication p
          JOIN pg_catalog.pg_publication_namespace e ON e.pnpubid = p.oid
         WHERE e.pnnspid IN (SELECT relnamespace FROM relation)";

/// Selects the fingerprint; whether a transaction that has not ended replaces a part of it; whether
/// a transaction that the slot has yet to decode created a part; and the slot's server process. A
/// row version has the lower 32 bits of transaction ids. An `xmin` stays when its row is frozen, so it
/// is told by how long before the next id it was given last; an `xmax` is recent or none.
const READ_FINGERPRINT: &str = "
    WITH RECURSIVE publication AS (
        SELECT oid, xmin, xmax FROM pg_catalog.pg_publication WHERE pubname::pg_catalog.text = $1
    ), relation AS (
        SELECT c.oid, c.xmax, c.relnamespace, c.relpersistence
          FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]),
                          pg_catalog.unnest($3::pg_catalog.text[]))
               AS named (nspname, relname)
          JOIN pg_catalog.pg_namespace n ON n.nspname = named.nspname::pg_catalog.name
          JOIN pg_catalog.pg_class c
            ON c.relnamespace = n.oid AND c.relname = named.relname::pg_catalog.name
    ), above AS (
        SELECT oid FROM relation
         UNION
        SELECT a.relid FROM relation, pg_catalog.pg_partition_ancestors(oid) a (relid)
    ), below AS (
        SELECT oid FROM relation
         UNION
        SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.oid
    ), part (fingerprint, xmin, xmax) AS (
        SELECT 'publication ' || oid::pg_catalog.text || ' ' || xmin::pg_catalog.text, xmin, xmax
          FROM publication
        UNION ALL
        SELECT 'table ' || oid::pg_catalog.text || ' ' || relpersistence::pg_catalog.text, NULL, xmax
          FROM relation
        UNION ALL
        SELECT 'entry ' || e.oid::pg_catalog.text || ' ' || e.xmin::pg_catalog.text, e.xmin, e.xmax
          FROM publication p
          JOIN pg_catalog.pg_publication_rel e ON e.prpubid = p.oid
         WHERE e.prrelid IN (SELECT oid FROM above)
        UNION ALL
        SELECT 'parent ' || inhparent::pg_catalog.text || ' ' || xmin::pg_catalog.text, NULL, xmax
          FROM pg_catalog.pg_inherits WHERE inhrelid IN (SELECT oid FROM above)
        UNION ALL
        SELECT 'unlogged ' || c.oid::pg_catalog.text, NULL, NULL
          FROM below JOIN pg_catalog.pg_class c USING (oid)
         WHERE c.relispartition AND c.relpersistence <> 'p'
        UNION ALL
        SELECT 'elsewhere ' || c.oid::pg_catalog.text, NULL, NULL
          FROM below JOIN pg_catalog.pg_class c USING (oid)
         WHERE (NOT c.relispartition OR c.relkind = 'f') AND c.relpersistence <> 't'
           AND c.oid NOT IN (SELECT oid FROM relation)
        {schemas}
    ), slot AS (
        SELECT active_pid, catalog_xmin::pg_catalog.text::pg_catalog.int8 AS horizon
          FROM pg_catalog.pg_replication_slots WHERE slot_name::pg_catalog.text = $4
    ), snapshot AS (
        SELECT xmax AS next, (xmax % modulus)::pg_catalog.int8 AS low_next,
               (xmin % modulus)::pg_catalog.int8 AS horizon
          FROM (SELECT pg_catalog.pg_snapshot_xmin(s)::pg_catalog.text::pg_catalog.numeric AS xmin,
                       pg_catalog.pg_snapshot_xmax(s)::pg_catalog.text::pg_catalog.numeric AS xmax,
                       4294967296::pg_catalog.numeric AS modulus
                  FROM pg_catalog.pg_current_snapshot() s) AS current
    ), age AS (
        SELECT part.*, part.xmin::pg_catalog.text::pg_catalog.int8 AS low_xmin,
               part.xmax::pg_catalog.text::pg_catalog.int8 AS low_xmax
          FROM part
    )
    SELECT coalesce(pg_catalog.string_agg(fingerprint, ', ' ORDER BY fingerprint), ''),
           coalesce(pg_catalog.bool_or(CASE
               WHEN low_xmax IS NULL OR low_xmax = 0 THEN false
               WHEN (low_xmax - snapshot.horizon + 4294967296) % 4294967296 >= 2147483648
               THEN false
               ELSE pg_catalog.pg_xact_status((snapshot.next
                      + ((low_xmax - snapshot.low_next + 6442450944) % 4294967296
                         - 2147483648)::pg_catalog.numeric)::pg_catalog.text::pg_catalog.xid8)
                    IS DISTINCT FROM 'aborted' END), false),
           coalesce(pg_catalog.bool_or(low_xmin >= 3 AND
               (snapshot.low_next - low_xmin + 4294967296) % 4294967296
               <= (snapshot.low_next - slot.horizon + 4294967296) % 4294967296), false),
           pg_catalog.min(slot.active_pid), pg_catalog.pg_is_in_recovery()
      FROM snapshot LEFT JOIN slot ON true LEFT JOIN age ON true";

/// The catalogs, read by a prepared statement.
#[derive(Clone)]
pub(in crate::source) struct Catalogs {
    client: Arc<SqlClient>,
    statement: Statement,
    version: i32,
    config: SourceConfig,
    /// Whether the server was a standby at the first read.
    in_recovery: bool,
}

impl Catalogs {
    pub(in crate::source) async fn prepare(
        client: Arc<SqlClient>,
        version: i32,
        config: &SourceConfig,
    ) -> Result<Self, SourceError> {
        let schemas = if version >= 150_000 { SCHEMAS } else { "" };
        let statement =
            client.prepare(&READ_FINGERPRINT.replace("{schemas}", schemas)).await.map_err(
                |error| SourceError::query("preparing the query of the publication", &error),
            )?;
        Ok(Self { client, statement, version, config: config.clone(), in_recovery: false })
    }

    /// Prepares the statement and does the first read.
    pub(in crate::source) async fn checked(
        client: Arc<SqlClient>,
        version: i32,
        config: &SourceConfig,
    ) -> Result<(Self, CatalogCheck), SourceError> {
        let mut catalogs = Self::prepare(client, version, config).await?;
        let check = catalogs.check().await?;
        catalogs.in_recovery = check.in_recovery;
        Ok((catalogs, check))
    }

    pub(in crate::source) async fn check(&self) -> Result<CatalogCheck, SourceError> {
        let SourceConfig { publication, slot, tables, .. } = &self.config;
        let schemas: Vec<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let failed = |error| SourceError::query("querying the publication", &error);
        let row = self
            .client
            .query_one(&self.statement, &[publication, &schemas, &names, slot])
            .await
            .map_err(failed)?;
        Ok(CatalogCheck {
            fingerprint: PublicationFingerprint::new(row.try_get(0).map_err(failed)?),
            settled: !row.try_get::<_, bool>(1).map_err(failed)?,
            recent: row.try_get(2).map_err(failed)?,
            walsender: row.try_get(3).map_err(failed)?,
            in_recovery: row.try_get(4).map_err(failed)?,
        })
    }

    /// The outbox tables, with the columns that the publication sends.
    pub(in crate::source) async fn published_tables(&self) -> Result<Vec<FoundTable>, SourceError> {
        let SourceConfig { publication, tables, typed, .. } = &self.config;
        published_tables(&self.client, publication, tables, *typed).await
    }

    /// The same, whether all rows are sent or not, each with the tables whose rows are not.
    pub(in crate::source) async fn found_tables(
        &self,
    ) -> Result<Vec<(FoundTable, Vec<UnsentPart>)>, SourceError> {
        let SourceConfig { publication, tables, typed, .. } = &self.config;
        let mut found = Vec::new();
        for table in found_tables(&self.client, publication, tables, *typed).await? {
            let parts = parts_of(&self.client, &table, tables).await?;
            found.push((table, parts));
        }
        Ok(found)
    }

    /// Fails if a read at a later connect finds another publication than that of `fingerprint`; the
    /// slot is confirmed up to `confirmed`.
    pub(in crate::source) async fn compare(
        &self,
        check: &CatalogCheck,
        fingerprint: &PublicationFingerprint,
        confirmed: Lsn,
    ) -> Result<(), SourceError> {
        if check.fingerprint == *fingerprint {
            Ok(())
        } else {
            Err(self.changed(fingerprint, check, confirmed).await)
        }
    }

    /// Whether another slot has the same `catalog_xmin`: a new slot takes over that of the slot that is
    /// furthest behind, which says nothing of what the new one has yet to decode.
    pub(in crate::source) async fn share_horizon(&self) -> Result<bool, SourceError> {
        let row = self.client.query_one(SHARED_HORIZON, &[&self.config.slot]).await;
        row.and_then(|row| row.try_get(0))
            .map_err(|error| SourceError::query("comparing the slot with others", &error))
    }

    /// The error for a different fingerprint: nothing beyond `verified` may be confirmed any more.
    async fn changed(
        &self,
        before: &PublicationFingerprint,
        check: &CatalogCheck,
        verified: Lsn,
    ) -> SourceError {
        let SourceConfig { publication, slot, .. } = &self.config;
        let found = match self.published_tables().await {
            Err(SourceError::Setup(found)) => found,
            Err(lost) => return lost,
            Ok(_) => format!("publication \"{publication}\" publishes the outbox again"),
        };
        // Before PostgreSQL 18 the WAL in between cannot be decoded at all.
        let is_undecodable =
            self.version < 180_000 && before.publication() != check.fingerprint.publication();
        let slot_to_advance = is_undecodable.then(|| slot.clone());
        SourceError::Changed(PublicationChange::Altered { found, verified, slot_to_advance })
    }
}

/// The fingerprint of the publication as it is now.
pub(crate) async fn publication_fingerprint(
    client: &Arc<SqlClient>,
    version: i32,
    config: &SourceConfig,
) -> Result<PublicationFingerprint, SourceError> {
    let (_, check) = Catalogs::checked(Arc::clone(client), version, config).await?;
    Ok(check.fingerprint)
}

/// Whether the publication, or a table's membership in it, is newer than a change that the slot has
/// yet to decode.
pub(crate) async fn is_newer_than_slot(
    client: &Arc<SqlClient>,
    version: i32,
    config: &SourceConfig,
) -> Result<bool, SourceError> {
    let (catalogs, check) = Catalogs::checked(Arc::clone(client), version, config).await?;
    Ok(check.recent && !catalogs.share_horizon().await?)
}

/// Selects that of [`Catalogs::share_horizon`].
const SHARED_HORIZON: &str = "
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_replication_slots s, pg_catalog.pg_replication_slots o
         WHERE s.slot_name = $1 AND o.slot_name <> $1
           AND o.catalog_xmin = s.catalog_xmin)";

/// The LSN up to which the publication is verified to be unchanged, or why nothing more is
/// confirmed.
type Seen = Result<Lsn, SourceError>;

/// Reads the catalogs during a session, on its own task, which ends when this is dropped.
pub(in crate::source) struct PublicationGuard {
    wanted: watch::Sender<Lsn>,
    seen: watch::Receiver<Seen>,
    checker: CatalogChecker,
    task: JoinHandle<()>,
}

impl Drop for PublicationGuard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PublicationGuard {
    /// Guards the publication that was found at the start of a session at `start`, which a read has
    /// already covered.
    pub(in crate::source) fn start(
        catalogs: Catalogs,
        fingerprint: PublicationFingerprint,
        walsender: Option<i32>,
        start: Lsn,
    ) -> Self {
        let (wanted, mut wants) = watch::channel(start);
        let (sender, seen) = watch::channel(Ok(start));
        let checker = CatalogChecker { catalogs, fingerprint, walsender };
        let mine = checker.clone();
        let task = tokio::spawn(async move {
            let mut verified = start;
            let mut unsettled = Unsettled::default();
            let mut took_before = Duration::ZERO;
            loop {
                let rising = wants.wait_for(|wanted| *wanted > verified);
                let _ = timeout(IDLE_INTERVAL, rising).await;
                let wanted = *wants.borrow_and_update();
                let began = Instant::now();
                let answer = mine.check(verified).await;
                let took = began.elapsed();
                let rest = began + rest([std::mem::replace(&mut took_before, took), took]);
                match answer {
                    Ok(true) => {
                        verified = wanted;
                        unsettled = Unsettled::default();
                    }
                    Ok(false) => unsettled.warn_if_long(Instant::now()),
                    Err(error) => {
                        let _ = sender.send(Err(error));
                        return;
                    }
                }
                sender.send_if_modified(|seen| {
                    let risen = *seen != Ok(verified);
                    *seen = Ok(verified);
                    risen
                });
                sleep_until(rest).await;
            }
        });
        Self { wanted, seen, checker, task }
    }

    /// The fingerprint at the session's start.
    pub(in crate::source) fn fingerprint(&self) -> &PublicationFingerprint {
        &self.checker.fingerprint
    }

    /// Whether the server was a standby at the session's start.
    pub(in crate::source) fn is_standby(&self) -> bool {
        self.checker.catalogs.in_recovery
    }

    /// Reports that everything before `lsn` is durable and waits for a read.
    pub(in crate::source) fn want(&self, lsn: Lsn) {
        self.wanted.send_if_modified(|wanted| {
            let risen = lsn > *wanted;
            *wanted = lsn.max(*wanted);
            risen
        });
    }

    /// Waits for the next LSN that may be confirmed. Cancel-safe.
    pub(in crate::source) async fn verified(&mut self) -> Seen {
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.seen.borrow_and_update().clone()
    }

    /// Reads now, until a read is conclusive.
    pub(in crate::source) async fn verify(&self) -> Result<(), SourceError> {
        let verified = self.seen.borrow().clone()?;
        while !self.checker.check(verified).await? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// The time from the beginning of a read to the next one, by what the last two took.
fn rest(took: [Duration; 2]) -> Duration {
    READ_INTERVAL.max(took[0].min(took[1]) * READ_DURATIONS)
}

/// Since when reads are inconclusive, and whether that was logged.
#[derive(Default)]
struct Unsettled {
    since: Option<Instant>,
    is_logged: bool,
}

impl Unsettled {
    fn warn_if_long(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if !self.is_logged && now.saturating_duration_since(since) >= UNSETTLED_LIMIT {
            self.is_logged = true;
            tracing::warn!(
                "a transaction that changed the publication or an outbox table is still open, and \
                 nothing is confirmed before it is, so that the slot keeps the log: see the oldest \
                 xact_start in pg_stat_activity, and pg_prepared_xacts"
            );
        }
    }
}

#[derive(Clone)]
struct CatalogChecker {
    catalogs: Catalogs,
    fingerprint: PublicationFingerprint,
    walsender: Option<i32>,
}

impl CatalogChecker {
    /// Reads once. Returns whether the read is conclusive; fails if something changed.
    async fn check(&self, verified: Lsn) -> Result<bool, SourceError> {
        let check = answered(CONTROL, self.catalogs.check()).await?;
        if check.fingerprint != self.fingerprint {
            let changed =
                async { Err(self.catalogs.changed(&self.fingerprint, &check, verified).await) };
            return answered(CONTROL, changed).await;
        }
        if self.walsender.is_some() && check.walsender != self.walsender {
            return Err(SourceError::Lost("the server has given this session up".to_owned()));
        }
        if self.catalogs.in_recovery && !check.in_recovery {
            // The session continues, but the positions are of another timeline from here on.
            return Err(SourceError::Lost("the server is no longer a standby".to_owned()));
        }
        Ok(check.settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_slow_read_does_not_delay_the_next_one() {
        let [quick, slow] = [Duration::from_millis(1), Duration::from_secs(4)];
        assert_eq!(rest([quick, quick]), READ_INTERVAL);
        assert_eq!(rest([quick, slow]), READ_INTERVAL);
        assert_eq!(rest([slow, quick]), READ_INTERVAL);
        assert_eq!(rest([slow, slow]), slow * READ_DURATIONS);
    }
}
