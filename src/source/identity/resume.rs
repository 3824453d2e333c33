//! The position at which a session resumes.

use crate::lsn::Lsn;
use crate::source::identity::history::ReceivedTransactions;
use crate::source::identity::publication_fingerprint::PublicationFingerprint;
use crate::source::identity::server_identity::ServerIdentity;

/// What a standby instance observed while another client held the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waited {
    /// The publication.
    pub fingerprint: PublicationFingerprint,
    /// The server.
    pub identity: ServerIdentity,
    /// The highest `confirmed_flush_lsn` of the slot.
    pub confirmed: Lsn,
    /// If a client that is not walpost has held the slot since: the highest position that walposts
    /// had confirmed before that.
    pub moved_from: Option<Lsn>,
}

/// The position at which a session starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The slot's `confirmed_flush_lsn`.
    AtSlot {
        /// What was observed while another client held the slot, if this process waited for it.
        waited: Option<Waited>,
    },
    /// This process's own position, on the same server only.
    At {
        /// The server to which the positions belong.
        identity: ServerIdentity,
        /// The publication's fingerprint, which must not have changed.
        fingerprint: PublicationFingerprint,
        /// The server process of this process's last session.
        walsender: Option<i32>,
        /// The highest position that this process may have confirmed.
        confirmed: Lsn,
        /// The flush LSN to confirm, at most `confirmed`.
        ack: Lsn,
        /// The LSN to read from: at or after `confirmed`.
        start: Lsn,
        /// Whether another walpost has held the slot since, and no other client after it: then the
        /// slot is expected to be ahead.
        after_another: bool,
        /// The highest position that other walposts have confirmed since, as far as observed.
        by_others: Lsn,
        /// The highest `confirmed_flush_lsn` observed since.
        seen: Lsn,
        /// The completely received transactions.
        received: ReceivedTransactions,
    },
}

impl Resume {
    /// The highest position that walposts account for: another client advanced a slot that is
    /// confirmed beyond it. `None` if any position is accounted for.
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
