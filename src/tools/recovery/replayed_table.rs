//! A table whose rows are to be inserted again, and what speaks against it.

use postgres_protocol::escape::escape_identifier;
use tokio_postgres::{Client, Row};

use super::error::{RowReplayError, database};
use crate::outbox::{ColumnNames, Role, TableName, identifier_text};
use crate::source::{COLUMN_TYPE, OwnersCode, RowEvents, TIME_COLUMN, TableShape, in_text_form};

const TABLE: &str = "
    SELECT c.oid, c.relkind = 'p', pg_catalog.row_security_active(c.oid),
           EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
           pg_catalog.has_table_privilege(c.oid, 'INSERT'),
           pg_catalog.has_table_privilege(c.oid, 'DELETE')
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2
       AND c.relkind IN ('r', 'p')";

/// The type modifier is given, since a type's name without one can mean another length:
/// `character` is one character, and `bpchar` any number. The type is that behind domains, whose checks
/// are code of their owners.
const COLUMNS: &str = "
    SELECT a.attname::pg_catalog.text, coalesce(pg_catalog.format_type(type.oid, -1), ''),
           a.attgenerated <> '', a.attidentity <> '', a.atthasdef,
           EXISTS (SELECT FROM pg_catalog.pg_index i
                    WHERE i.indrelid = a.attrelid AND i.indkey[0] = a.attnum),
           type.is_built_in, type.stranger
      FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
     CROSS JOIN {TYPE} AS type (oid, is_built_in, stranger)
     WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum";

/// Foreign keys to the table, or to a partition, for which a deleted row that comes back in the same
/// statement is a deleted row: all but NO ACTION
/// (<https://www.postgresql.org/docs/current/ddl-constraints.html#DDL-CONSTRAINTS-FK>).
const FOREIGN_KEY: &str = "
    SELECT conrelid::pg_catalog.regclass::pg_catalog.text,
           CASE confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL'
                            WHEN 'd' THEN 'SET DEFAULT' ELSE 'RESTRICT' END
      FROM pg_catalog.pg_constraint
     WHERE contype = 'f' AND confdeltype <> 'a'
       AND (confrelid = $1 OR confrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1)))
     ORDER BY 1 LIMIT 1";

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub(super) struct Column {
    pub(super) name: String,
    /// The column's type behind domains, as SQL writes it.
    pub(super) kind: String,
    /// Whether that type is built in: casts of others can be functions of their owners.
    pub(super) is_built_in: bool,
    /// The owner of its type or domain, if that is neither the table's owner nor this user.
    pub(super) stranger: Option<String>,
    is_generated: bool,
    pub(super) is_identity: bool,
    pub(super) has_default: bool,
    is_indexed: bool,
}

/// A table whose rows can be inserted again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplayedTable {
    pub(super) name: TableName,
    pub(super) oid: u32,
    /// What it is, to be compared before each transaction.
    pub(super) shape: TableShape,
    /// All that an INSERT may name.
    pub(super) columns: Vec<Column>,
    pub(super) id: Column,
    /// `None` if the table has none.
    pub(super) time: Option<Column>,
    /// Orders the rows before their times do.
    pub(super) order: Option<Column>,
    pub(super) headers: Option<Column>,
    pub(super) aggregate_type: Option<Column>,
    pub(super) aggregate_id: Option<Column>,
    /// What an operator should know, a line each.
    pub(super) warnings: Vec<String>,
}

/// What the user asks of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) names: &'a ColumnNames,
    pub(super) time: Option<&'a str>,
    pub(super) order: Option<&'a str>,
    /// Whether rows are deleted.
    pub(super) deletes: bool,
}

impl Column {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            name: row.try_get(0)?,
            kind: row.try_get(1)?,
            is_generated: row.try_get(2)?,
            is_identity: row.try_get(3)?,
            has_default: row.try_get(4)?,
            is_indexed: row.try_get(5)?,
            is_built_in: row.try_get(6)?,
            stranger: row.try_get(7)?,
        })
    }

    /// The column's name in SQL.
    pub(super) fn quoted(&self) -> String {
        escape_identifier(&self.name)
    }

    /// The condition that its value in the row `o` is `text`, which is an expression. Only a built-in type
    /// reads the text.
    pub(super) fn is(&self, text: &str) -> String {
        let value = format!("o.{}", self.quoted());
        if self.is_built_in {
            format!("{value} = {text}::{}", self.kind)
        } else {
            format!("{} = {text}", in_text_form(&value))
        }
    }

    /// The column's value in the row `o`, as the output plugin sends it.
    pub(super) fn text_form(&self) -> String {
        in_text_form(&format!("o.{}", self.quoted()))
    }

    /// Whether its times have no zone, and so are UTC.
    pub(super) fn is_without_zone(&self) -> bool {
        self.kind == "timestamp without time zone"
    }

    /// Whether it has a time of known zone: without one it is UTC, as in records.
    pub(super) fn is_time(&self) -> bool {
        ["timestamp with time zone", "timestamp without time zone"].contains(&self.kind.as_str())
    }

    /// A column for tests.
    #[cfg(test)]
    pub(super) fn named(name: &str, kind: &str) -> Self {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        let (is_generated, is_identity, has_default, is_indexed) = (false, false, false, true);
        let (is_built_in, stranger) = (true, None);
        Self {
            name,
            kind,
            is_built_in,
            stranger,
            is_generated,
            is_identity,
            has_default,
            is_indexed,
        }
    }
}

