//! The events of a schedule, in order: written by the simulated world, judged by the checker, and
//! readable by people.

use walpost::Lsn;
use walpost::ledger::Seq;
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
    /// An operator gave up what of that transaction is not delivered.
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
    /// A session stands: the relay takes A to be `start`, the server sends from `from`;
    /// whether that is where another relay has passed it; where the log ends; whether the
    /// relay continues from where it was; whether it reads batches.
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
    NotOpened {
        process: usize,
        error: SourceError,
    },
    /// The relay took something from a session that says how far the log is known.
    Took {
        session: usize,
        up_to: Lsn,
        what: &'static str,
    },
    Confirmed {
        session: usize,
        lsn: Lsn,
    },
    /// The session broke: the server's doing.
    Broke {
        session: usize,
    },
    /// The relay released the session; for so long at most nobody attended to it; how it
    /// had come to that.
    Released {
        session: usize,
        unattended_ms: u64,
        left: Left,
    },
    /// The session moved the slot on, to there.
    Advanced {
        session: usize,
    },
    /// Someone who is not walpost moved the slot.
    Moved {
        to: Lsn,
    },
    /// The slot's position was set.
    Slot {
        confirmed: Lsn,
    },
    /// The server forgot the slot's last positions.
    Fell {
        confirmed: Lsn,
    },
    Made {
        process: usize,
        producer: usize,
    },
    /// The producer can do no more.
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
    /// The dead-letter topic has it.
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
    /// No more faults from here on; all that were are over.
    Calm,
    /// The slot reached the end of WAL.
    Arrived,
    /// What must never happen.
    Strange(String),
}

/// How a process ended.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "some of it is for people who read the trace")]
pub(crate) enum Exit {
    Killed,
    Clean(Summary),
    Aborted,
    /// Halted at the event that is there, with all before it delivered or not.
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

/// How a session stood when the relay released it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It had more to hand out, or was broken.
    Midway,
    /// It confirmed for the last time.
    Finished,
    /// Another feed was to take its place; whether it was `within` a transaction.
    Turned { why: Why, within: bool },
}

/// Why another feed was to take its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// A stream had fallen behind.
    Behind,
    /// Little was left of the backlog.
    Over,
    /// A stream reads the rest of it for less.
    StreamCostsLess,
    /// The server would not read on.
    Refused,
    /// Nothing was taken for long.
    Idle,
}

/// What goes wrong outside of walpost.
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
}

impl InjectedFault {
    pub(crate) const ALL: [Self; 20] = [
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
    ];

    /// Whether an operator is needed after it.
    pub(crate) fn is_grave(self) -> bool {
        matches!(
            self,
            Self::SlotMoved
                | Self::SlotDropped
                | Self::OtherServer
                | Self::ReplacementFails
                | Self::Unauthenticated
        )
    }
}
