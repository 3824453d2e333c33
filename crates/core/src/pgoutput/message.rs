//! The messages of the pgoutput plugin, protocol version 1, as Rust types.
//!
//! A tuple keeps the received bytes, and its values are slices of them.
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>

use bytes::Bytes;

use crate::lsn::Lsn;

/// The OID of a relation.
pub type Oid = u32;

/// A PostgreSQL timestamp: microseconds since 2000-01-01 00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PgTimestamp(i64);

impl PgTimestamp {
    /// Milliseconds from the Unix epoch to PostgreSQL's.
    const EPOCH_UNIX_MS: i64 = 946_684_800_000;

    /// The timestamp that many microseconds after PostgreSQL's epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since PostgreSQL's epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The timestamp that many microseconds after the Unix epoch.
    pub const fn from_unix_micros(micros: i64) -> Self {
        Self(micros.saturating_sub(Self::EPOCH_UNIX_MS * 1000))
    }

    /// Microseconds since the Unix epoch; saturates for PostgreSQL's last timestamps.
    pub const fn unix_micros(self) -> i64 {
        self.0.saturating_add(Self::EPOCH_UNIX_MS * 1000)
    }

    /// Milliseconds since the Unix epoch, rounded down: Kafka's unit.
    pub const fn unix_millis(self) -> i64 {
        self.0.div_euclid(1000) + Self::EPOCH_UNIX_MS
    }
}

/// A message of the output plugin.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// A transaction begins; everything up to its Commit belongs to it.
    Begin(Begin),
    /// The transaction ends.
    Commit(Commit),
    /// The transaction came from another server; contains no row.
    Origin,
    /// A relation's columns, sent before its first row of a session and after a change.
    Relation(Relation),
    /// A data type that is not built in, sent before each Relation that has a column of it.
    Type(TypeName),
    /// A row was inserted.
    Insert(Insert),
    /// A row of this relation was updated; the row itself is ignored.
    Update(Oid),
    /// A row of this relation was deleted; the row itself is ignored.
    Delete(Oid),
    /// The relations that were truncated.
    Truncate(Vec<Oid>),
    /// `pg_logical_emit_message`.
    Logical(LogicalMessage),
}

/// Begin: the properties of a transaction, sent before its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// LSN of the transaction's commit record (`final_lsn` on the wire).
    pub commit_lsn: Lsn,
    /// When the transaction committed.
    pub commit_time: PgTimestamp,
    /// The transaction's id.
    pub xid: u32,
}

/// Commit: the end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// LSN of the commit record; equal to that of the Begin.
    pub commit_lsn: Lsn,
    /// LSN of the end of the commit record: the position that may be confirmed.
    pub end_lsn: Lsn,
    /// When the transaction committed.
    pub commit_time: PgTimestamp,
}

/// The name of a data type at the time of the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeName {
    /// The type's OID; columns refer to it.
    pub oid: Oid,
    /// The schema of its base type if it is a domain, otherwise its own.
    pub base_schema: String,
    /// The name of its base type if it is a domain, otherwise its own.
    pub base_name: String,
}

/// A relation's name and columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The relation's OID; rows refer to it.
    pub oid: Oid,
    /// Schema, as stored in the catalog (unquoted).
    pub schema: String,
    /// Name, as stored in the catalog (unquoted).
    pub name: String,
    /// Columns in the order of the tuples.
    pub columns: Vec<Column>,
}

/// A column of a relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name, as stored in the catalog (unquoted).
    pub name: String,
    /// The OID of its data type (`pg_type.oid`).
    pub type_oid: Oid,
    /// The type modifier (`pg_attribute.atttypmod`), such as a length; -1 means none.
    pub type_modifier: i32,
}

/// An inserted row.
#[derive(Debug, Clone, PartialEq)]
pub struct Insert {
    /// The relation that the row was inserted into.
    pub relation: Oid,
    /// The row.
    pub tuple: Tuple,
}

/// A row's columns: the received bytes, checked once when decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuple {
    /// Number of columns.
    pub(super) columns: u16,
    /// The columns in wire format, after the count.
    pub(super) bytes: Bytes,
}

/// One column's value in a tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// An unchanged TOASTed value that was not sent (updates only).
    Unchanged,
    /// The type's text form, in the client's encoding.
    Text(&'a [u8]),
    /// The type's binary form.
    Binary(&'a [u8]),
}

/// A message that was emitted with `pg_logical_emit_message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalMessage {
    /// Whether it belongs to a transaction (and is sent between Begin and Commit).
    pub transactional: bool,
    /// LSN of the message itself.
    pub lsn: Lsn,
    /// The prefix.
    pub prefix: String,
    /// The content: raw bytes in the database's encoding.
    pub content: Bytes,
}
