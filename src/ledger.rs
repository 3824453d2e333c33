//! What is in flight, and from it the one LSN that may be confirmed.
//!
//! The ledger holds an entry for each transaction that has been received and
//! is not wholly durable yet, and a slot for each record that was produced and
//! has no delivery report yet. Everything else follows from these two queues:
//!
//! - The confirmable position A is the `end_lsn` of the last entry of the
//!   longest prefix of entries that are sealed (their Commit was received) and
//!   durable (each of their records has its acknowledgement). Entries of that
//!   prefix are dropped as it grows, so A is where the queue begins.
//! - A keepalive's `wal_end` says that PostgreSQL has sent every transaction
//!   that committed before it. With no entry left A rises to it at once; behind
//!   sealed entries it stands as the end of the last of them. Inside an open
//!   transaction it says nothing.
//! - A never falls.
//!
//! # Why confirming A loses nothing
//!
//! PostgreSQL sends a transaction T again after a restart at A exactly when its
//! commit LSN c(T) is at or after A. So it is enough that c(T) < A implies that
//! every event of T is durable (I1). A rises in three places only.
//!
//! In [`Ledger::commit`] and [`Ledger::delivered`] it takes the `end_lsn` of an
//! entry that has left the front of the queue. Entries stand in commit order
//! ([`Ledger::begin`] refuses another), so all that committed before that end
//! has left the queue too, and an entry leaves only when it is sealed and each of its
//! records has had its own acknowledgement: [`Ledger::failed`],
//! [`Ledger::withdraw`] and [`Ledger::reset`] credit nothing to an entry (I8), a
//! report resolves one production once, and production numbers never come again,
//! so that a report from before a reset finds nothing to resolve (I3).
//!
//! In [`Ledger::keepalive`] it takes the server's word that all before `wal_end`
//! was sent. With no entry left, all of that is durable. Behind sealed entries it
//! becomes the end of the last of them, to be passed with it. Inside an open
//! transaction it is ignored: `wal_end` may lie beyond that transaction's commit,
//! whose rows are still to come.
//!
//! In [`Ledger::begin_anew`] it takes the position that another instance confirmed under the same
//! rule.
//!
//! A never falls (I2): each place takes a maximum. And it is never ahead of what
//! the server has sent in this session: `end_lsn` and `wal_end` both come from the
//! stream, and a transaction that a lost session left open is sealed by its own Commit only.
//!
//! After a lost session [`Ledger::resume_at`] is the end of the last sealed entry.
//! Everything that committed before it is in the account or durable, everything
//! after it comes (I5). The open transaction comes again from its beginning. Its entry is
//! interrupted ([`Ledger::interrupt`]) until it does: its records stay in the account, and whoever
//! resumes it ([`Ledger::resume`]) produces only what is missing. This is sound because the same
//! server sends the same events of a transaction in the same order. Nothing in the account comes
//! twice.
//!
//! Pure: no clock, no task, no I/O.

use std::collections::VecDeque;

use crate::lsn::Lsn;
use crate::pgoutput::PgTimestamp;
use crate::position::EventPosition;

/// The number of one production: never used twice in a process, so that a late delivery report is
/// never taken for that of a replayed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Seq(u64);

impl Seq {
    /// The number of the first production.
    pub const FIRST: Self = Self(0);

    /// That number, such as one that a client library has carried.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number of the production `count` later.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }

