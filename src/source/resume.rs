//! From where a session resumes.

use super::history::ReceivedTransactions;
use super::publication_fingerprint::PublicationFingerprint;
use super::server_identity::ServerIdentity;
use crate::lsn::Lsn;

/// What an instance saw while another client held the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waited {
    /// What the catalogs held of the publication.
    pub fingerprint: PublicationFingerprint,
    /// The server.
    pub identity: ServerIdentity,
    /// The furthest that the slot was confirmed.
    pub confirmed: Lsn,
    /// Where a client that is not walpost held the slot since: the furthest that walposts were seen
    /// to have confirmed before.
    pub moved_from: Option<Lsn>,
}

/// Where a session starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// Where the slot stands.
    AtSlot {
        /// What was seen while another client held the slot, where this process has waited
        /// for it.
        waited: Option<Waited>,
    },
    /// Where this process left off, on this server only.
    At {
        /// The server that the positions belong to.
        identity: ServerIdentity,
        /// What its catalogs held of the publication, and have to hold.
        fingerprint: PublicationFingerprint,
        /// The server process that streamed last.
        walsender: Option<i32>,
        /// A: what was confirmed to it.
        confirmed: Lsn,
        /// Where to read from: at or after A.
        start: Lsn,
        /// Another walpost was seen to hold the slot since, and no other client after it: that the
        /// slot is ahead is no surprise.
        after_another: bool,
        /// The furthest that other walposts were seen to have confirmed since.
        by_others: Lsn,
        /// The furthest that the slot was seen to be confirmed meanwhile.
        seen: Lsn,
        /// The transactions that were received whole.
        received: ReceivedTransactions,
    },
}

impl Resume {
    /// The furthest that the slot may be confirmed without that somebody must have moved it who is
    /// not walpost; `None` where it may be anywhere.
    pub fn accounted(&self) -> Option<Lsn> {
        match self {
            Self::At { after_another: false, confirmed, by_others, .. } => {
                Some((*confirmed).max(*by_others))
            }
            Self::AtSlot { waited: Some(waited) } => waited.moved_from,
            Self::At { .. } | Self::AtSlot { waited: None } => None,
        }
    }
}
