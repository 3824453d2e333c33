//! Tracks in-flight records, and derives the flush LSN from them.
//!
//! The ledger has an entry for each transaction that was received and is not completely durable,
//! and an `InFlight` for each record that was produced and has no delivery report. Everything else
//! follows from these two queues:
//!
//! - An entry is complete once its Commit was received, and durable once each of its records is
//!   acknowledged. Entries that are both leave the front of the queue.
//! - The flush LSN is the `end_lsn` of the last entry that has left, or the `wal_end` of a
//!   keepalive if no entry is left. It never decreases.
//! - The resume position is where the next session starts: everything that committed before it is
//!   in the ledger or durable.
//!
//! `docs/design/delivery.md` has the whole argument with its invariants (I1 to I16), which comments
//! and assertions cite.
//!
//! # Why confirming the flush LSN loses nothing
//!
//! After a restart, PostgreSQL sends a transaction again exactly if its commit LSN is at or after
//! the confirmed LSN. So every event of a transaction with a commit LSN before the flush LSN must
//! be durable (I1). The flush LSN advances in four methods:
//!
//! - [`Ledger::commit`] and [`Ledger::delivered`] set it to the `end_lsn` of an entry that leaves
//!   the queue. Entries are in commit order ([`Ledger::begin`] rejects any other), so everything
//!   that committed before has left too. [`Ledger::failed`], [`Ledger::withdraw`] and
//!   [`Ledger::reset`] never count a record as acknowledged (I8). A delivery report resolves one
//!   production once, and sequence numbers are never reused, so a report from before a reset
//!   resolves nothing (I3).
//! - [`Ledger::keepalive`] sets it to `wal_end`: the server has sent everything that committed
//!   before. With no entry left, all of that is durable. After complete entries, `wal_end` becomes
//!   the end of the last of them. Inside an open transaction it is ignored, because it can lie
//!   after that transaction's commit, and rows of it are still to come. While an interrupted
//!   transaction awaits its resend, only a `wal_end` up to its commit LSN counts.
//! - [`Ledger::reset_to`] sets it to a position that another instance confirmed by the same rule.
//!
//! Each of them takes a maximum, so the flush LSN never decreases (I2). It is never ahead of the
//! session's start or of what has been received: `end_lsn` and `wal_end` come from the stream, and
//! only its own Commit completes a transaction that a lost session left open.
//!
//! In exactly-once mode the flush LSN is only a frontier of acknowledgements: what is confirmed is
//! the position of the last committed Kafka transaction, and [`Ledger::rewind_to`] goes back to it.
//!
//! # Lost sessions
//!
//! The next session starts at [`Ledger::resume_at`], the end of the last complete entry: what
//! committed before is in the ledger or durable, what committed later is sent (I5). The open
//! transaction is sent again from its beginning. Until then its entry is interrupted
//! ([`Ledger::interrupt`]): its records stay in the ledger, and after [`Ledger::resume`] only the
//! missing ones are produced. This is sound because the same server sends the same events of a
//! transaction in the same order. So no record is in the ledger twice.
//!
//! Pure: no clock, no task, no I/O.

use std::collections::VecDeque;

use crate::lsn::Lsn;
use crate::pgoutput::PgTimestamp;
use crate::position::EventPosition;

/// The sequence number of one production. A number is never used twice in a process, so a late
/// delivery report is never attributed to a replayed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Seq(u64);

impl Seq {
    /// The first production.
    pub const FIRST: Self = Self(0);

    /// A number as a sequence number, such as one that a client library has carried.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The sequence number `count` productions later.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }

