//! The simulated PostgreSQL: one slot, and the clients that stream from it or read batches from a
//! copy.
//!
//! The rules are PostgreSQL's own. A transaction is sent if and only if its commit LSN is at or after
//! the start position, and a start position before the slot's is raised to it. Confirmations arrive
//! late, or never. A server that crashes returns to a saved position. A second client gets an error
//! that the slot is in use, even if the first one is dead and that is not detected yet. During a
//! catch-up no session holds the slot, but its name is locked.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use walpost::Lsn;
use walpost::source::{
    Backlog, CatchUp, Holder, HolderKind, PublicationFingerprint, Received, Resume, ServerIdentity,
    SlotError, SourceError, StartPosition,
};

use crate::batches::{Moving, Reader, ServerMessage};
use crate::trace::TraceEvent;
use crate::wal::Cursor;
use crate::world::{Shared, World};

/// The slot and its database.
pub(crate) const SLOT: &str = "walpost";
const DATABASE: &str = "shop";

/// Maximum messages in transit between walsender and client.
pub(crate) const UNDER_WAY: usize = 64;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) confirmed: Lsn,
    /// The saved position, which a crash restores.
    saved: Lsn,
    /// Until when, in milliseconds, it is unreachable, or rejects logins.
    pub(crate) away_until: u64,
    pub(crate) closed_until: u64,
    /// Until when a client that is gone holds the slot.
    pub(crate) held_until: u64,
    pub(crate) slot_is_there: bool,
    pub(crate) timeline: u32,
    /// The start time of its postmaster.
    started: i64,
    /// Whether the next batch is rejected, and how long the next advance of the slot takes.
    pub(crate) refuses: bool,
    pub(crate) move_ms: Option<u64>,
    /// The session that streams from the slot.
    holder: Option<usize>,
    /// The dead session that the server still takes to be alive.
    lingers: Option<usize>,
    /// The session that holds the lock of its name; a dead one, and until when it counts as alive.
    pub(crate) lock: Option<usize>,
    lock_lingers: Option<(usize, u64)>,
    /// Requested advances of the slot.
    pub(crate) moves: Vec<Moving>,
    pub(crate) sessions: Vec<SessionState>,
}

/// A copy of the stopped server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    items: usize,
    end: Lsn,
    confirmed: Lsn,
    timeline: u32,
}

#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) from: Lsn,
    cursor: Cursor,
    /// Sent, and not read by the client.
    pub(crate) unread: VecDeque<ServerMessage>,
    pub(crate) ended: bool,
    /// What the client may confirm, and what the session has confirmed of it at its last check. In a
    /// catch-up, the slot may be advanced to it.
    pub(crate) offered: Lsn,
    pub(crate) confirmable: Lsn,
    looked: Instant,
    pub(crate) wake: Arc<Notify>,
    pub(crate) unattended_since: Option<Instant>,
    pub(crate) unattended: Duration,
    /// The reader of batches, once it has started.
    pub(crate) reader: Option<Reader>,
    /// The result of the last advance of the slot, until it is read.
    pub(crate) moved: Option<Result<Lsn, SourceError>>,
}

/// What was observed of the slot before it is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) start_position: StartPosition,
    at_slot: Lsn,
    passed: bool,
    pub(crate) in_batches: bool,
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
            started: 1,
            refuses: false,
            move_ms: None,
            holder: None,
            lingers: None,
            lock: None,
            lock_lingers: None,
            moves: Vec::new(),
            sessions: Vec::new(),
        }
    }

    /// A client that is not walpost holds the slot.
    pub(crate) fn forget_the_last(&mut self) {
        self.lingers = None;
    }

    /// Whether the slot is in use.
    pub(crate) fn is_held(&self) -> bool {
        self.holder.is_some() || self.moves.iter().any(Moving::has_begun)
    }

    /// A checkpoint: it saves this position.
    pub(crate) fn save(&mut self) {
        self.saved = self.confirmed;
    }
}

