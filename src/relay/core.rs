//! The relay's decisions, as a state machine without I/O.
//!
//! The driver feeds it what came (a message, a keepalive, a delivery report, a
//! lost session) and asks it what to do: whether to take the next message,
//! what may be confirmed, whether to replay, whether it is done. What it
//! produces goes through an [`Outlet`], which must not block.
//!
//! # Why the order holds
//!
//! One producer, fed in the stream's order, keeps a partition's records in that order
//! (I6) as long as none is produced again behind its successors. So a record
//! that the outlet has no room for is offered again before anything else
//! ([`Taken::NotYet`]), and one that was not delivered is never produced again
//! alone: the core asks for a replay from A with a new producer. All that was
//! produced since A comes again, as a repeated stretch of the same order, and the
//! ledger's production numbers make the old producer's reports count for
//! nothing.
//!
//! In that replay the guilty record is let through only when everything before it is
//! durable and nothing follows it: so that a topic which takes nothing for an
//! hour does not fill the others with repeats of what follows, but only with
//! those of its own transaction's part before it. A record that the broker refuses
//! for good even there is poison, and the relay halts with all before it
//! delivered; or, where the cause's policy says so, remembers the verdict, replays,
//! and puts the event aside when it comes: a dead letter is a production as any other,
//! so that nothing is confirmed past it before the broker has it (I1). It waits for the
//! records before it that are none: one that is refused yet has its letter before it, and
//! the letters of a key stand in their order.
//!
//! A halt that was met behind a record which failed gives way to the replay, and one
//! behind records that a lost session withdrew to the next session: it is met again,
//! and nobody is led past what is not delivered.
//!
//! Rows of a transaction that aborted never come (I7), since PostgreSQL sends a transaction once it
//! has committed. One that a lost session left open comes again from its beginning; those of its
//! events that were taken are counted and not produced again, since position and order of a
//! transaction's events are the same each time (so an event of it that is in flight, or durable, is
//! not repeated because a connection broke).
//! What is in flight stays within the budget and one row (I13): the core wants no input beyond.
//!
//! No socket, clock, task, metric or log call here.

use crate::ledger::{Failed, Ledger, Seq, StreamError};
use crate::lsn::Lsn;
use crate::outbox::{FoundTable, Outbox};
use crate::pgoutput::{Begin, Insert, Message, PgTimestamp};
use crate::position::EventPosition;
use crate::record::Router;

use self::isolation::Isolation;
pub use self::quarantine::Diverted;
use self::quarantine::Quarantine;
use crate::outlet::{Outlet, ProduceError, RECORD_OVERHEAD_BYTES, Refusal};
use crate::record::{Policies, Policy};

pub use halt::{EventOrigin, Halt};

mod halt;
mod isolation;
mod publish;
mod quarantine;

/// What the ledger may hold by itself where the budget is smaller: a record that
/// is long in coming holds back the account of all that follows it. In bytes.
const LEDGER_BYTES_LEAST: u64 = 1 << 20;

/// What became of a message that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// It is done with.
    Yes,
    /// The outlet is full, or what is in flight has to be known first: offer the same
    /// message again after a report.
    NotYet,
}

/// Things that walpost passes over, and how often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transactions received whole, those without an outbox event too.
    pub transactions: u64,
    /// Outbox events received, replayed ones again.
    pub events: u64,
    /// Updates of outbox rows, which are no events.
    pub ignored_updates: u64,
    /// Deletes of outbox rows, which are no events.
    pub ignored_deletes: u64,
    /// Truncates, which are no events.
    pub ignored_truncates: u64,
    /// Non-transactional logical messages with the configured prefix: refused,
    /// since they have no position that survives a replay.
    pub refused_messages: u64,
    /// Events that were put into the dead-letter topic, replayed ones again.
    pub dead_letters: u64,
    /// Events that were skipped, replayed ones again.
    pub skipped: u64,
    /// Members of rows' headers that were dropped, since their names are walpost's; those of
    /// replayed events again.
    pub dropped_headers: u64,
}

/// The state machine.
#[derive(Debug)]
pub struct Core {
    outbox: Outbox,
    router: Router,
    ledger: Ledger,
    budget_bytes: u64,
    transaction: Option<Transaction>,
    /// The transaction that the last session left open: its records are still in the account.
    interrupted: Option<Transaction>,
    phase: Phase,
    replay: Option<String>,
    suspect: Option<Isolation>,
    policies: Policies,
    verdicts: Quarantine,
    /// Counts them.
    judged: u64,
    diverted: Vec<Diverted>,
    /// Of an event since the last look at it.
    dropped_headers: Option<DroppedHeaders>,
    /// The last production that is no dead letter.
    ordinary: Option<Seq>,
    counters: Counters,
}