    /// How many productions after `earlier` this one is; `None` where it is before it.
    #[inline]
    pub const fn since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

/// The account of what is in flight.
#[derive(Debug)]
pub struct Ledger {
    /// A: what may be confirmed.
    confirmable: Lsn,
    /// Transactions in commit order; only the last may be open.
    entries: VecDeque<Entry>,
    /// How many entries have left the queue: the id of `entries[0]`.
    first_entry: u64,
    /// Productions in order; a resolved one leaves when it reaches the front.
    records: VecDeque<InFlight>,
    /// The number of `records[0]`.
    first_seq: Seq,
    in_flight_records: usize,
    in_flight_bytes: u64,
}

/// A transaction that is not durable yet.
#[derive(Debug)]
struct Entry {
    commit_lsn: Lsn,
    /// By the server's clock: only handed out again.
    commit_time: PgTimestamp,
    /// `None` until its Commit is received; then up to where the log is
    /// known to hold no other transaction.
    end_lsn: Option<Lsn>,
    /// The session ended before its Commit; it is sent again from its beginning.
    interrupted: bool,
    /// Records produced and not acknowledged.
    undelivered: u64,
}

impl Entry {
    fn is_open(&self) -> bool {
        self.end_lsn.is_none() && !self.interrupted
    }
}

/// A record that was produced.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    /// The id of its transaction's entry; `None` once the record was withdrawn.
    entry: Option<u64>,
    ordinal: u32,
    bytes: u64,
    resolved: bool,
}

/// A production that failed while it was in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The record that stands there.
    At(EventPosition),
    /// One whose transaction was withdrawn, and comes again as a whole.
    Withdrawn,
}

/// The stream broke PostgreSQL's own rules: nothing may be concluded from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A transaction begins inside another.
    #[error("Begin {inner} inside the transaction that commits at {outer}")]
    NestedBegin {
        /// Commit LSN of the open transaction.
        outer: Lsn,
        /// Commit LSN of the one that begins.
        inner: Lsn,
    },
    /// A transaction that does not come after the one before it.
    #[error("the transaction that commits at {next} comes after the one that ends at {previous}")]
    OutOfOrder {
        /// End LSN of the last transaction.
        previous: Lsn,
        /// Commit LSN of the one that begins.
        next: Lsn,
    },
    /// Something that belongs inside a transaction came outside.
    #[error("{what} outside a transaction")]
    Outside {
        /// The message's name.
        what: &'static str,
    },
    /// A Commit that is not that of the open transaction.
    #[error("Commit {commit} (end {end}) for the transaction that commits at {open}")]
    WrongCommit {
        /// Commit LSN of the open transaction.
        open: Lsn,
        /// Commit LSN in the Commit message.
        commit: Lsn,
        /// End LSN in the Commit message.
        end: Lsn,
    },
}

impl Ledger {
    /// An empty ledger whose account begins at `start`: all that committed
    /// before it counts as durable.
    pub fn new(start: Lsn) -> Self {
        Self {
            confirmable: start,
            entries: VecDeque::new(),
            first_entry: 0,
            records: VecDeque::new(),
            first_seq: Seq::FIRST,
            in_flight_records: 0,
            in_flight_bytes: 0,
        }
    }

    /// A: the highest LSN that may be confirmed.
    pub fn confirmable(&self) -> Lsn {
        self.confirmable
    }

    /// Where a new session has to start so that nothing is missed and nothing
    /// that is accounted for comes again: the end of the last sealed
    /// transaction, else A.
    pub fn resume_at(&self) -> Lsn {
        let sealed = self.entries.iter().rev().find_map(|entry| entry.end_lsn);
        sealed.unwrap_or(self.confirmable).max(self.confirmable)
    }

    /// Records produced whose delivery report has not come, withdrawn ones too.
    pub fn in_flight_records(&self) -> usize {
        self.in_flight_records
    }

    /// Their bytes, as given to [`Ledger::produce`].
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// The oldest production whose delivery report has not come.
    pub fn oldest_in_flight(&self) -> Option<Seq> {
        (!self.records.is_empty()).then_some(self.first_seq)
    }

    /// What the account itself takes up, in bytes: it grows with what is durable
    /// behind something that is not.
    pub fn own_bytes(&self) -> u64 {
        let records = self.records.len() * size_of::<InFlight>();
        (records + self.entries.len() * size_of::<Entry>()) as u64
    }

