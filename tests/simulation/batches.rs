//! The simulated server's side of catch-up reads: a temporary copy of the slot that is read ahead,
//! and the slot's advances.
//!
//! A copy starts at the position of the slot when it is created, and is dropped with its session.
//! The end of WAL is read first, and a batch reads up to it. An advance holds the slot while it runs,
//! even if its client has disconnected.

use std::collections::VecDeque;

use walpost::Lsn;
use walpost::pgoutput::Message;
use walpost::source::{Backlog, CatchUp, Received, SlotAdvance, SourceError, Traffic, WalPosition};

use crate::server::{UNDER_WAY, in_use, missing, moved};
use crate::trace::{InjectedFault, TraceEvent};
use crate::world::World;

/// What a session has for its client.
#[derive(Debug)]
pub(crate) enum ServerMessage {
    Streamed(Received),
    /// A message of a batch.
    Row(Message),
    /// The end of a batch.
    ReadUpTo(WalPosition),
    /// The backlog is nearly read.
    Over,
    /// A stream reads the rest at a lower cost.
    StreamCostsLess(Backlog),
    /// The server rejects the catch-up.
    Refused,
    Failed(SourceError),
}

/// Reads batches of a copy.
#[derive(Debug)]
pub(crate) struct Reader {
    catch_up: CatchUp,
    from: Lsn,
    /// The copy's position, once it is created.
    copy: Option<Lsn>,
    /// The copy's `restart_lsn`.
    restart: Lsn,
    /// The positions that were read before the next batch.
    position: Option<WalPosition>,
    /// Messages that are decoded and not sent yet.
    rows: VecDeque<Message>,
    has_read: bool,
    is_over: bool,
}

/// An advance of the slot that a session requested.
#[derive(Debug)]
pub(crate) struct Moving {
    session: usize,
    advance: SlotAdvance,
    /// When the server starts it, and how long it takes then.
    begins_ms: u64,
    takes_ms: u64,
    ends_ms: Option<u64>,
}

impl Reader {
    /// A reader of a copy that should start at `from`.
    pub(crate) fn new(catch_up: CatchUp, from: Lsn) -> Self {
        Self {
            catch_up,
            from,
            copy: None,
            restart: from,
            position: None,
            rows: VecDeque::new(),
            has_read: false,
            is_over: false,
        }
    }
}

impl Moving {
    /// Whether it holds the slot.
    pub(crate) fn has_begun(&self) -> bool {
        self.ends_ms.is_some()
    }

    pub(crate) fn session(&self) -> usize {
        self.session
    }
}

impl World {
    /// Continues reading for the session with the lock; returns the pause in milliseconds.
    pub(crate) fn serve_batches(&mut self, at: usize) -> u64 {
        self.look(at);
        for _ in 0..self.rng.usize(0..=self.schedule.burst) {
            self.read_on(at);
        }
        self.server.sessions[at].wake.notify_one();
        self.rng.u64(1..25)
    }

    /// One step of the reader.
    fn read_on(&mut self, at: usize) {
        let (rng, state) = (&mut self.rng, &mut self.server.sessions[at]);
        let Some(reader) = &mut state.reader else { return };
        if reader.is_over || state.unread.len() >= UNDER_WAY {
            return;
        }
        if let Some(row) = reader.rows.pop_front() {
            return state.unread.push_back(ServerMessage::Row(row));
        }
        let Some(copy) = reader.copy else {
            let refused = self.server.refuses && rng.u8(0..3) == 0;
            if refused || !self.server.slot_is_there {
                self.server.refuses = false;
                reader.is_over = true;
                return state.unread.push_back(ServerMessage::Refused);
            }
            reader.copy = Some(self.server.confirmed);
            return;
        };
        let Some(position) = reader.position.take() else {
            if rng.bool() {
                // The server has written an `XLOG_RUNNING_XACTS` record.
                reader.restart = copy;
            }
            let (flushed, restart, is_held) = (self.log.end, reader.restart, rng.bool());
            let position = WalPosition { flushed, restart, is_held, read: copy };
            reader.position = Some(position);
            if !reader.has_read && position.starts_after(reader.from) {
                reader.is_over = true;
                state.unread.push_back(ServerMessage::Failed(moved(reader.from, position.read)));
            } else if reader.has_read {
                state.unread.push_back(ServerMessage::ReadUpTo(position));
                if position.is_near_end(reader.catch_up.stream_tail_bytes()) {
                    reader.is_over = true;
                    state.unread.push_back(ServerMessage::Over);
                } else if position.backlog().costs_less_as_stream(reader.catch_up.traffic()) {
                    reader.is_over = true;
                    state.unread.push_back(ServerMessage::StreamCostsLess(position.backlog()));
                }
            }
            return;
        };
        let end = position.backlog().next_batch(copy, reader.catch_up.traffic());
        let most = rng.usize(1..=self.schedule.limit);
        let (mut messages, read) = self.log.batch(rng, copy, end.upto, most);
        if !messages.is_empty() && std::mem::take(&mut self.server.refuses) {
            // Within the batch.
            messages.truncate(rng.usize(0..=messages.len()));
            state.unread.extend(messages.into_iter().map(ServerMessage::Row));
            state.unread.push_back(ServerMessage::Refused);
            reader.is_over = true;
            return;
        }
        let (wal, count) = (read.bytes_since(copy), messages.len() as u64);
        reader.catch_up.record_traffic(Traffic { wal, messages: count, bytes: 100 * count });
        reader.rows = messages.into();
        (reader.copy, reader.has_read) = (Some(read), true);
    }

