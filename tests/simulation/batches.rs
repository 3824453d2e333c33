//! The simulated server's side of catch-up reads: a temporary copy of the slot that is read ahead,
//! and the slot's advances.
//!
//! A copy starts at the slot's position at its creation, whoever advanced it to there, and ends
//! with its session. The end of WAL is read first, and a batch reads up to it. An advance holds the
//! slot while it runs, even if its client has disconnected.

use std::collections::VecDeque;

use walpost::Lsn;
use walpost::pgoutput::Message;
use walpost::source::{Backlog, CatchUp, Move, Received, SourceError, Traffic, WalPosition};

use crate::server::{UNDER_WAY, in_use, missing, moved};
use crate::trace::{InjectedFault, TraceEvent};
use crate::world::World;

/// What a session has for its client.
#[derive(Debug)]
pub(crate) enum ServerMessage {
    Streamed(Received),
    /// A message of a batch.
    Row(Message),
    /// A batch has ended.
    ReadUpTo(WalPosition),
    /// Little is left.
    Over,
    /// A stream reads the rest for less.
    StreamPays(Backlog),
    /// The server will not continue so.
    Refused,
    Failed(SourceError),
}

/// Reads batches of a copy.
#[derive(Debug)]
pub(crate) struct Reader {
    catch_up: CatchUp,
    from: Lsn,
    /// Where the copy stands, once it is made.
    copy: Option<Lsn>,
    /// From where on the server decodes for each batch.
    restart: Lsn,
    /// What was seen before the next batch.
    stand: Option<WalPosition>,
    /// Decoded, and not sent yet.
    rows: VecDeque<Message>,
    has_read: bool,
    is_over: bool,
}

/// A move of the slot, asked for by a session.
#[derive(Debug)]
pub(crate) struct Moving {
    session: usize,
    one: Move,
    /// When the server comes to it, and how long it takes then.
    begins_ms: u64,
    takes_ms: u64,
    ends_ms: Option<u64>,
}

impl Reader {
    /// Of a copy that is expected to begin at `from`.
    pub(crate) fn new(catch_up: CatchUp, from: Lsn) -> Self {
        Self {
            catch_up,
            from,
            copy: None,
            restart: from,
            stand: None,
            rows: VecDeque::new(),
            has_read: false,
            is_over: false,
        }
    }
}

impl Moving {
    /// Whether it has the slot.
    pub(crate) fn has_begun(&self) -> bool {
        self.ends_ms.is_some()
    }

    pub(crate) fn session(&self) -> usize {
        self.session
    }
}