    /// How many productions after `earlier` this one is; `None` if it is before it.
    #[inline]
    pub const fn since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

/// The in-flight records and their transactions.
#[derive(Debug)]
pub struct Ledger {
    /// The highest LSN that may be confirmed.
    flush_lsn: Lsn,
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

/// A transaction that is not yet durable.
#[derive(Debug)]
struct Entry {
    commit_lsn: Lsn,
    /// The commit time by the server's clock; the ledger only returns it.
    commit_time: PgTimestamp,
    /// `None` until its Commit is received; then the LSN up to which the WAL is known to contain no
    /// other transaction.
    end_lsn: Option<Lsn>,
    /// The session ended before its Commit; it will be sent again from its beginning.
    interrupted: bool,
    /// Records produced but not acknowledged.
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
    /// The record at this position failed.
    At(EventPosition),
    /// The transaction of the record was withdrawn, and will be sent again completely.
    Withdrawn,
}

/// The stream violates PostgreSQL's protocol, so nothing can be concluded from it.
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
    /// A transaction does not follow the previous one.
    #[error("the transaction that commits at {next} comes after the one that ends at {previous}")]
    OutOfOrder {
        /// End LSN of the last transaction.
        previous: Lsn,
        /// Commit LSN of the one that begins.
        next: Lsn,
    },
    /// A message that belongs inside a transaction arrived outside.
    #[error("{what} outside a transaction")]
    Outside {
        /// The message's name.
        what: &'static str,
    },
    /// A Commit does not match the open transaction.
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

#[cfg(test)]
impl Ledger {
    /// Equal for ledgers that behave alike, however much they have seen before.
    pub(crate) fn canonical(&self) -> String {
        let records = self.records.iter().map(|record| {
            let entry = record.entry.map(|entry| entry.wrapping_sub(self.first_entry));
            (entry, record.ordinal, record.bytes, record.resolved)
        });
        format!("{} {:?} {:?}", self.flush_lsn, self.entries, records.collect::<Vec<_>>())
    }
}

impl Ledger {
    /// An empty ledger from `start` on: everything that committed before counts as durable.
    pub fn new(start: Lsn) -> Self {
        Self {
            flush_lsn: start,
            entries: VecDeque::new(),
            first_entry: 0,
            records: VecDeque::new(),
            first_seq: Seq::FIRST,
            in_flight_records: 0,
            in_flight_bytes: 0,
        }
    }

    /// The flush LSN: the highest LSN that may be confirmed.
    pub fn flush_lsn(&self) -> Lsn {
        self.flush_lsn
    }

    /// The resume position: a session that starts here misses nothing, and receives nothing that is
    /// in the ledger. The end of the last complete transaction, or else the flush LSN.
    pub fn resume_at(&self) -> Lsn {
        let sealed = self.entries.iter().rev().find_map(|entry| entry.end_lsn);
        sealed.unwrap_or(self.flush_lsn).max(self.flush_lsn)
    }

    /// Records that were produced and have no delivery report, including withdrawn ones.
    pub fn in_flight_records(&self) -> usize {
        self.in_flight_records
    }

    /// The bytes of the records in flight, as given to [`Ledger::produce`].
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// The oldest production that has no delivery report.
    pub fn oldest_in_flight(&self) -> Option<Seq> {
        (!self.records.is_empty()).then_some(self.first_seq)
    }

    /// The ledger's own memory, in bytes: it grows with durable records behind one that is not.
    pub fn own_bytes(&self) -> u64 {
        let records = self.records.len() * size_of::<InFlight>();
        (records + self.entries.len() * size_of::<Entry>()) as u64
    }

    /// Whether a transaction is open.
    pub fn is_open(&self) -> bool {
        self.open_entry().is_some()
    }

    /// The sequence number of the next production.
    pub fn next_seq(&self) -> Seq {
        self.first_seq.plus(self.records.len() as u64)
    }

    /// Begins a transaction that committed at `commit_time`. Withdraws an interrupted one that was
    /// not resumed.
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

    /// Records that the session was lost inside a transaction: its records stay in the ledger, and
    /// the transaction is resumed or withdrawn when the next session begins one. Returns whether
    /// one was open.
    pub fn interrupt(&mut self) -> bool {
        let open = self.entries.back_mut().filter(|entry| entry.is_open());
        open.map(|open| open.interrupted = true).is_some()
    }

    /// Resumes the interrupted transaction. Returns false if no interrupted one commits at
    /// `commit_lsn`: then call [`Ledger::begin`].
    pub fn resume(&mut self, commit_lsn: Lsn) -> bool {
        let last = self.entries.back_mut();
        let interrupted = last.filter(|last| last.interrupted && last.commit_lsn == commit_lsn);
        interrupted.map(|entry| entry.interrupted = false).is_some()
    }

    /// Adds a record of the open transaction, with sequence number [`Ledger::next_seq`] and a
    /// weight of `bytes`.
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

    /// Ends the open transaction.
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

    /// Takes a keepalive: the server has sent everything that committed before `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if let Some(Entry { interrupted: true, commit_lsn, .. }) = self.entries.back() {
            // Everything that committed before the interrupted transaction was sent. A later
            // `wal_end` does not prove that for the transaction itself: its rows are sent again.
            if wal_end <= *commit_lsn {
                match self.entries.iter_mut().rev().nth(1) {
                    None => self.flush_lsn = self.flush_lsn.max(wal_end),
                    Some(before) => before.end_lsn = before.end_lsn.max(Some(wal_end)),
                }
            }
            return;
        }
        match self.entries.back_mut() {
            None => self.flush_lsn = self.flush_lsn.max(wal_end),
            Some(Entry { end_lsn: Some(end), .. }) => *end = wal_end.max(*end),
            Some(Entry { end_lsn: None, .. }) => {}
        }
    }

