//! Whether a restarted server still has the history that was published.
//!
//! A server that was restored to an earlier state (a disk snapshot, a backup) on the same timeline
//! has the same system identifier, and its WAL may have grown past the LSN that walpost has in
//! memory. Starting at that LSN would skip what the new history committed between the slot's
//! position and that LSN. So after a restart walpost reads from the slot's position and compares
//! the stream with what it received before: the last transaction must be sent again with the same
//! transaction id and commit time, and no new event may appear between it and the end of what was
//! received. After a producer replacement, transactions before the last one are published again
//! before the last one is compared: each must be one that was received, with the same id and time.
//!
//! As long as the same postmaster runs, its history is the same. Pure: no I/O, no clock.

use std::collections::{HashMap, VecDeque};

use super::error::SourceError;
use super::slot_error::SlotError;
use crate::lsn::Lsn;
use crate::pgoutput::{Begin, Message, Oid, PgTimestamp};

/// A completely received transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastTransaction {
    /// LSN of its commit record.
    pub commit_lsn: Lsn,
    /// The end of that record.
    pub end_lsn: Lsn,
    /// The lower 32 bits of its transaction id.
    pub xid: u32,
    /// The server's commit timestamp.
    pub commit_time: PgTimestamp,
}

/// A position that the brokers have acknowledged, from the state topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckedPosition {
    /// Every event that committed before this LSN was acknowledged.
    pub upto: Lsn,
    /// The last transaction with events before it.
    pub last: Option<LastTransaction>,
}

/// How many transactions are kept that may have to be published again: 3 MiB. If there are more,
/// the older ones are published again without a comparison.
const KEPT_TRANSACTIONS: usize = 1 << 16;

/// Keeps the completely received transactions: the last one, by commit LSN, and those with rows
/// that may have to be published again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceivedTransactions {
    open: Option<(LastTransaction, bool)>,
    last: Option<LastTransaction>,
    /// Transactions with rows, in commit order.
    with_rows: VecDeque<LastTransaction>,
    /// The last transaction with rows that is durable.
    durable: Option<LastTransaction>,
}

impl ReceivedTransactions {
    /// Records a message that was taken; everything that committed before `flush_lsn` is durable.
    pub fn message(&mut self, message: &Message, flush_lsn: Lsn) {
        match message {
            Message::Begin(Begin { commit_lsn, commit_time, xid }) => {
                let (commit_lsn, xid, commit_time) = (*commit_lsn, *xid, *commit_time);
                let begun = LastTransaction { commit_lsn, end_lsn: commit_lsn, xid, commit_time };
                self.open = Some((begun, false));
            }
            Message::Insert(_) | Message::Logical(_) => {
                if let Some((_, has_rows)) = &mut self.open {
                    *has_rows = true;
                }
            }
            Message::Commit(commit) => {
                if let Some((begun, has_rows)) = self.open.take() {
                    let read = LastTransaction { end_lsn: commit.end_lsn, ..begun };
                    self.received(read, has_rows, flush_lsn);
                }
            }
            Message::Update(_)
            | Message::Delete(_)
            | Message::Truncate(_)
            | Message::Relation(_)
            | Message::Type(_)
            | Message::Origin => {}
        }
    }

    fn received(&mut self, read: LastTransaction, has_rows: bool, flush_lsn: Lsn) {
        // A transaction that is read again is not the last.
        if self.last.is_none_or(|last| last.commit_lsn <= read.commit_lsn) {
            self.last = Some(read);
        }
        if has_rows && self.with_rows.back().is_none_or(|last| last.commit_lsn < read.commit_lsn) {
            self.with_rows.push_back(read);
        }
        self.forget_durable(flush_lsn);
        while self.with_rows.len() > KEPT_TRANSACTIONS {
            self.with_rows.pop_front();
        }
    }

