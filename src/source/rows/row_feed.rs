//! Rows that no slot sends, as transactions: rows of an outbox table from before the slot, or that a
//! lost slot would have sent. The relay publishes them like those of a stream.
//!
//! Each [`RowBatch`] becomes a transaction. Its commit LSN is one that no transaction of the server
//! has: commit records begin at multiples of eight (MAXALIGN,
//! [xlogrecord.h](https://doxygen.postgresql.org/xlogrecord_8h_source.html)). The LSNs lie before the
//! slot's position, so events keep a position that is unique, and lower than those of the stream.
//!
//! Batches are kept until they are confirmed: a replacement of the producer needs them again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::pgoutput::{Begin, Commit, Insert, Message, PgTimestamp, Relation, Tuple};
use crate::source::feed::{Feed, OpenError, Received, Source, SwitchFeed};
use crate::source::identity::history::PublishedHistory;
use crate::source::{
    PublicationFingerprint, Resume, Security, ServerIdentity, SlotMetrics, SourceError,
};

/// Commit records begin at multiples of this.
const ALIGNMENT: u64 = 8;

/// Rows of one table, in the order in which they are published.
#[derive(Debug, Clone)]
pub(crate) struct RowBatch {
    /// The table.
    pub(crate) relation: Relation,
    /// The rows, with the columns that the publication sends.
    pub(crate) rows: Vec<Tuple>,
}

/// The LSNs of the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPositions {
    /// A multiple of eight: all commit LSNs are greater.
    pub(crate) start: Lsn,
    /// How many batches there can be.
    pub(crate) batches: u64,
}

impl RowPositions {
    /// The positions from `start` on, which is rounded up.
    pub(crate) fn new(start: Lsn, batches: u64) -> Self {
        let start = Lsn::new(start.as_u64().next_multiple_of(ALIGNMENT));
        Self { start, batches }
    }

    /// A multiple of eight: all commit LSNs are lower.
    pub(crate) fn end(&self) -> Lsn {
        let blocks = self.batches.div_ceil(ALIGNMENT - 1);
        Lsn::new(self.start.as_u64() + blocks * ALIGNMENT)
    }

    /// The commit LSN of a batch, counted from 0.
    fn of(&self, batch: u64) -> Lsn {
        let (block, rest) = (batch / (ALIGNMENT - 1), batch % (ALIGNMENT - 1));
        Lsn::new(self.start.as_u64() + block * ALIGNMENT + 1 + rest)
    }
}

/// What a row feed needs besides the rows.
#[derive(Debug, Clone)]
pub(crate) struct RowSession {
    /// The slot of the state topic's record.
    pub(crate) slot: String,
    /// The server.
    pub(crate) identity: ServerIdentity,
    /// The publication.
    pub(crate) fingerprint: PublicationFingerprint,
    /// The database.
    pub(crate) database_oid: u32,
    /// The tables, with the columns that the publication sends.
    pub(crate) tables: Vec<FoundTable>,
    /// The server's name or address.
    pub(crate) host: String,
    /// How the connection to it is secured.
    pub(crate) security: Security,
    /// The time that the events have as that of their commit.
    pub(crate) commit_time: PgTimestamp,
    /// The LSNs.
    pub(crate) positions: RowPositions,
}

/// Opens row feeds, one after the other, over the same batches.
#[derive(Clone)]
pub(crate) struct RowSource {
    session: Arc<RowSession>,
    batches: Arc<Mutex<Batches>>,
}

/// The batches that are not confirmed.
struct Batches {
    receiver: Receiver<Result<RowBatch, String>>,
    /// Each with its commit LSN.
    kept: VecDeque<(Lsn, RowBatch)>,
    /// How many were received.
    received: u64,
    /// Whether all were received.
    is_complete: bool,
}

impl RowSource {
    /// Over the batches that `receiver` returns; an error ends the relay.
    pub(crate) fn new(session: RowSession, receiver: Receiver<Result<RowBatch, String>>) -> Self {
        let batches = Batches { receiver, kept: VecDeque::new(), received: 0, is_complete: false };
        Self { session: Arc::new(session), batches: Arc::new(Mutex::new(batches)) }
    }
}

impl Source for RowSource {
    type Feed = RowFeed;

    fn slot(&self) -> &str {
        &self.session.slot
    }