/// Runs the walsender and the checkpointer until the schedule ends.
pub(crate) async fn serve(world: Shared) {
    loop {
        let nap = world.lock().serve();
        sleep(Duration::from_millis(nap)).await;
    }
}

impl World {
    /// Sends messages and processes confirmations; returns the pause in milliseconds.
    fn serve(&mut self) -> u64 {
        if self.one_in(30) {
            self.server.save();
        }
        self.move_slot();
        if let Some(at) = self.server.lock {
            return self.serve_batches(at);
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
            if session.unread.len() >= UNDER_WAY {
                break;
            }
            if self.rng.u64(0..often) == 0 {
                let sent = self.log.sent(&session.cursor).max(session.from);
                session.unread.push_back(ServerMessage::Streamed(Received::Keepalive(sent)));
            }
            let Some(message) = self.log.send(&mut session.cursor, session.from) else {
                all = true;
                break;
            };
            session.unread.push_back(ServerMessage::Streamed(message));
        }
        let idle = all && self.server.confirmed >= self.log.end;
        if all && self.rng.u8(0..3) == 0 {
            session.unread.push_back(ServerMessage::Streamed(Received::Keepalive(self.log.end)));
        }
        session.wake.notify_one();
        if idle { self.rng.u64(20..200) } else { self.rng.u64(1..25) }
    }

    /// The session confirms what it may, if it is due.
    pub(crate) fn look(&mut self, at: usize) {
        let rest = Duration::from_millis(self.schedule.looks_ms);
        let session = &mut self.server.sessions[at];
        if session.looked.elapsed() >= rest && session.confirmable != session.offered {
            session.looked = Instant::now();
            self.confirm(at);
        }
    }

    pub(crate) fn confirm(&mut self, session: usize) {
        let is_stream = self.server.holder == Some(session);
        let state = &mut self.server.sessions[session];
        let lsn = state.offered;
        if std::mem::replace(&mut state.confirmable, lsn) != lsn && is_stream {
            self.note(TraceEvent::Confirmed { session, lsn });
        }
        self.server.sessions[session].wake.notify_one();
    }

    /// The confirmation of the session's client arrives.
    fn take_note(&mut self, at: usize) {
        let confirmable = self.server.sessions[at].confirmable;
        if confirmable > self.server.confirmed {
            self.set_slot(confirmable);
        }
        self.server.sessions[at].wake.notify_one();
    }

    pub(crate) fn set_slot(&mut self, confirmed: Lsn) {
        self.server.confirmed = confirmed;
        self.note(TraceEvent::Slot { confirmed });
    }

    /// A client that is not walpost advances the slot, if it is not past that position.
    pub(crate) fn foreign_client_sets_the_slot(&mut self, to: Lsn) {
        if to <= self.server.confirmed {
            return;
        }
        self.note(TraceEvent::Moved { to });
        self.set_slot(to);
        // `walpost adopt` refuses while a walpost works with the slot: then it is for after its end.
        if self.server.lock.is_none() {
            self.adopt();
        }
    }

    /// The open session, if any, is lost; messages in transit may still arrive.
    pub(crate) fn end_session(&mut self) {
        let Some(at) = self.server.holder.or(self.server.lock.take()) else { return };
        self.free_slot();
        let session = &mut self.server.sessions[at];
        let left = self.rng.usize(0..=session.unread.len());
        session.unread.truncate(left);
        session.ended = true;
        session.wake.notify_one();
        self.note(TraceEvent::Broke { session: at });
    }

    /// The stream ends; its last confirmation may still have arrived.
    fn free_slot(&mut self) {
        let Some(at) = self.server.holder.take() else { return };
        if self.one_in(2) {
            self.take_note(at);
        }
    }

    /// The server crashes, and loses what it had not saved.
    pub(crate) fn restart_server(&mut self, away_ms: u64) {
        self.end_session();
        self.server.away_until = self.now_ms() + away_ms;
        self.server.moves.clear();
        self.server.lock_lingers = None;
        self.server.confirmed = self.server.saved;
        let confirmed = self.server.confirmed;
        self.note(TraceEvent::Fell { confirmed });
    }

