//! Publishes events again, through the WAL: their rows are deleted and inserted again, so that `run`
//! reads them as new ones, in order, and nothing else publishes.

use std::fmt;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::error::{RowReplayError, database};
use super::replay_sql::{Manner, Selection, condition, statement};
use super::replayed_table::ReplayedTable;
use crate::excerpt::excerpt;
use crate::outbox::{ColumnNames, TableName};

/// Rows that one transaction inserts again. Small, so that other sessions wait for its locks only
/// shortly.
const CHUNK: u32 = 1_000;

/// Ids that a message names.
const NAMED: usize = 5;

/// Events to publish again, and how.
#[derive(Debug, Clone)]
pub(crate) struct Replay {
    /// Which ones.
    pub(crate) selection: Selection,
    /// The column that has the time at which a row was written; `None`: as configured.
    pub(crate) time_column: Option<String>,
    /// The rows get new ids, and the old ones stay.
    pub(crate) new_ids: bool,
    /// Their headers get a member that says that it is a replay.
    pub(crate) mark: bool,
}

/// What was inserted again in a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inserted {
    /// The number of rows.
    pub(crate) rows: u64,
    /// The time of the last one.
    pub(crate) last: Option<String>,
}

/// What a replay finds in a table.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    table: ReplayedTable,
    /// With its times resolved.
    selection: Selection,
    /// How many rows are chosen.
    pub(crate) rows: u64,
    /// The times of the first and the last one.
    times: Option<(String, String)>,
}

impl Replay {
    /// What it would insert again; changes nothing.
    pub(crate) async fn find(
        &self,
        client: &Client,
        tables: &[TableName],
        names: &ColumnNames,
    ) -> Result<Vec<Found>, RowReplayError> {
        // Times are written as text and read again. Others wait behind a session that waits for a lock.
        let set = "SET datestyle = 'ISO'; SET lock_timeout = '10s'";
        client.batch_execute(set).await.map_err(database("preparing the session"))?;
        let mut all = Vec::with_capacity(tables.len());
        for name in tables {
            let time = self.time_column.as_deref();
            let table = ReplayedTable::read(client, name, names, time, !self.new_ids).await?;
            all.push(self.find_in(client, table).await?);
        }
        if let Selection::Ids(ids) = &self.selection {
            missing(client, &all, ids).await?;
        }
        Ok(all)
    }

    async fn find_in(
        &self,
        client: &Client,
        table: ReplayedTable,
    ) -> Result<Found, RowReplayError> {
        let selection = resolved(client, &table, &self.selection).await?;
        let chosen = condition(&table, &selection)?;
        // What the statement needs, before anything is changed.
        statement(&table, &selection, self.manner(), None, false)?;
        let times = table.time.as_ref().map_or_else(
            || "NULL::pg_catalog.text, NULL::pg_catalog.text".to_owned(),
            |time| {
                let name = postgres_protocol::escape::escape_identifier(&time.name);
                format!(
                    "pg_catalog.min(o.{name})::pg_catalog.text, pg_catalog.max(o.{name})::pg_catalog.text"
                )
            },
        );
        let count =
            format!("SELECT pg_catalog.count(*), {times} FROM {} AS o WHERE {chosen}", table.name);
        let row = query(client, &count, &selection, None).await;
        let counted = row.and_then(|row| {
            row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).transpose()
        });
        let counted: Option<(i64, Option<String>, Option<String>)> =
            counted.map_err(database("counting the rows"))?;
        let (rows, first, last) = counted.unwrap_or_default();
        let rows = u64::try_from(rows).unwrap_or_default();
        Ok(Found { table, selection, rows, times: first.zip(last) })
    }

    fn manner(&self) -> Manner {
        Manner { new_ids: self.new_ids, mark: self.mark }
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
        let Found { table, selection, .. } = found;
        // Copies would be chosen again: they have the time of the rows, and another id.
        let limit = (!self.new_ids && table.time.is_some()).then_some(CHUNK);
        let mut after = None::<Vec<String>>;
        loop {
            let sql = statement(table, selection, self.manner(), limit, after.is_some())?;
            let row = query(client, &sql, selection, after.as_deref()).await;
            let row = row.map_err(database("inserting the rows again"))?;
            let Some(row) = row else { return Ok(()) };
            let (rows, key): (i64, Vec<String>) =
                (row.try_get(0).and_then(|rows| Ok((rows, row.try_get(1)?))))
                    .map_err(database("inserting the rows again"))?;
            inserted.rows += u64::try_from(rows).unwrap_or_default();
            inserted.last = table.time.as_ref().and_then(|_| key.first().cloned());
            after = Some(key);
            if !report(inserted.rows) || limit.is_none() {
                return Ok(());
            }
        }
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
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Found { table, .. } = self;
        let fires = |trigger| {
            format!(
                "{}: trigger {trigger} fires, with search_path = pg_catalog, pg_temp",
                table.name
            )
        };
        table.triggers.iter().map(fires).collect()
    }
}

/// The first row of a query with the parameters of [`condition`], and the key `after`.
async fn query(
    client: &Client,
    sql: &str,
    selection: &Selection,
    after: Option<&[String]>,
) -> Result<Option<Row>, tokio_postgres::Error> {
    let mut values: Vec<&(dyn ToSql + Sync)> = match selection {
        Selection::Ids(ids) => vec![ids],
        Selection::Times { since, until } => vec![since, until],
    };
    values.extend(after.into_iter().flatten().map(|value| value as &(dyn ToSql + Sync)));
    client.query_opt(sql, &values).await
}

/// The same with times as the table stores them: `now` would be another time at each use, and rows
/// that are inserted meanwhile are published anyway.
async fn resolved(
    client: &Client,
    table: &ReplayedTable,
    selection: &Selection,
) -> Result<Selection, RowReplayError> {
    let (Selection::Times { since, until }, Some(time)) = (selection, &table.time) else {
        return Ok(selection.clone());
    };
    let kind = &time.kind;
    let sql = format!(
        "SELECT coalesce($1::pg_catalog.text::{kind}, '-infinity')::pg_catalog.text,
                coalesce($2::pg_catalog.text::{kind}, pg_catalog.now()::{kind})::pg_catalog.text"
    );
    let row = client.query_one(&sql, &[since, until]).await;
    let times = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let (since, until) = times.map_err(database("reading --since and --until"))?;
    Ok(Selection::Times { since: Some(since), until: Some(until) })
}

/// Fails if one of the ids belongs to no row of any of the tables.
async fn missing(client: &Client, all: &[Found], ids: &[String]) -> Result<(), RowReplayError> {
    let mut missing: Vec<&String> = ids.iter().collect();
    for Found { table, .. } in all {
        let (id, kind) =
            (postgres_protocol::escape::escape_identifier(&table.id.name), &table.id.kind);
        let sql = format!(
            "SELECT w.id FROM pg_catalog.unnest($1::pg_catalog.text[]) AS w (id)
              WHERE EXISTS (SELECT FROM {} AS o WHERE o.{id} = w.id::{kind})",
            table.name
        );
        let rows = client.query(&sql, &[&ids]).await.map_err(database("looking for the ids"))?;
        for row in rows {
            let found: String = row.try_get(0).map_err(database("looking for the ids"))?;
            missing.retain(|id| **id != found);
        }
    }
    let count = missing.len();
    let mut named: Vec<_> = missing.into_iter().take(NAMED).map(|id| excerpt(id)).collect();
    if count > NAMED {
        named.push(format!("{} more", count - NAMED));
    }
    if count == 0 { Ok(()) } else { Err(RowReplayError::NoSuchRows(named.join(", "))) }
}
