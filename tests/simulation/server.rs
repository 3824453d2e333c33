//! PostgreSQL as walpost meets it: one slot, its walsender, and a client's end
//! of the session.
//!
//! The rules are PostgreSQL's own. A transaction is sent exactly when its commit
//! LSN is at or after the start, and a start before the slot's position is
//! raised to it. What was confirmed arrives late, or never; a server that
//! crashes falls back to a position that it had saved. A second client is told
//! that the slot is in use, also while the first is dead and not noticed yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use walpost::Lsn;
use walpost::metrics::SlotFigures;
use walpost::outbox::FoundTable;
use walpost::pgoutput::Message;
use walpost::source::{
    Feed, Holder, Mark, Received, Resume, ServerIdentity, Source, SourceError, Turn,
};

use crate::log::{Cursor, OUTBOXES, relation};
use crate::trace::Happened;
use crate::world::{Shared, World};

/// Messages that lie between walsender and client, at most.
const UNDER_WAY: usize = 64;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) confirmed: Lsn,
    /// What a crash falls back to.
    saved: Lsn,
    /// Until when, in milliseconds, it cannot be reached, or lets nobody in.
    pub(crate) away_until: u64,
    pub(crate) closed_until: u64,
    /// Until when somebody who is not there holds the slot.
    pub(crate) held_until: u64,
    pub(crate) slot_is_there: bool,
    pub(crate) timeline: u32,
    holder: Option<usize>,
    /// Whose session it was that the server still takes to be there.
    lingers: Option<usize>,
    sessions: Vec<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    from: Lsn,
    cursor: Cursor,
    /// Sent and not taken.
    coming: VecDeque<Received>,
    ended: bool,
    /// What the client may confirm, and what of it is confirmed: once the session has
    /// looked, which it does in its own time.
    offered: Lsn,
    told: Lsn,
    looked: Instant,
    wake: Arc<Notify>,
    unattended_since: Option<Instant>,
    unattended: Duration,
}

impl Server {
    pub(crate) fn new() -> Self {
        let start = Lsn::new(1000);
        Self {
            confirmed: start,
            saved: start,
            away_until: 0,
            closed_until: 0,
            held_until: 0,
            slot_is_there: true,
            timeline: 1,
            holder: None,
            lingers: None,
            sessions: Vec::new(),
        }
    }

    /// Whoever has the slot now is no walpost.
    pub(crate) fn forget_the_last(&mut self) {
        self.lingers = None;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    /// A checkpoint: this position is not forgotten any more.
    pub(crate) fn save(&mut self) {
        self.saved = self.confirmed;
    }
}

/// The walsender and the checkpointer, for ever.
pub(crate) async fn serve(world: Shared) {
    loop {
        let nap = world.lock().serve();
        sleep(Duration::from_millis(nap)).await;
    }
}

impl World {
    /// Sends some, takes note of what was confirmed; how long to rest then.
    fn serve(&mut self) -> u64 {
        if self.one_in(30) {
            self.server.save();
        }
        let Some(at) = self.server.holder else { return self.rng.u64(5..40) };
        if self.one_in(2) {
            self.take_note(at);
        }
        self.look(at);
        let burst = self.rng.usize(0..=self.schedule.burst);
        let often = self.rng.u64(2..12);
        let session = &mut self.server.sessions[at];
        let mut all = false;
        for _ in 0..burst {
            if session.coming.len() >= UNDER_WAY {
                break;
            }
            if self.rng.u64(0..often) == 0 {
                let sent = self.log.sent(&session.cursor).max(session.from);
                session.coming.push_back(Received::Keepalive(sent));
            }
            let Some(message) = self.log.send(&mut session.cursor, session.from) else {
                all = true;
                break;
            };
            session.coming.push_back(message);
        }
        let idle = all && session.told >= self.log.end;
        if all && self.rng.u8(0..3) == 0 {
            session.coming.push_back(Received::Keepalive(self.log.end));
        }
        session.wake.notify_one();
        if idle { self.rng.u64(20..200) } else { self.rng.u64(1..25) }
    }

    /// The session confirms what it may, where it is time to.
    fn look(&mut self, at: usize) {
        let rest = Duration::from_millis(self.schedule.looks_ms);
        let session = &mut self.server.sessions[at];
        if session.looked.elapsed() >= rest && session.told != session.offered {
            session.looked = Instant::now();
            self.confirm(at);
        }
    }

    fn confirm(&mut self, session: usize) {
        let state = &mut self.server.sessions[session];
        let lsn = state.offered;
        if std::mem::replace(&mut state.told, lsn) != lsn {
            self.note(Happened::Confirmed { session, lsn });
        }
    }

    /// What the session's client confirmed arrives.
    fn take_note(&mut self, at: usize) {
        let told = self.server.sessions[at].told;
        if told > self.server.confirmed {
            self.set_slot(told);
        }
        self.server.sessions[at].wake.notify_one();
    }

