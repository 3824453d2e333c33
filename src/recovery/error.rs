//! Why events cannot be published again.

use tokio_postgres::error::SqlState;

use crate::outbox::TableName;
use crate::source::said;

/// Why events cannot be published again. What was inserted before stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowReplayError {
    /// The table does not exist.
    #[error("table {0} does not exist")]
    NoTable(TableName),
    /// Row level security hides rows.
    #[error(
        "row-level security can hide rows of {0} from this user: connect as a role with BYPASSRLS, or \
         as the table's owner unless it is forced"
    )]
    HiddenRows(TableName),
    /// Tables inherit from it.
    #[error("tables inherit from {0}: rows of theirs would move to it. Replay them by hand")]
    Inherited(TableName),
    /// The user lacks a right.
    #[error(
        "this user may not insert into {0}, or not delete from it: connect as its owner, with --source"
    )]
    Denied(TableName),
    /// A foreign key acts when a row is deleted.
    #[error(
        "table {by} references {table} ON DELETE {action}: deleting and inserting rows again would \
         act on its rows. --new-ids inserts copies and deletes nothing"
    )]
    Referenced {
        /// The table with the rows.
        table: TableName,
        /// The table that references it.
        by: String,
        /// The action.
        action: String,
    },
    /// A column is missing.
    #[error("table {table} has no column for {what}")]
    NoColumn {
        /// The table.
        table: TableName,
        /// The column's purpose.
        what: String,
    },
    /// Nothing says when a row was written.
    #[error("table {0} has no column created_at with a time: name one with --time-column")]
    NoTime(TableName),
    /// The ids cannot be made.
    #[error(
        "walpost cannot make new ids for {0}: its ids are generated from other columns, or have no \
         default and are no uuids"
    )]
    NoNewIds(TableName),
    /// There is no place for the mark.
    #[error(
        "--mark needs headers from the row: {0} has no column for them (outbox.columns.headers), or \
         records do not have them (record.headers, Debezium profiles)"
    )]
    NoHeaders(TableName),
    /// Some ids belong to no row.
    #[error("no row has the id {0}: it was deleted, or is another table's. Nothing was changed")]
    NoSuchRows(String),
    /// Something keeps deleted rows from being inserted.
    #[error(
        "of {deleted} rows of {table} only {inserted} would be inserted again: a trigger or a rule keeps \
         the others out. These rows were left as they are"
    )]
    Kept {
        /// The table.
        table: TableName,
        /// The rows of the transaction.
        deleted: i64,
        /// Those that were inserted.
        inserted: i64,
    },
    /// Another replay works on the table.
    #[error("another `walpost replay` works on {0}: wait for its end")]
    Busy(TableName),
    /// Any other error of PostgreSQL.
    #[error("{doing}{}: {}", on(.table.as_ref()), advised(source))]
    Database {
        /// The operation.
        doing: &'static str,
        /// The table, if it is about one.
        table: Option<TableName>,
        /// The error.
        source: tokio_postgres::Error,
    },
}

fn on(table: Option<&TableName>) -> String {
    table.map(|table| format!(" of {table}")).unwrap_or_default()
}

/// PostgreSQL's message, with the remedy.
fn advised(error: &tokio_postgres::Error) -> String {
    let message = said(error);
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            format!("{message}; connect as the table's owner, with --source")
        }
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            format!("{message}; another session has its rows: see pg_blocking_pids, and try again")
        }
        _ => message,
    }
}

/// An error of a query, about that table if there is one.
pub(super) fn database(
    table: Option<&TableName>,
    doing: &'static str,
) -> impl Fn(tokio_postgres::Error) -> RowReplayError + use<> {
    let table = table.cloned();
    move |source| RowReplayError::Database { doing, table: table.clone(), source }
}

/// Whether the text of an id is none of the column's type.
pub(super) fn is_no_such_id(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::INVALID_TEXT_REPRESENTATION,
            SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
            SqlState::INVALID_DATETIME_FORMAT,
        ]
        .contains(code)
    })
}
