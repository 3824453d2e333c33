//! The feed from a slot: by a stream, or in batches where there is a backlog.
//!
//! Opening checks everything that both would pass over in silence: that this is still the
//! same server and slot, and that the publication has the tables.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::backlog::Backlog;
use super::base::Base;
use super::begin::{Opening, Progress, seen};
use super::config::{APPLICATION_NAME, SourceConfig};
use super::connect::{self, Control};
use super::error::SourceError;
use super::facts::Facts;
use super::feed::{Announcement, Feed, OpenError, Received, Source, SwitchFeed};
use super::halted;
use super::history::{HistoryCheck, SkippedRelations, Verdict};
use super::instance::Instance;
use super::lock::holder;
use super::mark::PublicationFingerprint;
use super::moved;
use super::opening::{
    Resume, ServerIdentity, check_catalogs, connect_replication, identify, opening_limit,
    own_process, prepare, unlimited,
};
use super::session::Session;
use super::turns::StartPosition;
use super::watch::Catalogs;
use super::wire::{Security, WireError};
use crate::conninfo::ConnInfo;
use crate::lsn::Lsn;
use crate::metrics::SlotFigures;
use crate::outbox::FoundTable;

/// An open feed.
pub struct Live {
    feed: Reads,
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
pub(super) enum Reads {
    /// What is written comes as it is written.
    Stream(Session),
    /// What was written comes in batches.
    Backlog(Backlog),
}

impl Source for SourceConfig {
    type Feed = Live;

    fn slot(&self) -> &str {
        &self.slot
    }

    async fn open(&self, resume: &Resume) -> Result<Live, OpenError> {
        Live::open(self, resume).await
    }
}

impl Live {
    /// Connects, checks, and begins. Dropping the future gives up, and nothing stays behind.
    pub async fn open(config: &SourceConfig, resume: &Resume) -> Result<Self, OpenError> {
        let conninfo = config.conninfo.resolve()?;
        let control = connect::control(&conninfo, APPLICATION_NAME).await?;
        let beside = Arc::clone(&control.client);
        let opened = Self::open_in_time(control, &conninfo, config, resume).await;
        opened.map_err(|error| {
            // One that has never streamed knows of no change that the others do not see.
            let knows = matches!(resume, Resume::At { .. }) && error.is_for_a_person();
            let announcement = knows.then(|| -> Announcement {
                let slot = config.slot.clone();
                // The session, and with it the lock on the slot's name, lasts as long.
                Box::pin(async move { halted::announce(&beside, &slot).await })
            });
            OpenError { error, announcement }
        })
    }

    async fn open_in_time(
        control: Control,
        conninfo: &ConnInfo,
        config: &SourceConfig,
        resume: &Resume,
    ) -> Result<Self, SourceError> {
        let host = control.endpoint.host.to_string();
        let began = Instant::now();
        let prepared = timeout(conninfo.connect_timeout, prepare(&control.client, config)).await;
        prepared.unwrap_or_else(|_| {
            Err(SourceError::Lost(format!("{host}: no answer within {:?}", began.elapsed())))
        })?;
        let within = conninfo.connect_timeout + opening_limit(began.elapsed());
        let beside = Arc::clone(&control.client);
        let progress = Progress::default();
        let mut opened = Box::pin(Self::open_beside(control, conninfo, config, resume, &progress));
        loop {
            if let Ok(opened) = timeout(within, &mut opened).await {
                return opened;
            }
            if !progress.creates_slot.load(Relaxed) {
                break;
            }
            // The server says nothing on that session until the slot is there.
            let alive = timeout(conninfo.connect_timeout, beside.simple_query("")).await;
            if !matches!(alive, Ok(Ok(_))) {
                break;
            }
        }
        let reason = format!("{host}: the session was not ready within {within:.1?}");
        if progress.in_batches.load(Relaxed) {
            // A stream needs fewer answers.
            config.catch_up.refused(&reason);
        }
        Err(SourceError::Lost(reason))
    }

