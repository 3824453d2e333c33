//! Tables that store rows of an outbox table which PostgreSQL never sends under the table's name.
//!
//! A partition's rows are sent as those of the partitioned table, unless nothing of them is in the WAL:
//! the partition is unlogged, or a foreign table. Those of a table that inherits from another one
//! without being its partition are its own: a trigger that routes rows into such tables hides them, and
//! so do the chunks of `TimescaleDB`.

use std::fmt;

use tokio_postgres::{Client, Row};

use crate::outbox::TableName;
use crate::source::SourceError;

/// The tables below `$1`, at any depth, whose rows are not sent as its own, and itself if it is
/// unlogged: oid, name, kind, and a table right above it. Those named by `$2` and `$3` are outbox tables
/// themselves, with what is below them.
const PARTS: &str = "
    WITH RECURSIVE own AS (
        SELECT c.oid
          FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]),
                          pg_catalog.unnest($3::pg_catalog.text[]))
               AS named (nspname, relname)
          JOIN pg_catalog.pg_namespace n ON n.nspname = named.nspname::pg_catalog.name
          JOIN pg_catalog.pg_class c
            ON c.relnamespace = n.oid AND c.relname = named.relname::pg_catalog.name
    ), below AS (
        SELECT $1::pg_catalog.oid AS oid, $1::pg_catalog.oid AS parent
         UNION
        SELECT i.inhrelid, i.inhparent FROM below
          JOIN pg_catalog.pg_inherits i ON i.inhparent = below.oid
         WHERE i.inhrelid NOT IN (SELECT oid FROM own))
    SELECT DISTINCT ON (2, 3)
           c.oid, n.nspname::pg_catalog.text, c.relname::pg_catalog.text, part.kind,
           pn.nspname::pg_catalog.text, p.relname::pg_catalog.text
      FROM below
      JOIN pg_catalog.pg_class c ON c.oid = below.oid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_catalog.pg_class p ON p.oid = below.parent
      JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
     CROSS JOIN LATERAL (
           SELECT CASE WHEN c.oid <> $1 AND NOT c.relispartition THEN 'child'
                       WHEN c.oid <> $1 AND c.relkind = 'f' THEN 'foreign'
                       WHEN c.relpersistence <> 'p' THEN 'unlogged' END AS kind) AS part
     WHERE part.kind IS NOT NULL AND (c.oid = $1 OR c.relpersistence <> 't')
     ORDER BY 2, 3";

/// Why rows are not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartKind {
    /// The table itself, or a partition, is unlogged.
    Unlogged,
    /// A partition is a foreign table.
    Foreign,
    /// A table that inherits from the outbox table, and is no partition.
    Child,
}

/// A table with rows of an outbox table that are not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnsentPart {
    pub(crate) oid: u32,
    pub(crate) name: TableName,
    pub(crate) kind: PartKind,
    /// The outbox table.
    pub(crate) of: TableName,
    /// The table of which it is a partition, or from which it inherits.
    parent: TableName,
}

impl UnsentPart {
    fn read(row: &Row, of: &TableName) -> Result<Self, tokio_postgres::Error> {
        let kind = match row.try_get::<_, &str>(3)? {
            "child" => PartKind::Child,
            "foreign" => PartKind::Foreign,
            _ => PartKind::Unlogged,
        };
        let name = TableName { schema: row.try_get(1)?, name: row.try_get(2)? };
        let parent = TableName { schema: row.try_get(4)?, name: row.try_get(5)? };
        Ok(Self { oid: row.try_get(0)?, name, kind, of: of.clone(), parent })
    }

    /// What has to be done so that the rows are sent.
    pub(crate) fn remedy(&self) -> String {
        let Self { name, kind, of, parent, .. } = self;
        match kind {
            PartKind::Unlogged => format!("ALTER TABLE {name} SET LOGGED"),
            PartKind::Foreign => format!("ALTER TABLE {parent} DETACH PARTITION {name}"),
            PartKind::Child => format!(
                "let rows be stored in {of} itself, or in partitions of it; or list {name} in \
                 outbox.tables and in the publication as well; or, if no new events are written to it, \
                 ALTER TABLE {name} NO INHERIT {parent}"
            ),
        }
    }
}

impl fmt::Display for UnsentPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, of, .. } = self;
        match kind {
            PartKind::Unlogged if name == of => write!(f, "table {of} is unlogged"),
            PartKind::Unlogged => write!(f, "{name}, a partition of table {of}, is unlogged"),
            PartKind::Foreign => write!(f, "{name}, a partition of table {of}, is a foreign table"),
            PartKind::Child => write!(f, "{name} inherits from table {of}"),
        }
    }
}

/// The tables with rows of the outbox table `of`, whose OID is `oid`, that are not sent; `tables` are
/// all outbox tables.
pub(crate) async fn unsent_parts(
    client: &Client,
    (oid, of): (u32, &TableName),
    tables: &[TableName],
) -> Result<Vec<UnsentPart>, tokio_postgres::Error> {
    let schemas: Vec<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    let rows = client.query(PARTS, &[&oid, &schemas, &names]).await?;
    rows.iter().map(|row| UnsentPart::read(row, of)).collect()
}

/// Fails if there is such a table.
pub(in crate::source) fn require_none(parts: &[UnsentPart]) -> Result<(), SourceError> {
    let Some(part) = parts.first() else { return Ok(()) };
    let more = match parts.len() {
        1 => String::new(),
        count => format!(" (and {} more tables: see `walpost check`)", count - 1),
    };
    Err(SourceError::Setup(format!(
        "{part}, and PostgreSQL never sends its rows{more}: {}. Before that, and before walpost prune runs \
         again, publish what was not sent: `walpost recover --all` finds it. Where the position is kept, run \
         `walpost adopt --apply` afterwards",
        part.remedy()
    )))
}
