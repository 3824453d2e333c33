//! Drops a partition if every row of it may be deleted.
//!
//! In one transaction: the partition is locked against writers, its rows are checked, the table is
//! locked, and the partition is dropped. Nobody can write a row to it after the check.
//!
//! Rows that go to an archive are moved there before, some at a time as from any table: one transaction
//! for all of them would take long, hold back vacuum, and begin again for a single writer. Then the
//! partition has to be empty.
//!
//! - Only writers of this partition, whose period is long over, wait for the check. It looks for them
//!   after each part of the rows, and begins again once they are done.
//! - All writers wait while the table is locked: for the lock at most `Limits::lock`, since a session
//!   that waits for a lock holds up those behind it, and then for one round trip inside the server.
//!   This program can be frozen or killed at any time without blocking them.
//! - `DETACH PARTITION … CONCURRENTLY` would not block them, but PostgreSQL then does not send rows
//!   that they write meanwhile.

use std::time::{Duration, Instant};

use postgres_protocol::escape::escape_literal;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::tree::{Kind, LOWER, Partition, PartitionedTable, UPPER};
use super::{IS_ANOTHER, raise_if};
use crate::excerpt::excerpt;
use crate::outbox::identifier_in_quotes;
use crate::source::said;
use crate::tools::retention::batch::FROZEN_LIMIT;
use crate::tools::retention::error::{PruneError, database, ends_session};
use crate::tools::retention::prune::{LOCK_ATTEMPTS, LOCK_PAUSE, Prune, Stopped, pages_of, pause};
use crate::tools::retention::pruned_table::{Counted, PrunedTable};

/// How long checking some pages should take, and may take: as long a writer of the partition waits.
const PART: Duration = Duration::from_millis(100);
const PART_LIMIT: Duration = Duration::from_secs(1);

/// How long dropping may take, with the table locked.
const DROP_LIMIT: Duration = Duration::from_secs(1);

/// Pages that are read at once: at first, and at most.
const PAGES_FIRST: u64 = 256;
const PAGES_MAX: u64 = 32_768;

/// What became of a partition.
#[derive(Debug)]
pub(crate) enum Fate {
    /// The partition was dropped, with this number of rows.
    Dropped(u64),
    /// The partition stays.
    Left(Left),
    /// The run is to end early.
    Stopped(Stopped),
}

/// Why a partition is left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Left {
    #[error("{}", rows(.0))]
    Rows(Counted),
    #[error("it, or the table, was detached, renamed, dropped or given another period meanwhile")]
    Gone,
    #[error("other sessions write to it, or keep it locked (see pg_locks)")]
    Busy,
    #[error(
        "other sessions keep the table locked (see pg_locks), for instance by long transactions"
    )]
    Locked,
    #[error(
        "it has partitions of its own: drop those by hand, or delete their rows with --delete-rows"
    )]
    Partitioned,
    #[error("it is a foreign table: whether its rows are delivered is not known")]
    Foreign,
    #[error(
        "DETACH PARTITION … CONCURRENTLY was interrupted: finish it with ALTER TABLE … DETACH PARTITION \
         … FINALIZE. It can make PostgreSQL skip rows, so use plain DETACH PARTITION"
    )]
    Detaching,
    #[error(
        "foreign key {0} refers to it, and PostgreSQL would look for rows that refer to it with the \
         table locked: drop the foreign key, or delete rows with --delete-rows"
    )]
    Referenced(String),
    #[error("this user may not read its rows, or row-level security hides some")]
    Unreadable,
    #[error(
        "only its owner may drop it: GRANT {0} TO this user, or give it to the owner of the table"
    )]
    OtherOwner(String),
    #[error(
        "{0} rows of it are not archived, since other sessions had them locked, or wrote them meanwhile: \
         the next run archives them too"
    )]
    Unarchived(u64),
    #[error("PostgreSQL does not drop it: {0}")]
    Refused(String),
}

