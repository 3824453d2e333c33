//! The events of a schedule, in order: written by the simulated world, checked by the checker, and
//! readable by people.

use walpost::Lsn;
use walpost::ledger::Seq;
use walpost::position::EventPosition;
use walpost::relay::Summary;
use walpost::sink::Outcome;
use walpost::source::SourceError;

/// What happened, and when: milliseconds of the schedule's own time.
pub(crate) type Trace = Vec<(u64, TraceEvent)>;

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "some of it is for people who read the trace")]
pub(crate) enum TraceEvent {
    /// Item number of the log was committed.
    Committed {
        item: usize,
    },
    /// An operator gave up the undelivered events of that transaction.
    GivenUp {
        item: usize,
    },
    Started {
        process: usize,
        until: bool,
    },
    /// A process was asked to stop: once, or a second time.
    Told {
        process: usize,
        twice: bool,
    },
    Exited {
        process: usize,
        exit: Exit,
    },
    /// A session is open: its flush LSN is `start`, and the server sends from `from`. The other
    /// fields: whether another relay has advanced the slot past the relay's position, the end of
    /// WAL, whether the relay resumes from its own position, and whether it is a catch-up.
    Opened {
        process: usize,
        session: usize,
        start: Lsn,
        from: Lsn,
        passed: bool,
        end: Lsn,
        resumes: bool,
        in_batches: bool,
    },
    /// A session could not be opened, or showed that the slot is unusable.
    NoSession {
        process: usize,
        error: SourceError,
    },
    /// The relay received a WAL position from a session.
    Took {
        session: usize,
        up_to: Lsn,
        what: &'static str,
    },
    Confirmed {
        session: usize,
        lsn: Lsn,
    },
    /// The server ended the session.
    Broke {
        session: usize,
    },
    /// The relay released the session: the longest time for which it did not poll it, and the
    /// reason.
    Released {
        session: usize,
        unattended_ms: u64,
        left: Left,
    },
    /// The session requested an advance of the slot.
    Advanced {
        session: usize,
    },
    /// A client that is not walpost advanced the slot.
    Moved {
        to: Lsn,
    },
    /// The slot's position was set.
    Slot {
        confirmed: Lsn,
    },
    /// The server was restored to its first items.
    Restored {
        items: usize,
        confirmed: Lsn,
    },
    /// An operator accepted the slot's position.
    Adopted {
        upto: Lsn,
    },
    /// The server lost the slot's last positions.
    Fell {
        confirmed: Lsn,
    },
    Made {
        process: usize,
        producer: usize,
    },
    /// Exactly-once mode: the position in the state topic was read, with a new producer.
    StateRead {
        process: usize,
        upto: Lsn,
        partial: Option<EventPosition>,
    },
    /// The state topic has this position now.
    StateWritten {
        upto: Lsn,
    },
    /// The position was perhaps not written.
    StateFailed {
        process: usize,
    },
    /// Exactly-once mode: a process discarded its producer.
    Discarded {
        process: usize,
    },
    /// The producer failed.
    Failed {
        producer: usize,
    },
    Produced {
        producer: usize,
        seq: Seq,
        event: usize,
        in_flight_bytes: u64,
    },
    Appended {
        producer: usize,
        event: usize,
    },
    /// The dead-letter topic has the event.
    DeadLettered {
        event: usize,
    },
    Reported {
        producer: usize,
        seq: Seq,
        event: usize,
        outcome: Outcome,
    },
    InjectedFault(InjectedFault),
    /// All faults are over, and no more follow.
    Calm,
    /// The slot reached the end of WAL.
    Arrived,
    /// Something that must never happen.
    Strange(String),
}

/// How a process ended.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "some of it is for people who read the trace")]
pub(crate) enum Exit {
    Killed,
    Clean(Summary),
    Aborted,
    /// Halted at the event at this position, with everything before it delivered or not.
    Halted {
        commit: Lsn,
        ordinal: u32,
        sure: bool,
        text: String,
    },
    Source(SourceError),
    Sink,
    Unauthenticated,
    Unconfirmed,
}

/// The state of a session when the relay released it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It had more messages, or had failed.
    Midway,
    /// It sent its last confirmation.
    Finished,
    /// The feed was switched; whether it was `within` a transaction.
    Turned { why: Why, within: bool },
}

/// Why a feed was switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// A stream had fallen behind.
    Behind,
    /// The backlog was nearly read.
    Over,
    /// A stream reads the rest at a lower cost.
    StreamCostsLess,
    /// The server rejected the catch-up.
    Refused,
    /// The relay did not read it for long.
    Idle,
}

/// A fault outside of walpost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    SessionEnds,
    ServerRestarts,
    ServerAway,
    AccessRefused,
    SlotHeld,
    SlotMoved,
    SlotDropped,
    OtherServer,
    BrokerAway,
    BrokerSlow,
    RefusesAll,
    BatchLost,
    AckLost,
    ProducerFails,
    ProducerStuck,
    QueueFull,
    ReplacementSlow,
    ReplacementFails,
    Unauthenticated,
    BatchRefused,
    MoveSlow,
    ServerRestored,
    LayoutChanged,
}

impl InjectedFault {
    pub(crate) const ALL: [Self; 23] = [
        Self::SessionEnds,
        Self::ServerRestarts,
        Self::ServerAway,
        Self::AccessRefused,
        Self::SlotHeld,
        Self::SlotMoved,
        Self::SlotDropped,
        Self::OtherServer,
        Self::BrokerAway,
        Self::BrokerSlow,
        Self::RefusesAll,
        Self::BatchLost,
        Self::AckLost,
        Self::ProducerFails,
        Self::ProducerStuck,
        Self::QueueFull,
        Self::ReplacementSlow,
        Self::ReplacementFails,
        Self::Unauthenticated,
        Self::BatchRefused,
        Self::MoveSlow,
        Self::ServerRestored,
        Self::LayoutChanged,
    ];

    /// Whether it needs an operator.
    pub(crate) fn is_grave(self) -> bool {
        matches!(
            self,
            Self::SlotMoved
                | Self::SlotDropped
                | Self::OtherServer
                | Self::ReplacementFails
                | Self::Unauthenticated
                | Self::ServerRestored
        )
    }
}