    fn forget_durable(&mut self, flush_lsn: Lsn) {
        while let Some(oldest) = self.with_rows.pop_front() {
            if oldest.commit_lsn >= flush_lsn {
                self.with_rows.push_front(oldest);
                return;
            }
            if self.durable.is_none_or(|durable| durable.commit_lsn < oldest.commit_lsn) {
                self.durable = Some(oldest);
            }
        }
    }

    /// The last transaction with rows of those that committed before `flush_lsn`: they are durable.
    pub fn durable(&mut self, flush_lsn: Lsn) -> Option<LastTransaction> {
        self.forget_durable(flush_lsn);
        self.durable
    }

    /// The end of everything that was received, of an incomplete transaction too.
    pub(super) fn end(&self) -> Lsn {
        let open = self.open.map(|(open, _)| Lsn::new(open.commit_lsn.as_u64().saturating_add(1)));
        let last = self.last.map(|last| last.end_lsn);
        open.max(last).unwrap_or(Lsn::ZERO)
    }

    /// The last completely received transaction, if any.
    pub fn last(&self) -> Option<LastTransaction> {
        self.last
    }
}

/// Compares the stream, from the slot's position, with what was received before.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub(super) struct HistoryCheck {
    /// The slot's position: every transaction that committed from here on is sent.
    from: Lsn,
    /// Everything that committed before this LSN was received before.
    start: Lsn,
    /// From the last transaction up to this LSN there were no rows.
    known: Lsn,
    /// Whether it compares with the state topic.
    with_state: bool,
    /// The last transaction, which must be sent again.
    last: Option<LastTransaction>,
    /// The transactions with rows up to it, in commit order.
    with_rows: VecDeque<LastTransaction>,
    /// The last transaction was sent, or need not be.
    has_last: bool,
    is_skipping: bool,
    /// The commit LSN of the current transaction, if no rows of it were received before.
    is_unknown: Option<Lsn>,
    /// Whether something was passed on that could not be compared.
    has_passed: bool,
}

/// The relation messages in the skipped part of the stream. The server sends a table's relation
/// message again after a change of the table. So a kept one is passed on only before a row that has
/// no newer one: otherwise the older one would look like a change.
#[derive(Debug, Default)]
pub(super) struct SkippedRelations(HashMap<Oid, Message>);

impl SkippedRelations {
    /// Keeps a skipped message, if it describes a relation.
    pub(super) fn skipped(&mut self, message: Message) {
        if let Message::Relation(relation) = &message {
            self.0.insert(relation.oid, message);
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The messages to pass on before this one.
    pub(super) fn before(&mut self, message: &Message) -> Vec<Message> {
        if self.is_empty() {
            return Vec::new();
        }
        match message {
            Message::Relation(relation) => {
                self.0.remove(&relation.oid);
                Vec::new()
            }
            Message::Insert(insert) => self.0.remove(&insert.relation).into_iter().collect(),
            Message::Update(oid) | Message::Delete(oid) => self.0.remove(oid).into_iter().collect(),
            Message::Truncate(oids) => oids.iter().filter_map(|oid| self.0.remove(oid)).collect(),
            Message::Begin(_)
            | Message::Commit(_)
            | Message::Logical(_)
            | Message::Origin
            | Message::Type(_) => Vec::new(),
        }
    }
}

/// How to handle a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was passed on before.
    Skip,
    /// Pass it on; the comparison continues.
    Pass,
    /// Pass it on: the history is the same.
    Same,
}

impl HistoryCheck {
    /// For a session that reads from the slot's position `from`, of which everything that committed
    /// before `start` was `received` and is not passed on again. `None` if there is nothing to
    /// compare.
    pub(super) fn new(from: Lsn, start: Lsn, received: &ReceivedTransactions) -> Option<Self> {
        let last = received.last.filter(|last| last.commit_lsn >= from);
        let is_needed = from < start || last.is_some();
        is_needed.then(|| Self {
            from,
            start,
            known: start,
            with_state: false,
            last,
            with_rows: received.with_rows.clone(),
            has_last: last.is_none(),
            is_skipping: false,
            is_unknown: None,
            has_passed: false,
        })
    }

