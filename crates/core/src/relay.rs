//! The relay's decisions, as a state machine without I/O.
//!
//! The driver passes it each input (a message, a keepalive, a delivery report, a lost session) and
//! asks what to do: whether to take the next message, what may be confirmed, whether to replay,
//! whether it is done. It publishes through an [`Outlet`], which must not block.
//!
//! # Why the order is kept
//!
//! One producer that is given records in the stream's order keeps the records of a partition in
//! that order (I6), unless one is produced again after its successors. So a record for which the
//! outlet has no room is offered again before any other ([`Taken::NotYet`]). A record that was not
//! delivered is never produced again alone: the core requests a replay from the flush LSN with a
//! new producer. Everything produced since is produced again, as a repeated stretch of the same
//! order. The ledger ignores the old producer's delivery reports, whose sequence numbers are never
//! reused.
//!
//! In that replay the failed record is isolated: it is produced once everything before it is
//! durable, and nothing is produced after it until its report. So a topic that accepts nothing for
//! an hour does not flood the other topics with repeats of later records; only the records before
//! it in its own transaction are repeated. A record that the broker permanently rejects even then
//! is poison. By the policy of its cause, the relay either halts with everything before it
//! delivered, or remembers the position, replays, and diverts the event when it is read again. A
//! dead letter is produced like any other record, so nothing is confirmed past it before the broker
//! has it (I1). It is produced only after all earlier ordinary records are acknowledged: otherwise
//! one of them could be rejected later, and its dead letter would be out of order.
//!
//! A rejection that may be about everything makes the record a suspect: `suspects` finds out whose
//! fault it is, and may have events published before it whose order does not depend on it.
//!
//! If an earlier record is still undelivered, a pending halt is cancelled: by the replay, or by the
//! next session after a lost session withdrew records. The halt recurs when the stream is read
//! again, once everything before it is durable. So no operator is advised to skip undelivered
//! events.
//!
//! PostgreSQL sends a transaction after its commit, so no row of an aborted one arrives (I7). A
//! transaction that a lost session left open is sent again from its beginning. Its events that were
//! taken before are counted and not produced again: the position and order of a transaction's
//! events are the same each time. Records in flight stay within the budget plus one row (I13):
//! above that the core wants no input.
//!
//! In exactly-once mode, `commits` decides what a Kafka transaction contains.
//!
//! No socket, clock, task, metric or log call here.

use crate::ledger::{Ledger, Seq, StreamError};
use crate::lsn::Lsn;
use crate::outbox::{FoundTable, Outbox};
use crate::pgoutput::{Begin, Message, PgTimestamp};
use crate::position::EventPosition;
use crate::record::{Known, Router, SchemaRef};

use self::accepted::Accepted;
pub use self::commits::CommitAt;
use self::commits::Commits;
pub use self::counters::{Counters, DroppedHeaders};
use self::isolation::Isolation;
pub use self::quarantine::Diverted;
use self::quarantine::Quarantine;
use self::skips::Skips;
use crate::outlet::{Outlet, ProduceError, RECORD_OVERHEAD_BYTES, Refusal};
use crate::record::Policies;

pub use halt::{EventOrigin, Halt};
pub use suspects::Probing;

mod accepted;
mod commits;
mod counters;
mod halt;
mod isolation;
mod offer;
mod publish;
mod quarantine;
mod reports;
mod skips;
mod suspects;

/// Minimum budget for the ledger's own memory, in bytes: the ledger keeps what follows a record
/// that stays unacknowledged.
const LEDGER_BYTES_LEAST: u64 = 1 << 20;

/// The outcome of offering a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// The message was taken.
    Yes,
    /// The outlet is full, or a record in flight must be reported first: offer the same message
    /// again after a delivery report; or after [`Core::learn`], if there is a [`Core::wanted_schema`].
    NotYet,
}

/// The state machine.
#[derive(Debug)]
pub struct Core {
    outbox: Outbox,
    router: Router,
    ledger: Ledger,
    budget_bytes: u64,
    transaction: Option<Transaction>,
    /// The transaction that the last session left open: its records are still in the ledger.
    interrupted: Option<Transaction>,
    phase: Phase,
    replay: Option<String>,
    isolation: Option<Isolation>,
    policies: Policies,
    quarantine: Quarantine,
    accepted: Accepted,
    /// How often something was found out about a failed record.
    verdicts: u64,
    skips: Skips,
    /// What has to be learned before the message that was not taken is offered again.
    wanted_schema: Option<SchemaRef>,
    diverted: Vec<Diverted>,
    /// The first event with dropped headers since the last call of [`Core::take_dropped_headers`].
    dropped_headers: Option<DroppedHeaders>,
    /// The last production that is not a dead letter.
    ordinary: Option<Seq>,
    /// The last event that was counted as new.
    furthest: Option<EventPosition>,
    counters: Counters,
    /// `None`: at least once.
    commits: Option<Commits>,
}

