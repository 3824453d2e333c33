//! What can go wrong on PostgreSQL's side, sorted by who has to act.

use crate::lsn::Lsn;

/// A failure of the source, by what follows from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Passes with time: connect again.
    #[error("{0}")]
    Lost(String),

    /// Another client holds the slot: wait for it to go.
    #[error("replication slot \"{slot}\" is in use{}; waiting for it", by(*.pid))]
    InUse {
        /// The slot.
        slot: String,
        /// The server process that streams from it, where known.
        pid: Option<i32>,
    },

    /// The server refuses who walpost says it is, or cannot be what was asked
    /// for: a matter of configuration, or of a moment in the server's life.
    #[error("{0}")]
    Access(String),

    /// Something on the server is not as `run` needs it; names the mend.
    #[error("{0}")]
    Setup(String),

    /// The slot cannot be used any more, or is not where walpost left it.
    #[error("{0}")]
    Slot(String),

    /// The server sent what this version of walpost does not understand.
    #[error("{0}")]
    Undecodable(String),
}

fn by(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" by server process {pid}"))
}

impl SourceError {
    pub(super) fn query(what: &str, error: &tokio_postgres::Error) -> Self {
        use std::error::Error as _;
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Self::Lost(format!("{what}: {cause}"))
    }

    pub(super) fn slot_missing(slot: &str, database: &str) -> Self {
        Self::Slot(format!(
            "replication slot \"{slot}\" does not exist; for a new outbox run `walpost init --apply` \
             against database \"{database}\"; if it did exist, what was committed since it went is \
             not in any slot: find out who dropped it before you make a new one"
        ))
    }

    pub(super) fn slot_moved(slot: &str, ours: Lsn, theirs: Lsn) -> Self {
        Self::Slot(format!(
            "replication slot \"{slot}\" was confirmed up to {theirs} by somebody else, walpost \
             itself had confirmed {ours}: what was committed between these was not published by \
             this walpost; find out who moved the slot, then start walpost again to go on from {theirs}"
        ))
    }
}
