//! A client's end of a session: streaming, or reading batches.
//!
//! The decisions are walpost's own code: when one feed is replaced by the other, what the end of a
//! batch means, when the slot is advanced.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use walpost::Lsn;
use walpost::outbox::FoundTable;
use walpost::pgoutput::Message;
use walpost::source::SlotFigures;
use walpost::source::{
    CatchUp, CatchupProgress, Feed, LagDetector, Method, OpenError, PublicationFingerprint,
    Received, Resume, Security, ServerIdentity, SlotAdvanceSchedule, Source, SourceError,
    SwitchFeed,
};

use crate::batches::{Reader, ServerMessage};
use crate::server::Look;
use crate::trace::{Left, TraceEvent, Why};
use crate::wal::{OUTBOXES, relation};
use crate::world::{Shared, World};

/// For how long nobody may hold the slot while nothing is taken.
const UNHELD: Duration = Duration::from_secs(11);

/// And for how long that is nothing out of the ordinary.
const HELD: Duration = Duration::from_secs(9);

/// Where a relay's sessions come from.
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
            return Err(SourceError::Lost("the session ended while it was opened".into()));
        }
        Ok(feed)
    }

    async fn begin_batches(&self, session: usize, look: Look) -> Result<(), SourceError> {
        let stands = self.world.lock().server.confirmed;
        let slowly = self.world.lock().one_in(4);
        self.pause(if slowly { 400 } else { 20 }).await;
        if let Some(one) = look.outset.first_move(stands) {
            let mut world = self.world.lock();
            world.may_move(one)?;
            world.advance_slot(one.to)?;
        }
        // Before the copy is made.
        self.world.lock().may_be_advanced_by_a_foreign_client();
        self.pause(20).await;
        let reader = Reader::new(self.catch_up.clone(), look.outset.ack);
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
            self.world.lock().note(TraceEvent::NotOpened { process: self.process, error });
        }
        Ok(opened?)
    }
}

/// A client's end of a session.
pub(crate) struct SimFeed {
    world: Shared,
    pub(crate) session: usize,
    wake: Arc<Notify>,
    identity: ServerIdentity,
    mark: PublicationFingerprint,
    start: Lsn,
    flushed: Lsn,
    tables: Vec<FoundTable>,
    side: Side,
    /// Within a transaction, as far as it was taken.
    within: bool,
    left: Left,
    /// Why its batches end.
    over: Why,
    /// Since when nothing is taken, and how many messages were since the last commit.
    idle: Option<Instant>,
    open: usize,
    /// It has said that it has ended.
    has_failed: bool,
    observed: Instant,
}

enum Side {
    Stream(LagDetector),
    Batches(CatchupProgress, SlotAdvanceSchedule),
}

impl SimFeed {
    fn new(source: &SimSource, world: &World, session: usize, resume: &Resume, look: Look) -> Self {
        let state = &world.server.sessions[session];
        let start = match resume {
            Resume::AtSlot { .. } => look.outset.start,
            Resume::At { .. } => state.told,
        };
        let (now, catch_up) = (Instant::now(), source.catch_up.clone());
        Self {
            world: source.world.clone(),
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
        }
    }

    /// What has come, or the session's end.
    fn take(&mut self, reading: bool) -> Option<Result<Received, SourceError>> {
        let mut world = self.world.lock();
        let state = &mut world.server.sessions[self.session];
        let came = if reading { state.coming.pop_front() } else { None };
        let Some(came) = came else {
            let ended = || Err(SourceError::Lost("the session ended".into()));
            return state.ended.then(ended);
        };
        match came {
            ServerMessage::Refused => self.over = Why::Refused,
            ServerMessage::StreamPays(_) => self.over = Why::Dear,
            _ => {}
        }
        self.idle = None;
        let received = match (came, &mut self.side) {
            (ServerMessage::Failed(error), _) => return Some(Err(error)),
            (ServerMessage::Streamed(received), Side::Stream(lag)) => {
                lag.received(&received, 100);
                received
            }
            (ServerMessage::Row(message), Side::Batches(handed, _)) => {
                handed.message(&message);
                Received::Message(message)
            }
            (ServerMessage::ReadUpTo(stand), Side::Batches(handed, _)) => {
                handed.read_up_to(stand.read)
            }
            (ServerMessage::Over, Side::Batches(handed, _)) => handed.ended(),
            (ServerMessage::StreamPays(rest), Side::Batches(handed, _)) => handed.left(rest),
            (ServerMessage::Refused, Side::Batches(handed, _)) => handed.refused("at its pleasure"),
            (came, _) => unreachable!("{came:?} in the other feed"),
        };
        let told = match &received {
            Received::Keepalive(wal_end) => Some((*wal_end, "keepalive")),
            Received::Message(Message::Commit(commit)) => Some((commit.end_lsn, "commit")),
            Received::Message(Message::Begin(begin)) => Some((begin.commit_lsn, "begin")),
            Received::Message(_) => None,
        };
        self.open = if matches!(told, Some((_, "commit"))) { 0 } else { self.open + 1 };
        if let Some((up_to, what)) = told {
            if what != "keepalive" {
                self.within = what == "begin";
            }
            world.note(TraceEvent::Took { session: self.session, up_to, what });
        }
        Some(Ok(received))
    }

