//! The identity of a server: an LSN of one server is meaningless on another.

/// The server to which an LSN belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// `IDENTIFY_SYSTEM`'s system identifier.
    pub system_identifier: String,
    /// The timeline of its WAL.
    pub timeline: u32,
    /// The start time of its postmaster, in microseconds since 1970.
    pub postmaster_start: i64,
}

impl ServerIdentity {
    /// Whether an LSN of one is valid on the other. A restart does not change that.
    pub fn has_history_of(&self, other: &Self) -> bool {
        (&self.system_identifier, self.timeline) == (&other.system_identifier, other.timeline)
    }

    /// Whether it is the same postmaster, on a newer timeline.
    pub(in crate::source) fn is_promoted(&self, other: &Self) -> bool {
        self.may_descend_from(other) && self.postmaster_start == other.postmaster_start
    }

    /// Whether it may be a server that was promoted with the history of `other`.
    pub(in crate::source) fn may_descend_from(&self, other: &Self) -> bool {
        self.system_identifier == other.system_identifier && self.timeline > other.timeline
    }
}