impl World {
    /// Reads on for who has the lock; how long to rest then.
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
        if reader.is_over || state.coming.len() >= UNDER_WAY {
            return;
        }
        if let Some(row) = reader.rows.pop_front() {
            return state.coming.push_back(ServerMessage::Row(row));
        }
        let Some(copy) = reader.copy else {
            let refused = self.server.refuses && rng.u8(0..3) == 0;
            if refused || !self.server.slot_is_there {
                self.server.refuses = false;
                reader.is_over = true;
                return state.coming.push_back(ServerMessage::Refused);
            }
            reader.copy = Some(self.server.confirmed);
            return;
        };
        let Some(stand) = reader.stand.take() else {
            if rng.bool() {
                // The server has written a record of running transactions.
                reader.restart = copy;
            }
            let (flushed, restart, is_held) = (self.log.end, reader.restart, rng.bool());
            let stand = WalPosition { flushed, restart, is_held, read: copy };
            reader.stand = Some(stand);
            if !reader.has_read && stand.begins_beyond(reader.from) {
                reader.is_over = true;
                state.coming.push_back(ServerMessage::Failed(moved(reader.from, stand.read)));
            } else if reader.has_read {
                state.coming.push_back(ServerMessage::ReadUpTo(stand));
                if stand.is_near_the_end(reader.catch_up.little()) {
                    reader.is_over = true;
                    state.coming.push_back(ServerMessage::Over);
                } else if stand.backlog().is_dear_in_batches(reader.catch_up.traffic()) {
                    reader.is_over = true;
                    state.coming.push_back(ServerMessage::StreamPays(stand.backlog()));
                }
            }
            return;
        };
        let end = stand.backlog().batch(copy, reader.catch_up.traffic());
        let most = rng.usize(1..=self.schedule.limit);
        let (mut messages, read) = self.log.batch(rng, copy, end.upto, most);
        if !messages.is_empty() && std::mem::take(&mut self.server.refuses) {
            // In the midst of it.
            messages.truncate(rng.usize(0..=messages.len()));
            state.coming.extend(messages.into_iter().map(ServerMessage::Row));
            state.coming.push_back(ServerMessage::Refused);
            reader.is_over = true;
            return;
        }
        let (wal, count) = (read.bytes_since(copy), messages.len() as u64);
        reader.catch_up.came(Traffic { wal, messages: count, bytes: 100 * count });
        reader.rows = messages.into();
        (reader.copy, reader.has_read) = (Some(read), true);
    }

    /// A session asks for a move of the slot.
    pub(crate) fn ask_for_move(&mut self, session: usize, one: Move) {
        self.note(TraceEvent::Confirmed { session, lsn: one.to });
        self.may_be_advanced_by_a_foreign_client();
        let late = if self.one_in(3) { 600 } else { 30 };
        let begins_ms = self.now_ms() + self.rng.u64(0..late);
        let takes_ms = self.server.move_ms.take().unwrap_or_else(|| self.rng.u64(0..100));
        self.server.moves.push(Moving { session, one, begins_ms, takes_ms, ends_ms: None });
    }

    /// Where the schedule has it, an operator moves the slot when it matters.
    pub(crate) fn may_be_advanced_by_a_foreign_client(&mut self) {
        let may_be = !self.calm && self.schedule.faults.contains(&InjectedFault::SlotMoved);
        if may_be && self.one_in(6) {
            self.inject(InjectedFault::SlotMoved);
        }
    }

    /// Lets moves begin and end.
    pub(crate) fn move_slot(&mut self) {
        let now = self.now_ms();
        for mut moving in std::mem::take(&mut self.server.moves) {
            match moving.ends_ms {
                None if now >= moving.begins_ms => match self.may_move(moving.one) {
                    Ok(()) => {
                        moving.ends_ms = Some(now + moving.takes_ms);
                        self.server.moves.push(moving);
                    }
                    Err(error) => self.has_moved(moving.session, Err(error)),
                },
                Some(ends_ms) if now >= ends_ms => {
                    let moved = self.advance_slot(moving.one.to);
                    if moved.is_ok() {
                        self.note(TraceEvent::Advanced { session: moving.session });
                    }
                    self.has_moved(moving.session, moved);
                }
                _ => self.server.moves.push(moving),
            }
        }
    }

    /// Whether the slot is free, and not beyond where whoever moves it takes it to be.
    pub(crate) fn may_move(&self, one: Move) -> Result<(), SourceError> {
        if !self.server.slot_is_there {
            return Err(SourceError::Slot(missing()));
        }
        if self.server.confirmed > one.at {
            return Err(moved(one.at, self.server.confirmed));
        }
        if self.slot_is_in_use() { Err(in_use()) } else { Ok(()) }
    }

    /// As PostgreSQL does it: not backwards, and not beyond the log.
    pub(crate) fn advance_slot(&mut self, to: Lsn) -> Result<Lsn, SourceError> {
        if to < self.server.confirmed {
            return Err(SourceError::Lost("55000: cannot advance backwards".into()));
        }
        let stands = to.min(self.log.end);
        self.set_slot(stands);
        if stands < to {
            return Err(SourceError::Lost(format!("was to move to {to}, and stands at {stands}")));
        }
        Ok(stands)
    }

    fn has_moved(&mut self, session: usize, moved: Result<Lsn, SourceError>) {
        let state = &mut self.server.sessions[session];
        state.moved = Some(moved);
        state.wake.notify_one();
    }
}
