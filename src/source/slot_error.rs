//! Why walpost cannot resume from a replication slot or its server.
//!
//! Each of these errors needs an operator: the position from which to resume is lost, unknown, or
//! belongs to another server, so events may be missing at the destination.

use crate::lsn::Lsn;
use crate::position::EventPosition;
use crate::source::identity::server_identity::ServerIdentity;

/// What is wrong with the slot or its server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// The slot does not exist.
    #[error(
        "replication slot \"{slot}\" does not exist; for a new outbox run `walpost init --apply` \
         against database \"{database}\"; if it did exist, what was not \
         delivered before it went, and what was committed since, is in no slot: find out who dropped it, make \
         a new one by `walpost init --apply`, and publish what is missing by `walpost recover --apply`"
    )]
    Missing {
        /// The slot.
        slot: String,
        /// The database of the connection.
        database: String,
    },

    /// The slot was dropped after the session was opened.
    #[error("{0}")]
    Dropped(String),

    /// walpost cannot read from a slot of this kind.
    #[error("replication slot \"{slot}\" {reason}")]
    Unsuitable {
        /// The slot.
        slot: String,
        /// What is wrong with it, and the remedy.
        reason: String,
    },

    /// The server has invalidated it, for instance because it retained too much WAL.
    #[error(
        "replication slot \"{slot}\" was invalidated by the server ({reason}) and cannot be \
         recovered: drop it, run `walpost init --apply` for a new one, and publish what this one has not \
         delivered from the outbox table by `walpost recover --apply`"
    )]
    Invalidated {
        /// The slot.
        slot: String,
        /// `invalidation_reason`, or a substitute before PostgreSQL 17.
        reason: String,
    },

    /// The server has removed WAL that the slot needs (58P01).
    #[error("{0}")]
    WalRemoved(String),

    /// The server refuses to stream from the slot in its current state (55000), for instance after
    /// it has invalidated it.
    #[error("{0}")]
    Unreadable(String),

    /// Another client advanced the slot past what this instance confirmed.
    #[error(
        "replication slot \"{slot}\" was confirmed up to {found} by another client, walpost \
         itself had confirmed {confirmed}: what was committed between these was not published by \
         this walpost; find out who advanced the slot, then start walpost again (after \
         `walpost adopt --apply`, if it keeps its position) to resume from {found}"
    )]
    Advanced {
        /// The slot.
        slot: String,
        /// What this instance has confirmed.
        confirmed: Lsn,
        /// The slot's `confirmed_flush_lsn`.
        found: Lsn,
    },

    /// The same, found by a standby instance: another client held the slot after a walpost did.
    #[error(
        "replication slot \"{slot}\" is confirmed up to {found}, and was used by another client, \
         which is not walpost; the last walpost was seen to have confirmed {confirmed}: what was \
         committed between these may not be published; find out who advanced the slot, then start \
         walpost again (after `walpost adopt --apply`, if it keeps its position) to resume from \
         {found}"
    )]
    AdvancedWhileWaiting {
        /// The slot.
        slot: String,
        /// The highest position that walposts were seen to confirm.
        confirmed: Lsn,
        /// The slot's `confirmed_flush_lsn`.
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

    /// A promoted server lacks a part of what walpost has received from the former primary.
    #[error(
        "the server was promoted from timeline {known} to {found} at {fork}, and walpost has received \
         everything up to {published}: the server lacks what is between these; nothing was published \
         from it. The destination may have events that its tables have not. Where walpost keeps its \
         position, `walpost recover` names them, and with --apply publishes what is missing, before walpost \
         starts again; otherwise start walpost again to continue from its slot's position"
    )]
    LostInFailover {
        /// The server's timeline.
        found: u32,
        /// The timeline that walpost has used.
        known: u32,
        /// The end of the known timeline in the server's history.
        fork: Lsn,
        /// The position up to which walpost has received, and may have published.
        published: Lsn,
    },

    /// The server at this address is another one, or on another timeline.
    #[error(
        "another server answers at this address: system identifier {}, timeline {}, where walpost \
         has worked with {}, timeline {}; nothing was published from it. If a failover was meant, \
         see that its slot is not behind {confirmed}, then start walpost again",
        found.system_identifier, found.timeline, known.system_identifier, known.timeline
    )]
    OtherServer {
        /// The server that responds.
        found: Box<ServerIdentity>,
        /// The server that walpost has used.
        known: Box<ServerIdentity>,
        /// What was confirmed to the known server.
        confirmed: Lsn,
    },

    /// The server's WAL ends before the position up to which events were published.
    #[error(
        "this server's WAL ends at {flushed} (database \"{database}\"), walpost has already \
         published up \
         to {published}: the server lost WAL or was restored; nothing was published from it"
    )]
    WalBehind {
        /// The end of the server's WAL.
        flushed: Lsn,
        /// The database of the connection.
        database: String,
        /// The position up to which walpost has published.
        published: Lsn,
    },

    /// The server's WAL ends before the position that walpost keeps.
    #[error(
        "this server's WAL ends at {flushed}, and the destination has acknowledged what committed before \
         {acked} ({place}): the server lost WAL or was restored; nothing was published from it. The \
         destination may have events that its tables have not: {RECOVER_ALL}"
    )]
    BehindState {
        /// The end of the server's WAL.
        flushed: Lsn,
        /// The position that is kept.
        acked: Lsn,
        /// The store of the position.
        place: String,
    },

    /// The restarted server's history is not the one that was published.
    #[error(
        "this server's WAL is not the one that walpost has published from: {difference}. The server \
         was restored to an earlier state, for instance from a backup or a disk snapshot{}. \
         Nothing that it has committed since was {}. The destination may have events after {from} \
         that its tables have not: find them, then \
         {} to continue from the slot's position",
        if *.layout_changed { LAYOUT_CHANGED } else { "" },
        if *.published { "confirmed" } else { "published" },
        if *.with_state { "run `walpost adopt --apply` and start walpost again" } else { "start walpost again" }
    )]
    OtherHistory {
        /// The first difference.
        difference: String,
        /// Whether events of the new history were published.
        published: bool,
        /// The LSN at which the comparison began.
        from: Lsn,
        /// Whether it was compared with the state topic.
        with_state: bool,
        /// Whether the publication, or what is read of it, was changed since.
        layout_changed: bool,
    },

    /// A transaction is published in part, and cannot be recognised.
    #[error(
        "a part of the transaction that commits at {commit_lsn} is published ({place}), PostgreSQL was \
         started since, and the position does not have the transaction's id, since an earlier version \
         of walpost has written it: walpost cannot tell whether this server still has that transaction. \
         `walpost adopt --apply` continues from the slot's position, and publishes that part once more"
    )]
    Unidentified {
        /// The store of the position.
        place: String,
        /// The commit LSN of the transaction.
        commit_lsn: Lsn,
    },

    /// The slot is ahead of the position that walpost keeps.
    #[error(
        "replication slot \"{slot}\" is confirmed up to {found}, and the destination has acknowledged \
         what committed before {acked} ({place}): what was committed between these was \
         not published by this walpost. The slot was dropped and created again, or advanced by \
         another client{}. `walpost recover` reports which rows are missing at the destination, and with \
         --apply publishes them. `walpost adopt --apply` continues from {found} without them",
        lost_writes(*.lossy_store)
    )]
    AheadOfState {
        /// The slot.
        slot: String,
        /// The slot's `confirmed_flush_lsn`.
        found: Lsn,
        /// The position that is kept.
        acked: Lsn,
        /// The store of the position.
        place: String,
        /// The name of the store, if it may lose writes.
        lossy_store: Option<&'static str>,
    },

    /// The slot is behind the position, and walpost has never confirmed what it has.
    #[error(
        "replication slot \"{slot}\" has the position {found}, which walpost has not confirmed; it has \
         published what committed before {acked} ({place}): the server was restored to an earlier state, \
         and the slot made again, or another client has advanced it. What was committed before {found} \
         may be published or not: {RECOVER_ALL}"
    )]
    MadeAgain {
        /// The slot.
        slot: String,
        /// The slot's `confirmed_flush_lsn`.
        found: Lsn,
        /// The position that is kept.
        acked: Lsn,
        /// The store of the position.
        place: String,
    },

    /// The state topic has no position for this slot.
    #[error(
        "{place} has no position for replication slot \"{slot}\" of this database, \
         server (system identifier {system_identifier}) and delivery.id \"{delivery_id}\": \
         walpost cannot tell whether rows were skipped. See both positions by `walpost adopt`; \
         `walpost adopt --apply` continues from the slot's"
    )]
    NoState {
        /// The slot.
        slot: String,
        /// The store of the position.
        place: String,
        /// The server's.
        system_identifier: String,
        /// The configured one.
        delivery_id: String,
    },

    /// What is at the destination is not what walpost has published. The slot has everything that is not
    /// confirmed.
    #[error("{0}")]
    Destination(String),

    /// Rows that the slot does not send are still to be published.
    #[error(
        "rows of the outbox that replication slot \"{slot}\" does not send are not all published yet \
         ({place}): run `walpost init --apply --existing-rows` or `walpost recover --apply` \
         again, which continues. `walpost adopt --apply` gives them up"
    )]
    UnfinishedRows {
        /// The slot.
        slot: String,
        /// The store of the position.
        place: String,
    },

    /// The publication was changed while walpost worked with it, as far as is known.
    #[error(
        "the publication was changed while walpost worked with it, or after it was killed ({place}), and \
         PostgreSQL never sends what was committed without it. Publish by hand the rows that were committed \
         after {found} and are not at the destination; `walpost adopt --apply` then accepts the \
         publication as it is now"
    )]
    OtherPublication {
        /// The store of the position.
        place: String,
        /// The slot's position.
        found: Lsn,
    },

    /// While rows were published that the slot does not send, another walpost took the slot.
    #[error("another walpost has written to {place} meanwhile")]
    TakenOver {
        /// The store of the position.
        place: String,
    },

    /// The position in the state topic belongs to a newer timeline, or to another Kafka cluster.
    #[error(
        "the position in {place} is of {known}, this one is {found}; nothing was \
         published. If this is intended, run `walpost adopt --apply` and start walpost again"
    )]
    OtherState {
        /// The store of the position.
        place: String,
        /// The server that the position belongs to.
        known: String,
        /// What is connected now.
        found: String,
    },

    /// A transaction is published in part, and what numbers its events was changed.
    #[error(
        "{events} events of the transaction that commits at {commit_lsn} are published ({place}), and the outbox tables, message prefixes or publication were changed since: walpost \
         cannot tell which of its events these were. Restore the former configuration until the \
         transaction is published; or run `walpost adopt --apply` and start walpost again to publish \
         everything from the slot's position on once more"
    )]
    PartlyPublished {
        /// The store of the position.
        place: String,
        /// The commit LSN of the transaction.
        commit_lsn: Lsn,
        /// How many of its events are published.
        events: u32,
    },

    /// An event is to be skipped, and what numbers the events was changed since that was ordered.
    #[error(
        "the event at {position} is to be skipped ({place}), and the outbox tables, \
         message prefixes or publication were changed since: another event may have that position now. \
         Restore the former configuration until walpost has passed it; or run `walpost skip --position \
         {position} --undo --apply`, and order it again once walpost halts at the event"
    )]
    SkipOutdated {
        /// The store of the position.
        place: String,
        /// The event's position.
        position: EventPosition,
    },

    /// The slot became unusable during a catch-up, which continued to read its temporary copy.
    #[error(
        "{error}. What committed before {read} was read from a copy of the slot{}",
        lost_copy(.copy_lost.as_deref())
    )]
    CopyRead {
        /// What is wrong with the slot.
        error: Box<SlotError>,
        /// The LSN up to which the copy was read.
        read: Lsn,
        /// Why the copy could not be read completely.
        copy_lost: Option<String>,
    },

    /// The slot is unusable, and records that were read from it were not delivered.
    #[error(
        "{error}. {records} records that were read from it were not delivered: find the rows \
         that were committed from {from} on and are not at the destination"
    )]
    Undelivered {
        /// What is wrong with the slot.
        error: Box<SlotError>,
        /// The number of these records.
        records: u64,
        /// The flush LSN.
        from: Lsn,
    },
}

impl SlotError {
    /// Whether the slot still has everything that is not confirmed to it.
    pub(crate) fn keeps_slot(&self) -> bool {
        matches!(self, Self::Destination(_) | Self::OtherPublication { .. })
    }
}

/// Another reason why a transaction is not sent as before.
const LAYOUT_CHANGED: &str = "; or the publication, or which messages are read, was changed since, so \
     that it does not send the same: restore the former configuration and start walpost again";

/// What to do about events that only one of both has.
const RECOVER_ALL: &str = "`walpost recover --all` names them, and with --apply publishes what is missing. \
     `walpost adopt --apply` continues from the slot's position without that";

/// Another reason why a slot is ahead of a position in this store.
fn lost_writes(store: Option<&str>) -> String {
    store.map_or_else(String::new, |store| {
        format!(
            "; or {store} has lost its newest writes: in a crash without a synced log, in a failover to a \
             replica that was behind, or by being restored"
        )
    })
}

fn lost_copy(because: Option<&str>) -> String {
    because.map_or_else(String::new, |because| {
        format!(", which was lost before its end ({because}): what follows is in no slot")
    })
}
