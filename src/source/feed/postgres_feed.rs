//! The feed from a slot: a stream, or a catch-up for a large backlog.
//!
//! Also compares, after a restart of the server, what it sends with what was received before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::pgoutput::{LogicalMessage, Message};
use crate::source::catchup::feed::CatchupFeed;
use crate::source::error::SourceError;
use crate::source::feed::feed_base::FeedBase;
use crate::source::feed::message_text::MessageText;
use crate::source::feed::stream::StreamFeed;
use crate::source::feed::visibility::{Passage, Visibility};
use crate::source::feed::{Feed, Received, SwitchFeed, VisibilityWaits};
use crate::source::identity::history::{
    HistoryCheck, MessageAction, PublishedHistory, SkippedRelations,
};
use crate::source::identity::publication_fingerprint::PublicationFingerprint;
use crate::source::identity::server_identity::ServerIdentity;
use crate::source::instances::halt_notice;
use crate::source::wire::Security;
use crate::source::{MinuteMetrics, SlotMetrics};

/// An open feed.
pub struct PostgresFeed {
    feed: ActiveFeed,
    /// Compare the feed with what was received before the server was restarted, and with what a state
    /// has: nothing is confirmed until both comparisons succeed.
    checks: Vec<HistoryCheck>,
    /// Another identity of the server, until its history is known to be the same: the next session
    /// must then compare, however this one ends.
    before: Option<ServerIdentity>,
    skipped: SkippedRelations,
    /// What to return next.
    next: VecDeque<Received>,
    /// Holds transactions back until other sessions see them, if that is configured.
    visibility: Option<Visibility>,
    /// Converts the content of logical messages, if that is text in another encoding.
    texts: Option<MessageText>,
    /// The message to convert, and to return next.
    unconverted: Option<LogicalMessage>,
    /// Whether each message is passed on as it is. Without this shortcut each is moved several
    /// times more: `described` alone took 2 % of the relay's thread in a catch-up.
    passes_all: bool,
}

/// How a feed reads.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub(in crate::source) enum ActiveFeed {
    /// Streams changes as they are written.
    Stream(StreamFeed),
    /// Reads a backlog in batches.
    Catchup(CatchupFeed),
}

impl ActiveFeed {
    async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        match self {
            Self::Stream(session) => session.next(reading).await,
            Self::Catchup(backlog) => backlog.next(reading).await,
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        match self {
            Self::Stream(session) => session.try_next(),
            Self::Catchup(backlog) => backlog.try_next(),
        }
    }
}

impl PostgresFeed {
    fn base(&self) -> &FeedBase {
        match &self.feed {
            ActiveFeed::Stream(session) => session.base(),
            ActiveFeed::Catchup(backlog) => backlog.base(),
        }
    }

    pub(in crate::source) fn over(feed: ActiveFeed) -> Self {
        let (skipped, next) = (SkippedRelations::default(), VecDeque::new());
        Self {
            feed,
            checks: Vec::new(),
            before: None,
            skipped,
            next,
            visibility: None,
            texts: None,
            unconverted: None,
            passes_all: true,
        }
    }

    /// Compares with `check`, for a server whose identity was `before` until it was restarted.
    pub(in crate::source) fn comparing(
        feed: ActiveFeed,
        check: Option<HistoryCheck>,
        before: Option<ServerIdentity>,
    ) -> Self {
        Self {
            passes_all: check.is_none(),
            before: check.as_ref().and(before),
            checks: check.into_iter().collect(),
            ..Self::over(feed)
        }
    }

    /// Holds each transaction back until other sessions see it.
    pub(in crate::source) fn holding_back(self, visibility: Visibility) -> Self {
        Self { visibility: Some(visibility), passes_all: false, ..self }
    }

    /// Converts the content of logical messages.
    pub(in crate::source) fn converting(self, texts: MessageText) -> Self {
        Self { texts: Some(texts), passes_all: false, ..self }
    }

    /// Whether a transaction is held back: nothing is passed on meanwhile.
    fn is_holding(&self) -> bool {
        self.visibility.as_ref().is_some_and(Visibility::is_holding)
    }