    /// Records that the broker acknowledged production `seq`. Returns false if that number is not
    /// in flight: already reported, or from before a reset.
    pub fn delivered(&mut self, seq: Seq) -> bool {
        let Some(record) = self.resolve(seq) else {
            return false;
        };
        if let Some(id) = record.entry {
            let entry = &mut self.entries[index(id - self.first_entry)];
            entry.undelivered -= 1;
            self.advance();
        }
        true
    }

    /// Records that production `seq` failed: its bytes are released, and its entry waits for
    /// [`Ledger::reset`] and a replay.
    ///
    /// Returns `None` if that number is not in flight, as in [`Ledger::delivered`].
    pub fn failed(&mut self, seq: Seq) -> Option<Failed> {
        let position = self.position(seq);
        self.resolve(seq)?;
        Some(position.map_or(Failed::Withdrawn, Failed::At))
    }

    /// The position of the event of production `seq`, while it is in flight.
    pub fn position(&self, seq: Seq) -> Option<EventPosition> {
        let record = self.records.get(index(seq.since(self.first_seq)?))?;
        let id = record.entry.filter(|_| !record.resolved)?;
        let commit_lsn = self.entries[index(id - self.first_entry)].commit_lsn;
        Some(EventPosition { commit_lsn, ordinal: record.ordinal })
    }

    /// The commit time of the transaction of production `seq`, while it is in flight.
    pub fn commit_time(&self, seq: Seq) -> Option<PgTimestamp> {
        let record = self.records.get(index(seq.since(self.first_seq)?))?;
        let id = record.entry.filter(|_| !record.resolved)?;
        Some(self.entries[index(id - self.first_entry)].commit_time)
    }

    /// The commit time of the oldest transaction that is not durable.
    pub fn oldest_commit_time(&self) -> Option<PgTimestamp> {
        self.entries.front().map(|entry| entry.commit_time)
    }

    /// Removes the entry of an open or interrupted transaction: all of it will be sent and produced
    /// again. Its records count as in flight until their reports, which are then ignored. Returns
    /// how many of them were not durable.
    pub fn withdraw(&mut self) -> u64 {
        let unsealed = self.entries.back().filter(|entry| entry.end_lsn.is_none());
        let Some(undelivered) = unsealed.map(|entry| entry.undelivered) else {
            return 0;
        };
        self.entries.pop_back();
        let withdrawn = self.first_entry + self.entries.len() as u64;
        let of_entry = |record: &&mut InFlight| record.entry.is_none_or(|entry| entry >= withdrawn);
        for record in self.records.iter_mut().rev().take_while(of_entry) {
            record.entry = None;
        }
        undelivered
    }

    /// Records that the producer was replaced: nothing is in flight, and everything from the flush
    /// LSN on will be sent and produced again.
    pub fn reset(&mut self) {
        self.first_seq = self.next_seq();
        self.entries.clear();
        self.records.clear();
        self.in_flight_records = 0;
        self.in_flight_bytes = 0;
    }

    /// Like [`Ledger::reset`], but from `start` on: another instance has delivered everything
    /// before.
    pub fn reset_to(&mut self, start: Lsn) {
        self.reset();
        self.flush_lsn = self.flush_lsn.max(start);
    }

    /// Like [`Ledger::reset`], but everything from `committed` on is produced again, also what was
    /// acknowledged: its Kafka transaction was aborted. What is confirmed to PostgreSQL is never
    /// beyond `committed`, so that the confirmed position does not decrease.
    pub fn rewind_to(&mut self, committed: Lsn) {
        self.reset();
        self.flush_lsn = committed;
    }

    /// Records that entries wait for: those in flight, and those that failed.
    pub fn undelivered(&self) -> u64 {
        self.entries.iter().map(|entry| entry.undelivered).sum()
    }

    fn open_entry(&self) -> Option<&Entry> {
        self.entries.back().filter(|entry| entry.is_open())
    }

    /// Removes `seq` from the in-flight records, if it is one.
    fn resolve(&mut self, seq: Seq) -> Option<InFlight> {
        let record = self.records.get_mut(index(seq.since(self.first_seq)?))?;
        if record.resolved {
            return None;
        }
        record.resolved = true;
        let record = *record;
        self.in_flight_records -= 1;
        self.in_flight_bytes -= record.bytes;
        while self.records.front().is_some_and(|record| record.resolved) {
            self.records.pop_front();
            self.first_seq = self.first_seq.plus(1);
        }
        Some(record)
    }

    /// Removes the leading entries that are complete and durable, and raises the flush LSN to their
    /// end.
    fn advance(&mut self) {
        while let Some(Entry { end_lsn: Some(end), undelivered: 0, .. }) = self.entries.front() {
            self.flush_lsn = self.flush_lsn.max(*end);
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