impl ReplayedTable {
    /// Looks at the table, and refuses it if its rows cannot be inserted again without side effects.
    pub(super) async fn read(
        client: &Client,
        name: &TableName,
        wish: Wish<'_>,
    ) -> Result<Self, RowReplayError> {
        let failed = |error| database(Some(name), "looking at the table")(error);
        let row = client.query_opt(TABLE, &[&name.schema, &name.name]).await.map_err(failed)?;
        let row = row.ok_or_else(|| RowReplayError::NoTable(name.clone()))?;
        let fact = |index: usize| row.try_get::<_, bool>(index).map_err(failed);
        let oid: u32 = row.try_get(0).map_err(failed)?;
        if fact(2)? {
            return Err(RowReplayError::HiddenRows(name.clone()));
        }
        if fact(3)? && !fact(1)? {
            return Err(RowReplayError::Inherited(name.clone()));
        }
        if !fact(4)? || wish.deletes && !fact(5)? {
            return Err(RowReplayError::Denied(name.clone()));
        }
        if wish.deletes
            && let Some(row) = client.query_opt(FOREIGN_KEY, &[&oid]).await.map_err(failed)?
        {
            let (by, action) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
            return Err(RowReplayError::Referenced { table: name.clone(), by, action });
        }
        // Before the columns: what changes in between is noticed.
        let shape = TableShape::read(client, name, oid).await.map_err(failed)?;
        let shape = shape.ok_or_else(|| RowReplayError::Changed(name.clone()))?;
        let rows = client.query(&COLUMNS.replace("{TYPE}", COLUMN_TYPE), &[&oid]).await;
        let rows = rows.map_err(failed)?;
        let columns = rows.iter().map(Column::of).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let events = if wish.deletes { RowEvents::Both } else { RowEvents::Insert };
        let code = OwnersCode::read(client, name, events).await.map_err(failed)?;
        let mut table = Self::of((name, oid, shape), columns, wish)?;
        table.warnings.extend(code.triggers.into_iter().chain(code.warning));
        Ok(table)
    }

    fn of(
        (name, oid, shape): (&TableName, u32, TableShape),
        columns: Vec<Column>,
        wish: Wish<'_>,
    ) -> Result<Self, RowReplayError> {
        let found = |name: &str| columns.iter().find(|column| column.name == name);
        let of_role = |role| wish.names.looked_for(role).find_map(found).cloned();
        let missing = |what: String| RowReplayError::NoColumn { table: name.clone(), what };
        let no_ids = || missing("the events' ids (outbox.columns.id)".to_owned());
        let id = of_role(Role::Id).ok_or_else(no_ids)?;
        let time = match wish.time {
            Some(time) => {
                let column = found(time).filter(|column| column.is_time()).cloned();
                let column = column.ok_or_else(|| {
                    missing(format!("times with the name {time} (timestamptz or timestamp)"))
                });
                Some(column?)
            }
            None => of_role(Role::Timestamp)
                .filter(Column::is_time)
                .or_else(|| found(TIME_COLUMN).filter(|column| column.is_time()).cloned()),
        };
        let order = wish.order.map(|order| {
            found(order).cloned().ok_or_else(|| missing(format!("the order, {order}")))
        });
        let order = order.transpose()?;
        let [headers, aggregate_type, aggregate_id] =
            [Role::Headers, Role::AggregateType, Role::AggregateId].map(of_role);
        let mut warnings = Vec::new();
        if !id.is_indexed || !id.is_built_in {
            warnings.push(format!(
                "{name}: no index begins with {}: every 1,000 events read the whole table",
                identifier_text(&id.name)
            ));
        }
        let columns = columns.into_iter().filter(|column| !column.is_generated).collect();
        let name = name.clone();
        Ok(Self {
            name,
            oid,
            shape,
            columns,
            id,
            time,
            order,
            headers,
            aggregate_type,
            aggregate_id,
            warnings,
        })
    }
}