    /// Requests an advance of the slot for a session.
    pub(crate) fn request_advance(&mut self, session: usize, advance: SlotAdvance) {
        self.note(TraceEvent::Confirmed { session, lsn: advance.to });
        self.may_be_advanced_by_a_foreign_client();
        let late = if self.one_in(3) { 600 } else { 30 };
        let begins_ms = self.now_ms() + self.rng.u64(0..late);
        let takes_ms = self.server.move_ms.take().unwrap_or_else(|| self.rng.u64(0..100));
        self.server.moves.push(Moving { session, advance, begins_ms, takes_ms, ends_ms: None });
    }

    /// If the schedule has this fault, an operator may advance the slot at a critical moment.
    pub(crate) fn may_be_advanced_by_a_foreign_client(&mut self) {
        let may_be = !self.calm && self.schedule.faults.contains(&InjectedFault::SlotMoved);
        if may_be && self.one_in(6) {
            self.inject(InjectedFault::SlotMoved);
        }
    }

    /// Starts and ends advances that are due.
    pub(crate) fn move_slot(&mut self) {
        let now = self.now_ms();
        for mut moving in std::mem::take(&mut self.server.moves) {
            match moving.ends_ms {
                None if now >= moving.begins_ms => match self.may_advance(moving.advance) {
                    Ok(()) => {
                        moving.ends_ms = Some(now + moving.takes_ms);
                        self.server.moves.push(moving);
                    }
                    Err(error) => self.has_moved(moving.session, Err(error)),
                },
                Some(ends_ms) if now >= ends_ms => {
                    let moved = self.advance_slot(moving.advance.to);
                    if moved.is_ok() {
                        self.note(TraceEvent::Advanced { session: moving.session });
                    }
                    self.has_moved(moving.session, moved);
                }
                _ => self.server.moves.push(moving),
            }
        }
    }

    /// Fails if the slot is in use, or past the position that the client expects.
    pub(crate) fn may_advance(&self, advance: SlotAdvance) -> Result<(), SourceError> {
        if !self.server.slot_is_there {
            return Err(SourceError::Slot(missing()));
        }
        if self.server.confirmed > advance.to {
            return Err(moved(advance.from, self.server.confirmed));
        }
        if self.slot_is_in_use() { Err(in_use()) } else { Ok(()) }
    }

    /// Advances the slot as PostgreSQL does: not backwards, and not past the end of WAL.
    pub(crate) fn advance_slot(&mut self, to: Lsn) -> Result<Lsn, SourceError> {
        if to < self.server.confirmed {
            return Err(SourceError::Lost("55000: cannot advance backwards".into()));
        }
        let position = to.min(self.log.end);
        self.set_slot(position);
        if position < to {
            let short = format!("was to be advanced to {to}, but the position is {position}");
            return Err(SourceError::Lost(short));
        }
        Ok(position)
    }

    fn has_moved(&mut self, session: usize, moved: Result<Lsn, SourceError>) {
        let state = &mut self.server.sessions[session];
        state.moved = Some(moved);
        state.wake.notify_one();
    }
}
