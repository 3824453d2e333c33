//! Errors of the source, by who must act.

use std::error::Error as StdError;

use super::connection::error::ConnectError;
use super::slot_error::SlotError;
use super::wire::{ServerError, WireError};
use crate::excerpt::{at_most, excerpt, line};
use crate::lsn::Lsn;
use crate::source::identity::publication_fingerprint::PublicationFingerprint;
use crate::source::identity::server_identity::ServerIdentity;

/// A failure of the source, by its consequence. Any variant may contain text from the server: it is
/// escaped to one line and truncated here, and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Temporary: reconnect.
    #[error("{}", line(.0))]
    Lost(String),

    /// Another client holds the slot: wait until it releases it.
    #[error("replication slot \"{slot}\" is in use{}; waiting for it", by(*.pid))]
    InUse {
        /// The slot.
        slot: String,
        /// The server process that streams from it, where known.
        pid: Option<i32>,
        /// What the catalogs showed of that client, if they were read.
        holder: Option<Box<Holder>>,
    },

    /// The server rejects the login, or the configured connection cannot be opened: the
    /// configuration is wrong, or the server is changing its own.
    #[error("{}", line(.0))]
    Access(String),

    /// The server is not configured as `run` needs; the text names the fix.
    #[error("{}", line(.0))]
    Setup(String),

    /// The publication or an outbox table changed while walpost used it.
    #[error("{}", line(&.0.to_string()))]
    Changed(PublicationChange),

    /// The slot is unusable, or its position is not the one that walpost confirmed.
    #[error("{}", line(&.0.to_string()))]
    Slot(SlotError),

    /// The server sent something that this version of walpost cannot decode, or cannot send
    /// something that it must send.
    #[error("{}", line(.0))]
    Undecodable(String),

    /// The server reports an error in the stream that is not caused by an outage: it may be
    /// temporary, or recur whenever the same WAL record is decoded.
    #[error("{}", line(.0))]
    ServerError(String),

    /// The server cannot convert a row or a logical message to UTF-8, and sends nothing from that
    /// transaction on.
    #[error(
        "{}: the text of a row or of a logical message has no form in UTF-8, and PostgreSQL hands \
         out nothing from its transaction on. Fix what writes it",
        line(.0)
    )]
    Encoding(String),

    /// A row or a logical message is larger than the server can send, and it sends nothing from
    /// that transaction on.
    #[error(
        "{}: a row or a logical message is larger than PostgreSQL can send (the text of a row has \
         to be below 1 GiB, that of a bytea column is twice its bytes), and PostgreSQL hands out \
         nothing from its transaction on. Limit what is written by CHECK constraints on the \
         lengths of the columns",
        line(.0)
    )]
    Unprintable(String),
}

/// How the publication differs from the one that walpost used, or needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublicationChange {
    /// The publication did not exist at the time of the change to decode: it was dropped, or
    /// created after that change.
    #[error(
        "{server}: it was dropped, or created after the change that is to be read, which \
         PostgreSQL then never sends. Create it with the SQL that `walpost init` prints, publish \
         by \
         hand what was committed before it, then SELECT \
         pg_catalog.pg_replication_slot_advance('{slot}', pg_catalog.pg_current_wal_lsn()) and start walpost again{}",
        ADOPT
    )]
    Missing {
        /// The server's message.
        server: String,
        /// The slot.
        slot: String,
    },

    /// The publication, or its entry for an outbox table, was changed.
    #[error(
        "the publication was changed while walpost worked with it, and PostgreSQL never sends \
         what was committed without it: {found}. What was sent is published, and nothing \
         after {verified} is confirmed. Once that is fixed {}publish by hand the rows that \
         were committed after {verified} and are not at the destination, and start walpost again{ADOPT}",
        advance_first(.slot_to_advance.as_deref())
    )]
    Altered {
        /// The present state.
        found: String,
        /// The LSN up to which the publication is verified to be unchanged.
        verified: Lsn,
        /// The slot, if it has to be advanced past WAL that this server can no longer decode.
        slot_to_advance: Option<String>,
    },
}

/// What an operator has to do between advancing the slot and the start.
const ADOPT: &str = " (if walpost keeps its position, run `walpost adopt --apply` first)";

fn advance_first(slot: Option<&str>) -> String {
    slot.map_or_else(String::new, |slot| {
        format!(
            "SELECT pg_catalog.pg_replication_slot_advance('{slot}', \
             pg_catalog.pg_current_wal_lsn()), then "
        )
    })
}

/// What kind of client holds the slot, or the advisory lock on its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderKind {
    /// Another walpost, recognised by its session's `application_name`.
    Walpost,
    /// Another walpost that has delivered everything up to the slot's position.
    WalpostDelivered,
    /// A client that is not walpost: it may advance the slot past rows that were never published.
    Other,
    /// A session that has ended since, this walpost's own last session, or one that cannot use the
    /// slot.
    Unknown,
}

