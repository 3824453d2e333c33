//! The size of the outbox tables on disk, and what was removed from them, read once a minute on the session's own control connection.
//! It needs no right on a table.
//!
//! Asking for a size takes the weakest lock on the table. Whatever else is asked on this connection
//! would wait for that lock too, so a table that another session has locked exclusively is left out
//! until the next time, and the wait is short in any case.

use std::collections::BTreeSet;
use std::time::Duration;

use postgres_protocol::escape::escape_literal;
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::outbox::TableName;
use crate::source::error::SourceError;

/// How often it is read.
pub(in crate::source) const INTERVAL: Duration = Duration::from_secs(60);

/// How long to wait for a lock, and how long the reading may take on the server.
const LOCK_TIMEOUT_MS: u32 = 50;
const STATEMENT_TIMEOUT_MS: u32 = 2_000;

/// How long the server may take to respond.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A table with its partitions, indexes and TOAST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSize {
    /// The table's name, quoted as in SQL where needed.
    pub table: String,
    /// The table's size in bytes; `None`: a part of it is locked.
    pub bytes: Option<u64>,
    /// Rows that were deleted from it, as the server's statistics count them.
    pub deleted: u64,
    /// The oids of its partitions, and its own.
    pub parts: BTreeSet<u32>,
}

/// The query of the sizes, one message and so one transaction. No row for a table that does not
/// exist, and no size of a table of which a part is locked.
fn query(tables: &[TableName]) -> String {
    let literal = |text: &str| escape_literal(text).trim_start().to_owned();
    let named = tables.iter().enumerate().map(|(number, table)| {
        format!("({number}, {}, {})", literal(&table.schema), literal(&table.name))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    format!(
        "SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS};
         WITH RECURSIVE part (number, oid) AS (
             SELECT named.number, c.oid
               FROM (VALUES {named}) AS named (number, nspname, relname)
               JOIN pg_catalog.pg_namespace n ON n.nspname = named.nspname::pg_catalog.name
               JOIN pg_catalog.pg_class c
                 ON c.relnamespace = n.oid AND c.relname = named.relname::pg_catalog.name
             UNION
             SELECT part.number, c.oid
               FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
               JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
         ), size AS (
             SELECT number, oid,
                    CASE WHEN oid NOT IN (
                             SELECT l.relation FROM pg_catalog.pg_locks l
                              WHERE l.locktype = 'relation' AND l.relation IS NOT NULL
                                AND l.mode = 'AccessExclusiveLock')
                         THEN pg_catalog.pg_total_relation_size(oid) END AS bytes,
                    coalesce(pg_catalog.pg_stat_get_tuples_deleted(oid), 0) AS deleted
               FROM part
         )
         SELECT number::pg_catalog.text,
                CASE WHEN pg_catalog.bool_and(bytes IS NOT NULL)
                     THEN pg_catalog.sum(bytes)::pg_catalog.text END,
                pg_catalog.sum(deleted)::pg_catalog.text,
                pg_catalog.string_agg(oid::pg_catalog.text, ' ')
           FROM size GROUP BY number"
    )
}

/// Reads the sizes.
pub(in crate::source) async fn read(
    client: &Client,
    tables: &[TableName],
) -> Result<Vec<TableSize>, SourceError> {
    const WHAT: &str = "querying the size of the outbox";
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    let answer = timeout(ANSWER_LIMIT, client.simple_query(&query(tables))).await;
    let answer = answer.map_err(|_| {
        SourceError::Lost(format!("{WHAT}: PostgreSQL did not answer within {ANSWER_LIMIT:?}"))
    })?;
    let answer = answer.map_err(|error| SourceError::query(WHAT, &error))?;
    let sizes = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let table = tables.get(row.get(0)?.parse::<usize>().ok()?)?;
            let number = |column| row.get(column).and_then(|text: &str| text.parse().ok());
            let parts = row.get(3)?.split(' ').filter_map(|oid| oid.parse().ok()).collect();
            let (bytes, deleted) = (number(1), number(2)?);
            Some(TableSize { table: table.to_string(), bytes, deleted, parts })
        }
        _ => None,
    });
    Ok(sizes.collect())
}
