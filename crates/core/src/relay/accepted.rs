//! The events that the destination has accepted since the flush LSN, which a replay does not send again.
//!
//! Only for destinations that refuse one record and take others ([`Outlet::outlives_refusals`](super::Outlet::outlives_refusals)), where nothing
//! is accepted behind a refused record of its lane: what is accepted then has its place, and a repeat would
//! have to repeat all that follows it. Without this memory a large transaction would have to get through in one
//! go, and where some of the machines behind an address refuse everything, it never does.
//!
//! A replay that tries a suspect which was refused alone twice sends everything again, in order: the others are
//! evidence then. So an event that is sent again has none behind it in its lane that is not. For the same reason
//! what is forgotten at another moment, since another instance may have sent something, is followed by nothing
//! that is remembered until the next replay begins.

use std::collections::BTreeMap;

use super::Core;
use crate::ledger::Seq;
use crate::lsn::Lsn;
use crate::pgoutput::PgTimestamp;
use crate::position::EventPosition;

/// The most runs that are remembered: a few MiB. Many more transactions behind an undelivered one, or many
/// events of a transaction that are skipped, are sent again.
const RUNS_MAX: usize = 1 << 14;

/// The accepted events of transactions that are not durable.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Whether the destination allows to remember them.
    pub(super) is_kept: bool,
    /// Nothing is remembered before the next replay.
    is_suspended: bool,
    transactions: BTreeMap<Lsn, Transaction>,
    /// How many there are in all transactions.
    runs: usize,
}

#[derive(Debug)]
struct Transaction {
    /// Another time is another history of the server.
    commit_time: PgTimestamp,
    /// Runs of ordinals: the first one, and the one behind the last.
    runs: BTreeMap<u32, u32>,
}

impl Accepted {
    fn add(&mut self, position: EventPosition, commit_time: PgTimestamp) {
        let of_lsn = self.transactions.entry(position.commit_lsn);
        let transaction =
            of_lsn.or_insert_with(|| Transaction { commit_time, runs: BTreeMap::new() });
        let (first, end) = (position.ordinal, position.ordinal.saturating_add(1));
        let runs = &mut transaction.runs;
        let known = runs.len();
        let end = runs.remove(&end).unwrap_or(end);
        match runs.range_mut(..=first).next_back() {
            Some((_, before)) if *before >= first => *before = end.max(*before),
            _ => drop(runs.insert(first, end)),
        }
        self.runs = self.runs + runs.len() - known;
        if self.runs > RUNS_MAX {
            self.forget();
        }
    }

    fn has(&self, position: EventPosition) -> bool {
        let transaction = self.transactions.get(&position.commit_lsn);
        let run = transaction.and_then(|one| one.runs.range(..=position.ordinal).next_back());
        run.is_some_and(|(_, end)| position.ordinal < *end)
    }

    /// A transaction begins: forgets those that committed before the flush LSN, and one of another history.
    pub(super) fn begin(&mut self, (commit_lsn, commit_time): (Lsn, PgTimestamp), flush_lsn: Lsn) {
        while let Some(first) = self.transactions.first_entry()
            && *first.key() < flush_lsn
        {
            self.runs -= first.remove().runs.len();
        }
        if self.transactions.get(&commit_lsn).is_some_and(|one| one.commit_time != commit_time) {
            self.forget();
        }
    }

    /// Forgets everything until the next replay begins.
    pub(super) fn forget(&mut self) {
        self.transactions.clear();
        (self.runs, self.is_suspended) = (0, true);
    }

    /// Everything from the flush LSN on is read again. `sends_all`: and sent.
    pub(super) fn replay(&mut self, sends_all: bool) {
        if sends_all {
            self.forget();
        }
        self.is_suspended = false;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }
}

impl Core {
    /// Whether the event was accepted and is not sent again.
    pub(super) fn is_accepted(&self, position: EventPosition) -> bool {
        self.accepted.has(position)
    }

    /// Another instance may have sent events meanwhile: those that are read again are sent again.
    pub fn forget_accepted(&mut self) {
        self.accepted.forget();
    }

    /// Remembers that production `seq` is accepted.
    pub(super) fn note_accepted(&mut self, seq: Seq) {
        if self.accepted.is_kept
            && !self.accepted.is_suspended
            && let Some(position) = self.ledger.position(seq)
            && let Some(commit_time) = self.ledger.commit_time(seq)
        {
            self.accepted.add(position, commit_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_grow_together() {
        let mut accepted = Accepted::default();
        let position = |ordinal| EventPosition { commit_lsn: Lsn::new(1), ordinal };
        let time = PgTimestamp::default();
        for (ordinal, runs) in [(5, 1), (3, 2), (9, 3), (4, 2), (3, 2), (10, 2), (0, 3)] {
            accepted.add(position(ordinal), time);
            assert_eq!(accepted.transactions[&Lsn::new(1)].runs.len(), runs, "{ordinal}");
        }
        assert_eq!(accepted.runs, 3);
        let found: Vec<_> = (0..20).filter(|ordinal| accepted.has(position(*ordinal))).collect();
        assert_eq!(found, [0, 3, 4, 5, 9, 10]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut accepted = Accepted::default();
        for number in 0..=RUNS_MAX as u64 {
            assert_eq!(accepted.transactions.len() as u64, number);
            let position = EventPosition { commit_lsn: Lsn::new(number + 1), ordinal: 0 };
            accepted.add(position, PgTimestamp::default());
        }
        assert!(accepted.is_empty() && accepted.is_suspended);
    }
}