    async fn open(&self, resume: &Resume) -> Result<RowFeed, OpenError> {
        let begin = self.session.positions.start;
        let (start, from) = match resume {
            Resume::AtSlot { .. } => (begin, begin),
            Resume::At { ack, start, .. } => (*ack, *start),
        };
        let batches = Arc::clone(&self.batches).lock_owned().await;
        let next = batches.kept.partition_point(|(commit_lsn, _)| *commit_lsn < from);
        let session = Arc::clone(&self.session);
        Ok(RowFeed { session, batches, next, start, messages: VecDeque::new(), is_over: false })
    }
}

/// The batches from a position on.
pub(crate) struct RowFeed {
    session: Arc<RowSession>,
    batches: OwnedMutexGuard<Batches>,
    /// The index of the next one to return, among those that are kept.
    next: usize,
    start: Lsn,
    /// What is left of the last one.
    messages: VecDeque<Message>,
    /// Whether the end was returned.
    is_over: bool,
}

impl RowFeed {
    /// The next message of a batch that was received.
    fn kept(&mut self) -> Option<Received> {
        if self.messages.is_empty()
            && let Some((commit_lsn, batch)) = self.batches.kept.get(self.next)
        {
            self.messages.extend(transaction(*commit_lsn, self.session.commit_time, batch));
            self.next += 1;
        }
        if let Some(message) = self.messages.pop_front() {
            return Some(Received::Message(message));
        }
        (self.batches.is_complete && !std::mem::replace(&mut self.is_over, true))
            .then(|| Received::Keepalive(self.session.positions.end()))
    }

    fn receive(&mut self, batch: Option<Result<RowBatch, String>>) -> Result<(), SourceError> {
        let Some(batch) = batch else {
            self.batches.is_complete = true;
            return Ok(());
        };
        let batch = batch.map_err(SourceError::Setup)?;
        let RowPositions { batches: limit, .. } = self.session.positions;
        if self.batches.received >= limit {
            return Err(SourceError::Setup(format!("there are more than {limit} batches of rows")));
        }
        let commit_lsn = self.session.positions.of(self.batches.received);
        self.batches.received += 1;
        self.batches.kept.push_back((commit_lsn, batch));
        Ok(())
    }
}

/// A batch as the output plugin would send it.
fn transaction(
    commit_lsn: Lsn,
    commit_time: PgTimestamp,
    batch: &RowBatch,
) -> impl Iterator<Item = Message> {
    let relation = batch.relation.oid;
    let begin = Message::Begin(Begin { commit_lsn, commit_time, xid: 0 });
    let end_lsn = Lsn::new(commit_lsn.as_u64() + 1);
    let commit = Message::Commit(Commit { commit_lsn, end_lsn, commit_time });
    let rows = batch.rows.iter();
    let rows = rows.map(move |row| Message::Insert(Insert { relation, tuple: row.clone() }));
    [begin, Message::Relation(batch.relation.clone())].into_iter().chain(rows).chain([commit])
}

impl Feed for RowFeed {
    fn identity(&self) -> &ServerIdentity {
        &self.session.identity
    }

    fn publication_fingerprint(&self) -> &PublicationFingerprint {
        &self.session.fingerprint
    }

    fn database_oid(&self) -> u32 {
        self.session.database_oid
    }

    fn compare_with(&mut self, _: PublishedHistory) {}

    fn is_compared(&self) -> bool {
        true
    }

    fn walsender(&self) -> Option<i32> {
        None
    }

    fn start(&self) -> Lsn {
        self.start
    }

    fn flushed(&self) -> Lsn {
        self.session.positions.end()
    }

    fn tables(&self) -> &[FoundTable] {
        &self.session.tables
    }

    async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        loop {
            if !reading {
                return std::future::pending().await;
            }
            if let Some(received) = self.kept() {
                return Ok(received);
            }
            if self.batches.is_complete {
                return std::future::pending().await;
            }
            let batch = self.batches.receiver.recv().await;
            self.receive(batch)?;
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        if let Some(received) = self.kept() {
            return Some(Ok(received));
        }
        let batch = self.batches.receiver.try_recv().ok()?;
        if let Err(error) = self.receive(Some(batch)) {
            return Some(Err(error));
        }
        self.kept().map(Ok)
    }

    fn is_backed_up(&mut self) -> bool {
        true
    }