    /// A snapshot is made, or the server is set back to it once no process is left.
    pub(crate) fn save_or_restore(&mut self) {
        if self.snapshot.is_some() {
            self.is_restored = true;
            self.restore_if_all_ended();
        } else if self.server.slot_is_there {
            self.snapshot = Some(Snapshot {
                items: self.log.items.len(),
                end: self.log.end,
                confirmed: self.server.saved,
                timeline: self.server.timeline,
            });
        }
    }

    pub(crate) fn restore_if_all_ended(&mut self) {
        if !self.is_restored || self.running > 0 {
            return;
        }
        self.is_restored = false;
        let Some(snapshot) = self.snapshot.take() else { return };
        let Snapshot { items, end, confirmed, timeline } = snapshot;
        self.server.saved = confirmed;
        self.restart_server(0);
        self.server.held_until = 0;
        self.lost.push(self.log.clone());
        self.log.restore(items, end);
        self.server.slot_is_there = true;
        self.server.timeline = timeline;
        self.server.started += 1;
        self.note(TraceEvent::Restored { items, confirmed });
    }

    /// The session that holds the slot, even if its client is gone; `None` if a client that is not
    /// walpost holds it.
    fn holder(&self) -> Option<usize> {
        let moving = || self.server.moves.iter().find(|moving| moving.has_begun());
        let lingers = self.server.lingers.filter(|_| self.now_ms() < self.server.held_until);
        self.server.holder.or(lingers).or_else(|| Some(moving()?.session()))
    }

    fn reached(&self) -> Result<(), SourceError> {
        if self.now_ms() < self.server.away_until {
            return Err(SourceError::Lost("the server cannot be reached".into()));
        }
        if self.now_ms() < self.server.closed_until {
            return Err(SourceError::Access("password authentication failed".into()));
        }
        Ok(())
    }

    pub(crate) fn slot_is_in_use(&self) -> bool {
        self.server.is_held() || self.now_ms() < self.server.held_until
    }

    /// What is observed before the slot is used, or why no session is opened.
    pub(crate) fn look_at_slot(
        &self,
        resume: &Resume,
        catch_up: &CatchUp,
    ) -> Result<Look, SourceError> {
        self.reached()?;
        let server = &self.server;
        let known = match resume {
            Resume::At { identity, start, seen, .. } => Some((identity, (*start).max(*seen))),
            Resume::AtSlot { waited } => {
                waited.as_ref().map(|waited| (&waited.identity, waited.confirmed))
            }
        };
        if let Some((identity, start)) = known {
            if !identity.has_history_of(&self.identity()) {
                let found = Box::new(self.identity());
                let known = Box::new(identity.clone());
                return slot(SlotError::OtherServer { found, known, confirmed: start });
            }
            if start > self.log.end {
                let (flushed, database) = (self.log.end, DATABASE.to_owned());
                return slot(SlotError::WalBehind { flushed, database, published: start });
            }
        }
        if !server.slot_is_there {
            return slot(missing());
        }
        if self.slot_is_in_use() {
            return Err(self.in_use_by(self.holder(), resume));
        }
        let at_slot = server.confirmed;
        let passed = match resume {
            Resume::At { confirmed, after_another: false, .. } if at_slot > *confirmed => {
                return Err(moved(*confirmed, at_slot));
            }
            Resume::At { confirmed, .. } => at_slot > *confirmed,
            Resume::AtSlot { .. } => false,
        };
        let start_position = StartPosition::of(resume, at_slot);
        let backlog = Backlog::between(at_slot, start_position.ack, self.log.end, false);
        let in_batches = catch_up.applies_to(backlog.unread)
            && start_position.choose_catch_up(backlog, catch_up);
        Ok(Look { start_position, at_slot, passed, in_batches })
    }