    /// For a session that reads and passes on everything from the slot's position `from`, after a
    /// walpost whose `position` is in the state topic. `None` if there is nothing to compare.
    pub(super) fn with_state(from: Lsn, position: AckedPosition) -> Option<Self> {
        let AckedPosition { upto, last } = position;
        let last = last.filter(|last| last.commit_lsn >= from);
        (from < upto).then(|| Self {
            from,
            start: from,
            known: upto,
            with_state: true,
            last,
            with_rows: VecDeque::new(),
            has_last: last.is_none(),
            is_skipping: false,
            is_unknown: None,
            has_passed: false,
        })
    }

    /// Compares a message of the stream. Messages must be passed in order.
    pub(super) fn message(&mut self, message: &Message) -> Result<Verdict, SourceError> {
        match message {
            Message::Begin(begin) => self.begin(begin),
            Message::Commit(_) if self.is_skipping => {
                self.is_skipping = false;
                Ok(Verdict::Skip)
            }
            Message::Logical(logical) if !logical.transactional => {
                Ok(if logical.lsn < self.start { Verdict::Skip } else { Verdict::Pass })
            }
            Message::Insert(_) | Message::Logical(_) => match self.is_unknown {
                Some(commit_lsn) => Err(self.different(&format!(
                    "a transaction that commits at {commit_lsn} was not there before"
                ))),
                None if self.is_skipping => Ok(Verdict::Skip),
                None => {
                    self.has_passed = true;
                    Ok(Verdict::Pass)
                }
            },
            Message::Update(_) | Message::Delete(_) | Message::Truncate(_) if self.is_skipping => {
                Ok(Verdict::Skip)
            }
            // A stream sends a relation message once, which may be in the skipped part: see
            // [`SkippedRelations`].
            Message::Relation(_) if self.is_skipping => Ok(Verdict::Skip),
            Message::Relation(_)
            | Message::Type(_)
            | Message::Origin
            | Message::Commit(_)
            | Message::Update(_)
            | Message::Delete(_)
            | Message::Truncate(_) => Ok(Verdict::Pass),
        }
    }

    fn begin(&mut self, begin: &Begin) -> Result<Verdict, SourceError> {
        if let Some(last) = self.last.filter(|_| !self.has_last) {
            if begin.commit_lsn > last.commit_lsn {
                return Err(self.missing(last));
            }
            let before = self.with_rows(begin.commit_lsn);
            if begin.commit_lsn == last.commit_lsn {
                self.require_same(begin, &last)?;
                self.has_last = true;
            } else if let Some(before) = before {
                self.require_same(begin, &before)?;
            }
        }
        self.is_skipping = begin.commit_lsn < self.start;
        let is_after_last = self.last.is_none_or(|last| begin.commit_lsn > last.commit_lsn);
        let is_known = begin.commit_lsn < self.known;
        let is_unknown = if self.is_skipping || self.with_state {
            is_after_last && is_known
        } else {
            !self.has_last
                && self.with_rows(begin.commit_lsn).is_none()
                && self.with_rows.front().is_some_and(|one| one.commit_lsn < begin.commit_lsn)
        };
        self.is_unknown = is_unknown.then_some(begin.commit_lsn);
        Ok(match (self.is_skipping, self.has_last) {
            (true, _) => Verdict::Skip,
            (false, true) if !self.with_state || !is_known => Verdict::Same,
            (false, _) => Verdict::Pass,
        })
    }

    /// The received transaction with rows that committed there.
    fn with_rows(&self, commit_lsn: Lsn) -> Option<LastTransaction> {
        let found = self.with_rows.binary_search_by_key(&commit_lsn, |one| one.commit_lsn);
        found.ok().and_then(|index| self.with_rows.get(index).copied())
    }