    fn host(&self) -> &str {
        &self.session.host
    }

    fn security(&self) -> Security {
        self.session.security
    }

    fn received_bytes(&self) -> u64 {
        0
    }

    fn slot_metrics(&mut self) -> Option<SlotMetrics> {
        None
    }

    fn backlog_bytes(&self) -> Option<u64> {
        None
    }

    fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        None
    }

    async fn may_switch(&mut self) -> Result<bool, SourceError> {
        Ok(false)
    }

    fn confirm(&mut self, lsn: Lsn) {
        while self.next > 0 && self.batches.kept.front().is_some_and(|(commit, _)| *commit < lsn) {
            self.batches.kept.pop_front();
            self.next -= 1;
        }
    }

    async fn announce_halt(&mut self, _: &SourceError) {}

    async fn finish(&mut self, _: Lsn, _: Duration) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::sync::mpsc::channel;

    use crate::source::Method;

    proptest! {
        #[test]
        fn no_commit_record_has_the_lsn_of_a_batch(start in 1u64..1 << 40, batches in 1u64..500) {
            let positions = RowPositions::new(Lsn::new(start), batches);
            let lsns: Vec<u64> = (0..batches).map(|batch| positions.of(batch).as_u64()).collect();
            prop_assert!(lsns.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(lsns.iter().all(|lsn| lsn % ALIGNMENT != 0 && *lsn > start));
            prop_assert!(lsns.iter().all(|lsn| *lsn < positions.end().as_u64()));
            prop_assert_eq!(positions.end().as_u64() % ALIGNMENT, 0);
        }
    }

    fn source(batches: u64) -> RowSource {
        let relation = Relation {
            oid: 7,
            schema: "public".to_owned(),
            name: "outbox".to_owned(),
            columns: Vec::new(),
        };
        let (sender, receiver) = channel(8);
        for number in 0..batches {
            let rows = vec![Tuple::of_texts([Some(number.to_string().as_str())])];
            let sent = sender.try_send(Ok(RowBatch { relation: relation.clone(), rows }));
            sent.expect("there is room");
        }
        let identity =
            ServerIdentity { system_identifier: "1".to_owned(), timeline: 1, postmaster_start: 0 };
        let session = RowSession {
            slot: "walpost".to_owned(),
            identity,
            fingerprint: PublicationFingerprint::default(),
            database_oid: 5,
            tables: Vec::new(),
            host: String::new(),
            security: Security { tls: None, method: Method::None, is_local: true },
            commit_time: PgTimestamp::from_micros(0),
            positions: RowPositions::new(Lsn::new(800), batches),
        };
        RowSource::new(session, receiver)
    }

    /// The commit LSNs that a feed returns, and the keepalive at its end.
    fn read(feed: &mut RowFeed) -> (Vec<u64>, Option<Lsn>) {
        let (mut commits, mut end) = (Vec::new(), None);
        while let Some(received) = feed.try_next() {
            match received.expect("no error") {
                Received::Message(Message::Commit(commit)) => {
                    commits.push(commit.commit_lsn.as_u64());
                }
                Received::Keepalive(lsn) => end = Some(lsn),
                Received::Message(_) => {}
            }
        }
        (commits, end)
    }

    #[tokio::test]
    async fn what_is_not_confirmed_is_sent_again() {
        let source = source(3);
        let open = async |resume: &Resume| {
            let opened = source.open(resume).await;
            opened.unwrap_or_else(|_| panic!("it opens"))
        };
        let mut feed = open(&Resume::AtSlot { waited: None }).await;
        assert_eq!(read(&mut feed), (vec![801, 802, 803], None));
        feed.confirm(Lsn::new(802));
        drop(feed);
        let at = Resume::At {
            identity: source.session.identity.clone(),
            fingerprint: PublicationFingerprint::default(),
            walsender: None,
            confirmed: Lsn::new(802),
            ack: Lsn::new(802),
            start: Lsn::new(802),
            after_another: false,
            by_others: Lsn::ZERO,
            seen: Lsn::ZERO,
            received: crate::source::ReceivedTransactions::default(),
        };
        let mut feed = open(&at).await;
        assert_eq!(read(&mut feed), (vec![802, 803], None));
        // The channel is closed.
        let end = feed.next(true).await;
        assert_eq!(end, Ok(Received::Keepalive(Lsn::new(808))));
    }
}
