//! Publishes events again, through the WAL: their rows are deleted and inserted again, so that `run`
//! reads them as new ones, in order, and nothing else publishes.
//!
//! The rows are listed first, in a cursor that outlives its transaction. Each transaction then takes
//! some of them, and is undone if it would not insert exactly what it has deleted.

use std::collections::HashSet;
use std::fmt;

use tokio_postgres::{Client, Row};

use super::error::{RowReplayError, database, is_no_such_id};
use super::replay_sql::{Filter, Manner, Selection, Sql, count, insert, list};
use super::replayed_table::{ReplayedTable, Wish};
use crate::excerpt::excerpt;
use crate::outbox::{ColumnNames, Needs, Role, TableName};
use crate::source::{TableShape, lift_limits, said};

/// Rows that one transaction inserts again. Few, so that other sessions wait for its locks only
/// shortly.
const CHUNK: usize = 1_000;

/// Ids that a message names.
const NAMED: usize = 5;

/// The cursor with the list.
const CURSOR: &str = "walpost_replay";

/// The class of a replay's advisory lock, whose object is the table's oid.
const LOCK: i32 = 0x5750_7270;

/// Events to publish again, and how.
#[derive(Debug, Clone)]
pub(crate) struct Replay {
    /// Which ones.
    pub(crate) selection: Selection,
    /// Which of these.
    pub(crate) filter: Filter,
    /// The column that has the time at which a row was written; `None`: as configured.
    pub(crate) time_column: Option<String>,
    /// The column by which the events are ordered; `None`: by time.
    pub(crate) order_by: Option<String>,
    /// How their rows are inserted.
    pub(crate) manner: Manner,
}

/// What became of the rows of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inserted {
    /// How many were inserted again.
    pub(crate) rows: u64,
    /// How many of the list were gone.
    pub(crate) gone: u64,
    /// The id and the time of the last one of the list that was taken.
    pub(crate) last: Option<(String, Option<String>)>,
    /// Whether the list was worked through.
    pub(crate) is_complete: bool,
}

/// What a replay finds in a table.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    table: ReplayedTable,
    /// How many rows are chosen.
    pub(crate) rows: u64,
    /// The times of the first and the last one.
    times: Option<(String, String)>,
}

impl Replay {
    /// What it would insert again, and how many published events have no row any more; changes nothing.
    /// Fixes the times of the selection.
    pub(crate) async fn find(
        &mut self,
        client: &Client,
        tables: &[TableName],
        (names, needs): (&ColumnNames, Needs),
    ) -> Result<(Vec<Found>, usize), RowReplayError> {
        // Times are written as text and read again. Others wait behind a session that waits for a lock.
        let set = "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET lock_timeout = '10s'";
        let preparing = database(None, "preparing the session");
        lift_limits(client).await.map_err(&preparing)?;
        client.batch_execute(set).await.map_err(&preparing)?;
        self.selection = resolved(client, &self.selection).await?;
        let mut all = Vec::with_capacity(tables.len());
        for name in tables {
            let (time, order) = (self.time_column.as_deref(), self.order_by.as_deref());
            let wish = Wish { names, time, order, deletes: !self.manner.new_ids };
            let table = ReplayedTable::read(client, name, wish).await?;
            if self.manner.mark && !needs.used.contains(Role::Headers) {
                return Err(RowReplayError::NoHeaders(name.clone()));
            }
            // What the statement needs, before anything is changed.
            insert(&table, &self.selection, &self.filter, self.manner, Vec::new())?;
            all.push(self.find_in(client, table, tables.len() > 1).await?);
        }
        let gone = match &self.selection {
            Selection::Times { .. } => 0,
            Selection::Published(ids) => missing(client, &all, ids).await?.len(),
            Selection::Ids(ids) => {
                require_none(&missing(client, &all, ids).await?)?;
                0
            }
        };
        Ok((all, gone))
    }

    fn is_published(&self) -> bool {
        matches!(self.selection, Selection::Published(_))
    }