impl Left {
    /// Whether an operator should do something about it.
    pub(crate) fn needs_operator(&self) -> bool {
        !matches!(self, Self::Rows(_) | Self::Gone | Self::Unarchived(_))
    }
}

fn rows(Counted { young, undelivered, before_slot, unpublished, skipped, .. }: &Counted) -> String {
    let kinds = [
        (*undelivered, "are not proved to be delivered"),
        (*before_slot, "are from before the slot, or from before it was attached"),
        (*young, "are younger, or have no time"),
        (*unpublished, "are not sent by the publication"),
        (*skipped, "are of events that `walpost skip` passed over"),
    ];
    let found = kinds.iter().filter(|(rows, _)| *rows > 0);
    let found: Vec<_> = found.map(|(rows, what)| format!("{rows} rows {what}")).collect();
    format!("{}, of those that were checked", found.join(", and "))
}

/// How an attempt ended.
enum Attempt {
    Done(Fate),
    /// Other sessions had locks.
    Busy,
}

/// A step of an attempt that succeeded, or how the attempt ended.
type Step<T> = Result<T, Attempt>;

/// How many pages to read at once.
struct Pace {
    pages: u64,
    /// Fewer than took too long.
    most: u64,
}

impl Pace {
    fn took(&mut self, time: Duration) {
        if time < PART / 2 {
            self.pages = (self.pages * 2).min(self.most);
        } else if time > PART {
            self.pages = (self.pages / 2).max(1);
        }
    }

    fn took_too_long(&mut self, pages: u64) {
        self.most = (pages / 8).max(1);
        self.pages = self.most;
    }
}

/// A partition that is to be dropped.
struct Candidate<'c> {
    table: &'c PartitionedTable,
    partition: &'c Partition,
    rows: &'c PrunedTable,
    /// How often to try to lock the table.
    attempts: u32,
}

impl Partition {
    /// What speaks against dropping it, apart from its rows.
    pub(crate) fn obstacle(&self) -> Option<Left> {
        match self.kind {
            _ if self.is_detaching => Some(Left::Detaching),
            Kind::Partitioned => Some(Left::Partitioned),
            Kind::Foreign => Some(Left::Foreign),
            Kind::Table if !self.is_readable || self.hides_rows => Some(Left::Unreadable),
            Kind::Table => self
                .other_owner
                .as_deref()
                .map(|owner| Left::OtherOwner(identifier_in_quotes(owner))),
        }
    }
}