    async fn open_beside(
        control: Control,
        conninfo: &ConnInfo,
        config: &SourceConfig,
        resume: &Resume,
        progress: &Progress,
    ) -> Result<Self, SourceError> {
        // All three are asked for at once.
        let (instance, facts, holder) = tokio::join!(
            biased;
            Instance::of(&control.client),
            Facts::read(&control.client, &config.slot),
            holder(&control.client, &config.slot)
        );
        let (instance, facts) = (instance?, facts?);
        let holder = holder?.filter(|_| !config.temporary_slot);
        config.last_look.end();
        let at_slot = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush).unwrap_or_default();
        let mut outset = StartPosition::of(resume, at_slot);
        facts.require_version()?;
        let (looked, client) = tokio::join!(
            biased;
            // Before anything is confirmed; it is judged once the server is known.
            Catalogs::looked_at(Arc::clone(&control.client), facts.version, config),
            connect_replication(conninfo, &control, &facts)
        );
        let (catalogs, look) = looked?;
        let settled = look.settled;
        if !settled {
            outset.ack = at_slot.min(outset.ack);
        }
        let check = history_check(resume, instance.postmaster_start, at_slot, outset);
        if check.is_some() {
            outset =
                StartPosition { ack: at_slot.min(outset.ack), start: at_slot.min(outset.start) };
        }
        let host = control.endpoint.host.to_string();
        let failed = |error: WireError| SourceError::stream(&error, &host, &config.slot);
        let mut client = client.map_err(failed)?;
        // Both connections are of one kind; the one whose password can be read counts.
        let security =
            if control.security.shows_password() { control.security } else { client.security() };
        // Before the catalogs: another server's slot and tables say nothing of ours.
        let identity = identify(config, &mut client, &control, &facts, resume, &instance).await?;
        let seen = seen(&look.mark, &identity, at_slot, facts.flushed);
        let own = own_process(resume, &identity);
        let client_beside = &control.client;
        let (facts, is_locked) =
            moved::beside_others(client_beside, config, resume, (facts, holder), own, seen).await?;
        let found = check_catalogs(config, &facts, resume, &catalogs, look, &identity).await;
        if let Err(SourceError::InUse { .. }) = &found
            && !is_locked
        {
            config.last_look.keep(&control.client);
        }
        let opening = Opening {
            config,
            conninfo,
            resume,
            control,
            security,
            facts,
            catalogs,
            found: found?,
            identity,
            instance,
            outset,
            check,
        };
        let beside = Arc::clone(&opening.control.client);
        let opened = opening.begin(client, settled, progress).await?;
        unlimited(&beside).await?;
        Ok(opened)
    }
}

impl Live {
    fn base(&self) -> &Base {
        match &self.feed {
            Reads::Stream(session) => session.base(),
            Reads::Backlog(backlog) => backlog.base(),
        }
    }

    pub(super) fn over(feed: Reads) -> Self {
        let (skipped, next) = (SkippedRelations::default(), VecDeque::new());
        Self { feed, check: None, before: None, skipped, next }
    }

    /// With `check`, of a server that was `before` as it was before it was restarted.
    pub(super) fn comparing(
        feed: Reads,
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

/// The comparison that a session on a server needs whose postmaster was started at another time
/// than that of the last session.
fn history_check(
    resume: &Resume,
    postmaster_start: i64,
    at_slot: Lsn,
    outset: StartPosition,
) -> Option<HistoryCheck> {
    match resume {
        Resume::At { identity, received, .. } if identity.postmaster_start != postmaster_start => {
            HistoryCheck::new(at_slot.min(outset.start), outset.start, received)
        }
        Resume::At { .. } | Resume::AtSlot { .. } => None,
    }
}

impl Feed for Live {
    fn identity(&self) -> &ServerIdentity {
        self.before.as_ref().unwrap_or(&self.base().identity)
    }

    fn mark(&self) -> &PublicationFingerprint {
        self.base().watch.mark()
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
                Reads::Stream(session) => session.next(reading).await?,
                Reads::Backlog(backlog) => backlog.next(reading).await?,
            };
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
                Reads::Stream(session) => session.try_next()?,
                Reads::Backlog(backlog) => backlog.try_next()?,
            };
            let compared = received.and_then(|received| self.compare(received));
            if let Some(received) = compared.transpose() {
                return Some(received);
            }
        }
    }

    fn is_backed_up(&mut self) -> bool {
        match &mut self.feed {
            Reads::Stream(session) => session.is_backed_up(),
            Reads::Backlog(_) => true,
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
            Reads::Stream(session) => session.slot_figures(),
            Reads::Backlog(backlog) => backlog.slot_figures(),
        }
    }

    fn backlog_bytes(&self) -> Option<u64> {
        match &self.feed {
            Reads::Stream(_) => None,
            Reads::Backlog(backlog) => Some(backlog.bytes()),
        }
    }

    fn turn(&mut self) -> Option<SwitchFeed> {
        // What is compared comes by this stream.
        if self.check.is_some() {
            return None;
        }
        match &mut self.feed {
            Reads::Stream(session) => session.turn(),
            Reads::Backlog(backlog) => backlog.turn(),
        }
    }

    async fn may_switch(&mut self) -> Result<bool, SourceError> {
        match &mut self.feed {
            // What it has not handed out is in the slot.
            Reads::Stream(_) => Ok(true),
            Reads::Backlog(backlog) => backlog.may_switch().await,
        }
    }

    fn confirm(&mut self, lsn: Lsn) {
        if self.check.is_none() {
            self.base().watch.want(lsn);
        }
    }

    async fn halting(&mut self, error: &SourceError) {
        let (client, slot) = (Arc::clone(&self.base().control.client), self.base().slot.clone());
        if error.is_for_a_person() {
            halted::announce(&client, &slot).await;
        }
    }

    async fn finish(&mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        if self.check.is_some() {
            let unknown = "it is not known yet whether the restarted server has the history that was \
                           published: nothing is confirmed to it";
            return Err(SourceError::Lost(unknown.to_owned()));
        }
        match &mut self.feed {
            Reads::Stream(session) => session.finish(lsn, within).await,
            Reads::Backlog(backlog) => backlog.finish(lsn, within).await,
        }
    }

    async fn close(self) {
        if let Reads::Stream(session) = self.feed {
            session.close().await;
        }
    }
}
