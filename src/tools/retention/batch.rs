//! Deletes some rows of a table in a transaction.
//!
//! - It waits for the table's lock first, with which nobody can rewrite, rename or drop the table, and
//!   makes sure that the name still means the table that was looked at.
//! - It locks the rows that it is going to delete, and leaves out those that other sessions have locked
//!   (`SKIP LOCKED`): it waits for no row while it has others, so no writer ends in a deadlock with it.
//! - The server ends it if this program does not continue.
//!
//! The rows for an archive command are read, and the command runs, in between two such transactions:
//! both may take long. Rows are told by their `ctid`, which is another row's once the table was
//! rewritten: then they are read again. A row that was changed meanwhile has another `ctid`, and one
//! that is new is not delivered by the proof.

use std::fmt;
use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::archive::{self, Archive, READING};
use super::error::{PruneError, database};
use super::proof::Proof;
use super::pruned_table::PrunedTable;
use crate::source::{SqlClient, TableShape};

/// What `begin_batch` does.
const LOCKING: &str = "locking the table";

/// After this time the server ends a transaction of which this program does not continue.
pub(super) const FROZEN_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of the lines that a command gets at once, and of one more row.
const LINES_BYTES: u64 = 32 << 20;

/// A `ctid`: the page, and the number in it, which begins with 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ctid {
    pub(super) page: u64,
    pub(super) item: u64,
}

impl fmt::Display for Ctid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.page, self.item)
    }
}

impl Ctid {
    fn parse(text: &str) -> Option<Self> {
        let (page, item) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        Some(Self { page: page.parse().ok()?, item: item.parse().ok()? })
    }
}

/// What one transaction has found and deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Deletion {
    /// Rows that may be deleted.
    pub(super) found: u64,
    /// The last one of these.
    pub(super) last: Option<Ctid>,
    /// Whether there may be more behind it.
    pub(super) has_more: bool,
    /// Rows that other sessions had locked.
    pub(super) locked: u64,
    /// Rows that a command has got, and that other sessions have changed or locked meanwhile.
    pub(super) changed: u64,
    /// Rows that were to be deleted.
    pub(super) chosen: u64,
    /// Rows that were.
    pub(super) deleted: u64,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done(Deletion),
    /// Another session had the table locked for too long.
    Locked,
    /// Another session had rows locked for too long that a foreign key's action changes.
    Busy,
    /// The table was rewritten while a command ran: its rows are elsewhere in it.
    Rewritten,
}

/// Deletes rows that are proved to be delivered, and were written before a time.
pub(super) struct Batches<'a> {
    pub(super) client: &'a SqlClient,
    pub(super) proof: &'a Proof,
    /// The time in PostgreSQL's notation.
    pub(super) before: &'a str,
    /// The archive that rows go to first.
    pub(super) archive: Option<Archive<'a>>,
}

