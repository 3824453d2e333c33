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
//! A transaction of which only a part was received must be sent again too: that part may be published.
//!
//! Of what was published before a process began to receive it knows only what the state has
//! ([`PublishedHistory`]), and compares with that too.
//!
//! A transaction is recognised by commit LSN, transaction id and commit time, so whatever numbers its
//! events or selects its rows: a history that has it is the same up to there. As long as the same
//! postmaster runs, its history is the same. Pure: no I/O, no clock.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::lsn::Lsn;
use crate::pgoutput::{Begin, Message, Oid, PgTimestamp};
use crate::source::error::SourceError;
use crate::source::slot_error::SlotError;

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

/// A transaction that a history must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequiredTransaction {
    /// LSN of its commit record.
    pub commit_lsn: Lsn,
    /// The lower 32 bits of its transaction id, and the commit time; `None` if they are not known.
    pub identity: Option<(u32, PgTimestamp)>,
}

impl From<LastTransaction> for RequiredTransaction {
    fn from(LastTransaction { commit_lsn, xid, commit_time, .. }: LastTransaction) -> Self {
        Self { commit_lsn, identity: Some((xid, commit_time)) }
    }
}

/// The history that was published, as far as a state has it: what the server sends from the slot's
/// position must be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedHistory {
    /// The transactions that must be sent, in commit order.
    pub required: Vec<RequiredTransaction>,
    /// No rows were committed from this LSN on …
    pub quiet_from: Lsn,
    /// … before this one.
    pub quiet_upto: Lsn,
    /// Whether the publication, or what is read of it, was changed since.
    pub layout_changed: bool,
}

/// How many transactions are kept that may have to be published again, of 48 bytes each: more than can be
/// in flight (`delivery.in_flight_bytes`, in which each record counts 512 bytes and more). Of older ones
/// it would not be known which was published last.
const KEPT_TRANSACTIONS: usize = 1 << 21;

/// Keeps the completely received transactions: the last one, by commit LSN, and those with rows
/// that may have to be published again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceivedTransactions {
    /// Everything from this position on was received; what committed before was published by others.
    since: Lsn,
    open: Option<(LastTransaction, bool)>,
    last: Option<LastTransaction>,
    /// Transactions with rows, in commit order.
    with_rows: VecDeque<LastTransaction>,
    /// The last transaction with rows that is durable.
    durable: Option<LastTransaction>,
}

impl ReceivedTransactions {
    /// Begins to receive at this position, at the start or behind what another walpost has published.
    pub fn begin(&mut self, position: Lsn) {
        self.since = position;
    }

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
    pub(in crate::source) fn end(&self) -> Lsn {
        let open = self.open.map(|(open, _)| behind(open.commit_lsn));
        let last = self.last.map(|last| last.end_lsn);
        open.max(last).unwrap_or(Lsn::ZERO)
    }

    /// The transaction that commits there, if it was received, completely or in part.
    pub fn committed_at(&self, commit_lsn: Lsn) -> Option<LastTransaction> {
        let open = self.open.map(|(open, _)| open);
        let known = open.into_iter().chain(self.last).chain(self.durable);
        known.chain(self.with_rows.iter().copied()).find(|one| one.commit_lsn == commit_lsn)
    }

    /// The last completely received transaction, if any.
    pub fn last(&self) -> Option<LastTransaction> {
        self.last
    }
}

/// Compares the stream, from the slot's position, with what was received before.
#[derive(Debug)]
pub struct HistoryCheck {
    /// The slot's position: every transaction that committed from here on is sent.
    from: Lsn,
    /// Everything that committed before this LSN was received before.
    start: Lsn,
    /// The positions between which no rows were received.
    quiet: Range<Lsn>,
    /// What it compares with, if not with what this process has received.
    with_state: Option<WithState>,
    /// The transactions that must still be sent, in commit order.
    required: VecDeque<RequiredTransaction>,
    /// The transactions with rows up to the last one, in commit order.
    with_rows: VecDeque<LastTransaction>,
    is_skipping: bool,
    /// The commit LSN of the current transaction, if no rows of it were received before.
    is_unknown: Option<Lsn>,
    /// Whether something was passed on that could not be compared.
    has_passed: bool,
}