/// The open transaction.
#[derive(Debug)]
struct Transaction {
    commit_lsn: Lsn,
    commit_time: PgTimestamp,
    next_ordinal: u32,
    /// Events before this ordinal were taken in a lost session and are in the ledger, or they are
    /// published.
    taken_before: u32,
    /// All its events are published, and the ledger does not have it.
    is_published: bool,
}

#[derive(Debug)]
enum Phase {
    Running,
    /// Stopping: no transaction is begun, an open one is read to its end.
    Draining,
    /// An operator must act: nothing more is read. `all_before_durable` if everything before it is
    /// known to be durable, as for a record that was rejected in isolation.
    Halting {
        halt: Box<Halt>,
        all_before_durable: bool,
    },
}

impl Core {
    /// Creates a core that may hold `budget_bytes` of records in flight, plus one row.
    pub fn new(outbox: Outbox, router: Router, budget_bytes: u64) -> Self {
        Self {
            outbox,
            router,
            ledger: Ledger::new(Lsn::ZERO),
            budget_bytes,
            transaction: None,
            interrupted: None,
            phase: Phase::Running,
            replay: None,
            isolation: None,
            policies: Policies::default(),
            quarantine: Quarantine::default(),
            accepted: Accepted::default(),
            verdicts: 0,
            skips: Skips::default(),
            wanted_schema: None,
            diverted: Vec::new(),
            dropped_headers: None,
            ordinary: None,
            furthest: None,
            counters: Counters::default(),
            commits: None,
        }
    }

    /// Sets the policies for poison events; the default is to halt.
    #[must_use]
    pub fn with_policies(mut self, policies: Policies) -> Self {
        self.policies = policies;
        self
    }

    /// The schema that has to be learned before the message that was not taken can be.
    pub fn wanted_schema(&self) -> Option<&SchemaRef> {
        self.wanted_schema.as_ref()
    }

    /// Learns what the schema registry has; `None`: it is to be asked again.
    pub fn learn(&mut self, schema: SchemaRef, known: Option<Known>) {
        self.wanted_schema.take_if(|wanted| *wanted == schema);
        self.router.learn(schema, known);
    }

    /// How many schemas are known.
    pub fn schemas(&mut self) -> usize {
        self.router.schemas()
    }

    /// Takes the events that were diverted since the last call.
    pub fn take_diverted(&mut self) -> Vec<Diverted> {
        std::mem::take(&mut self.diverted)
    }

    /// Takes the first event since the last call of which headers were dropped.
    pub fn take_dropped_headers(&mut self) -> Option<DroppedHeaders> {
        self.dropped_headers.take()
    }

    /// The LSN up to which everything is durable; sent to PostgreSQL as the flush LSN.
    pub fn flush_lsn(&self) -> Lsn {
        self.ledger.flush_lsn()
    }

    /// The sequence number of the next production.
    pub fn next_seq(&self) -> Seq {
        self.ledger.next_seq()
    }

    /// The commit LSN of the open transaction.
    pub fn open_transaction(&self) -> Option<Lsn> {
        self.transaction.as_ref().map(|open| open.commit_lsn)
    }

    /// The position at which the next session must start.
    pub fn resume_at(&self) -> Lsn {
        self.ledger.resume_at()
    }

    /// Records in flight, and their bytes with overhead.
    pub fn in_flight(&self) -> (usize, u64) {
        (self.ledger.in_flight_records(), self.ledger.in_flight_bytes())
    }

    /// The maximum bytes in flight.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The oldest production in flight.
    pub fn oldest_in_flight(&self) -> Option<Seq> {
        self.ledger.oldest_in_flight()
    }

    /// The commit time of production `seq`'s transaction, while it is in flight.
    pub fn commit_time(&self, seq: Seq) -> Option<PgTimestamp> {
        self.ledger.commit_time(seq)
    }

    /// The commit time of the oldest transaction that is not completely delivered.
    pub fn oldest_unconfirmed(&self) -> Option<PgTimestamp> {
        self.ledger.oldest_commit_time()
    }

    /// Counts of what was received and skipped.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the next message may be taken: false while the budget is used up, while a record is
    /// isolated, and after draining or halting began.
    pub fn wants_input(&self) -> bool {
        let phase_allows = match &self.phase {
            Phase::Running => true,
            Phase::Draining => self.is_within_events(),
            Phase::Halting { .. } => false,
        };
        phase_allows
            && self.replay.is_none()
            && self.ledger.in_flight_bytes() < self.budget_bytes
            && self.ledger.own_bytes() < self.budget_bytes.max(LEDGER_BYTES_LEAST)
            && !self.is_held_for_isolation()
            && !self.is_held_for_commit()
    }