    fn require_same(&self, begin: &Begin, before: &LastTransaction) -> Result<(), SourceError> {
        if (begin.xid, begin.commit_time) == (before.xid, before.commit_time) {
            return Ok(());
        }
        Err(self.different(&format!(
            "the transaction that commits at {} is another one (id {}, before {}; committed {} µs \
             later)",
            begin.commit_lsn,
            begin.xid,
            before.xid,
            begin.commit_time.micros().saturating_sub(before.commit_time.micros())
        )))
    }

    /// Compares a keepalive: the server has sent everything that committed before `wal_end`.
    pub(super) fn keepalive(&mut self, wal_end: Lsn) -> Result<Verdict, SourceError> {
        match self.last.filter(|last| !self.has_last && last.commit_lsn < wal_end) {
            Some(last) => Err(self.missing(last)),
            None if self.has_last && wal_end >= self.known => Ok(Verdict::Same),
            // Before the start it was passed on by the last session.
            None if self.with_state => Ok(Verdict::Pass),
            None => Ok(Verdict::Skip),
        }
    }

    fn missing(&self, last: LastTransaction) -> SourceError {
        let LastTransaction { commit_lsn, xid, .. } = last;
        self.different(&format!(
            "the transaction with id {xid} that committed at {commit_lsn} is missing"
        ))
    }