    /// `is_one_of_several`: ids may be of another table, and no ids of this one at all.
    async fn find_in(
        &self,
        client: &Client,
        table: ReplayedTable,
        is_one_of_several: bool,
    ) -> Result<Found, RowReplayError> {
        let failed = database(Some(&table.name), "counting the rows");
        let sql = count(&table, &self.selection, &self.filter)?;
        let row = match query(client, &sql).await {
            Err(error) if is_one_of_several && is_no_such_id(&error) => None,
            Err(error) if self.is_published() && is_no_such_id(&error) => {
                return Err(RowReplayError::ForeignId { table: table.name, why: said(&error) });
            }
            answer => answer.map_err(&failed)?,
        };
        let counted = row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)));
        let counted: Option<(i64, Option<String>, Option<String>)> =
            counted.transpose().map_err(&failed)?;
        let (rows, first, last) = counted.unwrap_or_default();
        let rows = u64::try_from(rows).unwrap_or_default();
        Ok(Found { table, rows, times: first.zip(last) })
    }

    /// Inserts the found rows again, counts them in `inserted`, and calls `report` after each
    /// transaction. Stops when that returns false.
    pub(crate) async fn apply(
        &self,
        client: &Client,
        found: &Found,
        inserted: &mut Inserted,
        mut report: impl FnMut(u64) -> bool,
    ) -> Result<(), RowReplayError> {
        let Found { table, .. } = found;
        let failed = database(Some(&table.name), "listing the rows");
        let lock =
            "SELECT pg_catalog.pg_try_advisory_lock($1, $2::pg_catalog.oid::pg_catalog.int4)";
        let row = client.query_one(lock, &[&LOCK, &table.oid]).await.map_err(&failed)?;
        if !row.try_get::<_, bool>(0).map_err(&failed)? {
            return Err(RowReplayError::Busy(table.name.clone()));
        }
        let sql = list(table, &self.selection, &self.filter, CURSOR)?;
        client.execute(&sql.text, &sql.parameters()).await.map_err(&failed)?;
        let fetch = format!("FETCH {CHUNK} FROM {CURSOR}");
        loop {
            let rows = client.query(&fetch, &[]).await.map_err(&failed)?;
            let listed = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
            let listed: Result<Vec<(String, Option<String>)>, _> = listed.collect();
            let listed = listed.map_err(&failed)?;
            let Some(last) = listed.last().cloned() else {
                inserted.is_complete = true;
                break;
            };
            let ids: Vec<String> = listed.into_iter().map(|(id, _)| id).collect();
            let wanted = ids.len() as u64;
            let taken = self.insert_again(client, found, ids).await?;
            inserted.rows += taken;
            inserted.gone += wanted.saturating_sub(taken);
            inserted.last = Some(last);
            if !report(inserted.rows) {
                break;
            }
        }
        let close = format!("CLOSE {CURSOR}; SELECT pg_catalog.pg_advisory_unlock_all()");
        client.batch_execute(&close).await.map_err(&failed)
    }

    /// Deletes and inserts the rows in a separate transaction, which is rolled back unless all
    /// deleted rows are inserted again.
    async fn insert_again(
        &self,
        client: &Client,
        found: &Found,
        ids: Vec<String>,
    ) -> Result<u64, RowReplayError> {
        let Found { table, .. } = found;
        let failed = database(Some(&table.name), "inserting the rows again");
        let sql = insert(table, &self.selection, &self.filter, self.manner, ids)?;
        let shape = TableShape::lock(client, &table.name, table.oid, "").await.map_err(&failed)?;
        let is_same = shape.is_some_and(|shape| {
            (shape.root, shape.columns) == (table.shape.root, table.shape.columns.clone())
        });
        if !is_same {
            client.batch_execute("ROLLBACK").await.map_err(&failed)?;
            return Err(RowReplayError::Changed(table.name.clone()));
        }
        let counted = query(client, &sql)
            .await
            .and_then(|row| row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose());
        let (deleted, inserted): (i64, i64) = match counted {
            Ok(counted) => counted.unwrap_or_default(),
            Err(error) => {
                // The error says more than one of this would.
                let _ = client.batch_execute("ROLLBACK").await;
                return Err(failed(error));
            }
        };
        if deleted != inserted {
            client.batch_execute("ROLLBACK").await.map_err(&failed)?;
            return Err(RowReplayError::Kept { table: table.name.clone(), deleted, inserted });
        }
        client.batch_execute("COMMIT").await.map_err(&failed)?;
        Ok(u64::try_from(inserted).unwrap_or_default())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = if self.rows == 1 { "event" } else { "events" };
        write!(f, "{}: {} {events}", self.table.name, self.rows)?;
        if let Some((first, last)) = &self.times {
            write!(f, ", written from {first} to {last}")?;
        }
        Ok(())
    }
}