    /// Why everything from the flush LSN on must be produced again by a new producer, if it must;
    /// respond with [`Core::producer_replaced`]. `None` while draining: what is not durable is then
    /// sent again after the next start. The replay cancels a halt behind a failed record, and finds
    /// its cause again: no operator may be advised to skip undelivered events.
    pub fn wants_replay(&self) -> Option<&str> {
        let phase_allows = match self.phase {
            Phase::Running => true,
            Phase::Draining => false,
            Phase::Halting { all_before_durable, .. } => {
                !all_before_durable && self.ledger.undelivered() > 0
            }
        };
        self.replay.as_deref().filter(|_| phase_allows)
    }

    /// Why the relay halts once everything before that is delivered.
    pub fn halted(&self) -> Option<&Halt> {
        match &self.phase {
            Phase::Halting { halt, .. } => Some(halt),
            Phase::Running | Phase::Draining => None,
        }
    }

    /// Begins no further transaction. A transaction with events already produced is read to its
    /// end, so that a clean restart repeats nothing.
    pub fn drain(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Draining;
            self.interrupt_probing();
        }
    }

    /// Whether draining or halting is complete.
    pub fn is_drained(&self) -> bool {
        let quiet = self.ledger.in_flight_records() == 0;
        match &self.phase {
            Phase::Running => false,
            // Without its producer, a Kafka transaction is not committed any more.
            Phase::Draining if self.is_exactly_once() && self.replay.is_some() => true,
            Phase::Draining => quiet && (!self.is_within_events() || self.replay.is_some()),
            // Withdrawn records may never be reported, so nothing waits for them.
            Phase::Halting { all_before_durable, .. } => {
                *all_before_durable || self.ledger.undelivered() == 0
            }
        }
    }

    /// Takes a message of the stream. Messages must be passed in order.
    ///
    /// An error means that the stream violates the protocol: close the session
    /// ([`Core::session_lost`]).
    pub fn receive(
        &mut self,
        message: &Message,
        outlet: &mut (impl Outlet + ?Sized),
    ) -> Result<Taken, StreamError> {
        self.wanted_schema = None;
        match message {
            Message::Begin(begin) if self.is_commit_needed_before(begin) => {
                return Ok(Taken::NotYet);
            }
            Message::Begin(begin) => {
                let of = (begin.commit_lsn, begin.commit_time);
                self.accepted.is_kept = outlet.outlives_refusals() && !self.is_exactly_once();
                self.accepted.begin(of, self.flush_lsn());
                self.begin(begin)?;
            }
            Message::Commit(commit) => {
                if !self.transaction.as_ref().is_some_and(|open| open.is_published) {
                    self.ledger.commit(commit.commit_lsn, commit.end_lsn)?;
                }
                self.transaction = None;
                self.counters.transactions += 1;
            }
            Message::Relation(relation) => {
                if let Err(error) = self.outbox.relation(relation) {
                    let open = self.transaction.as_ref();
                    let commit_lsn = open.map_or(self.ledger.resume_at(), |open| open.commit_lsn);
                    self.halt(Halt::Changed { error, commit_lsn });
                }
            }
            Message::Insert(_) | Message::Logical(_) => return self.event(message, outlet),
            Message::Update(relation) => {
                self.counters.ignored_updates += u64::from(self.outbox.is_outbox(*relation));
            }
            Message::Delete(relation) => {
                self.counters.ignored_deletes += u64::from(self.outbox.is_outbox(*relation));
            }
            Message::Truncate(relations) => {
                let ours = relations.iter().filter(|relation| self.outbox.is_outbox(**relation));
                self.counters.ignored_truncates += ours.count() as u64;
            }
            Message::Type(named) => self.outbox.type_named(named),
            Message::Origin => {}
        }
        Ok(Taken::Yes)
    }

    /// Takes a keepalive, in its order in the stream: the server has sent everything that committed
    /// before `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if self.interrupted.as_ref().is_some_and(|interrupted| interrupted.commit_lsn < wal_end) {
            // The interrupted transaction was not sent again, so nothing may wait for it.
            if self.is_within_produced() {
                self.note_withdrawn();
            }
            self.interrupted = None;
            self.ledger.withdraw();
        }
        self.ledger.keepalive(wal_end);
    }

    /// A session was opened on a slot that is confirmed up to `start`, with these tables: their
    /// columns are checked before the first row arrives.
    ///
    /// If `start` is beyond the flush LSN, another instance has confirmed the slot, and this
    /// instance's records are obsolete.
    pub fn connected(&mut self, start: Lsn, tables: &[FoundTable]) {
        if self.ledger.flush_lsn() < start {
            self.accepted.replay(true);
            self.ledger.reset_to(start);
            self.interrupted = None;
            self.isolation.take_if(|isolation| isolation.position.commit_lsn < start);
        }
        for table in tables {
            if let Err(error) = self.outbox.expect(table) {
                self.halt(error.into());
            }
        }
    }

    /// The session ended. Its open transaction will be sent again from its beginning, and its
    /// `wal_end` is no longer valid. Events of that transaction that were taken remain taken. A
    /// halt behind undelivered records is cancelled, and its cause is found again: its whole
    /// transaction is then taken again.
    pub fn session_lost(&mut self) {
        // Another instance may use the slot before the next session.
        self.accepted.forget();
        self.end_session();
    }

    fn end_session(&mut self) {
        self.wanted_schema = None;
        let has_part = self.is_within_produced();
        let open = self.transaction.take();
        if matches!(self.phase, Phase::Halting { .. }) {
            if has_part {
                self.note_withdrawn();
            }
            self.interrupted = None;
            let undelivered = self.ledger.withdraw();
            if undelivered > 0
                && matches!(self.phase, Phase::Halting { all_before_durable: false, .. })
            {
                self.phase = Phase::Running;
            }
        } else if self.ledger.interrupt() {
            self.interrupted = open;
        }
        self.outbox.forget();
        if let Some(isolation) = &mut self.isolation {
            isolation.record = None;
        }
    }

    /// The producer was replaced, and nothing of the old one is in flight. The next session starts
    /// at the flush LSN, which in exactly-once mode is that of the last commit again.
    pub fn producer_replaced(&mut self) {
        self.interrupt_probing();
        self.forget_productions();
        self.accepted.replay(self.suspicion().is_some());
        self.end_session();
        self.ledger.reset();
        self.rewind();
        self.interrupted = None;
        self.replay = None;
        // If everything before it was durable, it still is, even if the same cause made the
        // producer fail.
        if matches!(self.phase, Phase::Halting { all_before_durable: false, .. }) {
            self.phase = Phase::Running;
        }
    }

    /// Whether a failed record is not yet delivered.
    pub fn is_isolating(&self) -> bool {
        self.isolation.is_some()
    }

    /// How often something was found out about a failed record: that an earlier one fails too, that another
    /// event was accepted while it was refused, that it is at fault. This is progress that the flush LSN does
    /// not show.
    pub fn verdicts(&self) -> u64 {
        self.verdicts
    }

    /// Records that were produced and are not durable, including failed ones.
    pub fn undelivered(&self) -> u64 {
        self.ledger.undelivered()
    }

    /// Requests a new producer: this one cannot deliver anything more.
    pub fn request_producer_replacement(&mut self, reason: &str) {
        self.ask_for_replay(reason);
    }

    fn begin(&mut self, begin: &Begin) -> Result<(), StreamError> {
        if let Some(published) = self.published(begin) {
            if let Some(open) = self.open_transaction() {
                return Err(StreamError::NestedBegin { outer: open, inner: begin.commit_lsn });
            }
            self.note_begin();
            self.transaction = Some(published);
            return Ok(());
        }
        let interrupted = self.interrupted.take().filter(|interrupted| {
            (interrupted.commit_lsn, interrupted.commit_time)
                == (begin.commit_lsn, begin.commit_time)
        });
        let taken_before = match interrupted {
            Some(interrupted) if self.ledger.resume(begin.commit_lsn) => {
                interrupted.next_ordinal.max(interrupted.taken_before)
            }
            _ => {
                self.ledger.begin(begin.commit_lsn, begin.commit_time)?;
                self.published_events(begin.commit_lsn)
            }
        };
        self.note_begin();
        self.quarantine.forget_before(self.durable_upto());
        let isolated = self.isolation.as_ref().map(|isolation| isolation.position.commit_lsn);
        if isolated.is_some_and(|isolated| isolated < begin.commit_lsn) && !self.is_probing() {
            self.isolation = None;
        }
        self.transaction = Some(Transaction {
            commit_lsn: begin.commit_lsn,
            commit_time: begin.commit_time,
            next_ordinal: 0,
            taken_before,
            is_published: false,
        });
        Ok(())
    }

    /// Whether an event of the open transaction was taken.
    fn is_within_events(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.next_ordinal > 0)
    }

    fn halt(&mut self, halt: Halt) {
        if self.is_probing() {
            // The suspect comes first.
            return self.end_probing_before(&halt);
        }
        if self.halted().is_none() && !self.is_replayed_before_halt() {
            self.phase = Phase::Halting { halt: Box::new(halt), all_before_durable: false };
        }
    }

    fn ask_for_replay(&mut self, reason: &str) {
        if self.replay.is_none() {
            self.replay = Some(reason.to_owned());
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod properties;

#[cfg(test)]
mod exploration;