    /// What became of the slot's move, where that is news.
    fn moved(&mut self) -> Option<Result<Lsn, SourceError>> {
        let Side::Batches(_, moves) = &mut self.side else { return None };
        let mut world = self.world.lock();
        let state = &mut world.server.sessions[self.session];
        moves.want(state.told);
        let stands = state.moved.take()?;
        moves.ended(stands.as_ref().ok().copied(), Instant::now());
        Some(stands)
    }

    fn failed(&mut self, has_failed: bool) {
        if let Side::Batches(handed, _) = &self.side
            && has_failed
        {
            handed.lost();
        }
        self.has_failed |= has_failed;
    }

    /// When the slot is to be moved next.
    fn due(&self) -> Option<Instant> {
        match &self.side {
            Side::Stream(_) => None,
            Side::Batches(_, moves) => moves.due(),
        }
    }

    fn begin_move(&mut self) {
        if let Side::Batches(_, moves) = &mut self.side {
            let one = moves.begin(Instant::now());
            self.world.lock().ask_for_move(self.session, one);
        }
    }

    fn ended(&self) -> Result<(), SourceError> {
        let ended = self.world.lock().server.sessions[self.session].ended;
        if ended { Err(SourceError::Lost("the session ended".into())) } else { Ok(()) }
    }

    async fn come(&mut self, reading: bool) -> Result<Received, SourceError> {
        let _attended = Attended::new(&self.world, self.session);
        self.idle = if reading { None } else { self.idle.or(Some(Instant::now())) };
        match &mut self.side {
            Side::Stream(lag) => lag.asked(reading),
            Side::Batches(handed, _) => handed.asked(reading, Instant::now()),
        }
        loop {
            if self.moved().transpose()?.is_some()
                && let Side::Batches(handed, _) = &mut self.side
                && handed.is_over()
            {
                return Ok(handed.stands());
            }
            if let Some(came) = self.take(reading) {
                return came;
            }
            let due = self.due();
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.begin_move();
                }
            }
        }
    }

    /// Sees the slot moved to `lsn`.
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
                self.begin_move();
            }
            self.wake.notified().await;
        }
    }

    /// Sees that the server has taken note of `lsn`.
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
        let came = self.come(reading).await;
        self.failed(came.is_err());
        came
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        let came = self.take(true);
        self.failed(matches!(came, Some(Err(_))));
        came
    }

    /// Always: so that the relay never puts the thread to sleep.
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

    fn slot_figures(&mut self) -> Option<SlotFigures> {
        if let Side::Stream(lag) = &mut self.side {
            let world = self.world.lock();
            let every = Duration::from_millis(world.schedule.observes_ms);
            if self.observed.elapsed() >= every {
                self.observed = Instant::now();
                lag.looked(world.log.end, world.log.end.bytes_since(world.server.confirmed));
            }
        }
        None
    }

    fn backlog_bytes(&self) -> Option<u64> {
        let bytes = self.flushed.as_u64().saturating_sub(self.start.as_u64());
        matches!(self.side, Side::Batches(..)).then_some(bytes)
    }

    fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        let (turn, why) = match &mut self.side {
            Side::Stream(lag) => (lag.turn(), Why::Behind),
            Side::Batches(handed, moves) => {
                let has_rows = {
                    let world = self.world.lock();
                    matches!(
                        world.server.sessions[self.session].coming.front(),
                        Some(ServerMessage::Row(_))
                    )
                };
                let turn = handed.turn(has_rows, moves.is_under_way(), Instant::now());
                let why = if handed.is_over() { self.over } else { Why::Idle };
                (turn, why)
            }
        };
        let idle = self.idle.map_or(Duration::ZERO, |since| since.elapsed());
        if turn.is_none() && why == Why::Idle && idle > UNHELD && self.open < 900 {
            let text = "nothing is taken for long, and nobody holds the slot".to_owned();
            self.world.lock().note(TraceEvent::Strange(text));
        }
        if turn.is_some() && why == Why::Idle && idle < HELD {
            let text = format!("it gives way for being idle, and something came {idle:?} ago");
            self.world.lock().note(TraceEvent::Strange(text));
        }
        let left = Left::Turned { why, within: self.within };
        self.left = turn.map_or(Left::Midway, |_| left);
        turn
    }

    fn confirm(&mut self, lsn: Lsn) {
        let mut world = self.world.lock();
        world.server.sessions[self.session].offered = lsn;
        world.look(self.session);
    }

    /// Each of the processes looks by itself here.
    async fn announce_halt(&mut self, _: &SourceError) {}

    /// Nobody makes away with a slot here.
    async fn may_switch(&mut self) -> Result<bool, SourceError> {
        Ok(true)
    }

    async fn finish(&mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        self.left = Left::Finished;
        self.world.lock().server.sessions[self.session].offered = lsn;
        let noted = async {
            match self.side {
                Side::Stream(_) => self.finish_stream(lsn).await,
                Side::Batches(..) => self.finish_batches(lsn).await,
            }
        };
        let unseen = || Err(SourceError::Lost("not seen to arrive".into()));
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

/// While someone waits for the session to say something.
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
