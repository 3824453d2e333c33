//! Why a replication slot, or the server that has it, cannot be continued from.
//!
//! Each of these needs an operator: the position that walpost would continue from is lost, unknown
//! or another's, so that events may be missing in Kafka.

use super::server_identity::ServerIdentity;
use crate::lsn::Lsn;

/// What is wrong with the slot, or with the server that has it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// There is no such slot.
    #[error(
        "replication slot \"{slot}\" does not exist; for a new outbox run `walpost init --apply` \
         against database \"{database}\"; if it did exist, what was not \
         delivered before it went, and what was committed since, is in no slot: find out who dropped it before you make a new one"
    )]
    Missing {
        /// The slot.
        slot: String,
        /// The database of the connection.
        database: String,
    },

    /// The server says so of a slot that was there when the session was opened.
    #[error("{0}")]
    Dropped(String),

    /// It is not a slot that walpost can read.
    #[error("replication slot \"{slot}\" {reason}")]
    Unsuitable {
        /// The slot.
        slot: String,
        /// What is wrong with it, and the remedy.
        reason: String,
    },

    /// The server has invalidated it, for instance since it retained too much WAL.
    #[error(
        "replication slot \"{slot}\" was invalidated by the server ({reason}) and never comes back: \
         what it had not \
         delivered has to be published from the outbox table by hand, then drop it and run \
         `walpost init --apply` for a new one"
    )]
    Invalidated {
        /// The slot.
        slot: String,
        /// `invalidation_reason`, or what stands for it before PostgreSQL 17.
        reason: String,
    },

    /// The server has removed WAL that the slot needs (58P01).
    #[error("{0}")]
    WalRemoved(String),

    /// The server refuses to stream from the slot in its present state (55000), for instance after
    /// it has invalidated it.
    #[error("{0}")]
    Unreadable(String),

    /// Another client advanced the slot past what this instance confirmed.
    #[error(
        "replication slot \"{slot}\" was confirmed up to {found} by another client, walpost \
         itself had confirmed {confirmed}: what was committed between these was not published by \
         this walpost; find out who moved the slot, then start walpost again to go on from {found}"
    )]
    Advanced {
        /// The slot.
        slot: String,
        /// What this instance has confirmed.
        confirmed: Lsn,
        /// What the slot is confirmed up to.
        found: Lsn,
    },

    /// The same, found by an instance that waited for the slot: another client held it after a
    /// walpost did.
    #[error(
        "replication slot \"{slot}\" is confirmed up to {found}, and was used by another client, \
         which is not walpost; the last walpost was seen to have confirmed {confirmed}: what was \
         committed between these may not be published; find out who moved the slot, then start \
         walpost again to go on from {found}"
    )]
    AdvancedWhileWaiting {
        /// The slot.
        slot: String,
        /// The furthest that walposts were seen to have confirmed.
        confirmed: Lsn,
        /// What the slot is confirmed up to.
        found: Lsn,
    },

    /// Another instance on the slot halts.
    #[error(
        "another walpost that worked with replication slot \"{slot}\" (server process {pid}) has \
         halted, and an operator has to decide: see its log, then start walpost again"
    )]
    OtherInstanceHalted {
        /// The slot.
        slot: String,
        /// The server process of that instance's session.
        pid: i32,
    },

    /// The address leads to another server, or to another timeline.
    #[error(
        "another server answers at this address: system identifier {}, timeline {}, where walpost \
         has worked with {}, timeline {}; nothing was published from it. If a failover was meant, \
         see that its slot is not behind {confirmed}, then start walpost again",
        found.system_identifier, found.timeline, known.system_identifier, known.timeline
    )]
    OtherServer {
        /// The server that answers.
        found: Box<ServerIdentity>,
        /// The server that walpost has worked with.
        known: Box<ServerIdentity>,
        /// What was confirmed to the known server.
        confirmed: Lsn,
    },

    /// The server's WAL ends before what was published from it.
    #[error(
        "this server's WAL ends at {flushed} (database \"{database}\"), walpost has already \
         published up \
         to {published}: the server lost WAL or was restored; nothing was published from it"
    )]
    WalBehind {
        /// Where the server's WAL ends.
        flushed: Lsn,
        /// The database of the connection.
        database: String,
        /// Up to where walpost has published.
        published: Lsn,
    },

    /// The restarted server's WAL is not the one that was published from.
    #[error(
        "this server's WAL is not the one that walpost has published from: {difference}. The server \
         was set back to an earlier state, for instance from a backup or a disk snapshot. \
         Nothing that it has committed since was {}. Kafka may have events after {from} that its \
         tables have not: find them, then \
         start walpost again to continue from the slot's position",
        if *.published { "confirmed" } else { "published" }
    )]
    OtherHistory {
        /// The first difference.
        difference: String,
        /// Whether something of the new history was published.
        published: bool,
        /// Where the comparison began.
        from: Lsn,
    },

    /// The slot became unusable during a catch-up, whose temporary copy of the slot was read on.
    #[error(
        "{error}. What committed before {read} was read from a copy of the slot{}",
        lost_copy(.copy_lost.as_deref())
    )]
    CopyRead {
        /// What is wrong with the slot.
        error: Box<SlotError>,
        /// Up to where the copy was read.
        read: Lsn,
        /// Why the copy could not be read to its end.
        copy_lost: Option<String>,
    },

    /// The slot is unusable, and records that were read from it were not delivered.
    #[error(
        "{error}. {records} records that were read from it were not delivered: find the rows \
         that were committed from {from} on and are not in Kafka"
    )]
    Undelivered {
        /// What is wrong with the slot.
        error: Box<SlotError>,
        /// How many records.
        records: u64,
        /// The flush LSN.
        from: Lsn,
    },
}

fn lost_copy(because: Option<&str>) -> String {
    because.map_or_else(String::new, |because| {
        format!(", which was lost before its end ({because}): what follows is in no slot")
    })
}
