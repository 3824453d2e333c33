//! What can go wrong on PostgreSQL's side, sorted by who has to act.

use std::error::Error as StdError;

use super::connection::error::ConnectError;
use super::publication_fingerprint::PublicationFingerprint;
use super::server_identity::ServerIdentity;
use super::wire::WireError;
use crate::excerpt::{at_most, line};
use crate::lsn::Lsn;

/// A failure of the source, by what follows from it. The server's words may be in any of these:
/// they are shown on one line and cut, here and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Passes with time: connect again.
    #[error("{}", line(.0))]
    Lost(String),

    /// Another client holds the slot: wait for it to go.
    #[error("replication slot \"{slot}\" is in use{}; waiting for it", by(*.pid))]
    InUse {
        /// The slot.
        slot: String,
        /// The server process that streams from it, where known.
        pid: Option<i32>,
        /// What was seen beside it, where it was looked at.
        holder: Option<Box<Holder>>,
    },

    /// The server refuses who walpost says it is, or cannot be what was asked
    /// for: a matter of configuration, or of a moment in the server's life.
    #[error("{}", line(.0))]
    Access(String),

    /// Something on the server is not as `run` needs it; names the fix.
    #[error("{}", line(.0))]
    Setup(String),

    /// The publication or an outbox table is not what it was while walpost worked with it.
    #[error("{}", line(.0))]
    Changed(String),

    /// The slot cannot be used any more, or is not where walpost left it.
    #[error("{}", line(.0))]
    Slot(String),

    /// The server sent what this version of walpost does not understand, or
    /// cannot send what it has to.
    #[error("{}", line(.0))]
    Undecodable(String),

    /// The server reports an error in the stream that is no outage's: it may pass with time, or
    /// come each time that the same record of its log is decoded.
    #[error("{}", line(.0))]
    ServerError(String),

    /// The server cannot send a row or a logical message, and nothing from its transaction on.
    #[error(
        "{}: the text of a row or of a logical message has no form in UTF-8, and PostgreSQL hands \
         out nothing from its transaction on. Fix what writes it",
        line(.0)
    )]
    Encoding(String),

    /// The same of one that is larger than the server can send.
    #[error(
        "{}: a row or a logical message is larger than PostgreSQL can send (the text of a row has \
         to be below 1 GiB, that of a bytea column is twice its bytes), and PostgreSQL hands out \
         nothing from its transaction on. Limit what is written by CHECK constraints on the \
         lengths of the columns",
        line(.0)
    )]
    Unprintable(String),
}

/// What kind of client holds the slot, or has locked its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderKind {
    /// Another walpost, by the name that its session has.
    Walpost,
    /// Another walpost that has delivered everything up to the slot's position.
    WalpostDelivered,
    /// A client that is not walpost: it may advance the slot past rows that nobody published.
    Other,
    /// It has ended since, or is this walpost's own last session, or cannot use the slot.
    Unknown,
}

/// The client that holds the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// What kind of client it is.
    pub kind: HolderKind,
    /// The role by which it has logged in, where it is a walpost's and not this one's.
    pub other_role: Option<String>,
    /// What the catalogs hold of the publication meanwhile.
    pub fingerprint: PublicationFingerprint,
    /// The server.
    pub identity: ServerIdentity,
    /// Up to where the slot is confirmed.
    pub confirmed: Lsn,
    /// Up to where the WAL was flushed before the publication was looked at.
    pub flushed: Lsn,
}

fn by(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" by server process {pid}"))
}

impl SourceError {
    pub(super) fn query(what: &str, error: &tokio_postgres::Error) -> Self {
        Self::Lost(format!("{what}: {}", with_causes(error)))
    }

    /// An error of the replication session on `slot`.
    pub(super) fn stream(error: &WireError, host: &str, slot: &str) -> Self {
        if let WireError::Ended { .. } | WireError::Silent(_) = error {
            return Self::Lost(error.to_string());
        }
        let error = ConnectError::of_wire(host, error);
        let code = error.sqlstate();
        let text = with_causes(&error);
        match code.as_ref().map(super::wire::SqlState::as_str) {
            Some("55006") => Self::InUse { slot: slot.to_owned(), pid: None, holder: None },
            // The slot went between two looks, or what it needs of the log is gone.
            Some("42704") if text.contains("replication slot") => Self::Slot(text),
            Some("55000" | "58P01") if !text.contains("wal_level") => Self::Slot(text),
            Some("42704") if text.contains("publication") => Self::Changed(format!(
                "{text}: it is gone, or came after the change that is to be read, which PostgreSQL \
                 then never hands out. Make it with the SQL that `walpost init` prints, publish by \
                 hand what was committed before it, then SELECT \
                 pg_catalog.pg_replication_slot_advance('{slot}', pg_catalog.pg_current_wal_lsn()) and start walpost again"
            )),
            Some("42704" | "55000") => Self::Setup(text),
            // What is text to one database, such as one in SQL_ASCII, is none in UTF-8.
            Some("22021" | "22P05") => Self::Encoding(text),
            // A buffer of more than 1 GiB, or one value that would take as much.
            Some("54000") => Self::Unprintable(text),
            Some("XX000") if text.contains("invalid memory alloc request size") => {
                Self::Unprintable(text)
            }
            _ if matches!(error, ConnectError::Server { .. }) => Self::ServerError(text),
            _ => error.into(),
        }
    }