    fn different(&self, what: &str) -> SourceError {
        SourceError::Slot(SlotError::OtherHistory {
            difference: what.to_owned(),
            published: self.has_passed,
            from: self.from,
            with_state: self.with_state,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::encode::texts;
    use crate::pgoutput::{Commit, Insert};

    fn lsn(lsn: u64) -> Lsn {
        Lsn::new(lsn)
    }

    fn transaction(commit: u64, xid: u32) -> [Message; 3] {
        let commit_time = PgTimestamp::from_micros(i64::from(xid) * 7);
        [
            Message::Begin(Begin { commit_lsn: lsn(commit), commit_time, xid }),
            Message::Insert(Insert { relation: 7, tuple: texts(&[Some("1")]) }),
            Message::Commit(Commit {
                commit_lsn: lsn(commit),
                end_lsn: lsn(commit + 5),
                commit_time,
            }),
        ]
    }

    /// The state after transactions at 10, 20 and 30, and `wal_end` 40.
    fn received() -> ReceivedTransactions {
        let mut received = ReceivedTransactions::default();
        for (commit, xid) in [(10, 1), (20, 2), (30, 3)] {
            for message in &transaction(commit, xid) {
                received.message(message, lsn(0));
            }
        }
        // An incomplete one.
        received.message(&transaction(50, 5)[0], lsn(0));
        received
    }

    /// The verdicts on all messages of these transactions, or the error.
    fn verdicts(
        check: &mut HistoryCheck,
        transactions: &[(u64, u32)],
    ) -> Result<Vec<Verdict>, SourceError> {
        let messages = transactions.iter().flat_map(|(commit, xid)| transaction(*commit, *xid));
        messages.map(|message| check.message(&message)).collect()
    }

    fn check(from: u64, start: u64) -> HistoryCheck {
        HistoryCheck::new(lsn(from), lsn(start), &received()).expect("something to compare")
    }

    #[test]
    fn the_same_history_is_skipped_up_to_the_last_received_position() {
        use Verdict::{Pass, Same, Skip};
        let mut same = check(15, 40);
        let found = verdicts(&mut same, &[(20, 2), (30, 3)]);
        assert_eq!(found, Ok(vec![Skip; 6]));
        assert_eq!(same.keepalive(lsn(39)), Ok(Skip));
        assert_eq!(same.keepalive(lsn(40)), Ok(Same));
        let found = verdicts(&mut check(15, 40), &[(20, 2), (30, 3), (40, 4)]);
        assert_eq!(found.map(|found| found[6..].to_vec()), Ok(vec![Same, Pass, Pass]));
        // After a producer replacement, the last transaction is passed on again.
        let found = verdicts(&mut check(15, 15), &[(20, 2), (30, 3)]);
        assert_eq!(found, Ok(vec![Pass, Pass, Pass, Same, Pass, Pass]));
    }

    fn state_check(from: u64, upto: u64, last: Option<(u64, u32)>) -> Option<HistoryCheck> {
        let last = last.map(|(commit, xid)| LastTransaction {
            commit_lsn: lsn(commit),
            end_lsn: lsn(commit + 5),
            xid,
            commit_time: PgTimestamp::from_micros(i64::from(xid) * 7),
        });
        HistoryCheck::with_state(lsn(from), AckedPosition { upto: lsn(upto), last })
    }

    #[test]
    fn the_history_of_the_state_topic_is_passed_on_again() {
        use Verdict::{Pass, Same};
        let mut same = state_check(15, 40, Some((30, 3))).expect("something to compare");
        assert_eq!(verdicts(&mut same, &[(20, 2), (30, 3)]), Ok(vec![Pass; 6]));
        assert_eq!(same.keepalive(lsn(39)), Ok(Pass));
        assert_eq!(same.keepalive(lsn(40)), Ok(Same));
        let mut same = state_check(15, 40, Some((30, 3))).expect("something to compare");
        let found = verdicts(&mut same, &[(20, 2), (30, 3), (40, 4)]);
        assert_eq!(found.map(|found| found[6..].to_vec()), Ok(vec![Same, Pass, Pass]));
        // The slot is confirmed past the last transaction.
        let mut same = state_check(36, 40, Some((30, 3))).expect("something to compare");
        assert_eq!(same.keepalive(lsn(40)), Ok(Same));
        assert!(state_check(40, 40, Some((30, 3))).is_none());
    }

    #[test]
    fn another_history_than_the_state_topics_needs_an_operator() {
        for (what, last, transactions) in [
            ("another transaction at the same place", Some((30, 3)), &[(20, 2), (30, 9)][..]),
            ("the last one is missing", Some((30, 3)), &[(20, 2), (41, 4)]),
            ("one after the last", Some((30, 3)), &[(20, 2), (30, 3), (36, 9)]),
            ("one where none was", None, &[(20, 2)]),
            ("one after a confirmed one", Some((10, 1)), &[(20, 2)]),
        ] {
            let mut check = state_check(15, 40, last).expect("something to compare");
            let found = verdicts(&mut check, transactions);
            assert!(matches!(found, Err(SourceError::Slot(_))), "{what}: {found:?}");
        }
        let mut check = state_check(15, 40, Some((30, 3))).expect("something to compare");
        assert!(check.keepalive(lsn(31)).is_err());
    }

    #[test]
    fn the_last_durable_transaction_has_rows() {
        let mut received = received();
        assert_eq!(received.durable(lsn(10)), None);
        assert_eq!(received.durable(lsn(21)).map(|last| last.xid), Some(2));
        let mut empty = transaction(40, 4).to_vec();
        empty.remove(1);
        for message in &empty {
            received.message(message, lsn(21));
        }
        assert_eq!(received.durable(lsn(99)).map(|last| last.xid), Some(3));
        assert_eq!(received.durable(lsn(99)).map(|last| last.xid), Some(3));
    }

    #[test]
    fn another_history_needs_an_operator() {
        for (what, transactions) in [
            ("another transaction at the same place", &[(20, 2), (30, 9)][..]),
            ("the last one is missing", &[(20, 2), (41, 4)]),
            ("one that was not there", &[(20, 2), (30, 3), (36, 9)]),
        ] {
            let error = verdicts(&mut check(15, 40), transactions).expect_err(what);
            assert!(matches!(error, SourceError::Slot(_)), "{what}: {error:?}");
        }
        assert!(matches!(check(15, 40).keepalive(lsn(40)), Err(SourceError::Slot(_))));
        // Nothing was received from the slot's position on, but something is sent.
        let error = verdicts(&mut check(36, 60), &[(50, 9)]).expect_err("unknown");
        assert!(error.to_string().contains("was not there before"), "{error}");
    }

    fn description(oid: Oid, columns: usize) -> Message {
        let column = crate::pgoutput::Column { name: "c".into(), type_oid: 25, type_modifier: -1 };
        let columns = vec![column; columns];
        let (schema, name) = ("public".to_owned(), "outbox".to_owned());
        Message::Relation(crate::pgoutput::Relation { oid, schema, name, columns })
    }

    #[test]
    fn a_skipped_relation_precedes_the_first_row_without_a_newer_one() {
        let mut skipped = SkippedRelations::default();
        let row = &transaction(50, 5)[1];
        for columns in [1, 2] {
            skipped.skipped(description(7, columns));
        }
        skipped.skipped(row.clone());
        assert_eq!(skipped.before(&transaction(50, 5)[0]), Vec::new());
        assert_eq!(skipped.before(row), [description(7, 2)], "the last one");
        assert_eq!(skipped.before(row), Vec::new(), "once");
        skipped.skipped(description(7, 1));
        assert_eq!(skipped.before(&description(7, 3)), Vec::new());
        assert_eq!(skipped.before(row), Vec::new(), "it was described again");
        skipped.skipped(description(7, 1));
        assert_eq!(skipped.before(&Message::Truncate(vec![9, 7])), [description(7, 1)]);
        let mut check = check(15, 40);
        assert_eq!(check.message(&transaction(20, 2)[0]), Ok(Verdict::Skip));
        assert_eq!(check.message(&description(7, 1)), Ok(Verdict::Skip));
    }

    #[test]
    fn a_transaction_read_again_does_not_become_the_last() {
        let mut received = received();
        for message in &transaction(20, 2) {
            received.message(message, lsn(0));
        }
        assert_eq!(received.last().map(|last| last.commit_lsn), Some(lsn(30)));
    }

    #[test]
    fn durable_transactions_and_those_without_rows_are_not_kept() {
        let mut received = received();
        let with_rows = |received: &ReceivedTransactions| {
            received.with_rows.iter().map(|one| one.xid).collect::<Vec<_>>()
        };
        assert_eq!(with_rows(&received), [1, 2, 3]);
        let [begin, _, commit] = transaction(60, 6);
        for message in [&begin, &commit] {
            received.message(message, lsn(20));
        }
        assert_eq!(
            (with_rows(&received), received.last().map(|last| last.xid)),
            (vec![2, 3], Some(6))
        );
        for number in 0..u32::try_from(KEPT_TRANSACTIONS).expect("it fits") {
            for message in &transaction(100 + u64::from(number), 100 + number) {
                received.message(message, lsn(20));
            }
        }
        assert_eq!(received.with_rows.len(), KEPT_TRANSACTIONS);
        assert_eq!(received.with_rows.front().map(|one| one.xid), Some(100));
    }

    #[test]
    fn transactions_are_compared_before_they_are_published_again() {
        use Verdict::Pass;
        // Another transaction in place of a received one, and one between two of them.
        for other in [&[(20, 9)][..], &[(20, 2), (25, 9)]] {
            let error = verdicts(&mut check(15, 15), other).expect_err("another history");
            assert!(
                error.to_string().contains("was published. Kafka") == (other.len() == 1),
                "{error}"
            );
        }
        // A transaction without rows is not kept, so it may be sent.
        let [begin, _, commit] = transaction(25, 9);
        let mut check = check(15, 15);
        let found: Vec<_> = [begin, commit].iter().map(|message| check.message(message)).collect();
        assert_eq!(found, [Ok(Pass), Ok(Pass)]);
    }

    #[test]
    fn nothing_is_compared_if_nothing_is_sent_again() {
        assert!(HistoryCheck::new(lsn(35), lsn(35), &received()).is_none());
        assert!(HistoryCheck::new(lsn(35), lsn(35), &ReceivedTransactions::default()).is_none());
        assert!(HistoryCheck::new(lsn(30), lsn(30), &received()).is_some(), "it is sent again");
    }
}