impl Found {
    /// The table's name.
    pub(crate) fn table(&self) -> &TableName {
        &self.table.name
    }

    /// What an operator should know before, a line each.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.table.warnings
    }
}

/// The first row of a query.
async fn query(client: &Client, sql: &Sql) -> Result<Option<Row>, tokio_postgres::Error> {
    client.query_opt(&sql.text, &sql.parameters()).await
}

/// The same with fixed times: `now` would be another time at each use, and rows that are inserted
/// meanwhile are published anyway.
async fn resolved(client: &Client, selection: &Selection) -> Result<Selection, RowReplayError> {
    let Selection::Times { since, until } = selection else { return Ok(selection.clone()) };
    let sql = "SELECT coalesce($1::pg_catalog.text::pg_catalog.timestamptz, '-infinity')::pg_catalog.text,
                coalesce($2::pg_catalog.text::pg_catalog.timestamptz, pg_catalog.now())::pg_catalog.text";
    let row = client.query_one(sql, &[since, until]).await;
    let times = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let (since, until) = times.map_err(database(None, "reading --since and --until"))?;
    Ok(Selection::Times { since: Some(since), until: Some(until) })
}

/// The ids that belong to no row of any of the tables.
async fn missing<'a>(
    client: &Client,
    all: &[Found],
    ids: &'a [String],
) -> Result<Vec<&'a String>, RowReplayError> {
    let mut is_found = HashSet::new();
    for Found { table, .. } in all {
        let failed = database(Some(&table.name), "looking for the ids");
        let sql = format!(
            "SELECT w.id FROM pg_catalog.unnest($1::pg_catalog.text[]) AS w (id)
              WHERE EXISTS (SELECT FROM {} AS o WHERE {})",
            table.name,
            table.id.is("w.id")
        );
        let rows = match client.query(&sql, &[&ids]).await {
            Err(error) if all.len() > 1 && is_no_such_id(&error) => continue,
            answer => answer.map_err(&failed)?,
        };
        for row in rows {
            let found: String = row.try_get(0).map_err(&failed)?;
            is_found.insert(found);
        }
    }
    Ok(ids.iter().filter(|id| !is_found.contains(*id)).collect())
}

/// Fails if there are any.
fn require_none(missing: &[&String]) -> Result<(), RowReplayError> {
    let count = missing.len();
    let mut named: Vec<_> = missing.iter().take(NAMED).map(|id| excerpt(id)).collect();
    if count > NAMED {
        named.push(format!("{} more", count - NAMED));
    }
    if count == 0 { Ok(()) } else { Err(RowReplayError::NoSuchRows(named.join(", "))) }
}

/// Whether somebody publishes what is inserted: a line for each thing that is missing.
pub(crate) async fn publisher_warnings(
    client: &Client,
    slot: &str,
    publication: &str,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots
                               WHERE slot_name::pg_catalog.text = $1),
                      EXISTS (SELECT FROM pg_catalog.pg_publication
                               WHERE pubname::pg_catalog.text = $2 AND pubinsert)";
    let row = client.query_one(sql, &[&slot, &publication]).await?;
    let (has_slot, is_published): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    let missing = [
        (has_slot, format!("replication slot {slot} does not exist")),
        (
            is_published,
            format!("publication {publication} does not exist, or publishes no inserts"),
        ),
    ];
    let missing = missing.into_iter().filter(|(is_there, _)| !is_there);
    Ok(missing.map(|(_, what)| format!("{what}: nobody would publish the events")).collect())
}
