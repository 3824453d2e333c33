//! Exactly-once: what the open Kafka transaction contains, and when it may be committed.
//!
//! A Kafka transaction contains the records of whole PostgreSQL transactions, and a state record
//! with the position behind them ([`Checkpoint`]). Nothing is produced while it is committed. After
//! a failure it is aborted, and everything from the last checkpoint on is produced again: PostgreSQL
//! may send more than that, which is read and not published.
//!
//! Only a commit that cannot wait ([`CommitAt::Now`]) splits a PostgreSQL transaction: its
//! checkpoint then says how many of its events are published. An event that stops the relay, or may
//! be rejected, does not: before its PostgreSQL transaction is read, the ones before are committed.

use super::{Core, Transaction};
use crate::ledger::Failed;
use crate::lsn::Lsn;
use crate::pgoutput::Begin;
use crate::position::{Checkpoint, EventPosition};

/// When to stop reading for a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommitAt {
    /// Between two PostgreSQL transactions.
    Boundary,
    /// An immediate commit.
    Now,
}

/// The open Kafka transaction.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// The last checkpoint.
    committed: Checkpoint,
    /// Records produced since, and their bytes.
    records: u64,
    bytes: u64,
    /// How many of them were produced before the open PostgreSQL transaction.
    records_before: u64,
    requested: Option<CommitAt>,
    /// Whether it contains a part of a PostgreSQL transaction that was withdrawn since: no checkpoint
    /// describes that, so it cannot be committed.
    has_withdrawn: bool,
}

impl Core {
    /// Publishes in Kafka transactions: [`Core::checkpoint`] says what can be committed.
    #[must_use]
    pub fn exactly_once(mut self) -> Self {
        self.commits = Some(Commits::default());
        self
    }

    /// Whether records are published in Kafka transactions.
    pub fn is_exactly_once(&self) -> bool {
        self.commits.is_some()
    }

    /// The end of what is durable at the destination: of what is acknowledged, and in exactly-once mode
    /// committed.
    pub fn durable_upto(&self) -> Lsn {
        let committed = self.commits.as_ref().map(|commits| commits.committed.upto);
        committed.unwrap_or(self.flush_lsn()).min(self.flush_lsn())
    }

    /// A new producer was opened at `checkpoint`: nothing is in flight, and what PostgreSQL sends
    /// from before is not published again. Returns false if the open session begins behind events that
    /// were passed over for a suspect: another must begin at the checkpoint.
    #[must_use]
    pub fn resume_from(&mut self, checkpoint: Checkpoint) -> bool {
        let is_complete = self.ledger.undelivered() == 0;
        self.commits = Some(Commits { committed: checkpoint, ..Commits::default() });
        self.producer_replaced();
        is_complete
    }

    /// Requests a commit.
    pub fn request_commit(&mut self, at: CommitAt) {
        if let Some(commits) = &mut self.commits {
            commits.requested = commits.requested.max(Some(at));
        }
    }

    /// The commit that is requested.
    #[cfg(test)]
    pub(super) fn requested_commit(&self) -> Option<CommitAt> {
        self.commits.as_ref()?.requested
    }

    /// Records produced since the last commit, and their bytes.
    pub fn uncommitted(&self) -> (u64, u64) {
        self.commits.as_ref().map_or((0, 0), |commits| (commits.records, commits.bytes))
    }

    /// Whether the last received message is inside a PostgreSQL transaction of which records are in
    /// the open Kafka transaction, or the session ended there.
    pub fn is_within_produced(&self) -> bool {
        let commits = self.commits.as_ref();
        self.unfinished().is_some()
            && commits.is_some_and(|commits| commits.records > commits.records_before)
    }

    /// Records in the open Kafka transaction that are of earlier PostgreSQL transactions than the one
    /// that is being read.
    pub fn uncommitted_before(&self) -> u64 {
        let Some(commits) = &self.commits else { return 0 };
        if self.unfinished().is_some() { commits.records_before } else { commits.records }
    }

    /// The transaction that is being read, or that the last session left open.
    fn unfinished(&self) -> Option<&Transaction> {
        self.transaction.as_ref().or(self.interrupted.as_ref())
    }