    /// The next message that was queued.
    fn queued(&mut self) -> Option<Received> {
        let next = self.next.pop_front();
        let is_changed = self.visibility.is_some() || self.texts.is_some();
        self.passes_all = !is_changed && self.next.is_empty() && self.is_plain();
        next
    }

    /// Whether nothing needs to be compared or preceded by its relation message any more.
    fn is_plain(&self) -> bool {
        self.checks.is_empty() && self.skipped.is_empty()
    }

    /// Keeps a message that has to be converted before anything else is received.
    fn keep_unconverted(&mut self, received: Received) -> Option<Received> {
        match (&self.texts, received) {
            (Some(texts), Received::Message(message)) if texts.concerns(&message) => {
                let Message::Logical(logical) = message else { return None };
                self.unconverted = Some(logical);
                None
            }
            (_, received) => Some(received),
        }
    }

    /// Receives from the feed, in UTF-8. Cancel-safe.
    async fn receive(&mut self, reading: bool) -> Result<Received, SourceError> {
        loop {
            if let (true, Some(texts), Some(message)) = (reading, &self.texts, &self.unconverted) {
                let converted = texts.converted(message).await?;
                self.unconverted = None;
                return Ok(Received::Message(converted));
            }
            let received = self.feed.next(reading).await?;
            if let Some(received) = self.keep_unconverted(received) {
                return Ok(received);
            }
        }
    }

