//! A client's end of a session: streaming, or reading batches.
//!
//! walpost's own code decides when to switch the feed, what the end of a batch means, and when to
//! advance the slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use walpost::Lsn;
use walpost::outbox::FoundTable;
use walpost::pgoutput::Message;
use walpost::source::SlotMetrics;
use walpost::source::{
    CatchUp, CatchupProgress, Feed, HistoryCheck, LagDetector, MessageAction, Method, OpenError,
    PublicationFingerprint, PublishedHistory, Received, Resume, Security, ServerIdentity,
    SlotAdvanceSchedule, Source, SourceError, SwitchFeed,
};

use crate::batches::{Reader, ServerMessage};
use crate::server::Look;
use crate::trace::{Left, TraceEvent, Why};
use crate::wal::{OUTBOXES, relation};
use crate::world::{Shared, World};

/// The error of a session that did not live until it was open.
pub(crate) const ENDED_WHILE_OPENED: &str = "the session ended while it was opened";

/// A catch-up that the relay does not read must be replaced by a stream within this time …
const MAX_UNREAD: Duration = Duration::from_secs(11);

/// … and not before this time.
const MIN_UNREAD: Duration = Duration::from_secs(9);

/// Opens a relay's sessions.
#[derive(Clone)]
pub(crate) struct SimSource {
    pub(crate) world: Shared,
    pub(crate) process: usize,
    pub(crate) catch_up: CatchUp,
}

impl SimSource {
    async fn pause(&self, most_ms: u64) {
        let pause = self.world.lock().rng.u64(0..most_ms);
        sleep(Duration::from_millis(pause)).await;
    }

    async fn begin(&self, resume: &Resume) -> Result<SimFeed, SourceError> {
        self.pause(60).await;
        let look = self.world.lock().look_at_slot(resume, &self.catch_up)?;
        self.pause(20).await;
        let feed = {
            let mut world = self.world.lock();
            let session = world.open(self.process, resume, look)?;
            SimFeed::new(self, &world, session, resume, look)
        };
        if look.in_batches {
            self.begin_batches(feed.session, look).await?;
        }
        self.pause(20).await;
        if self.world.lock().server.sessions[feed.session].ended {
            return Err(SourceError::Lost(ENDED_WHILE_OPENED.into()));
        }
        Ok(feed)
    }

    async fn begin_batches(&self, session: usize, look: Look) -> Result<(), SourceError> {
        let position = self.world.lock().server.confirmed;
        let slowly = self.world.lock().one_in(4);
        self.pause(if slowly { 400 } else { 20 }).await;
        if let Some(advance) = look.start_position.first_advance(position) {
            let mut world = self.world.lock();
            world.may_advance(advance)?;
            world.advance_slot(advance.to)?;
        }
        // Before the slot is copied.
        self.world.lock().may_be_advanced_by_a_foreign_client();
        self.pause(20).await;
        let reader = Reader::new(self.catch_up.clone(), look.start_position.ack);
        self.world.lock().server.sessions[session].reader = Some(reader);
        Ok(())
    }
}

impl Source for SimSource {
    type Feed = SimFeed;

    fn slot(&self) -> &'static str {
        crate::server::SLOT
    }

    async fn open(&self, resume: &Resume) -> Result<SimFeed, OpenError> {
        let opened = self.begin(resume).await;
        if let Err(error) = &opened {
            let error = error.clone();
            self.world.lock().note(TraceEvent::NoSession { process: self.process, error });
        }
        Ok(opened?)
    }
}

/// A client's end of a session.
pub(crate) struct SimFeed {
    world: Shared,
    process: usize,
    pub(crate) session: usize,
    wake: Arc<Notify>,
    identity: ServerIdentity,
    mark: PublicationFingerprint,
    start: Lsn,
    flushed: Lsn,
    tables: Vec<FoundTable>,
    side: Side,
    /// Whether the last message that was read is within a transaction.
    within: bool,
    left: Left,
    /// Why the catch-up ends.
    over: Why,
    /// Since when the relay has read nothing, and the messages read since the last commit.
    idle: Option<Instant>,
    open: usize,
    /// Whether it has returned an error.
    has_failed: bool,
    observed: Instant,
    /// Compares with what the state has.
    check: Option<HistoryCheck>,
}

enum Side {
    Stream(LagDetector),
    Batches(CatchupProgress, SlotAdvanceSchedule),
}