impl Prune<'_> {
    /// What would become of a partition, apart from locks; locks nothing against writers.
    pub(crate) async fn would_drop(
        &self,
        table: &PartitionedTable,
        partition: &Partition,
    ) -> Result<Fate, PruneError> {
        if let Some(left) = self.obstacle(partition).await? {
            return Ok(Fate::Left(left));
        }
        let Some(rows) = table.rows_of(partition) else { return Ok(Fate::Left(Left::Gone)) };
        let counted = match rows.count(self.client, self.proof, self.before).await {
            Err(error) if error.is_locked() => return Ok(Fate::Left(Left::Busy)),
            counted => counted?,
        };
        Ok(if is_deletable(&counted) {
            Fate::Dropped(counted.deletable)
        } else {
            Fate::Left(Left::Rows(counted))
        })
    }

    async fn obstacle(&self, partition: &Partition) -> Result<Option<Left>, PruneError> {
        let failed = database(&partition.name, "looking for foreign keys");
        let sql = "SELECT pg_catalog.format('%I of %s', conname, conrelid::pg_catalog.regclass)
                     FROM pg_catalog.pg_constraint
                    WHERE contype = 'f' AND confrelid = $1 ORDER BY 1 LIMIT 1";
        let row = self.client.query_opt(sql, &[&partition.oid]).await.map_err(&failed)?;
        let foreign_key: Option<String> =
            row.map(|row| row.try_get(0)).transpose().map_err(failed)?;
        Ok(partition.obstacle().or(foreign_key.map(Left::Referenced)))
    }

    /// Drops a partition if every row of it may be deleted, and none is to be archived any more. Calls
    /// `report` after each part of the rows, with how many pages of how many are checked. Tries to lock
    /// the table at most `attempts` times.
    pub(crate) async fn drop_partition(
        &mut self,
        table: &PartitionedTable,
        partition: &Partition,
        attempts: u32,
        mut report: impl FnMut((u64, u64)),
    ) -> Result<Fate, PruneError> {
        if let Some(left) = self.obstacle(partition).await? {
            return Ok(Fate::Left(left));
        }
        let Some(rows) = table.rows_of(partition) else { return Ok(Fate::Left(Left::Gone)) };
        let candidate = Candidate { table, partition, rows, attempts };
        let mut pace = Pace { pages: PAGES_FIRST, most: PAGES_MAX };
        for attempt in 0..LOCK_ATTEMPTS {
            if attempt > 0 {
                pause(LOCK_PAUSE, self.is_stopped).await;
            }
            if let Some(stopped) = self.stopped(&partition.name).await? {
                return Ok(Fate::Stopped(stopped));
            }
            let done = self.attempt(&candidate, &mut pace, &mut report).await?;
            match done {
                Ok(rows) => return Ok(Fate::Dropped(rows)),
                Err(ended) => {
                    let failed = database(&partition.name, "leaving it as it is");
                    self.client.batch_execute("ROLLBACK").await.map_err(failed)?;
                    if let Attempt::Done(fate) = ended {
                        return Ok(fate);
                    }
                }
            }
        }
        Ok(Fate::Left(Left::Busy))
    }

    /// One transaction, which is still open if it did not succeed.
    async fn attempt(
        &mut self,
        candidate: &Candidate<'_>,
        pace: &mut Pace,
        report: &mut impl FnMut((u64, u64)),
    ) -> Result<Step<u64>, PruneError> {
        if let Err(ended) = self.lock_partition(candidate).await? {
            return Ok(Err(ended));
        }
        // Rows that may not be deleted are mostly the last ones.
        let pages = pages_of(self.client, &candidate.partition.name).await?;
        let (mut end, mut found) = (pages, 0);
        while end > 0 {
            let first = end.saturating_sub(pace.pages);
            let counted = match self.part(candidate, (first, end), pace).await? {
                Ok(counted) => counted,
                Err(ended) => return Ok(Err(ended)),
            };
            if !is_deletable(&counted) {
                return Ok(Err(Attempt::Done(Fate::Left(Left::Rows(counted)))));
            }
            found += counted.deletable;
            end = first;
            report((pages - end, pages));
        }
        if self.archives() && found > 0 {
            return Ok(Err(Attempt::Done(Fate::Left(Left::Unarchived(found)))));
        }
        crate::crash_points::point!("partition_checked");
        let dropped = self.lock_and_drop(candidate).await?;
        crate::crash_points::point!("partition_dropped");
        Ok(dropped.map(|()| found))
    }

    /// Keeps writers from the partition, and makes sure that it is still one.
    async fn lock_partition(
        &self,
        Candidate { table, partition, .. }: &Candidate<'_>,
    ) -> Result<Step<()>, PruneError> {
        let failed = database(&partition.name, "locking the partition");
        // Each statement sees what was committed before it began: after the lock, all rows. Nobody
        // waits for standbys while the table is locked; PostgreSQL writes the WAL of a transaction that
        // drops files to the disk, whatever `synchronous_commit` is. Policies that would hide rows, and
        // may be new, are an error.
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
             SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {};
             SET LOCAL idle_in_transaction_session_timeout = {};
             SET LOCAL synchronous_commit = off; SET LOCAL row_security = off;
             LOCK TABLE ONLY {} IN SHARE MODE",
            self.limits.lock.as_millis(),
            (self.limits.lock + PART_LIMIT).as_millis(),
            FROZEN_LIMIT.as_millis(),
            partition.name,
        );
        if let Err(error) = self.client.batch_execute(&sql).await {
            return match ended(&error) {
                Some(ended) => Ok(Err(ended)),
                None => Err(failed(error)),
            };
        }
        let sql = format!(
            "SELECT EXISTS (
                 SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
                  WHERE c.oid = $1 AND i.inhparent = $2 AND NOT i.inhdetachpending
                    AND c.oid = pg_catalog.to_regclass($3)::pg_catalog.oid
                    AND {LOWER} IS NOT DISTINCT FROM $4 AND {UPPER} IS NOT DISTINCT FROM $5)"
        );
        let Partition { name, oid, lower, upper, .. } = partition;
        let row = self
            .client
            .query_one(&sql, &[oid, &table.oid, &name.regclass_text(), lower, upper])
            .await;
        let is_partition: bool = row.and_then(|row| row.try_get(0)).map_err(failed)?;
        Ok(if is_partition { Ok(()) } else { Err(Attempt::Done(Fate::Left(Left::Gone))) })
    }

    /// Counts the rows of some pages, unless writers wait, or the run is to end.
    async fn part(
        &mut self,
        candidate: &Candidate<'_>,
        pages: (u64, u64),
        pace: &mut Pace,
    ) -> Result<Step<Counted>, PruneError> {
        let Candidate { partition, rows, .. } = candidate;
        if let Some(stopped) = self.stopped(&partition.name).await? {
            return Ok(Err(Attempt::Done(Fate::Stopped(stopped))));
        }
        if self.has_waiting(partition).await? {
            return Ok(Err(Attempt::Busy));
        }
        let began = Instant::now();
        let range = format!(
            "o.ctid >= '({},0)'::pg_catalog.tid AND o.ctid < '({},0)'::pg_catalog.tid",
            pages.0, pages.1
        );
        let done = rows.count_if(self.client, self.proof, self.before, &range).await;
        let counted = match done {
            Ok(counted) => counted,
            Err(PruneError::Database { source, .. })
                if source.code() == Some(&SqlState::QUERY_CANCELED) =>
            {
                pace.took_too_long(pages.1 - pages.0);
                return Ok(Err(Attempt::Busy));
            }
            // A policy that is new: it would hide rows.
            Err(PruneError::Database { source, .. })
                if source.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) =>
            {
                return Ok(Err(Attempt::Done(Fate::Left(Left::Unreadable))));
            }
            Err(error) => return Err(error),
        };
        pace.took(began.elapsed());
        Ok(Ok(counted))
    }

    /// Whether another session waits for the partition's lock; VACUUM may.
    async fn has_waiting(&self, partition: &Partition) -> Result<bool, PruneError> {
        let failed = database(&partition.name, "looking for sessions that wait for it");
        let sql = "SELECT EXISTS (
                       SELECT FROM pg_catalog.pg_locks l
                        WHERE l.locktype = 'relation' AND l.relation = $1 AND NOT l.granted
                          AND l.mode <> 'ShareUpdateExclusiveLock'
                          AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                                             WHERE d.datname = pg_catalog.current_database()))";
        let row = self.client.query_one(sql, &[&partition.oid]).await;
        row.and_then(|row| row.try_get(0)).map_err(failed)
    }

    /// Locks the table and drops the partition, in one round trip. The partition stays locked against
    /// writers in between attempts, as long as none waits.
    async fn lock_and_drop(
        &self,
        Candidate { table, partition, attempts, .. }: &Candidate<'_>,
    ) -> Result<Step<()>, PruneError> {
        let failed = database(&partition.name, "dropping the partition");
        let default = table.default().map_or_else(String::new, |default| {
            format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE NOWAIT;", default.name)
        });
        // A session that has one of the other locks has that of the table too, so they are free now, or
        // sessions use the partitions by their own names.
        let sql = format!(
            "SAVEPOINT checked; SET LOCAL statement_timeout = {};
             LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE;
             LOCK TABLE ONLY {name} IN ACCESS EXCLUSIVE MODE NOWAIT; {default}
             SET LOCAL statement_timeout = {}; DROP TABLE {name}; {}; COMMIT",
            (self.limits.lock + PART_LIMIT).as_millis(),
            table.name,
            DROP_LIMIT.as_millis(),
            // Undone, if that was another table, or a partition of another one than is locked.
            raise_if(
                &format!(
                    "EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = {})
                     OR pg_catalog.to_regclass({})::pg_catalog.oid IS DISTINCT FROM {}::pg_catalog.oid",
                    partition.oid,
                    escape_literal(&table.name.regclass_text()),
                    table.oid
                ),
                IS_ANOTHER
            ),
            name = partition.name,
        );
        for attempt in 0..*attempts {
            if attempt > 0 && !pause(LOCK_PAUSE, self.is_stopped).await {
                return Ok(Err(Attempt::Done(Fate::Stopped(Stopped::Signal))));
            }
            // A writer that waits for this session while that waits for the table is a deadlock, and
            // would be the one that PostgreSQL cancels if it had waited for longer.
            if self.has_waiting(partition).await? {
                return Ok(Err(Attempt::Busy));
            }
            let Err(error) = self.client.batch_execute(&sql).await else { return Ok(Ok(())) };
            match ended(&error) {
                Some(Attempt::Busy) => {}
                Some(done) => return Ok(Err(done)),
                None => return Err(failed(error)),
            }
            self.client.batch_execute("ROLLBACK TO SAVEPOINT checked").await.map_err(&failed)?;
        }
        Ok(Err(Attempt::Done(Fate::Left(Left::Locked))))
    }
}

