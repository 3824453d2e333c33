//! Proves that a large default partition has no rows of the periods that are to be made.
//!
//! PostgreSQL reads the default partition when another one is attached, and nobody can write to it
//! meanwhile. It does not if a valid CHECK constraint excludes the rows
//! (<https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-DESC-ATTACH-PARTITION>).
//! Such a constraint is added without looking at rows, and validated beside writers; once the
//! partitions are attached it is dropped.
//!
//! While there is the constraint, and not yet the partition, a row of these periods is an error. So
//! they begin two hours later at the earliest, a constraint that a killed run has left is the first thing
//! that the next one drops, whatever becomes of that, and a small default partition does without it.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use postgres_protocol::escape::escape_literal;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::periods::{Period, Unmade};
use super::tree::{Kind, PartitionedTable, TimeKey};
use super::{IS_ANOTHER, raise_if};
use crate::outbox::TableName;
use crate::source::said;
use crate::tools::retention::error::{PruneError, database};
use crate::tools::retention::prune::{LOCK_ATTEMPTS, LOCK_PAUSE, pause};

/// The constraint's name.
const NAME: &str = "prune_partitions_ahead";

/// A default partition of this size is read in some milliseconds.
const SMALL_BYTES: i64 = 16 << 20;

/// Periods begin later than this: as long a killed run may have no successor. A timer that starts one
/// every hour may do so some minutes late.
const SOONEST: Duration = Duration::from_secs(7_200);

const LEFT_BEHIND: &str = "
    SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, c.oid
      FROM pg_catalog.pg_class above
      JOIN pg_catalog.pg_namespace s ON s.oid = above.relnamespace
      JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = above.oid
      JOIN pg_catalog.pg_class c ON c.oid = p.partdefid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_catalog.pg_constraint o ON o.conrelid = c.oid
     WHERE s.nspname::pg_catalog.text = $1 AND above.relname::pg_catalog.text = $2
       AND o.conname::pg_catalog.text = $3
       -- Nothing can be done about it on a standby.
       AND NOT pg_catalog.pg_is_in_recovery()";

/// How long validating may take.
const LIMIT: Duration = Duration::from_secs(300);

/// A constraint that excludes rows from a default partition.
#[derive(Debug, Clone)]
pub(crate) struct Exclusion {
    /// The default partition.
    pub(crate) default: TableName,
    oid: u32,
}

/// The constraint that a killed run has left on the default partition of a table: no other works on the
/// table.
pub(crate) async fn left_behind(
    client: &Client,
    table: &TableName,
) -> Result<Option<Exclusion>, PruneError> {
    let failed = database(table, "looking at the constraints of its default partition");
    let row = client.query_opt(LEFT_BEHIND, &[&table.schema, &table.name, &NAME]).await;
    let found = |row: tokio_postgres::Row| {
        let default = TableName { schema: row.try_get(0)?, name: row.try_get(1)? };
        Ok(Exclusion { default, oid: row.try_get(2)? })
    };
    row.map_err(&failed)?.map(found).transpose().map_err(failed)
}

/// Excludes rows of these periods from a default partition that is not small. Periods that begin too
/// soon are removed, and added to `soon`. `Ok(None)`: there is nothing to exclude.
pub(super) async fn exclude(
    client: &Client,
    table: &PartitionedTable,
    TimeKey { column, kind, .. }: &TimeKey,
    (periods, soon): (&mut Vec<Period>, &mut Vec<Period>),
    (wait, is_stopped): (Duration, &AtomicBool),
) -> Result<Result<Option<Exclusion>, Unmade>, PruneError> {
    let Some(default) = table.default().filter(|default| default.kind == Kind::Table) else {
        return Ok(Ok(None));
    };
    let exclusion = Exclusion { default: default.name.clone(), oid: default.oid };
    let failed = database(&default.name, "asking for its size");
    let sql = "SELECT pg_catalog.pg_relation_size($1::pg_catalog.oid::pg_catalog.regclass)";
    let row = client.query_one(sql, &[&default.oid]).await;
    let bytes: i64 = match row.and_then(|row| row.try_get(0)).map_err(failed) {
        Err(error) if error.is_locked() => return Ok(Err(Unmade::Locked)),
        bytes => bytes?,
    };
    if bytes <= SMALL_BYTES {
        return Ok(Ok(None));
    }
    let (later, sooner) = std::mem::take(periods)
        .into_iter()
        .partition(|period| period.begins_in > SOONEST.as_secs_f64());
    (*periods, *soon) = (later, sooner);
    if periods.is_empty() {
        return Ok(Ok(None));
    }
    let outside = periods.iter().map(|Period { lower, upper, .. }| (lower, upper));
    let outside = contiguous(outside).into_iter().map(|(lower, upper)| {
        format!("({column} < {lower}::{kind} OR {column} >= {upper}::{kind})")
    });
    let outside = outside.collect::<Vec<_>>().join(" AND ");
    let name = &default.name;
    let is_another = format!(
        "pg_catalog.to_regclass({})::pg_catalog.oid IS DISTINCT FROM {}::pg_catalog.oid",
        escape_literal(&name.regclass_text()),
        default.oid
    );
    let add = format!(
        "ALTER TABLE ONLY {name} ADD CONSTRAINT {NAME} CHECK ({outside}) NOT VALID; {}",
        raise_if(&is_another, IS_ANOTHER)
    );
    let failed = database(name, "adding a constraint");
    match briefly(client, &add, (wait, is_stopped)).await {
        Ok(true) => {}
        Ok(false) => return Ok(Err(Unmade::Locked)),
        Err(error) if error.code().is_some_and(|code| code.code() == IS_ANOTHER) => {
            return Ok(Err(Unmade::Replaced));
        }
        Err(error) => return Err(failed(error)),
    }
    crate::crash_points::point!("default_excluded");
    // It stops if this program is gone; not all platforms have that.
    let _ = client.batch_execute("SET client_connection_check_interval = 1000").await;
    let set = format!("SET statement_timeout = {}", LIMIT.as_millis());
    let failed = database(name, "looking for rows that belong to other partitions");
    client.batch_execute(&set).await.map_err(&failed)?;
    let validate = format!("ALTER TABLE ONLY {name} VALIDATE CONSTRAINT {NAME}");
    let validated = client.batch_execute(&validate).await;
    let Err(error) = validated else {
        client.batch_execute("SET statement_timeout = 0").await.map_err(&failed)?;
        return Ok(Ok(Some(exclusion)));
    };
    if error.code().is_some() {
        let _ = client.batch_execute("SET statement_timeout = 0").await;
    }
    exclusion.end(client, wait).await?;
    match error.code() {
        Some(&SqlState::QUERY_CANCELED) => Ok(Err(Unmade::Slow)),
        Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => {
            Ok(Err(Unmade::Locked))
        }
        // A row that was written since they were looked for.
        Some(&SqlState::CHECK_VIOLATION) => Ok(Err(Unmade::Occupied)),
        _ => Err(failed(error)),
    }
}