impl SimFeed {
    fn new(source: &SimSource, world: &World, session: usize, resume: &Resume, look: Look) -> Self {
        let state = &world.server.sessions[session];
        let start = match resume {
            Resume::AtSlot { .. } => look.start_position.start,
            Resume::At { .. } => state.confirmable,
        };
        let (now, catch_up) = (Instant::now(), source.catch_up.clone());
        Self {
            world: source.world.clone(),
            process: source.process,
            session,
            wake: Arc::clone(&state.wake),
            identity: world.identity(),
            mark: PublicationFingerprint::default(),
            start,
            flushed: world.log.end,
            tables: (0..OUTBOXES).map(|at| relation(at).into()).collect(),
            side: if look.in_batches {
                Side::Batches(
                    CatchupProgress::new(catch_up, start),
                    SlotAdvanceSchedule::new(start, session.is_multiple_of(2), now),
                )
            } else {
                Side::Stream(LagDetector::new(catch_up, start))
            },
            within: false,
            left: Left::Midway,
            over: Why::Over,
            idle: None,
            open: 0,
            has_failed: false,
            observed: now,
            check: None,
        }
    }

    /// What was received and is passed on, or the end of the session.
    fn take(&mut self, reading: bool) -> Option<Result<Received, SourceError>> {
        loop {
            let taken = self.receive_one(reading)?;
            let compared = taken.and_then(|received| self.compare(received));
            if let Some(received) = compared.transpose() {
                return Some(received);
            }
        }
    }

    fn compare(&mut self, received: Received) -> Result<Option<Received>, SourceError> {
        let Some(check) = &mut self.check else { return Ok(Some(received)) };
        let action = match &received {
            Received::Message(message) => check.message(message)?,
            Received::Keepalive(wal_end) => check.keepalive(*wal_end)?,
        };
        if action == MessageAction::Same {
            self.check = None;
        }
        Ok((action != MessageAction::Skip).then_some(received))
    }

    /// What was received, or the end of the session.
    fn receive_one(&mut self, reading: bool) -> Option<Result<Received, SourceError>> {
        let mut world = self.world.lock();
        let state = &mut world.server.sessions[self.session];
        let message = if reading { state.unread.pop_front() } else { None };
        let Some(message) = message else {
            let ended = || Err(SourceError::Lost("the session ended".into()));
            return state.ended.then(ended);
        };
        match message {
            ServerMessage::Refused => self.over = Why::Refused,
            ServerMessage::StreamCostsLess(_) => self.over = Why::StreamCostsLess,
            _ => {}
        }
        self.idle = None;
        let received = match (message, &mut self.side) {
            (ServerMessage::Failed(error), _) => return Some(Err(error)),
            (ServerMessage::Streamed(received), Side::Stream(lag)) => {
                lag.received(&received, 100);
                received
            }
            (ServerMessage::Row(message), Side::Batches(progress, _)) => {
                progress.message(&message);
                Received::Message(message)
            }
            (ServerMessage::ReadUpTo(position), Side::Batches(progress, _)) => {
                progress.read_up_to(position.read)
            }
            (ServerMessage::Over, Side::Batches(progress, _)) => progress.ended(),
            (ServerMessage::StreamCostsLess(rest), Side::Batches(progress, _)) => {
                progress.stream_costs_less(rest)
            }
            (ServerMessage::Refused, Side::Batches(progress, _)) => {
                progress.refused("injected fault")
            }
            (message, _) => unreachable!("{message:?} in the other feed"),
        };
        let event = match &received {
            Received::Keepalive(wal_end) => Some((*wal_end, "keepalive")),
            Received::Message(Message::Commit(commit)) => Some((commit.end_lsn, "commit")),
            Received::Message(Message::Begin(begin)) => Some((begin.commit_lsn, "begin")),
            Received::Message(_) => None,
        };
        self.open = if matches!(event, Some((_, "commit"))) { 0 } else { self.open + 1 };
        if let Some((up_to, what)) = event {
            if what != "keepalive" {
                self.within = what == "begin";
            }
            world.note(TraceEvent::Took { session: self.session, up_to, what });
        }
        Some(Ok(received))
    }

