//! The feed from a slot: by a stream, or in batches where there is a backlog.
//!
//! Opening checks everything that both would pass over in silence: that this is still the
//! same server and slot, and that the publication has the tables.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::catchup::feed::CatchupFeed;
use super::error::SourceError;
use super::feed::{Feed, Received, SwitchFeed};
use super::feed_base::FeedBase;
use super::halt_notice;
use super::history::{HistoryCheck, SkippedRelations, Verdict};
use super::publication_fingerprint::PublicationFingerprint;
use super::server_identity::ServerIdentity;
use super::stream::StreamFeed;
use super::wire::Security;
use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::source::SlotFigures;

/// An open feed.
pub struct PostgresFeed {
    feed: ActiveFeed,
    /// Compares what comes with what came before the server was restarted: nothing is confirmed
    /// until that is done.
    check: Option<HistoryCheck>,
    /// The server as it was before it was restarted, until its history is known to be the same:
    /// the next session has to compare then, however this one ends.
    before: Option<ServerIdentity>,
    skipped: SkippedRelations,
    /// What is to be handed out next.
    next: VecDeque<Received>,
}

/// By what a feed reads.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub(super) enum ActiveFeed {
    /// What is written comes as it is written.
    Stream(StreamFeed),
    /// What was written comes in batches.
    Catchup(CatchupFeed),
}

impl PostgresFeed {
    fn base(&self) -> &FeedBase {
        match &self.feed {
            ActiveFeed::Stream(session) => session.base(),
            ActiveFeed::Catchup(backlog) => backlog.base(),
        }
    }

    pub(super) fn over(feed: ActiveFeed) -> Self {
        let (skipped, next) = (SkippedRelations::default(), VecDeque::new());
        Self { feed, check: None, before: None, skipped, next }
    }

    /// With `check`, of a server that was `before` as it was before it was restarted.
    pub(super) fn comparing(
        feed: ActiveFeed,
        check: Option<HistoryCheck>,
        before: Option<ServerIdentity>,
    ) -> Self {
        Self { before: check.as_ref().and(before), check, ..Self::over(feed) }
    }

    /// What is to be handed out of what came; nothing of what was handed out before the server
    /// was restarted.
    fn compare(&mut self, received: Received) -> Result<Option<Received>, SourceError> {
        let Some(check) = &mut self.check else { return Ok(Some(self.described(received))) };
        let verdict = match &received {
            Received::Message(message) => check.message(message)?,
            Received::Keepalive(wal_end) => check.keepalive(*wal_end)?,
        };
        match verdict {
            Verdict::Skip => {
                if let Received::Message(message) = received {
                    self.skipped.skipped(message);
                }
                return Ok(None);
            }
            Verdict::Pass => {}
            Verdict::Same => {
                tracing::info!("the restarted server has the history that was published");
                (self.check, self.before) = (None, None);
            }
        }
        Ok(Some(self.described(received)))
    }

    /// Whether each message is passed on as it is. Without this shortcut each is moved several
    /// times more: 2 to 4 % of walpost's CPU in a catch-up.
    fn passes_all(&self) -> bool {
        self.check.is_none() && self.skipped.is_empty()
    }

    /// The first of what is to be handed out for it: its table's description comes before a row.
    fn described(&mut self, received: Received) -> Received {
        let Received::Message(message) = &received else { return received };
        let before = self.skipped.before(message);
        if before.is_empty() {
            return received;
        }
        self.next.extend(before.into_iter().map(Received::Message));
        self.next.push_back(received);
        self.next.pop_front().unwrap_or(Received::Keepalive(Lsn::ZERO))
    }
}

impl Feed for PostgresFeed {
    fn identity(&self) -> &ServerIdentity {
        self.before.as_ref().unwrap_or(&self.base().identity)
    }

    fn publication_fingerprint(&self) -> &PublicationFingerprint {
        self.base().publication_guard.fingerprint()
    }

    fn walsender(&self) -> Option<i32> {
        // A number means something on the server of that identity only.
        self.base().backend.filter(|_| self.before.is_none())
    }

    fn start(&self) -> Lsn {
        self.base().start
    }

    fn flushed(&self) -> Lsn {
        self.base().flushed
    }

    fn tables(&self) -> &[FoundTable] {
        &self.base().tables
    }

    async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        if reading && let Some(next) = self.next.pop_front() {
            return Ok(next);
        }
        loop {
            let received = match &mut self.feed {
                ActiveFeed::Stream(session) => session.next(reading).await?,
                ActiveFeed::Catchup(backlog) => backlog.next(reading).await?,
            };
            if self.passes_all() {
                return Ok(received);
            }
            if let Some(received) = self.compare(received)? {
                return Ok(received);
            }
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        if let Some(next) = self.next.pop_front() {
            return Some(Ok(next));
        }
        loop {
            let received = match &mut self.feed {
                ActiveFeed::Stream(session) => session.try_next()?,
                ActiveFeed::Catchup(backlog) => backlog.try_next()?,
            };
            if self.passes_all() {
                return Some(received);
            }
            let compared = received.and_then(|received| self.compare(received));
            if let Some(received) = compared.transpose() {
                return Some(received);
            }
        }
    }

    fn is_backed_up(&mut self) -> bool {
        match &mut self.feed {
            ActiveFeed::Stream(session) => session.is_backed_up(),
            ActiveFeed::Catchup(_) => true,
        }
    }

    fn host(&self) -> &str {
        &self.base().host
    }

    fn security(&self) -> Security {
        self.base().security
    }

    fn received_bytes(&self) -> u64 {
        self.base().received_bytes
    }

    fn slot_figures(&mut self) -> Option<SlotFigures> {
        match &mut self.feed {
            ActiveFeed::Stream(session) => session.slot_figures(),
            ActiveFeed::Catchup(backlog) => backlog.slot_figures(),
        }
    }

    fn backlog_bytes(&self) -> Option<u64> {
        match &self.feed {
            ActiveFeed::Stream(_) => None,
            ActiveFeed::Catchup(backlog) => Some(backlog.bytes()),
        }
    }

    fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        // What is compared comes by this stream.
        if self.check.is_some() {
            return None;
        }
        match &mut self.feed {
            ActiveFeed::Stream(session) => session.turn(),
            ActiveFeed::Catchup(backlog) => backlog.turn(),
        }
    }

    async fn may_switch(&mut self) -> Result<bool, SourceError> {
        match &mut self.feed {
            // What it has not handed out is in the slot.
            ActiveFeed::Stream(_) => Ok(true),
            ActiveFeed::Catchup(backlog) => backlog.may_switch().await,
        }
    }

    fn confirm(&mut self, lsn: Lsn) {
        if self.check.is_none() {
            self.base().publication_guard.want(lsn);
        }
    }

    async fn announce_halt(&mut self, error: &SourceError) {
        let (client, slot) = (Arc::clone(&self.base().control.client), self.base().slot.clone());
        if error.needs_operator() {
            halt_notice::announce(&client, &slot).await;
        }
    }

    async fn finish(&mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        if self.check.is_some() {
            let unknown = "it is not known yet whether the restarted server has the history that was \
                           published: nothing is confirmed to it";
            return Err(SourceError::Lost(unknown.to_owned()));
        }
        match &mut self.feed {
            ActiveFeed::Stream(session) => session.finish(lsn, within).await,
            ActiveFeed::Catchup(backlog) => backlog.finish(lsn, within).await,
        }
    }

    async fn close(self) {
        if let ActiveFeed::Stream(session) = self.feed {
            session.close().await;
        }
    }
}
