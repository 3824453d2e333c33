//! The identity of a server: positions of one server mean nothing on another.

/// Which server a position belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// `IDENTIFY_SYSTEM`'s system identifier.
    pub system_identifier: String,
    /// The timeline of its WAL.
    pub timeline: u32,
    /// When its postmaster was started, in microseconds since 1970.
    pub postmaster_start: i64,
}

impl ServerIdentity {
    /// Whether positions of the one mean something to the other. A restart changes nothing in
    /// that.
    pub fn has_history_of(&self, other: &Self) -> bool {
        (&self.system_identifier, self.timeline) == (&other.system_identifier, other.timeline)
    }
}