    /// The result of an advance of the slot that has ended since the last call, unless another client used
    /// the slot, which may release it again.
    fn moved(&mut self) -> Option<Result<Lsn, SourceError>> {
        let Side::Batches(_, moves) = &mut self.side else { return None };
        let mut world = self.world.lock();
        let state = &mut world.server.sessions[self.session];
        moves.want(state.confirmable);
        let position = state.moved.take()?;
        moves.ended(position.as_ref().ok().copied(), Instant::now());
        let is_in_use = matches!(position, Err(SourceError::InUse { .. }));
        moves.in_use(is_in_use, Instant::now());
        (!is_in_use).then_some(position)
    }

    fn failed(&mut self, error: &SourceError) {
        if let Side::Batches(progress, _) = &self.side {
            progress.connection_lost();
        }
        if let SourceError::Slot(_) = error {
            let error = error.clone();
            self.world.lock().note(TraceEvent::NoSession { process: self.process, error });
        }
        self.has_failed = true;
    }

    /// When the next advance of the slot is due.
    fn due(&self) -> Option<Instant> {
        match &self.side {
            Side::Stream(_) => None,
            Side::Batches(_, moves) => moves.due(),
        }
    }

    fn begin_advance(&mut self) {
        if let Side::Batches(_, moves) = &mut self.side {
            let advance = moves.begin(Instant::now());
            self.world.lock().request_advance(self.session, advance);
        }
    }

    fn ended(&self) -> Result<(), SourceError> {
        let ended = self.world.lock().server.sessions[self.session].ended;
        if ended { Err(SourceError::Lost("the session ended".into())) } else { Ok(()) }
    }

    async fn receive(&mut self, reading: bool) -> Result<Received, SourceError> {
        let _attended = Attended::new(&self.world, self.session);
        self.idle = if reading { None } else { self.idle.or(Some(Instant::now())) };
        match &mut self.side {
            Side::Stream(lag) => lag.polled(reading),
            Side::Batches(progress, _) => progress.polled(reading, Instant::now()),
        }
        loop {
            if self.moved().transpose()?.is_some()
                && let Side::Batches(progress, _) = &mut self.side
                && progress.is_over()
            {
                let keepalive = progress.keepalive();
                if let Some(received) = self.compare(keepalive)? {
                    return Ok(received);
                }
                continue;
            }
            if let Some(received) = self.take(reading) {
                return received;
            }
            let due = self.due();
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.begin_advance();
                }
            }
        }
    }

    /// Waits until the slot is advanced to `lsn`.
    async fn finish_batches(&mut self, lsn: Lsn) -> Result<(), SourceError> {
        self.world.lock().confirm(self.session);
        loop {
            self.moved().transpose()?;
            self.ended()?;
            let Side::Batches(_, moves) = &mut self.side else { return Ok(()) };
            if moves.has_reached(lsn) {
                return Ok(());
            }
            moves.hurry(Instant::now());
            if moves.due().is_some() {
                self.begin_advance();
            }
            self.wake.notified().await;
        }
    }

    /// Waits until the server has confirmed `lsn`.
    async fn finish_stream(&mut self, lsn: Lsn) -> Result<(), SourceError> {
        self.world.lock().confirm(self.session);
        while self.world.lock().server.confirmed < lsn {
            self.ended()?;
            self.wake.notified().await;
        }
        Ok(())
    }
}

impl Feed for SimFeed {
    fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    fn publication_fingerprint(&self) -> &PublicationFingerprint {
        &self.mark
    }

    fn database_oid(&self) -> u32 {
        5
    }

    fn compare_with(&mut self, published: PublishedHistory) {
        let from = self.world.lock().server.sessions[self.session].from;
        let required =
            published.required.into_iter().filter(|one| one.commit_lsn >= from).collect();
        let published = PublishedHistory { required, ..published };
        self.check = Some(HistoryCheck::with_state(self.start, published));
    }

    fn is_compared(&self) -> bool {
        self.check.is_none()
    }

    fn walsender(&self) -> Option<i32> {
        i32::try_from(self.session).ok()
    }

    fn start(&self) -> Lsn {
        self.start
    }

    fn flushed(&self) -> Lsn {
        self.flushed
    }

    fn tables(&self) -> &[FoundTable] {
        &self.tables
    }