/// The client that holds the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// What kind of client it is.
    pub kind: HolderKind,
    /// The role of another walpost that did not log in with this instance's role.
    pub other_role: Option<String>,
    /// The publication while that client holds the slot.
    pub fingerprint: PublicationFingerprint,
    /// The server.
    pub identity: ServerIdentity,
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed: Lsn,
    /// The server's flush position before the publication was read.
    pub flushed: Lsn,
}

/// How far a replication session was when the server reported an error. PostgreSQL has one code for
/// any missing object, and one for any state that does not allow a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The slot is not used yet.
    Opening,
    /// The slot is taken: what is missing is the slot.
    Starting,
    /// The session holds the slot and decodes: what is missing is the publication.
    Streaming,
}

/// Whether the error is from the file of PostgreSQL's source code that allocates memory.
fn is_of_memory_manager(error: &ServerError) -> bool {
    error.file.as_deref() == Some("mcxt.c")
}

fn by(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" by server process {pid}"))
}

impl SourceError {
    pub(crate) fn query(what: &str, error: &tokio_postgres::Error) -> Self {
        Self::Lost(format!("{what}: {}", with_causes(error)))
    }

    /// An error of the replication session on `slot`, in that phase.
    pub(super) fn session(error: &WireError, phase: Phase, host: &str, slot: &str) -> Self {
        if let WireError::Ended { .. } | WireError::Silent(_) = error {
            return Self::Lost(error.to_string());
        }
        let error = ConnectError::of_wire(host, error);
        let text = with_causes(&error);
        let Some(code) = error.sqlstate() else { return Self::by_kind(error, text) };
        let slot = slot.to_owned();
        match (code.as_str(), phase) {
            ("55006", _) => Self::InUse { slot, pid: None, holder: None },
            ("58P01", _) => Self::Slot(SlotError::WalRemoved(text)),
            ("42704" | "55000", Phase::Opening) => Self::Setup(text),
            ("42704", Phase::Starting) => Self::Slot(SlotError::Dropped(text)),
            ("42704", Phase::Streaming) => {
                Self::Changed(PublicationChange::Missing { server: text, slot })
            }
            ("55000", Phase::Starting | Phase::Streaming) => {
                Self::Slot(SlotError::Unreadable(text))
            }
            // A database with another encoding, such as SQL_ASCII, may contain text that is not
            // valid UTF-8.
            ("22021" | "22P05", _) => Self::Encoding(text),
            // A buffer of more than 1 GiB, or one value of that size.
            ("54000", _) => Self::Unprintable(text),
            // An internal error, which has no specific code: the memory manager refuses a size.
            ("XX000", _) if error.server_error().is_some_and(is_of_memory_manager) => {
                Self::Unprintable(text)
            }
            // The codes are an open set, so the kind of the error decides.
            _ => Self::by_kind(error, text),
        }
    }

    /// Classifies an error of the replication session whose SQLSTATE, if any, does not decide.
    fn by_kind(error: ConnectError, text: String) -> Self {
        match error {
            ConnectError::Server { .. } => Self::ServerError(text),
            ConnectError::Unreachable { .. }
            | ConnectError::TimedOut { .. }
            | ConnectError::Transient { .. }
            | ConnectError::WrongSession { .. }
            | ConnectError::NoHost(_)
            | ConnectError::Configuration { .. }
            | ConnectError::Policy { .. }
            | ConnectError::Tls { .. }
            | ConnectError::TlsSetUp(_)
            | ConnectError::Protocol { .. } => error.into(),
        }
    }

    /// Whether the server cannot send something of one transaction, now or later.
    pub(crate) fn is_unsendable(&self) -> bool {
        matches!(self, Self::Encoding(_) | Self::Unprintable(_))
    }

    /// Whether the slot, the publication or the server has changed, so that an operator must act:
    /// no standby instance may continue then.
    pub fn needs_operator(&self) -> bool {
        match self {
            Self::Slot(_) | Self::Changed(_) => true,
            Self::Lost(_)
            // Usually caused by this instance's own configuration.
            | Self::Setup(_)
            | Self::InUse { .. }
            | Self::Access(_)
            | Self::Undecodable(_)
            | Self::ServerError(_)
            | Self::Encoding(_)
            | Self::Unprintable(_) => false,
        }
    }