impl Batches<'_> {
    /// Deletes rows behind `after`, and before the page `end`: at most `limit`.
    pub(super) async fn delete(
        &self,
        table: &PrunedTable,
        range: (Ctid, u64),
        limit: u64,
    ) -> Result<Outcome, PruneError> {
        let error = match self.transactions(table, range, limit).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        // The first error says more than one of this would.
        let _ = self.client.batch_execute("ROLLBACK").await;
        match error {
            PruneError::Database { source, doing, .. }
                if matches!(
                    source.code(),
                    Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED)
                ) =>
            {
                // Rows that are read for a command are not locked.
                let is_table = doing == LOCKING || doing == READING;
                Ok(if is_table { Outcome::Locked } else { Outcome::Busy })
            }
            error => Err(error),
        }
    }

    async fn transactions(
        &self,
        table: &PrunedTable,
        range: (Ctid, u64),
        limit: u64,
    ) -> Result<Outcome, PruneError> {
        let name = &table.name;
        let failed = database(name, "deleting rows");
        let locked = self.begin_batch(table).await?;
        let (mut deletion, mut rows) = self.choose(table, range, limit).await?;
        let condition = self.is_chosen(table, "$1::pg_catalog.text::pg_catalog.tid[]");
        if let (Some(Archive::Command(command)), true) = (&self.archive, deletion.chosen > 0) {
            self.client.batch_execute("COMMIT").await.map_err(&failed)?;
            crate::crash_points::point!("prune_reads");
            let lines =
                archive::lines(self.client, table, (&condition, &rows), locked.file).await?;
            if lines.is_rewritten {
                return Ok(Outcome::Rewritten);
            }
            // Those that other sessions have changed since are left to the next run.
            deletion.locked += deletion.chosen.saturating_sub(lines.count);
            (deletion.chosen, rows) = (lines.count, lines.rows);
            if deletion.chosen > 0 {
                archive::pipe(table, command, &lines.text).await?;
                crate::crash_points::point!("prune_archived");
            }
            let again = self.begin_batch(table).await?;
            // Lines have the values of the former columns.
            if again.columns != locked.columns {
                return Err(table.changed("given other columns"));
            }
            if again != locked {
                self.client.batch_execute("ROLLBACK").await.map_err(&failed)?;
                return Ok(Outcome::Rewritten);
            }
            let archived = deletion.chosen;
            (deletion.chosen, rows) = self.lock_again(table, &rows).await?;
            deletion.changed = archived.saturating_sub(deletion.chosen);
        }
        if deletion.chosen > 0 {
            let delete = format!("DELETE FROM ONLY {name} AS o WHERE {condition}");
            deletion.deleted = match &self.archive {
                Some(Archive::Table(archive)) => {
                    archive::insert(self.client, table, archive, (&delete, &rows)).await?
                }
                _ => self.client.execute(&delete, &[&rows]).await.map_err(&failed)?,
            };
            crate::crash_points::point!("rows_deleted");
        }
        self.client.batch_execute("COMMIT").await.map_err(&failed)?;
        Ok(Outcome::Done(deletion))
    }

    /// Begins a transaction, and locks the table against other changes than those of rows.
    async fn begin_batch(&self, table: &PrunedTable) -> Result<TableShape, PruneError> {
        let limit = FROZEN_LIMIT.as_millis();
        let settings = format!("SET LOCAL idle_in_transaction_session_timeout = {limit};");
        let shape = TableShape::lock(self.client, &table.name, table.oid, &settings).await;
        let shape = shape.map_err(database(&table.name, LOCKING))?;
        let shape = shape.ok_or_else(|| table.replaced())?;
        // Operators detach partitions to keep them.
        if shape.root != table.root {
            return Err(table.changed("detached, or attached to another table,"));
        }
        // A partition may have them in another order.
        if shape.names.len() != table.columns.len()
            || !shape.names.iter().all(|column| table.columns.contains(column))
        {
            return Err(table.changed("given other columns"));
        }
        Ok(shape)
    }

    /// The condition that a row `o` is one of `rows`, which is an array of `ctid`, and may be deleted.
    fn is_chosen(&self, table: &PrunedTable, rows: &str) -> String {
        let is_deletable = table.is_deletable(self.proof, self.before);
        format!("o.ctid = ANY ({rows}) AND {is_deletable}")
    }

    /// Locks rows that may be deleted; with an archive command as many as it gets at once. Returns them
    /// as an array of `ctid`.
    async fn choose(
        &self,
        table: &PrunedTable,
        (after, end): (Ctid, u64),
        limit: u64,
    ) -> Result<(Deletion, String), PruneError> {
        let name = &table.name;
        let failed = database(name, "choosing rows");
        let is_deletable = table.is_deletable(self.proof, self.before);
        let found = match self.archive {
            Some(Archive::Command(_)) => format!(
                "SELECT line.ctid
                   FROM (SELECT o.ctid, o.bytes,
                                pg_catalog.sum(o.bytes) OVER (ORDER BY o.ctid ROWS UNBOUNDED PRECEDING) AS total
                           FROM (SELECT o.ctid, pg_catalog.octet_length({}) AS bytes FROM ONLY {name} AS o
                                  WHERE o.ctid = ANY (ARRAY(SELECT ctid FROM first)) OFFSET 0) AS o) AS line
                  WHERE line.total - line.bytes < {LINES_BYTES}",
                table.json()
            ),
            _ => "SELECT ctid FROM first".to_owned(),
        };
        // Read by pages (<https://www.postgresql.org/docs/14/release-14.html>: TID range scans).
        let sql = format!(
            "WITH first AS MATERIALIZED (
                 SELECT o.ctid FROM ONLY {name} AS o
                  WHERE o.ctid > '{after}'::pg_catalog.tid AND o.ctid < '({end},0)'::pg_catalog.tid
                    AND {is_deletable}
                  ORDER BY o.ctid LIMIT {limit}),
             found AS MATERIALIZED ({found}),
             locked AS MATERIALIZED (
                 SELECT o.ctid FROM ONLY {name} AS o WHERE {} FOR UPDATE SKIP LOCKED)
             SELECT (SELECT pg_catalog.count(*) FROM first), (SELECT pg_catalog.count(*) FROM found),
                    (SELECT pg_catalog.max(ctid)::pg_catalog.text FROM found),
                    pg_catalog.count(*), coalesce(pg_catalog.array_agg(ctid)::pg_catalog.text, '{{}}')
               FROM locked",
            self.is_chosen(table, "ARRAY(SELECT ctid FROM found)"),
        );
        let row = self.client.query_one(&sql, &[]).await.map_err(&failed)?;
        let count = |index| {
            let count: i64 = row.try_get(index).map_err(&failed)?;
            Ok::<_, PruneError>(u64::try_from(count).unwrap_or_default())
        };
        let (first, found, chosen) = (count(0)?, count(1)?, count(3)?);
        let last: Option<String> = row.try_get(2).map_err(&failed)?;
        let deletion = Deletion {
            found,
            last: last.as_deref().and_then(Ctid::parse),
            has_more: first >= limit || found < first,
            locked: found.saturating_sub(chosen),
            chosen,
            ..Deletion::default()
        };
        Ok((deletion, row.try_get(4).map_err(&failed)?))
    }

    /// Locks those of these rows that may still be deleted.
    async fn lock_again(
        &self,
        table: &PrunedTable,
        rows: &String,
    ) -> Result<(u64, String), PruneError> {
        let failed = database(&table.name, "locking rows");
        let sql = format!(
            "WITH locked AS MATERIALIZED (
                 SELECT o.ctid FROM ONLY {} AS o WHERE {} FOR UPDATE SKIP LOCKED)
             SELECT pg_catalog.count(*), coalesce(pg_catalog.array_agg(ctid)::pg_catalog.text, '{{}}')
               FROM locked",
            table.name,
            self.is_chosen(table, "$1::pg_catalog.text::pg_catalog.tid[]"),
        );
        let row = self.client.query_one(&sql, &[rows]).await.map_err(&failed)?;
        let count: i64 = row.try_get(0).map_err(&failed)?;
        Ok((u64::try_from(count).unwrap_or_default(), row.try_get(1).map_err(failed)?))
    }
}

#[cfg(test)]
mod tests {
    use super::Ctid;

    #[test]
    fn a_ctid_is_written_as_it_is_read() {
        let ctid = Ctid { page: 4_294_967_294, item: 65_535 };
        assert_eq!(Ctid::parse(&ctid.to_string()), Some(ctid));
        for text in ["", "()", "(1)", "1,2", "(1,2", "(-1,2)", "(1,2,3)"] {
            assert_eq!(Ctid::parse(text), None, "{text}");
        }
    }
}