    async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        let received = self.receive(reading).await;
        if let Err(error) = &received {
            self.failed(error);
        }
        received
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        let received = self.take(true);
        if let Some(Err(error)) = &received {
            self.failed(error);
        }
        received
    }

    /// Always true, so that the relay never pauses for batching, which blocks the thread.
    fn is_backed_up(&mut self) -> bool {
        true
    }

    fn host(&self) -> &'static str {
        "simulated"
    }

    fn security(&self) -> Security {
        Security { tls: None, method: Method::None, is_local: true }
    }

    fn received_bytes(&self) -> u64 {
        0
    }

    fn slot_metrics(&mut self) -> Option<SlotMetrics> {
        if let Side::Stream(lag) = &mut self.side {
            let world = self.world.lock();
            let every = Duration::from_millis(world.schedule.observes_ms);
            if self.observed.elapsed() >= every {
                self.observed = Instant::now();
                lag.measured(world.log.end, world.log.end.bytes_since(world.server.confirmed));
            }
        }
        None
    }

    fn backlog_bytes(&self) -> Option<u64> {
        let bytes = self.flushed.as_u64().saturating_sub(self.start.as_u64());
        matches!(self.side, Side::Batches(..)).then_some(bytes)
    }

    fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        let (switch, why) = match &mut self.side {
            Side::Stream(_) if self.check.is_some() => (None, Why::Behind),
            Side::Stream(lag) => (lag.wanted_switch(), Why::Behind),
            Side::Batches(progress, moves) => {
                let has_rows = {
                    let world = self.world.lock();
                    matches!(
                        world.server.sessions[self.session].unread.front(),
                        Some(ServerMessage::Row(_))
                    )
                };
                let switch = progress.wanted_switch(has_rows, moves.is_advancing(), Instant::now());
                if switch.is_some() && self.check.is_some() {
                    progress.stream_next();
                }
                let why = if progress.is_over() { self.over } else { Why::Idle };
                (switch, why)
            }
        };
        let idle = self.idle.map_or(Duration::ZERO, |since| since.elapsed());
        if switch.is_none() && why == Why::Idle && idle > MAX_UNREAD && self.open < 900 {
            let text = "the relay does not read the catch-up, and no stream takes over".to_owned();
            self.world.lock().note(TraceEvent::Strange(text));
        }
        if switch.is_some() && why == Why::Idle && idle < MIN_UNREAD {
            let text = format!("the catch-up ends as unread, but the relay read it {idle:?} ago");
            self.world.lock().note(TraceEvent::Strange(text));
        }
        let left = Left::Turned { why, within: self.within };
        self.left = switch.map_or(Left::Midway, |_| left);
        switch
    }

    fn confirm(&mut self, lsn: Lsn) {
        if self.check.is_none() {
            let mut world = self.world.lock();
            world.server.sessions[self.session].offered = lsn;
            world.look(self.session);
        }
    }

    /// Not needed: each simulated process checks the slot itself.
    async fn announce_halt(&mut self, _: &SourceError) {}

    /// Always true: the simulation never drops the slot during a catch-up.
    async fn may_switch(&mut self) -> Result<bool, SourceError> {
        Ok(true)
    }

    async fn finish(&mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        if self.check.is_some() {
            return Err(SourceError::Lost("it is not compared yet".into()));
        }
        self.left = Left::Finished;
        self.world.lock().server.sessions[self.session].offered = lsn;
        let noted = async {
            match self.side {
                Side::Stream(_) => self.finish_stream(lsn).await,
                Side::Batches(..) => self.finish_batches(lsn).await,
            }
        };
        let unseen = || Err(SourceError::Lost("the confirmation was not acknowledged".into()));
        timeout(within, noted).await.unwrap_or_else(|_| unseen())
    }

    async fn close(self) {}
}

impl Drop for SimFeed {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        let session = &world.server.sessions[self.session];
        let unattended_ms = u64::try_from(session.unattended.as_millis()).expect("short");
        let left = if self.has_failed { Left::Midway } else { self.left };
        world.note(TraceEvent::Released { session: self.session, unattended_ms, left });
        world.release(self.session);
    }
}

/// Exists while the relay waits for the session.
struct Attended {
    world: Shared,
    session: usize,
}

impl Attended {
    fn new(world: &Shared, session: usize) -> Self {
        let mut locked = world.lock();
        let state = &mut locked.server.sessions[session];
        if let Some(since) = state.unattended_since.take() {
            state.unattended = state.unattended.max(since.elapsed());
        }
        Self { world: world.clone(), session }
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        world.server.sessions[self.session].unattended_since = Some(Instant::now());
    }
}