impl Exclusion {
    /// Drops the constraint.
    pub(crate) async fn end(&self, client: &Client, wait: Duration) -> Result<(), PruneError> {
        let Some(default) = self.name(client).await? else { return Ok(()) };
        let drop = format!("ALTER TABLE ONLY {default} DROP CONSTRAINT IF EXISTS {NAME}");
        // Whatever stops the run: a row of a period that has no partition would be an error.
        let why = match briefly(client, &drop, (wait, &AtomicBool::new(false))).await {
            Ok(true) => return Ok(()),
            Ok(false) => "other sessions keep the default partition locked".to_owned(),
            Err(error) => said(&error),
        };
        Err(is_left(&default, &why))
    }

    /// The table's name now: it, or its schema, may have been renamed. `None`: it is gone.
    async fn name(&self, client: &Client) -> Result<Option<TableName>, PruneError> {
        let sql = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text
                     FROM pg_catalog.pg_class c
                     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";
        let row = client.query_opt(sql, &[&self.oid]).await;
        let failed = |error| is_left(&self.default, &said(&error));
        let name = |row: tokio_postgres::Row| {
            Ok(TableName { schema: row.try_get(0)?, name: row.try_get(1)? })
        };
        row.map_err(failed)?.map(name).transpose().map_err(failed)
    }
}

fn is_left(default: &TableName, why: &str) -> PruneError {
    PruneError::Changed {
        table: default.clone(),
        problem: format!(
            "{why}, and it has a constraint of this command, with which it refuses rows of the periods to \
             come: run it again, or ALTER TABLE {default} DROP CONSTRAINT {NAME}"
        ),
    }
}

/// Runs a statement that locks a table for a moment; false: other sessions keep it locked.
async fn briefly(
    client: &Client,
    statement: &str,
    (wait, is_stopped): (Duration, &AtomicBool),
) -> Result<bool, tokio_postgres::Error> {
    let sql = format!("BEGIN; SET LOCAL lock_timeout = {}; {statement}; COMMIT", wait.as_millis());
    for attempt in 0..LOCK_ATTEMPTS {
        if attempt > 0 && !pause(LOCK_PAUSE, is_stopped).await {
            break;
        }
        let Err(error) = client.batch_execute(&sql).await else { return Ok(true) };
        if error.code().is_some() {
            // The first error says more than one of this would.
            let _ = client.batch_execute("ROLLBACK").await;
        }
        match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => {}
            _ => return Err(error),
        }
    }
    Ok(false)
}

/// The ranges, of which those that follow each other are one.
fn contiguous<'a>(
    ranges: impl Iterator<Item = (&'a String, &'a String)>,
) -> Vec<(&'a String, &'a String)> {
    let mut found: Vec<(&String, &String)> = Vec::new();
    for (lower, upper) in ranges {
        match found.last_mut() {
            Some(last) if last.1 == lower => last.1 = upper,
            _ => found.push((lower, upper)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::contiguous;

    #[test]
    fn ranges_that_follow_each_other_are_one() {
        let names = ["1", "2", "3", "4", "5"].map(str::to_owned);
        let between = |from: usize, to: usize| (&names[from], &names[to]);
        let ranges = [between(0, 1), between(1, 2), between(3, 4)];
        assert_eq!(contiguous(ranges.into_iter()), [between(0, 2), between(3, 4)]);
        assert_eq!(contiguous(std::iter::empty()), []);
    }
}
