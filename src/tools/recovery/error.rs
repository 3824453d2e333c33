//! Why events cannot be published again, or not afterwards.

use tokio_postgres::error::SqlState;

use crate::assembly::AssemblyError;
use crate::config::ConfigError;
use crate::destination::published::ReadError;
use crate::lsn::Lsn;
use crate::outbox::{TableName, identifier_text};
use crate::relay::RelayError;
use crate::source::{SourceError, said};
use crate::tools::setup::AdoptError;
use walpost_core::relay::Halt;

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
    /// A table without a column for the mark.
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
        /// The number of rows that were inserted.
        inserted: i64,
    },
    /// The table is not the one that was looked at, or its columns are not.
    #[error(
        "{0} was dropped, renamed, replaced by another table, detached, or given other columns meanwhile: \
         nothing more was changed. Run this again for the rest"
    )]
    Changed(TableName),
    /// A value would have to be given a type of a third role.
    #[error(
        "column {} of {table} has a type of role {}, which is neither the table's owner nor a superuser: its \
         code would run with the rights of this user. Leave out --mark or --new-ids, or give the type to the \
         table's owner",
        identifier_text(.column), identifier_text(.role)
    )]
    StrangeType {
        /// The table.
        table: TableName,
        /// The column of the id.
        column: String,
        /// The owner of the type.
        role: String,
    },
    /// Another replay works on the table.
    #[error("another `walpost replay` works on {0}: wait for its end")]
    Busy(TableName),
    /// What is published.
    #[error(transparent)]
    Published(#[from] RecoveryError),
    /// A record of another producer.
    #[error(
        "a record with such a position has an id that {table} cannot have ({why}): choose positions at \
         which only this outbox was published"
    )]
    ForeignId {
        /// The table.
        table: TableName,
        /// What PostgreSQL says.
        why: String,
    },
    /// No record was published there.
    #[error(
        "no record of {0} has such a position: do records have the header \
         walpost.position (record.headers)?"
    )]
    NoSuchPositions(String),
    /// Records with such a position do not say which event they are.
    #[error(
        "{0} records with such positions have no header `id` (record.headers): choose the events by \
         time, with --since and --until"
    )]
    PositionsWithoutIds(u64),
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

/// Why rows that the slot does not send cannot be compared with what is published, or not be published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    /// PostgreSQL.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The slot, or what keeps the position.
    #[error(transparent)]
    Positions(#[from] AdoptError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What is published cannot be read back.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The relay cannot be built.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The relay has ended early.
    #[error("{0}. What is published stays; run the command again to continue")]
    Relay(#[from] Box<RelayError>),
    /// An event cannot be delivered.
    #[error(
        "{0}; repair the row, or delete it, or set a policy for such events (poison.*), then run the \
         command again. What is published stays"
    )]
    Halted(Box<Halt>),
    /// Another process has written the position.
    #[error(
        "another walpost has written the position meanwhile: run the command again, which compares with \
         what is published, and continues"
    )]
    TakenOver,
    /// An unfinished run had another choice of rows.
    #[error(
        "the rows that are not all published yet were chosen in another way: run `walpost recover \
         --apply` without --since, which continues that, or with --all"
    )]
    OtherChoice,
    /// Transaction ids may not tell what is delivered.
    #[error(
        "{0} events are published whose rows are in no table: retention has deleted them, or the server was \
         set back, and then its transaction ids do not tell which rows are delivered. Name a time before \
         that with --since, or use --all"
    )]
    Ghosts(u64),
    /// A topic that was named is missing.
    #[error("topic {0} does not exist: correct --read-topic")]
    NoTopic(String),
    /// Rows have no ids.
    #[error(
        "{0} has rows without an id: after an interruption they could not be told from those that are \
         published. Give them ids, or delete them"
    )]
    RowsWithoutIds(TableName),
    /// Whether some events are published cannot be told.
    #[error(
        "whether {0} events are published cannot be told: --publish-undecided publishes them too, \
         --leave-undecided does not. Nothing was changed"
    )]
    Undecided(u64),
    /// Records have no ids.
    #[error(
        "records do not carry the events' ids in a header: walpost cannot tell which events are \
         published (record.headers needs `id`)"
    )]
    NoIds,
    /// Values with a prefix are compared.
    #[error(
        "values get the prefix of a schema, which may be another one than when they were published, so \
         walpost cannot compare them; compare ids only (--ids-alone), if the table gives none twice"
    )]
    Framed,
    /// Ids of several tables may be equal.
    #[error(
        "events of several tables can have the same id, unless all ids are uuids, and records do not \
         tell their tables: walpost cannot tell which events are published. `walpost replay` publishes rows \
         without that; `walpost adopt --apply` gives up those from before the slot"
    )]
    SeveralTables,
    /// Nothing tells which rows are delivered.
    #[error(
        "{0}: name a time with --since, from which on rows are compared with what is published, or compare all of \
         them with --all"
    )]
    NoBookmark(String),
    /// A slot that does not exist yet.
    #[error(
        "replication slot \"{0}\" does not exist: run `walpost init --apply` first, so that what is \
         committed from then on is kept for `walpost run`"
    )]
    NoSlot(String),
    /// The slot was used already.
    #[error(
        "replication slot \"{0}\" is not new, or its rows are published already: `walpost recover --all` \
         compares the table with what is published, and with --apply publishes what is missing"
    )]
    Used(String),
    /// Something behind the position is published.
    #[error(
        "events behind the position are published already, or a transaction in part: run `walpost run \
         --until current` first, which publishes the rest"
    )]
    PartlyPublished,
    /// The destination cannot be read.
    #[error(
        "what is published cannot be read back with sink.kind = \"{0}\", and so not be compared: `walpost \
         recover --publish-since TIME` publishes all rows that were written since TIME and do not wait in the \
         slot, with their ids, whether they were published or not"
    )]
    NotReadable(&'static str),
    /// The destination can be read.
    #[error(
        "with sink.kind = \"{0}\" rows can be compared with what is published: --since TIME publishes only \
         what is missing"
    )]
    Readable(&'static str),
    /// Too few positions before the slot for this many rows.
    #[error(
        "there are no positions left before {0}, where the slot begins, for this many rows; publish \
         them by `walpost replay`"
    )]
    NoPositions(Lsn),
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