fn is_deletable(counted: &Counted) -> bool {
    let Counted { young, undelivered, before_slot, unpublished, skipped, .. } = counted;
    [young, undelivered, before_slot, unpublished, skipped].into_iter().all(|rows| *rows == 0)
}

/// How an attempt ends with this error of a lock or of DROP; `None`: the run does.
fn ended(error: &Error) -> Option<Attempt> {
    match error.code() {
        Some(
            &SqlState::LOCK_NOT_AVAILABLE
            | &SqlState::T_R_DEADLOCK_DETECTED
            | &SqlState::QUERY_CANCELED,
        ) => Some(Attempt::Busy),
        Some(&SqlState::UNDEFINED_TABLE) => Some(Attempt::Done(Fate::Left(Left::Gone))),
        Some(code) if code.code() == IS_ANOTHER => Some(Attempt::Done(Fate::Left(Left::Gone))),
        Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST) => {
            // Names of other objects.
            let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
            let why = format!("{} ({})", said(error), excerpt(detail));
            Some(Attempt::Done(Fate::Left(Left::Refused(why))))
        }
        Some(code) if !ends_session(code) => {
            Some(Attempt::Done(Fate::Left(Left::Refused(said(error)))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_took_too_long_are_not_read_at_once_again() {
        let mut pace = Pace { pages: 256, most: PAGES_MAX };
        for expected in [512, 1_024] {
            pace.took(PART / 4);
            assert_eq!(pace.pages, expected);
        }
        pace.took(PART * 2);
        assert_eq!(pace.pages, 512);
        pace.took_too_long(512);
        pace.took(PART / 4);
        assert_eq!(pace.pages, 64);
        pace.took_too_long(1);
        assert_eq!(pace.pages, 1);
    }

    #[test]
    fn one_row_that_may_not_be_deleted_keeps_a_partition() {
        let all = Counted { deletable: 5, ..Counted::default() };
        assert!(is_deletable(&all));
        assert!(is_deletable(&Counted::default()));
        for one in [
            Counted { young: 1, ..all.clone() },
            Counted { undelivered: 1, ..all.clone() },
            Counted { before_slot: 1, ..all.clone() },
            Counted { unpublished: 1, ..all.clone() },
            Counted { skipped: 1, ..all.clone() },
        ] {
            assert!(!is_deletable(&one), "{one:?}");
        }
    }
}