/// An event with headers of its own that were dropped, for people to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedHeaders {
    /// Where it was written.
    pub origin: EventOrigin,
    /// The event's position.
    pub position: EventPosition,
    /// The name of the first of them.
    pub name: String,
}

/// The transaction whose rows are coming.
#[derive(Debug)]
struct Transaction {
    commit_lsn: Lsn,
    commit_time: PgTimestamp,
    next_ordinal: u32,
    /// Its events before this ordinal were taken in a session that was lost, and are in the
    /// ledger's account.
    taken_before: u32,
}

#[derive(Debug)]
enum Phase {
    Running,
    /// Told to stop: nothing new is begun, what was begun is finished.
    Draining,
    /// A person must act: nothing more is read. `sure` where all before it is
    /// known to be durable, as of a record that was refused while it stood alone.
    Halting {
        halt: Box<Halt>,
        sure: bool,
    },
}

impl Core {
    /// A core that may hold `budget_bytes` of records in flight, and one row more.
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
            suspect: None,
            policies: Policies::default(),
            verdicts: Quarantine::default(),
            judged: 0,
            diverted: Vec::new(),
            dropped_headers: None,
            ordinary: None,
            counters: Counters::default(),
        }
    }

    /// The same with another way of dealing with poison than to halt.
    #[must_use]
    pub fn with_policies(mut self, policies: Policies) -> Self {
        self.policies = policies;
        self
    }

    /// The events that were put aside since the last call.
    pub fn take_diverted(&mut self) -> Vec<Diverted> {
        std::mem::take(&mut self.diverted)
    }

    /// The first event since the last call that said in its own headers what is walpost's to
    /// say.
    pub fn take_dropped_headers(&mut self) -> Option<DroppedHeaders> {
        self.dropped_headers.take()
    }

    /// A: what may be confirmed to PostgreSQL.
    pub fn confirmable(&self) -> Lsn {
        self.ledger.confirmable()
    }

    /// The number that the next production will have.
    pub fn next_seq(&self) -> Seq {
        self.ledger.next_seq()
    }

    /// LSN of the commit of the transaction that is being received.
    pub fn open_transaction(&self) -> Option<Lsn> {
        self.transaction.as_ref().map(|open| open.commit_lsn)
    }

    /// Where the next session has to start.
    pub fn resume_at(&self) -> Lsn {
        self.ledger.resume_at()
    }

    /// Records in flight, and their bytes with overhead.
    pub fn in_flight(&self) -> (usize, u64) {
        (self.ledger.in_flight_records(), self.ledger.in_flight_bytes())
    }

    /// The budget of bytes in flight.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The oldest production that is in flight.
    pub fn oldest_in_flight(&self) -> Option<Seq> {
        self.ledger.oldest_in_flight()
    }

    /// When production `seq`'s transaction was committed, while it is in flight.
    pub fn commit_time(&self, seq: Seq) -> Option<PgTimestamp> {
        self.ledger.commit_time(seq)
    }

    /// When the oldest transaction that is not wholly delivered was committed.
    pub fn oldest_unconfirmed(&self) -> Option<PgTimestamp> {
        self.ledger.oldest_commit_time()
    }

    /// What was received and passed over so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the next message may be taken: false while the budget is spent,
    /// while a suspect has to stand alone, and when nothing more shall begin.
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
            && !self.suspect_waits()
    }

    /// Why everything from A on has to be produced again by a new producer, if
    /// it has to; answered with [`Core::producer_replaced`]. Not while draining:
    /// what is not durable then comes again with the next start. A halt behind a
    /// record that failed gives way to the replay, which meets its cause again:
    /// a person must not be led past what is not delivered.
    pub fn wants_replay(&self) -> Option<&str> {
        let phase_allows = match self.phase {
            Phase::Running => true,
            Phase::Draining => false,
            Phase::Halting { sure, .. } => !sure && self.ledger.undelivered() > 0,
        };
        self.replay.as_deref().filter(|_| phase_allows)
    }

    /// Why the relay has to stop, once what it had begun is delivered.
    pub fn halted(&self) -> Option<&Halt> {
        match &self.phase {
            Phase::Halting { halt, .. } => Some(halt),
            Phase::Running | Phase::Draining => None,
        }
    }

    /// Begins no further transaction; one whose events were produced in part
    /// is read to its end, so that a clean restart repeats nothing.
    pub fn drain(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Draining;
        }
    }

    /// Whether draining or halting has nothing left to wait for.
    pub fn is_drained(&self) -> bool {
        let quiet = self.ledger.in_flight_records() == 0;
        match &self.phase {
            Phase::Running => false,
            Phase::Draining => quiet && (!self.is_within_events() || self.replay.is_some()),
            // Withdrawn records may be in flight for ever; nothing waits for them.
            Phase::Halting { sure, .. } => *sure || self.ledger.undelivered() == 0,
        }
    }

    /// Takes a message of the stream, in order.
    ///
    /// An error means that the stream broke its own rules: the session has to
    /// be given up ([`Core::session_lost`]).
    pub fn receive(
        &mut self,
        message: &Message,
        outlet: &mut impl Outlet,
    ) -> Result<Taken, StreamError> {
        match message {
            Message::Begin(begin) => self.begin(begin)?,
            Message::Commit(commit) => {
                self.ledger.commit(commit.commit_lsn, commit.end_lsn)?;
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
            Message::Origin | Message::Type => {}
        }
        Ok(Taken::Yes)
    }

    /// A keepalive, in its order in the stream: the server has sent everything
    /// that committed before `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if self.interrupted.as_ref().is_some_and(|interrupted| interrupted.commit_lsn < wal_end) {
            // It was not sent again: nothing may wait for it.
            self.interrupted = None;
            self.ledger.withdraw();
        }
        self.ledger.keepalive(wal_end);
    }

    /// The broker acknowledged production `seq`.
    pub fn delivered(&mut self, seq: Seq) {
        // One that was let through before its session was lost is not produced again.
        let is_suspect = self.suspect.as_ref().is_some_and(|suspect| {
            suspect.alone.is_none() && self.ledger.place(seq) == Some(suspect.place)
        });
        self.ledger.delivered(seq);
        if is_suspect || self.suspect_alone_is(seq) {
            self.suspect = None;
        }
    }

    /// Production `seq` failed, through no fault of its own (`Err(reason)` may
    /// pass with time): it and what follows it is produced again.
    pub fn lost(&mut self, seq: Seq, reason: &str) {
        if let Some(failed) = self.ledger.failed(seq) {
            self.suspect(failed);
            self.ask_for_replay(reason);
        }
    }

    /// Production `seq` went down with its producer.
    pub fn purged(&mut self, seq: Seq) {
        if self.ledger.failed(seq).is_some() {
            self.ask_for_replay("the producer went down");
        }
    }

    /// The broker refused production `seq` for good.
    pub fn refused(&mut self, seq: Seq, refusal: &Refusal) {
        let Some(failed) = self.ledger.failed(seq) else {
            return;
        };
        if self.suspect_alone_is(seq) {
            return self.judge(refusal);
        }
        self.suspect(failed);
        self.ask_for_replay(&refusal.reason);
    }

    /// The suspect was refused while it stood alone: nothing before it is at fault.
    fn judge(&mut self, refusal: &Refusal) {
        let Some(mut suspect) = self.suspect.take() else { return };
        let Some(alone) = suspect.alone.take() else { return };
        let is_dead_letter = alone.is_dead_letter;
        let (origin, poison) = alone.refused(refusal);
        if is_dead_letter || self.policies.of(&poison.cause) == Policy::Halt {
            let halt = Box::new(Halt::Poison { origin, poison });
            self.phase = Phase::Halting { halt, sure: true };
            return;
        }
        // What cannot pass does not change by asking again.
        if !refusal.may_pass || suspect.refusals >= self.policies.retries {
            self.verdicts.add(suspect.place, poison.cause);
            self.judged += 1;
        } else {
            suspect.refusals += 1;
            self.suspect = Some(suspect);
        }
        self.ask_for_replay(&refusal.reason);
    }

    /// A session stands, on a slot that is confirmed up to `start`, over these
    /// tables: their columns are checked before the first row comes.
    ///
    /// A `start` beyond A is where another relay on the same slot has come to:
    /// nothing of this one's counts any more.
    pub fn connected(&mut self, start: Lsn, tables: &[FoundTable]) {
        if self.ledger.confirmable() < start {
            self.ledger.begin_anew(start);
            self.interrupted = None;
        }
        for table in tables {
            if let Err(error) = self.outbox.expect(table) {
                self.halt(error.into());
            }
        }
    }

    /// The session ended: what it had open will be sent again from its beginning, and nothing it
    /// said of the log's end counts any more. The events of it that were taken stay taken. A halt
    /// in the midst of what is not delivered yet gives way, and is met again: its transaction is
    /// taken again as a whole.
    pub fn session_lost(&mut self) {
        let open = self.transaction.take();
        if matches!(self.phase, Phase::Halting { .. }) {
            self.interrupted = None;
            let undelivered = self.ledger.withdraw();
            if undelivered > 0 && matches!(self.phase, Phase::Halting { sure: false, .. }) {
                self.phase = Phase::Running;
            }
        } else if self.ledger.interrupt() {
            self.interrupted = open;
        }
        self.outbox.forget();
        if let Some(suspect) = &mut self.suspect {
            suspect.alone = None;
        }
    }

    /// A new producer stands ready, and nothing of the old one is in flight.
    /// The next session starts at A.
    pub fn producer_replaced(&mut self) {
        self.session_lost();
        self.ledger.reset();
        self.interrupted = None;
        self.replay = None;
        // What is sure stays so, also where its cause took the producer down.
        if matches!(self.phase, Phase::Halting { sure: false, .. }) {
            self.phase = Phase::Running;
        }
    }

    /// Whether a record that failed has not been delivered since.
    pub fn suspects(&self) -> bool {
        self.suspect.is_some()
    }

    /// How many records were found to be refused for good, and are put aside when they come
    /// again.
    pub fn verdicts(&self) -> u64 {
        self.judged
    }

    /// Records that were produced and are not durable, failed ones too.
    pub fn undelivered(&self) -> u64 {
        self.ledger.undelivered()
    }

    /// The producer can deliver nothing more: a new one is needed.
    pub fn producer_broken(&mut self, reason: &str) {
        self.ask_for_replay(reason);
    }

    fn begin(&mut self, begin: &Begin) -> Result<(), StreamError> {
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
                0
            }
        };
        self.verdicts.forget_before(self.ledger.confirmable());
        if self.suspect.as_ref().is_some_and(|suspect| suspect.place.commit_lsn < begin.commit_lsn)
        {
            self.suspect = None;
        }
        self.transaction = Some(Transaction {
            commit_lsn: begin.commit_lsn,
            commit_time: begin.commit_time,
            next_ordinal: 0,
            taken_before,
        });
        Ok(())
    }

    fn origin(&self, message: &Message) -> EventOrigin {
        origin(&self.outbox, message)
    }

    /// Whether the open transaction has produced an event.
    fn is_within_events(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.next_ordinal > 0)
    }

    /// Whether reading has to stop so that the suspect stands alone: with
    /// others in flight before it, or with itself in flight.
    fn suspect_waits(&self) -> bool {
        let Some(suspect) = &self.suspect else {
            return false;
        };
        let is_next = self.transaction.as_ref().is_some_and(|transaction| {
            let next = EventPosition {
                commit_lsn: transaction.commit_lsn,
                ordinal: transaction.next_ordinal,
            };
            next == suspect.place
        });
        suspect.alone.is_some() || (is_next && self.ledger.in_flight_records() > 0)
    }

    fn suspect_alone_is(&self, seq: Seq) -> bool {
        let alone = self.suspect.as_ref().and_then(|suspect| suspect.alone.as_ref());
        alone.is_some_and(|alone| alone.seq == seq)
    }

    fn halt(&mut self, halt: Halt) {
        if self.halted().is_none() {
            self.phase = Phase::Halting { halt: Box::new(halt), sure: false };
        }
    }

    /// The first record that failed is to stand alone when it comes again.
    fn suspect(&mut self, failed: Failed) {
        if let Failed::At(place) = failed
            && self.suspect.as_ref().is_none_or(|suspect| place < suspect.place)
        {
            self.suspect = Some(Isolation::at(place));
        }
    }

    fn ask_for_replay(&mut self, reason: &str) {
        if self.replay.is_none() {
            self.replay = Some(reason.to_owned());
        }
    }
}

/// Where the event of `message` was written.
fn origin(outbox: &Outbox, message: &Message) -> EventOrigin {
    let of_table = |insert: &Insert| outbox.table(insert.relation).cloned();
    match message {
        Message::Logical(logical) => EventOrigin::Message(logical.prefix.clone()),
        Message::Insert(insert) => {
            of_table(insert).map_or_else(|| EventOrigin::Message(String::new()), EventOrigin::Table)
        }
        _ => EventOrigin::Message(String::new()),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod properties;