    /// Opens a session that holds the slot or the lock of its name, or says why not.
    pub(crate) fn open(
        &mut self,
        process: usize,
        resume: &Resume,
        look: Look,
    ) -> Result<usize, SourceError> {
        self.reached()?;
        if !self.server.slot_is_there {
            return slot(missing());
        }
        let now = self.now_ms();
        let gone = self.server.lock_lingers.filter(|(_, until)| now < *until);
        // A session holds the lock until its last advance is over.
        let moving = self.server.moves.first().map(Moving::session);
        if let Some(at) = self.server.lock.or(gone.map(|(at, _)| at)).or(moving) {
            return Err(self.in_use_by(Some(at), resume));
        }
        if self.slot_is_in_use() {
            return Err(in_use());
        }
        let Look { start_position, at_slot, passed, in_batches } = look;
        let (confirmed, seen) = (self.server.confirmed, at_slot.max(start_position.ack));
        if confirmed > seen {
            return Err(match resume {
                Resume::At { after_another: false, .. } => moved(seen, confirmed),
                _ => SourceError::Lost("the slot was advanced meanwhile".into()),
            });
        }
        let session = self.server.sessions.len();
        let (start, from) = (start_position.ack, start_position.start.max(confirmed));
        self.server.sessions.push(SessionState {
            from,
            cursor: Cursor::default(),
            unread: VecDeque::new(),
            ended: false,
            offered: start,
            confirmable: start,
            looked: Instant::now(),
            wake: Arc::default(),
            unattended_since: None,
            unattended: Duration::ZERO,
            reader: None,
            moved: None,
        });
        if in_batches {
            self.server.lock = Some(session);
        } else {
            self.server.holder = Some(session);
        }
        let (end, resumes) = (self.log.end, matches!(resume, Resume::At { .. }));
        self.note(TraceEvent::Opened {
            process,
            session,
            start,
            from,
            passed,
            end,
            resumes,
            in_batches,
        });
        Ok(session)
    }

    /// The client of the session is gone: the server may detect that late.
    pub(crate) fn release(&mut self, session: usize) {
        let lingers = if self.one_in(4) { self.rng.u64(0..2000) } else { 0 };
        let until = self.now_ms() + lingers;
        if self.server.holder == Some(session) {
            self.server.held_until = self.server.held_until.max(until);
            self.server.lingers = Some(session);
            self.free_slot();
        } else if self.server.lock == Some(session) {
            self.server.lock = None;
            self.server.lock_lingers = Some((session, until));
        }
    }

    /// The error of walpost, which has checked who uses the slot.
    fn in_use_by(&self, session: Option<usize>, resume: &Resume) -> SourceError {
        let pid = session.and_then(|at| i32::try_from(at).ok());
        let is_own =
            matches!(resume, Resume::At { walsender, .. } if pid.is_some() && *walsender == pid);
        let holder = Holder {
            kind: if pid.is_some() && !is_own { HolderKind::Walpost } else { HolderKind::Unknown },
            other_role: None,
            fingerprint: PublicationFingerprint::default(),
            identity: self.identity(),
            confirmed: self.server.confirmed,
            flushed: Lsn::ZERO,
        };
        let (slot, holder) = (SLOT.to_owned(), Some(Box::new(holder)));
        SourceError::InUse { slot, pid, holder }
    }

    pub(crate) fn identity(&self) -> ServerIdentity {
        let timeline = self.server.timeline;
        let postmaster_start = self.server.started;
        ServerIdentity { system_identifier: "7".to_owned(), timeline, postmaster_start }
    }
}

fn slot<T>(error: SlotError) -> Result<T, SourceError> {
    Err(SourceError::Slot(error))
}

/// The slot was dropped.
pub(crate) fn missing() -> SlotError {
    SlotError::Missing { slot: SLOT.to_owned(), database: DATABASE.to_owned() }
}

/// The slot was advanced by another client.
pub(crate) fn moved(confirmed: Lsn, found: Lsn) -> SourceError {
    SourceError::Slot(SlotError::Advanced { slot: SLOT.to_owned(), confirmed, found })
}

/// The error of the server.
pub(crate) fn in_use() -> SourceError {
    SourceError::InUse { slot: SLOT.to_owned(), pid: None, holder: None }
}