    /// What was received already, in UTF-8.
    fn try_receive(&mut self) -> Option<Result<Received, SourceError>> {
        if self.unconverted.is_some() {
            return None;
        }
        match self.feed.try_next()? {
            Ok(received) => self.keep_unconverted(received).map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// Compares what was received, and returns it unless it is skipped or held back.
    fn inspect(&mut self, received: Received) -> Result<Option<Received>, SourceError> {
        let compared = if self.is_plain() { Some(received) } else { self.compare(received)? };
        let Some(visibility) = &mut self.visibility else { return Ok(compared) };
        let Some(received) = compared else { return Ok(None) };
        // What is queued follows.
        Ok(match visibility.pass(received) {
            Passage::Now(received) => Some(received),
            Passage::Later => None,
            Passage::Empty(begin, commit) => {
                self.next.push_front(commit);
                Some(Received::Message(Message::Begin(begin)))
            }
            Passage::Held(received) => {
                self.next.push_front(received);
                None
            }
        })
    }

    /// Compares what was received, and returns what to pass on: nothing that was passed on before
    /// the server was restarted.
    fn compare(&mut self, received: Received) -> Result<Option<Received>, SourceError> {
        if self.checks.is_empty() {
            return Ok(Some(self.described(received)));
        }
        crate::crash_points::point!("comparing");
        let mut is_skipped = false;
        for index in (0..self.checks.len()).rev() {
            let action = match &received {
                Received::Message(message) => self.checks[index].message(message)?,
                Received::Keepalive(wal_end) => self.checks[index].keepalive(*wal_end)?,
            };
            is_skipped |= action == MessageAction::Skip;
            if action == MessageAction::Same {
                self.checks.remove(index);
            }
        }
        if self.checks.is_empty() {
            tracing::info!("the server has the history that was published");
            self.before = None;
        }
        if is_skipped {
            if let Received::Message(message) = received {
                self.skipped.skipped(message);
            }
            return Ok(None);
        }
        Ok(Some(self.described(received)))
    }

    /// Returns the first message to pass on: a row is preceded by its table's relation message.
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

    fn timeline(&self) -> u32 {
        self.base().identity.timeline
    }

    fn server_started(&self) -> i64 {
        self.base().identity.postmaster_start
    }

    fn end_of_timeline(&self, timeline: u32) -> Option<Lsn> {
        self.base().timelines.end_of(timeline)
    }

    fn publication_fingerprint(&self) -> &PublicationFingerprint {
        self.base().publication_guard.fingerprint()
    }

    fn database_oid(&self) -> u32 {
        self.base().database_oid
    }

    fn compare_with(&mut self, published: PublishedHistory) {
        let FeedBase { start, sends_from, identity, .. } = self.base();
        // What was received of the same postmaster before is not sent again.
        let required =
            published.required.into_iter().filter(|one| one.commit_lsn >= *sends_from).collect();
        let published = PublishedHistory { required, ..published };
        let check = HistoryCheck::with_state(*start, published);
        let other = ServerIdentity { postmaster_start: 0, ..identity.clone() };
        self.before = self.before.take().or(Some(other));
        self.checks.push(check);
        self.passes_all = false;
    }

    fn is_compared(&self) -> bool {
        self.checks.is_empty()
    }

    fn is_standby(&self) -> bool {
        self.base().publication_guard.is_standby()
    }

    fn walsender(&self) -> Option<i32> {
        // A process ID is valid only on the server with that identity.
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
        loop {
            if self.passes_all {
                return self.feed.next(reading).await;
            }
            if reading
                && let Some(visibility) = &mut self.visibility
                && visibility.is_holding()
            {
                tokio::select! {
                    // The end of the feed first: it must be seen before anything is passed on.
                    biased;
                    // A keepalive would confirm the transaction that is held back.
                    received = self.feed.next(false) => match received? {
                        Received::Keepalive(_) => {}
                        message @ Received::Message(_) => self.next.push_back(message),
                    },
                    released = visibility.released() => return released,
                }
                continue;
            }
            if reading && let Some(next) = self.queued() {
                return Ok(next);
            }
            let received = self.receive(reading).await?;
            if let Some(received) = self.inspect(received)? {
                return Ok(received);
            }
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        if self.passes_all {
            return self.feed.try_next();
        }
        loop {
            if self.is_holding() {
                return None;
            }
            if let Some(next) = self.queued() {
                return Some(Ok(next));
            }
            let inspected = self.try_receive()?.and_then(|received| self.inspect(received));
            if let Some(received) = inspected.transpose() {
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

    fn slot_metrics(&mut self) -> Option<SlotMetrics> {
        match &mut self.feed {
            ActiveFeed::Stream(session) => session.slot_metrics(),
            ActiveFeed::Catchup(backlog) => backlog.slot_metrics(),
        }
    }

    fn minute_metrics(&self) -> Option<MinuteMetrics> {
        self.base().observer.take_minute()
    }

    fn visibility_waits(&self) -> VisibilityWaits {
        self.visibility.as_ref().map(Visibility::waits).unwrap_or_default()
    }

    fn trouble(&self) -> Option<String> {
        let held = self.visibility.as_ref().and_then(Visibility::trouble);
        held.or_else(|| match &self.feed {
            ActiveFeed::Stream(_) => None,
            ActiveFeed::Catchup(backlog) => backlog.trouble(),
        })
    }

    fn backlog_bytes(&self) -> Option<u64> {
        match &self.feed {
            ActiveFeed::Stream(_) => None,
            ActiveFeed::Catchup(backlog) => Some(backlog.bytes()),
        }
    }

    fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        let is_compared = self.is_compared();
        let is_busy = self.is_holding() || !is_compared;
        match &mut self.feed {
            // A catch-up would have to wait for the same transaction, or to compare.
            ActiveFeed::Stream(_) if is_busy => None,
            ActiveFeed::Stream(session) => session.wanted_switch(),
            ActiveFeed::Catchup(backlog) => {
                let wanted = backlog.wanted_switch();
                if wanted.is_some() && !is_compared {
                    backlog.stream_next();
                }
                wanted
            }
        }
    }

    async fn may_switch(&mut self) -> Result<bool, SourceError> {
        match &mut self.feed {
            // Events that it has not returned remain in the slot.
            ActiveFeed::Stream(_) => Ok(true),
            ActiveFeed::Catchup(backlog) => backlog.may_switch().await,
        }
    }

    fn confirm(&mut self, lsn: Lsn) {
        if self.is_compared() {
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
        if !self.is_compared() {
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