    /// The position that a requested commit has to write, once it can be committed.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let commits = self.commits.as_ref()?;
        let requested = commits.requested?;
        let is_split = self.is_within_produced();
        let can_commit = self.replay.is_none()
            && !commits.has_withdrawn
            && self.ledger.in_flight_records() == 0
            && self.ledger.undelivered() == 0
            && (!is_split || requested == CommitAt::Now);
        can_commit.then(|| {
            let upto = self.ledger.flush_lsn();
            let open = self.unfinished().filter(|_| is_split).map(Transaction::next_event);
            let partial = open.or(commits.committed.partial);
            Checkpoint { upto, partial: partial.filter(|partial| partial.commit_lsn >= upto) }
        })
    }

    /// Whether that checkpoint splits the open PostgreSQL transaction.
    pub fn is_split_by(&self, checkpoint: &Checkpoint) -> bool {
        let before = self.commits.as_ref().and_then(|commits| commits.committed.partial);
        checkpoint.partial.is_some() && checkpoint.partial != before
    }

    /// The Kafka transaction with that checkpoint was committed.
    pub fn committed(&mut self, checkpoint: Checkpoint) {
        if self.commits.is_some() {
            self.commits = Some(Commits { committed: checkpoint, ..Commits::default() });
        }
    }

    /// Whether reading must stop for a commit.
    pub(super) fn is_held_for_commit(&self) -> bool {
        let requested = self.commits.as_ref().and_then(|commits| commits.requested);
        match requested {
            None => false,
            // Nothing is committed before the replay.
            Some(_) if self.is_probing() => false,
            Some(CommitAt::Now) => true,
            Some(CommitAt::Boundary) => !self.is_within_produced(),
        }
    }

    /// A PostgreSQL transaction of which all events are published: it is read only.
    pub(super) fn published(&self, begin: &Begin) -> Option<Transaction> {
        let commits = self.commits.as_ref()?;
        (begin.commit_lsn < commits.committed.upto).then_some(Transaction {
            commit_lsn: begin.commit_lsn,
            commit_time: begin.commit_time,
            next_ordinal: 0,
            taken_before: u32::MAX,
            is_published: true,
        })
    }

    /// How many events of the PostgreSQL transaction that commits there are published.
    pub(super) fn published_events(&self, commit_lsn: Lsn) -> u32 {
        let partial = self.commits.as_ref().and_then(|commits| commits.committed.partial);
        partial.filter(|partial| partial.commit_lsn == commit_lsn).map_or(0, |one| one.ordinal)
    }

    /// Whether the PostgreSQL transactions before this one have to be committed first: one of its
    /// events is isolated. Requests that.
    pub(super) fn is_commit_needed_before(&mut self, begin: &Begin) -> bool {
        let isolated = self.isolation.as_ref().map(|isolation| isolation.position.commit_lsn);
        let is_needed = isolated == Some(begin.commit_lsn) && self.uncommitted().0 > 0;
        if is_needed {
            self.request_commit(CommitAt::Boundary);
        }
        is_needed
    }

    /// A PostgreSQL transaction begins.
    pub(super) fn note_begin(&mut self) {
        if let Some(commits) = &mut self.commits {
            commits.records_before = commits.records;
        }
    }

    /// The PostgreSQL transaction that is being read was withdrawn, after records of it were produced.
    pub(super) fn note_withdrawn(&mut self) {
        if let Some(commits) = &mut self.commits {
            commits.has_withdrawn = true;
        }
    }

    /// A record was produced.
    pub(super) fn note_produced(&mut self, bytes: u64) {
        if let Some(commits) = &mut self.commits {
            commits.records += 1;
            commits.bytes += bytes;
        }
    }

    /// Everything since the last commit is produced again.
    pub(super) fn rewind(&mut self) {
        if let Some(commits) = &mut self.commits {
            *commits = Commits { committed: commits.committed, ..Commits::default() };
            self.ledger.rewind_to(commits.committed.upto);
        }
    }

    /// If the event at which the relay halts is in the middle of a PostgreSQL transaction, and the
    /// open Kafka transaction has others before that one: commits those first, with a replay in which
    /// this transaction begins in a new Kafka transaction.
    pub(super) fn is_replayed_before_halt(&mut self) -> bool {
        let Some(open) = &self.transaction else { return false };
        if !self.is_within_produced() || self.uncommitted_before() == 0 {
            return false;
        }
        let position = open.next_event();
        // Nothing else may be isolated instead: it would be found again, and this too.
        self.isolation = None;
        self.isolate(Failed::At(position));
        self.ask_for_replay("the transactions before an undeliverable event are committed first");
        true
    }
}

impl Transaction {
    /// The position of the first event that was not taken.
    fn next_event(&self) -> EventPosition {
        let ordinal = self.next_ordinal.max(self.taken_before);
        EventPosition { commit_lsn: self.commit_lsn, ordinal }
    }
}