    pub(crate) fn set_slot(&mut self, confirmed: Lsn) {
        self.server.confirmed = confirmed;
        self.note(Happened::Slot { confirmed });
    }

    /// The session that is open, if one is, breaks; what was under way may still come.
    pub(crate) fn end_session(&mut self) {
        let Some(at) = self.server.holder else { return };
        self.free_slot();
        let session = &mut self.server.sessions[at];
        let left = self.rng.usize(0..=session.coming.len());
        session.coming.truncate(left);
        session.ended = true;
        session.wake.notify_one();
        self.note(Happened::Broke { session: at });
    }

    /// Nobody streams any more; what was confirmed last may still have arrived.
    fn free_slot(&mut self) {
        let Some(at) = self.server.holder.take() else { return };
        if self.one_in(2) {
            self.take_note(at);
        }
    }

    /// The server goes down for a while and forgets what it had not saved.
    pub(crate) fn restart_server(&mut self, away_ms: u64) {
        self.end_session();
        self.server.away_until = self.now_ms() + away_ms;
        self.server.confirmed = self.server.saved;
        let confirmed = self.server.confirmed;
        self.note(Happened::Fell { confirmed });
    }

    /// The session that has the slot, also where its client has gone already;
    /// `None` where somebody has it who is no walpost.
    fn holder(&self) -> Option<usize> {
        self.server.holder.or(self.server.lingers)
    }

    /// A new session as `resume` wants it, or why there is none.
    fn open(&mut self, process: usize, resume: &Resume) -> Result<usize, SourceError> {
        let (now, server) = (self.now_ms(), &self.server);
        let slot = |text: String| Err(SourceError::Slot(text));
        if now < server.away_until {
            return Err(SourceError::Lost("the server cannot be reached".into()));
        }
        if now < server.closed_until {
            return Err(SourceError::Access("password authentication failed".into()));
        }
        let found = identity(server.timeline);
        if let Resume::At { identity, start, .. } = resume {
            if *identity != found {
                return slot("another server answers at this address".into());
            }
            if *start > self.log.end {
                return slot(format!("WAL ends at {}, {start} was published", self.log.end));
            }
        }
        if !server.slot_is_there {
            return slot("the slot does not exist".into());
        }
        if server.is_held() || now < server.held_until {
            let pid = self.holder().and_then(|at| i32::try_from(at).ok());
            let is_own = matches!(resume, Resume::At { walsender, .. } if pid.is_some() && *walsender == pid);
            let holder = Holder { is_walpost: pid.is_some() && !is_own, mark: Mark::default() };
            let (slot, holder) = ("walpost".to_owned(), Some(Box::new(holder)));
            return Err(SourceError::InUse { slot, pid, holder });
        }
        let at_slot = server.confirmed;
        let (start, from, passed) = match resume {
            Resume::AtSlot { .. } => (at_slot, at_slot, false),
            Resume::At { confirmed, after_another: false, .. } if at_slot > *confirmed => {
                return slot(format!("moved from {confirmed} to {at_slot} by somebody else"));
            }
            Resume::At { confirmed, .. } if at_slot > *confirmed => (at_slot, at_slot, true),
            Resume::At { confirmed, start, .. } => (*confirmed, (*start).max(at_slot), false),
        };
        let session = self.server.sessions.len();
        self.server.sessions.push(SessionState {
            from,
            cursor: Cursor::default(),
            coming: VecDeque::new(),
            ended: false,
            offered: start,
            told: start,
            looked: Instant::now(),
            wake: Arc::default(),
            unattended_since: None,
            unattended: Duration::ZERO,
        });
        self.server.holder = Some(session);
        let end = self.log.end;
        self.note(Happened::Opened { process, session, start, from, passed, end });
        Ok(session)
    }
}

/// Where a relay's sessions come from.
#[derive(Clone)]
pub(crate) struct SimSource {
    pub(crate) world: Shared,
    pub(crate) process: usize,
}

impl Source for SimSource {
    type Feed = SimFeed;

    fn slot(&self) -> &'static str {
        "walpost"
    }

    async fn open(&self, resume: &Resume) -> Result<SimFeed, SourceError> {
        let before = self.world.lock().rng.u64(0..60);
        sleep(Duration::from_millis(before)).await;
        let feed = {
            let mut world = self.world.lock();
            let opened = world.open(self.process, resume);
            let session = opened.inspect_err(|error| {
                world.note(Happened::NotOpened { process: self.process, error: error.clone() });
            })?;
            SimFeed::new(&self.world, &world, session, resume)
        };
        let after = self.world.lock().rng.u64(0..20);
        sleep(Duration::from_millis(after)).await;
        if self.world.lock().server.sessions[feed.session].ended {
            return Err(SourceError::Lost("the session ended while it was opened".into()));
        }
        Ok(feed)
    }
}