    /// How to skip the transaction that the server cannot send. The server sends Begin, with
    /// `commit_lsn`, before the rows; a non-transactional logical message has no Begin, and is the
    /// slot's first change after `received`. Valid only once everything before it is durable.
    pub fn how_to_skip_unsendable(slot: &str, commit_lsn: Option<Lsn>, received: Lsn) -> String {
        let Some(commit_lsn) = commit_lsn else {
            return format!(
                "It is in no transaction that PostgreSQL announced. To skip it, publish it by \
                 hand, then SELECT pg_catalog.pg_replication_slot_advance('{slot}', '{received}'); \
                 SET client_encoding = 'SQL_ASCII'; \
                 SELECT pg_catalog.pg_replication_slot_advance('{slot}', CASE pg_catalog.count(*) \
                 WHEN 1 THEN pg_catalog.max(lsn) OPERATOR(pg_catalog.+) 1::pg_catalog.numeric \
                 ELSE pg_catalog.max(lsn) END) FROM \
                 pg_catalog.pg_logical_slot_peek_binary_changes('{slot}', NULL, 1, 'proto_version', \
                 '1', 'publication_names', '<publication>', 'messages', 'true'); and start walpost \
                 again{ADOPT}"
            );
        };
        // PostgreSQL sends a transaction again unless its commit record lies before the slot's
        // position. Advancing the slot prints no row.
        let after = Lsn::new(commit_lsn.as_u64().saturating_add(1));
        format!(
            "To skip that transaction, publish it by hand, then SELECT \
             pg_catalog.pg_replication_slot_advance('{slot}', '{after}'); and start walpost again{ADOPT}"
        )
    }

    /// The server is a standby: the slot is on the primary, and this server may be promoted.
    pub(super) fn standby(slot: &str) -> Self {
        Self::Lost(format!(
            "this server is a standby, which does not serve replication slot \"{slot}\": connect \
             to \
             the primary, or name all hosts and set target_session_attrs=primary"
        ))
    }

    pub(super) fn slot_advanced(slot: &str, confirmed: Lsn, found: Lsn) -> Self {
        Self::Slot(SlotError::Advanced { slot: slot.to_owned(), confirmed, found })
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

/// PostgreSQL's message, or the client library's if there is none.
pub(crate) fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| excerpt(error.message()))
}

/// The error's text followed by those of its causes.
pub(in crate::source) fn with_causes(error: &dyn StdError) -> String {
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
    // PostgreSQL's message may contain a row.
    at_most(4000, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::wire::SqlState;
    use Phase::{Opening, Starting, Streaming};

    #[test]
    fn errors_of_a_session_are_told_apart_whatever_the_servers_language() {
        let text = || "de texto alieno, 別の言語 \u{2068}wal_level\u{2069}".into();
        let of = |code: &str, file: &str, phase| {
            let error = ServerError {
                sqlstate: SqlState::new(code),
                message: text(),
                file: Some(file.into()),
                ..ServerError::default()
            };
            SourceError::session(&WireError::Server(error), phase, "db", "walpost")
        };
        for phase in [Opening, Starting, Streaming] {
            assert!(matches!(of("55006", "slot.c", phase), SourceError::InUse { .. }));
            assert!(matches!(
                of("58P01", "xlogutils.c", phase),
                SourceError::Slot(SlotError::WalRemoved(_))
            ));
            assert!(matches!(of("22P05", "wchar.c", phase), SourceError::Encoding(_)));
            assert!(matches!(of("54000", "stringinfo.c", phase), SourceError::Unprintable(_)));
            assert!(matches!(of("XX000", "mcxt.c", phase), SourceError::Unprintable(_)));
            assert!(matches!(of("XX000", "heapam.c", phase), SourceError::ServerError(_)));
        }
        assert!(matches!(of("42704", "guc.c", Opening), SourceError::Setup(_)));
        assert!(matches!(
            of("42704", "slot.c", Starting),
            SourceError::Slot(SlotError::Dropped(_))
        ));
        assert!(matches!(
            of("42704", "lsyscache.c", Streaming),
            SourceError::Changed(PublicationChange::Missing { .. })
        ));
        assert!(matches!(of("55000", "logical.c", Opening), SourceError::Setup(_)));
        for phase in [Starting, Streaming] {
            assert!(matches!(
                of("55000", "slot.c", phase),
                SourceError::Slot(SlotError::Unreadable(_))
            ));
        }
    }

    #[test]
    fn server_messages_are_shown_on_one_line_and_truncated() {
        let said = format!("1\nforged\u{1b}[2J{}", "x".repeat(1 << 20));
        for error in [
            SourceError::Lost(said.clone()),
            SourceError::Access(said.clone()),
            SourceError::Setup(said.clone()),
            SourceError::Changed(PublicationChange::Missing {
                server: said.clone(),
                slot: "walpost".to_owned(),
            }),
            SourceError::Slot(SlotError::Unreadable(said.clone())),
            SourceError::Undecodable(said.clone()),
            SourceError::Encoding(said.clone()),
        ] {
            let shown = error.to_string();
            assert!(shown.len() < 10_000, "{} bytes", shown.len());
            assert!(shown.starts_with(r"1\nforged\u{1b}[2Jx"), "{shown}");
        }
    }
}