    /// Whether a transaction has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.open_entry().is_some()
    }

    /// The number that the next production will have.
    pub fn next_seq(&self) -> Seq {
        self.first_seq.plus(self.records.len() as u64)
    }

    /// A transaction begins, which was committed at `commit_time`. An interrupted one that was
    /// not resumed is withdrawn.
    pub fn begin(&mut self, commit_lsn: Lsn, commit_time: PgTimestamp) -> Result<(), StreamError> {
        if let Some(open) = self.open_entry() {
            return Err(StreamError::NestedBegin { outer: open.commit_lsn, inner: commit_lsn });
        }
        let previous = self.resume_at();
        if commit_lsn < previous {
            return Err(StreamError::OutOfOrder { previous, next: commit_lsn });
        }
        self.withdraw();
        self.entries.push_back(Entry {
            commit_lsn,
            commit_time,
            end_lsn: None,
            interrupted: false,
            undelivered: 0,
        });
        Ok(())
    }

    /// The session was lost inside a transaction: its records stay in the account, and it is
    /// resumed or withdrawn when the next session begins one. True where one was open.
    pub fn interrupt(&mut self) -> bool {
        let open = self.entries.back_mut().filter(|entry| entry.is_open());
        open.map(|open| open.interrupted = true).is_some()
    }

    /// The interrupted transaction begins again. False where none is interrupted that commits
    /// at `commit_lsn`: it is to begin as any other then.
    pub fn resume(&mut self, commit_lsn: Lsn) -> bool {
        let last = self.entries.back_mut();
        let interrupted = last.filter(|last| last.interrupted && last.commit_lsn == commit_lsn);
        interrupted.map(|entry| entry.interrupted = false).is_some()
    }

    /// A record of the open transaction is produced, under
    /// [`Ledger::next_seq`]; it weighs `bytes` in the account.
    pub fn produce(&mut self, ordinal: u32, bytes: u64) -> Result<Seq, StreamError> {
        let seq = self.next_seq();
        let id = self.first_entry + self.entries.len() as u64;
        let Some(open) = self.entries.back_mut().filter(|entry| entry.is_open()) else {
            return Err(StreamError::Outside { what: "a record" });
        };
        open.undelivered += 1;
        self.records.push_back(InFlight { entry: Some(id - 1), ordinal, bytes, resolved: false });
        self.in_flight_records += 1;
        self.in_flight_bytes += bytes;
        Ok(seq)
    }

    /// The open transaction ends.
    pub fn commit(&mut self, commit_lsn: Lsn, end_lsn: Lsn) -> Result<(), StreamError> {
        let Some(open) = self.entries.back_mut().filter(|entry| entry.is_open()) else {
            return Err(StreamError::Outside { what: "Commit" });
        };
        if open.commit_lsn != commit_lsn || end_lsn <= commit_lsn {
            let open = open.commit_lsn;
            return Err(StreamError::WrongCommit { open, commit: commit_lsn, end: end_lsn });
        }
        open.end_lsn = Some(end_lsn);
        self.advance();
        Ok(())
    }

    /// The server has sent everything that committed before `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if let Some(Entry { interrupted: true, commit_lsn, .. }) = self.entries.back() {
            // What is still to come again says nothing of what committed before it.
            if wal_end <= *commit_lsn {
                match self.entries.iter_mut().rev().nth(1) {
                    None => self.confirmable = self.confirmable.max(wal_end),
                    Some(before) => before.end_lsn = before.end_lsn.max(Some(wal_end)),
                }
            }
            return;
        }
        match self.entries.back_mut() {
            None => self.confirmable = self.confirmable.max(wal_end),
            Some(Entry { end_lsn: Some(end), .. }) => *end = wal_end.max(*end),
            Some(Entry { end_lsn: None, .. }) => {}
        }
    }

    /// The broker acknowledged production `seq`. False where that number is
    /// not in flight: reported before, or from before a reset.
    pub fn delivered(&mut self, seq: Seq) -> bool {
        let Some(slot) = self.resolve(seq) else {
            return false;
        };
        if let Some(id) = slot.entry {
            let entry = &mut self.entries[index(id - self.first_entry)];
            entry.undelivered -= 1;
            self.advance();
        }
        true
    }

    /// Production `seq` failed: it leaves the byte account, and its entry goes
    /// on waiting for it. Only [`Ledger::reset`] and a replay help then.
    ///
    /// `None` where that number is not in flight, as in [`Ledger::delivered`].
    pub fn failed(&mut self, seq: Seq) -> Option<Failed> {
        let place = self.place(seq);
        self.resolve(seq)?;
        Some(place.map_or(Failed::Withdrawn, Failed::At))
    }

    /// Where production `seq` stands in the log, while it is in flight.
    pub fn place(&self, seq: Seq) -> Option<EventPosition> {
        let slot = self.records.get(index(seq.since(self.first_seq)?))?;
        let id = slot.entry.filter(|_| !slot.resolved)?;
        let commit_lsn = self.entries[index(id - self.first_entry)].commit_lsn;
        Some(EventPosition { commit_lsn, ordinal: slot.ordinal })
    }

    /// When the transaction of production `seq` was committed, while it is in flight.
    pub fn commit_time(&self, seq: Seq) -> Option<PgTimestamp> {
        let slot = self.records.get(index(seq.since(self.first_seq)?))?;
        let id = slot.entry.filter(|_| !slot.resolved)?;
        Some(self.entries[index(id - self.first_entry)].commit_time)
    }

    /// When the oldest transaction that is not durable was committed.
    pub fn oldest_commit_time(&self) -> Option<PgTimestamp> {
        self.entries.front().map(|entry| entry.commit_time)
    }

    /// The entry of a transaction that is open or interrupted goes: all of it is to be sent and
    /// produced again. Records that were produced for it stay in the byte account until their
    /// reports come, and are credited to nothing. Gives how many of its records were not durable.
    pub fn withdraw(&mut self) -> u64 {
        let unsealed = self.entries.back().filter(|entry| entry.end_lsn.is_none());
        let Some(undelivered) = unsealed.map(|entry| entry.undelivered) else {
            return 0;
        };
        self.entries.pop_back();
        let withdrawn = self.first_entry + self.entries.len() as u64;
        let of_entry = |slot: &&mut InFlight| slot.entry.is_none_or(|entry| entry >= withdrawn);
        for slot in self.records.iter_mut().rev().take_while(of_entry) {
            slot.entry = None;
        }
        undelivered
    }

    /// The producer was thrown away with all that it held: nothing is in
    /// flight, and everything from A on will be sent and produced again.
    pub fn reset(&mut self) {
        self.first_seq = self.next_seq();
        self.entries.clear();
        self.records.clear();
        self.in_flight_records = 0;
        self.in_flight_bytes = 0;
    }

    /// As [`Ledger::reset`], and the account begins at `start`, up to which
    /// somebody else has made everything durable.
    pub fn begin_anew(&mut self, start: Lsn) {
        self.reset();
        self.confirmable = self.confirmable.max(start);
    }

    /// Records that entries still wait for: those in flight, and those that failed.
    pub fn undelivered(&self) -> u64 {
        self.entries.iter().map(|entry| entry.undelivered).sum()
    }

    fn open_entry(&self) -> Option<&Entry> {
        self.entries.back().filter(|entry| entry.is_open())
    }

    /// Takes `seq` out of the account, where it is in it.
    fn resolve(&mut self, seq: Seq) -> Option<InFlight> {
        let slot = self.records.get_mut(index(seq.since(self.first_seq)?))?;
        if slot.resolved {
            return None;
        }
        slot.resolved = true;
        let slot = *slot;
        self.in_flight_records -= 1;
        self.in_flight_bytes -= slot.bytes;
        while self.records.front().is_some_and(|slot| slot.resolved) {
            self.records.pop_front();
            self.first_seq = self.first_seq.plus(1);
        }
        Some(slot)
    }

    /// Drops the prefix of sealed, durable entries and raises A to its end.
    fn advance(&mut self) {
        while let Some(Entry { end_lsn: Some(end), undelivered: 0, .. }) = self.entries.front() {
            self.confirmable = self.confirmable.max(*end);
            self.entries.pop_front();
            self.first_entry += 1;
        }
    }
}

/// An offset into a queue that is in memory.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
