//! Why events cannot be published again.

use tokio_postgres::error::SqlState;

use crate::excerpt::excerpt;
use crate::outbox::TableName;

/// Why events cannot be published again. What was inserted before stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowReplayError {
    /// The table does not exist.
    #[error("table {0} does not exist")]
    NoTable(TableName),
    /// Row level security hides rows.
    #[error(
        "row-level security can hide rows of {0} from this user: connect as a role with BYPASSRLS, or \
         as the table's owner"
    )]
    HiddenRows(TableName),
    /// Tables inherit from it.
    #[error("tables inherit from {0}: rows of theirs would move to it. Replay them by hand")]
    Inherited(TableName),
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
        what: &'static str,
    },
    /// Nothing says when a row was written.
    #[error("table {0} has no column created_at with a time: name one with --time-column")]
    NoTime(TableName),
    /// The ids have no default.
    #[error("the ids of {0} have no default, and are no uuids: walpost cannot make new ones")]
    NoNewIds(TableName),
    /// There is no place for the mark.
    #[error("table {0} has no column for headers (outbox.columns.headers), which --mark needs")]
    NoHeaders(TableName),
    /// Some ids belong to no row.
    #[error("no row has the id {0}: it was deleted, or is another table's. Nothing was changed")]
    NoSuchRows(String),
    /// Any other error of PostgreSQL.
    #[error("{doing}: {}", said(source))]
    Database {
        /// The operation.
        doing: &'static str,
        /// The error.
        source: tokio_postgres::Error,
    },
}

/// PostgreSQL's message, or the client library's if there is none.
fn said(error: &tokio_postgres::Error) -> String {
    let Some(error) = error.as_db_error() else { return error.to_string() };
    let message = excerpt(error.message());
    if *error.code() == SqlState::INSUFFICIENT_PRIVILEGE {
        return format!("{message}; connect as the table's owner, with --source");
    }
    message
}

pub(super) fn database(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> RowReplayError {
    move |source| RowReplayError::Database { doing, source }
}
