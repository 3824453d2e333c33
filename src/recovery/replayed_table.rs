//! A table whose rows are to be inserted again, and what speaks against it.

use tokio_postgres::{Client, Row};

use super::error::{RowReplayError, database};
use crate::outbox::{ColumnNames, Role, TableName};

/// Where rows have the time at which they were written, unless configured.
const TIME_COLUMN: &str = "created_at";

const TABLE: &str = "
    SELECT c.oid, c.relkind = 'p',
           pg_catalog.row_security_active(c.oid),
           EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2
       AND c.relkind IN ('r', 'p')";

const COLUMNS: &str = "
    SELECT a.attname::pg_catalog.text, pg_catalog.format_type(a.atttypid, NULL),
           t.typcategory = 'D', a.attgenerated <> '', a.atthasdef OR a.attidentity <> ''
      FROM pg_catalog.pg_attribute a
      JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
     WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum";

/// Foreign keys to the table for which a deleted row that comes back in the same statement is a
/// deleted row: all but NO ACTION
/// (<https://www.postgresql.org/docs/current/ddl-constraints.html#DDL-CONSTRAINTS-FK>).
const FOREIGN_KEY: &str = "
    SELECT conrelid::pg_catalog.regclass::pg_catalog.text,
           CASE confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL'
                            WHEN 'd' THEN 'SET DEFAULT' ELSE 'RESTRICT' END
      FROM pg_catalog.pg_constraint
     WHERE contype = 'f' AND confrelid = $1 AND confdeltype <> 'a'
     ORDER BY 1 LIMIT 1";

/// Triggers that fire for a deleted or inserted row, or for such a statement (`TRIGGER_TYPE_INSERT`
/// and `TRIGGER_TYPE_DELETE`).
const TRIGGERS: &str = "
    SELECT tgname::pg_catalog.text FROM pg_catalog.pg_trigger
     WHERE tgrelid = $1 AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 12 <> 0
     ORDER BY 1";

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// Its type, as SQL writes it.
    pub(super) kind: String,
    is_date: bool,
    is_generated: bool,
    pub(super) has_default: bool,
}

/// A table whose rows can be inserted again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplayedTable {
    pub(super) name: TableName,
    /// All that an INSERT may name.
    pub(super) columns: Vec<Column>,
    pub(super) id: Column,
    /// Orders the rows; `None` if the table has none, and nothing is selected by time.
    pub(super) time: Option<Column>,
    pub(super) headers: Option<Column>,
    /// Triggers that fire.
    pub(super) triggers: Vec<String>,
}

impl Column {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            name: row.try_get(0)?,
            kind: row.try_get(1)?,
            is_date: row.try_get(2)?,
            is_generated: row.try_get(3)?,
            has_default: row.try_get(4)?,
        })
    }

    /// As a test has it.
    #[cfg(test)]
    pub(super) fn named(name: &str, kind: &str) -> Self {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        Self { name, kind, is_date: false, is_generated: false, has_default: false }
    }
}

impl ReplayedTable {
    /// Looks at the table. `time` is the column that the user names.
    pub(super) async fn read(
        client: &Client,
        name: &TableName,
        names: &ColumnNames,
        time: Option<&str>,
        deletes: bool,
    ) -> Result<Self, RowReplayError> {
        let failed = database("looking at the table");
        let row = client.query_opt(TABLE, &[&name.schema, &name.name]).await;
        let found = row.and_then(|row| {
            row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)))
                .transpose()
        });
        let found: Option<(u32, bool, bool, bool)> = found.map_err(&failed)?;
        let Some((oid, is_partitioned, hides_rows, has_children)) = found else {
            return Err(RowReplayError::NoTable(name.clone()));
        };
        if hides_rows {
            return Err(RowReplayError::HiddenRows(name.clone()));
        }
        if has_children && !is_partitioned {
            return Err(RowReplayError::Inherited(name.clone()));
        }
        let row = client.query_opt(FOREIGN_KEY, &[&oid]).await;
        let referenced = row.and_then(|row| {
            row.map(|row| Ok::<_, tokio_postgres::Error>((row.try_get(0)?, row.try_get(1)?)))
                .transpose()
        });
        if let Some((by, action)) = referenced.map_err(&failed)?.filter(|_| deletes) {
            return Err(RowReplayError::Referenced { table: name.clone(), by, action });
        }
        let rows = client.query(COLUMNS, &[&oid]).await.map_err(&failed)?;
        let columns: Result<Vec<_>, _> = rows.iter().map(Column::of).collect();
        let columns = columns.map_err(&failed)?;
        let rows = client.query(TRIGGERS, &[&oid]).await.map_err(&failed)?;
        let triggers: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        Self::of(name, columns, names, time, triggers.map_err(&failed)?)
    }

    fn of(
        name: &TableName,
        columns: Vec<Column>,
        names: &ColumnNames,
        time: Option<&str>,
        triggers: Vec<String>,
    ) -> Result<Self, RowReplayError> {
        let found = |name: &str| columns.iter().find(|column| column.name == name);
        let of_role = |role| names.looked_for(role).find_map(found).cloned();
        let missing = |what: &'static str| RowReplayError::NoColumn { table: name.clone(), what };
        let id = of_role(Role::Id).ok_or_else(|| missing("the events' ids (outbox.columns.id)"))?;
        let time = match time {
            Some(time) => {
                let column = found(time).filter(|column| column.is_date);
                Some(column.ok_or_else(|| missing("times with the name in --time-column"))?.clone())
            }
            None => of_role(Role::Timestamp).or_else(|| found(TIME_COLUMN).cloned()),
        };
        let headers = of_role(Role::Headers);
        let columns = columns.into_iter().filter(|column| !column.is_generated).collect();
        let name = name.clone();
        let time = time.filter(|column| column.is_date);
        Ok(Self { name, columns, id, time, headers, triggers })
    }
}