    /// Whether the server cannot send something of one transaction, now or later.
    pub(crate) fn is_unsendable(&self) -> bool {
        matches!(self, Self::Encoding(_) | Self::Unprintable(_))
    }

    /// Whether the slot, the publication or the server is not what it was: nobody else may
    /// continue in this one's place then.
    pub fn is_for_a_person(&self) -> bool {
        match self {
            Self::Slot(_) | Self::Changed(_) => true,
            Self::Lost(_)
            // Of one instance's own configuration, more often than not.
            | Self::Setup(_)
            | Self::InUse { .. }
            | Self::Access(_)
            | Self::Undecodable(_)
            | Self::ServerError(_)
            | Self::Encoding(_)
            | Self::Unprintable(_) => false,
        }
    }

    /// How to go on behind the transaction that the server cannot send. The server names it
    /// before its rows: `commit_lsn`. It does not where a logical message was emitted outside a
    /// transaction: that is the first that the slot hands out after `received`. Only to be said
    /// once all before it is durable.
    pub fn way_out_of_unsendable(slot: &str, commit_lsn: Option<Lsn>, received: Lsn) -> String {
        let Some(commit_lsn) = commit_lsn else {
            return format!(
                "It stands in no transaction that PostgreSQL named. To give it up, publish it by \
                 hand, then SELECT pg_catalog.pg_replication_slot_advance('{slot}', '{received}'); \
                 SET client_encoding = 'SQL_ASCII'; \
                 SELECT pg_catalog.pg_replication_slot_advance('{slot}', CASE pg_catalog.count(*) \
                 WHEN 1 THEN pg_catalog.max(lsn) OPERATOR(pg_catalog.+) 1::pg_catalog.numeric \
                 ELSE pg_catalog.max(lsn) END) FROM \
                 pg_catalog.pg_logical_slot_peek_binary_changes('{slot}', NULL, 1, 'proto_version', \
                 '1', 'publication_names', '<publication>', 'messages', 'true'); and start walpost \
                 again"
            );
        };
        // PostgreSQL sends a transaction again unless its commit record lies before the slot's
        // position. To move the slot prints no row.
        let after = Lsn::new(commit_lsn.as_u64().saturating_add(1));
        format!(
            "To give that transaction up, publish it by hand, then SELECT \
             pg_catalog.pg_replication_slot_advance('{slot}', '{after}'); and start walpost again"
        )
    }

    /// The slot is on the primary, and this server may be promoted to it.
    pub(super) fn standby(slot: &str) -> Self {
        Self::Lost(format!(
            "this server is a standby, which does not hand out replication slot \"{slot}\": connect to \
             the primary, or name all hosts and set target_session_attrs=primary"
        ))
    }

    pub(super) fn slot_missing(slot: &str, database: &str) -> Self {
        Self::Slot(format!(
            "replication slot \"{slot}\" does not exist; for a new outbox run `walpost init --apply` \
             against database \"{database}\"; if it did exist, what was not \
             delivered before it went, and what was committed since, is in no slot: find out who dropped it before you make a new one"
        ))
    }

    pub(super) fn slot_moved(slot: &str, ours: Lsn, theirs: Lsn) -> Self {
        Self::Slot(format!(
            "replication slot \"{slot}\" was confirmed up to {theirs} by somebody else, walpost \
             itself had confirmed {ours}: what was committed between these was not published by \
             this walpost; find out who moved the slot, then start walpost again to go on from {theirs}"
        ))
    }

    /// The same, by an instance that has waited: another client held the slot since a walpost did,
    /// and walposts were seen to have confirmed `by_walposts`.
    pub(super) fn slot_moved_while_waiting(slot: &str, by_walposts: Lsn, now: Lsn) -> Self {
        Self::Slot(format!(
            "replication slot \"{slot}\" is confirmed up to {now}, and was used by somebody else \
             who is not walpost; the last walpost was seen to have confirmed {by_walposts}: what was \
             committed between these may not be published; find out who moved the slot, then start \
             walpost again to go on from {now}"
        ))
    }
}

impl From<ConnectError> for SourceError {
    fn from(error: ConnectError) -> Self {
        let text = with_causes(&error);
        match error {
            ConnectError::Configuration { .. }
            | ConnectError::Policy { .. }
            | ConnectError::Tls { .. }
            | ConnectError::TlsSetUp(_) => Self::Access(text),
            ConnectError::Unreachable { .. }
            | ConnectError::TimedOut { .. }
            | ConnectError::Transient { .. }
            | ConnectError::WrongSession { .. }
            | ConnectError::NoHost(_)
            | ConnectError::Server { .. }
            | ConnectError::Protocol { .. } => Self::Lost(text),
        }
    }
}

/// The error's text with those of its causes.
fn with_causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    // PostgreSQL's words may have a row's in them.
    at_most(4000, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_shown_on_one_line_and_cut() {
        let said = format!("1\nforged\u{1b}[2J{}", "x".repeat(1 << 20));
        for error in [
            SourceError::Lost(said.clone()),
            SourceError::Access(said.clone()),
            SourceError::Setup(said.clone()),
            SourceError::Changed(said.clone()),
            SourceError::Slot(said.clone()),
            SourceError::Undecodable(said.clone()),
            SourceError::Encoding(said.clone()),
        ] {
            let shown = error.to_string();
            assert!(shown.len() < 10_000, "{} bytes", shown.len());
            assert!(shown.starts_with(r"1\nforged\u{1b}[2Jx"), "{shown}");
        }
    }
}