/// A comparison with a state.
#[derive(Debug, Clone, Copy)]
struct WithState {
    layout_changed: bool,
}

/// The relation messages in the skipped part of the stream. The server sends a table's relation
/// message again after a change of the table. So a kept one is passed on only before a row that has
/// no newer one: otherwise the older one would look like a change.
#[derive(Debug, Default)]
pub(in crate::source) struct SkippedRelations(HashMap<Oid, Message>);

impl SkippedRelations {
    /// Keeps a skipped message, if it describes a relation.
    pub(in crate::source) fn skipped(&mut self, message: Message) {
        if let Message::Relation(relation) = &message {
            self.0.insert(relation.oid, message);
        }
    }

    /// Whether there are none.
    pub(in crate::source) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The messages to pass on before this one.
    pub(in crate::source) fn before(&mut self, message: &Message) -> Vec<Message> {
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
pub enum MessageAction {
    /// Skip the message: it was passed on before.
    Skip,
    /// Pass it on; the comparison continues.
    Pass,
    /// Pass it on: the history is the same.
    Same,
}

impl HistoryCheck {
    /// The check of a session that reads from the slot's position `from`, of which everything that
    /// committed before `start` was `received` and is not passed on again. `None` if there is
    /// nothing to compare.
    pub(in crate::source) fn new(
        from: Lsn,
        start: Lsn,
        received: &ReceivedTransactions,
    ) -> Option<Self> {
        let last = received.last.filter(|last| last.commit_lsn >= from);
        let open = received.open.filter(|(open, has_rows)| {
            *has_rows && last.is_none_or(|last| last.commit_lsn < open.commit_lsn)
        });
        let open = open.map(|(open, _)| open);
        let quiet_from = last.map_or(from, |last| behind(last.commit_lsn)).max(received.since);
        let is_needed = from < start || last.is_some() || open.is_some();
        is_needed.then(|| Self {
            from,
            start,
            quiet: quiet_from..open.map_or(start, |open| open.commit_lsn.max(start)),
            with_state: None,
            required: last.into_iter().chain(open).map(RequiredTransaction::from).collect(),
            with_rows: received.with_rows.clone(),
            is_skipping: false,
            is_unknown: None,
            has_passed: false,
        })
    }

    /// The check of a session that reads and passes on everything from the slot's position `from`,
    /// after a walpost whose `published` history is in its state.
    pub fn with_state(from: Lsn, published: PublishedHistory) -> Self {
        let PublishedHistory { required, quiet_from, quiet_upto, layout_changed } = published;
        Self {
            from,
            start: from,
            quiet: quiet_from..quiet_upto,
            with_state: Some(WithState { layout_changed }),
            required: required.into(),
            with_rows: VecDeque::new(),
            is_skipping: false,
            is_unknown: None,
            has_passed: false,
        }
    }

    /// Compares a message of the stream. Messages must be passed in order.
    pub fn message(&mut self, message: &Message) -> Result<MessageAction, SourceError> {
        match message {
            Message::Begin(begin) => self.begin(begin),
            Message::Commit(_) if self.is_skipping => {
                self.is_skipping = false;
                Ok(MessageAction::Skip)
            }
            Message::Logical(logical) if !logical.transactional => {
                Ok(if logical.lsn < self.start { MessageAction::Skip } else { MessageAction::Pass })
            }
            Message::Insert(_) | Message::Logical(_) => match self.is_unknown {
                Some(commit_lsn) => Err(self.different(&format!(
                    "a transaction that commits at {commit_lsn} was not there before"
                ))),
                None if self.is_skipping => Ok(MessageAction::Skip),
                None => {
                    self.has_passed = true;
                    Ok(MessageAction::Pass)
                }
            },
            Message::Update(_) | Message::Delete(_) | Message::Truncate(_) if self.is_skipping => {
                Ok(MessageAction::Skip)
            }
            // A stream sends a relation message once, which may be in the skipped part: see
            // [`SkippedRelations`].
            Message::Relation(_) if self.is_skipping => Ok(MessageAction::Skip),
            Message::Relation(_)
            | Message::Type(_)
            | Message::Origin
            | Message::Commit(_)
            | Message::Update(_)
            | Message::Delete(_)
            | Message::Truncate(_) => Ok(MessageAction::Pass),
        }
    }

    fn begin(&mut self, begin: &Begin) -> Result<MessageAction, SourceError> {
        let next = self.required.front().copied();
        let is_required = next.is_some_and(|next| next.commit_lsn == begin.commit_lsn);
        if let Some(next) = next {
            if begin.commit_lsn > next.commit_lsn {
                return Err(self.missing(next));
            }
            let before = self.with_rows(begin.commit_lsn);
            if is_required {
                self.require_same(begin, next)?;
                self.required.pop_front();
            } else if let Some(before) = before {
                self.require_same(begin, before.into())?;
            }
        }
        self.is_skipping = begin.commit_lsn < self.start;
        let is_other = |first: &LastTransaction| {
            first.commit_lsn < begin.commit_lsn && self.with_rows(begin.commit_lsn).is_none()
        };
        let is_passed_on = !self.is_skipping && self.with_state.is_none();
        let is_unknown = !is_required && self.quiet.contains(&begin.commit_lsn)
            || is_passed_on && !self.is_complete() && self.with_rows.front().is_some_and(is_other);
        self.is_unknown = is_unknown.then_some(begin.commit_lsn);
        Ok(if self.is_skipping {
            MessageAction::Skip
        } else if self.is_complete() && begin.commit_lsn >= self.quiet.end {
            MessageAction::Same
        } else {
            MessageAction::Pass
        })
    }

    /// Whether every transaction that must be sent was sent.
    fn is_complete(&self) -> bool {
        self.required.is_empty()
    }

    /// The received transaction with rows that committed there.
    fn with_rows(&self, commit_lsn: Lsn) -> Option<LastTransaction> {
        let found = self.with_rows.binary_search_by_key(&commit_lsn, |one| one.commit_lsn);
        found.ok().and_then(|index| self.with_rows.get(index).copied())
    }

    fn require_same(
        &self,
        begin: &Begin,
        required: RequiredTransaction,
    ) -> Result<(), SourceError> {
        let Some((xid, commit_time)) = required.identity else { return Ok(()) };
        if (begin.xid, begin.commit_time) == (xid, commit_time) {
            return Ok(());
        }
        Err(self.different(&format!(
            "the transaction that commits at {} is another one (id {}, before {xid}; committed {} µs \
             later)",
            begin.commit_lsn,
            begin.xid,
            begin.commit_time.micros().saturating_sub(commit_time.micros())
        )))
    }

    /// Compares a keepalive: the server has sent everything that committed before `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) -> Result<MessageAction, SourceError> {
        match self.required.front().copied() {
            Some(next) if next.commit_lsn < wal_end => Err(self.missing(next)),
            None if wal_end >= self.quiet.end => Ok(MessageAction::Same),
            // Before the start it was passed on by the last session.
            _ if self.with_state.is_some() && wal_end <= self.quiet.end => Ok(MessageAction::Pass),
            _ => Ok(MessageAction::Skip),
        }
    }

    fn missing(&self, required: RequiredTransaction) -> SourceError {
        let RequiredTransaction { commit_lsn, identity } = required;
        let id = identity.map_or_else(String::new, |(xid, _)| format!(" with id {xid}"));
        self.different(&format!("the transaction{id} that committed at {commit_lsn} is missing"))
    }

    fn different(&self, what: &str) -> SourceError {
        SourceError::Slot(SlotError::OtherHistory {
            difference: what.to_owned(),
            published: self.has_passed,
            from: self.from,
            with_state: self.with_state.is_some(),
            layout_changed: self.with_state.is_some_and(|state| state.layout_changed),
        })
    }
}

/// The LSN behind the start of the record at `lsn`.
fn behind(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.as_u64().saturating_add(1))
}

#[cfg(test)]
mod tests;