/// A client's end of a session.
pub(crate) struct SimFeed {
    world: Shared,
    session: usize,
    wake: Arc<Notify>,
    identity: ServerIdentity,
    mark: Mark,
    start: Lsn,
    flushed: Lsn,
    tables: Vec<FoundTable>,
}

impl SimFeed {
    fn new(shared: &Shared, world: &World, session: usize, resume: &Resume) -> Self {
        let state = &world.server.sessions[session];
        let start = match resume {
            Resume::AtSlot { .. } => state.from,
            Resume::At { .. } => state.told,
        };
        Self {
            world: shared.clone(),
            session,
            wake: Arc::clone(&state.wake),
            identity: identity(world.server.timeline),
            mark: Mark::default(),
            start,
            flushed: world.log.end,
            tables: (0..OUTBOXES).map(|at| relation(at).into()).collect(),
        }
    }

    /// What has come, or the session's end.
    fn take(&self, reading: bool) -> Option<Result<Received, SourceError>> {
        let mut world = self.world.lock();
        let state = &mut world.server.sessions[self.session];
        let came = if reading { state.coming.pop_front() } else { None };
        let Some(came) = came else {
            let ended = || Err(SourceError::Lost("the session ended".into()));
            return state.ended.then(ended);
        };
        let told = match &came {
            Received::Keepalive(wal_end) => Some((*wal_end, "keepalive")),
            Received::Message(Message::Commit(commit)) => Some((commit.end_lsn, "commit")),
            Received::Message(Message::Begin(begin)) => Some((begin.commit_lsn, "begin")),
            Received::Message(_) => None,
        };
        if let Some((up_to, what)) = told {
            world.note(Happened::Took { session: self.session, up_to, what });
        }
        Some(Ok(came))
    }
}

impl Feed for SimFeed {
    fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    fn mark(&self) -> &Mark {
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
        let _attended = Attended::new(&self.world, self.session);
        loop {
            if let Some(came) = self.take(reading) {
                return came;
            }
            self.wake.notified().await;
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        self.take(true)
    }

    /// Always: so that the relay never puts the thread to sleep.
    fn is_backed_up(&mut self) -> bool {
        true
    }

    fn host(&self) -> &'static str {
        "simulated"
    }

    fn received_bytes(&self) -> u64 {
        0
    }

    fn slot_figures(&mut self) -> Option<SlotFigures> {
        None
    }

    fn backlog_bytes(&self) -> Option<u64> {
        None
    }

    fn turn(&mut self) -> Option<Turn> {
        None
    }

    fn confirm(&mut self, lsn: Lsn) {
        let mut world = self.world.lock();
        world.server.sessions[self.session].offered = lsn;
        world.look(self.session);
    }

    async fn finish(self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        {
            let mut world = self.world.lock();
            world.server.sessions[self.session].offered = lsn;
            world.confirm(self.session);
        }
        let noted = async {
            loop {
                let (confirmed, ended) = {
                    let world = self.world.lock();
                    (world.server.confirmed, world.server.sessions[self.session].ended)
                };
                if confirmed >= lsn {
                    return Ok(());
                }
                if ended {
                    return Err(SourceError::Lost("the session ended".into()));
                }
                self.wake.notified().await;
            }
        };
        let unseen = || Err(SourceError::Lost("not seen to arrive".into()));
        timeout(within, noted).await.unwrap_or_else(|_| unseen())
    }
}

impl Drop for SimFeed {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        let session = &world.server.sessions[self.session];
        let unattended_ms = u64::try_from(session.unattended.as_millis()).expect("short");
        world.note(Happened::LetGo { session: self.session, unattended_ms });
        if session_is_held(&world, self.session) {
            // A server may take its time to notice that its client has gone.
            let lingers = if world.one_in(4) { world.rng.u64(0..2000) } else { 0 };
            let until = world.now_ms() + lingers;
            world.server.held_until = world.server.held_until.max(until);
            world.server.lingers = Some(self.session);
            world.free_slot();
        }
    }
}

fn session_is_held(world: &World, session: usize) -> bool {
    world.server.holder == Some(session)
}

/// While somebody waits for the session to say something.
struct Attended<'a> {
    world: &'a Shared,
    session: usize,
}

impl<'a> Attended<'a> {
    fn new(world: &'a Shared, session: usize) -> Self {
        let mut locked = world.lock();
        let state = &mut locked.server.sessions[session];
        if let Some(since) = state.unattended_since.take() {
            state.unattended = state.unattended.max(since.elapsed());
        }
        Self { world, session }
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        world.server.sessions[self.session].unattended_since = Some(Instant::now());
    }
}

fn identity(timeline: u32) -> ServerIdentity {
    ServerIdentity { system_identifier: "7".to_owned(), timeline }
}
