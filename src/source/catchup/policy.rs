//! By which feed the log is read, from where, and when one gives way to the other.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::lsn::Lsn;
use crate::pgoutput::Message;
use crate::source::config::CatchUp;
use crate::source::feed::{Received, SwitchFeed};
use crate::source::resume::Resume;

/// How much of the log a batch reads at most, in bytes: where it is other tables' log,
/// rows do not end it.
const RANGE: u64 = 256 << 20;

/// For how long nothing may be taken before a stream is to hold the slot.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Messages of an open transaction from which on it is read to its end first: a stream begins
/// with all of it again, and records would come twice.
const REPEATED: u64 = 1000;

/// Least time between two moves of the slot, and how many times as long as the last one
/// took: for each the server reads the log again from where decoding would have to begin.
const MOVE_INTERVAL: Duration = Duration::from_secs(1);
const MOVE_SHARE: u32 = 10;

/// How often the slot is used where it does not move: `idle_replication_slot_timeout` is more.
const TOUCH_INTERVAL: Duration = Duration::from_secs(20);

/// From where a feed goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPosition {
    /// A.
    pub ack: Lsn,
    /// From where is read: at or after A.
    pub start: Lsn,
}

impl StartPosition {
    /// On a slot that stands at `at_slot`.
    pub fn of(resume: &Resume, at_slot: Lsn) -> Self {
        match resume {
            // Where another walpost has moved it on, what this one had read beyond is of no
            // account any more, and comes again.
            Resume::At { confirmed, start, .. } if at_slot <= *confirmed => {
                Self { ack: *confirmed, start: *start }
            }
            Resume::At { .. } | Resume::AtSlot { .. } => Self { ack: at_slot, start: at_slot },
        }
    }

    /// Whether it is for batches, in a log that ends at `flushed`: they begin at A, and what
    /// is in flight beyond would be read again.
    pub fn is_for_batches(self, flushed: Lsn, catch_up: &CatchUp) -> bool {
        self.start == self.ack && catch_up.is_for(self.behind(flushed))
    }

    /// How many bytes of log are not confirmed.
    pub fn behind(self, flushed: Lsn) -> u64 {
        flushed.as_u64().saturating_sub(self.ack.as_u64())
    }

    /// The move that brings a slot that stands at `stands` to A, from where a copy of it is to
    /// read: a server that was restarted may have forgotten its last positions.
    pub fn first_move(self, stands: Lsn) -> Option<Move> {
        (stands < self.ack).then_some(Move { at: stands, to: self.ack })
    }
}

/// Whether a stream has fallen behind for being slow, rather than for being held back.
#[derive(Debug)]
pub struct LagDetector {
    catch_up: CatchUp,
    /// Where it began.
    start: Lsn,
    in_transaction: bool,
    /// The end of the last transaction that came, or a keepalive's position.
    received: Lsn,
    /// Whether nothing was to be read for a while since the server was last looked at.
    was_held_back: bool,
    is_behind: bool,
}

impl LagDetector {
    /// Of a stream that begins at `start`.
    pub fn new(catch_up: CatchUp, start: Lsn) -> Self {
        Self {
            catch_up,
            start,
            in_transaction: false,
            received: start,
            was_held_back: false,
            is_behind: false,
        }
    }

    /// The stream brought this.
    pub fn received(&mut self, received: &Received) {
        match received {
            Received::Message(Message::Begin(_)) => self.in_transaction = true,
            Received::Message(Message::Commit(commit)) => {
                (self.in_transaction, self.received) = (false, commit.end_lsn);
            }
            Received::Message(_) => {}
            Received::Keepalive(wal_end) => self.received = self.received.max(*wal_end),
        }
    }

    /// It is asked for what comes next; with `reading` false for its end only.
    pub fn asked(&mut self, reading: bool) {
        self.was_held_back |= !reading;
    }

    /// Where the log ended when the server was looked at.
    pub fn looked(&mut self, wal_end: Lsn) {
        let unread = wal_end.as_u64().saturating_sub(self.received.as_u64());
        let was_held_back = std::mem::take(&mut self.was_held_back);
        // What a stream has of a large transaction would have to be sent again; and what the
        // server reads before it hands out the first, to be read again.
        self.is_behind = self.received > self.start
            && !was_held_back
            && !self.in_transaction
            && self.catch_up.is_for(unread);
    }

    /// Whether batches are to take its place.
    pub fn turn(&self) -> Option<SwitchFeed> {
        self.is_behind.then_some(SwitchFeed::Drained)
    }
}

/// Where the log ends and where the copy stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalPosition {
    /// The log is flushed up to there.
    pub flushed: Lsn,
    /// All that committed before it was handed out.
    pub read: Lsn,
}

impl WalPosition {
    /// Up to where the next batch is to read.
    pub fn upto(self) -> Lsn {
        Lsn::new(self.flushed.as_u64().min(self.read.as_u64().saturating_add(RANGE)))
    }

    /// Whether the copy was made of a slot that somebody had moved on from `from`: what was
    /// committed between these is in no batch.
    pub fn begins_beyond(self, from: Lsn) -> bool {
        self.read > from
    }

    /// Whether no more than `little` bytes of log are left, which are for a stream.
    pub fn is_near_the_end(self, little: u64) -> bool {
        self.flushed.as_u64().saturating_sub(self.read.as_u64()) <= little
    }
}

/// What a feed of batches has handed out, and whether it is over.
#[derive(Debug)]
pub struct CatchupProgress {
    /// Messages of the transaction that is open.
    open: u64,
    /// Since when nothing is taken.
    idle: Option<Instant>,
    is_over: bool,
    /// From where, and up to where, was read.
    start: Lsn,
    read: Lsn,
    /// Where the last transaction that was handed out ends.
    committed: Lsn,
    catch_up: CatchUp,
}

impl CatchupProgress {
    /// Nothing yet, from `start` on.
    pub fn new(catch_up: CatchUp, start: Lsn) -> Self {
        let (read, committed) = (start, start);
        Self { open: 0, idle: None, is_over: false, start, read, committed, catch_up }
    }

    /// A message of a batch is handed out.
    pub fn message(&mut self, message: &Message) {
        self.idle = None;
        match message {
            Message::Commit(commit) => (self.open, self.committed) = (0, commit.end_lsn),
            _ => self.open += 1,
        }
    }

    /// All that committed before `upto` was handed out: nobody says so but who reads.
    pub fn read_up_to(&mut self, upto: Lsn) -> Received {
        self.read = self.read.max(upto);
        self.stands()
    }

    /// No more batches come: little is left.
    pub fn ended(&mut self) -> Received {
        self.catch_up.was_of_use();
        self.is_over = true;
        self.stands()
    }

    /// The server does not hand out the log in batches, for that reason.
    pub fn refused(&mut self, reason: &str) -> Received {
        self.catch_up.refused(reason);
        self.is_over = true;
        self.stands()
    }

    /// The connection is lost: where not even one batch came whole, the next may not either, since
    /// somebody may end each that takes long.
    pub fn lost(&self) {
        if self.read == self.start {
            self.catch_up.refused("the connection was lost before the first batch had come whole");
        }
    }

    /// Up to where transactions were handed out, and how many messages of one that is open.
    pub fn reached(&self) -> (Lsn, u64) {
        (self.read.max(self.committed), self.open)
    }

    /// Up to where was read.
    pub fn stands(&self) -> Received {
        Received::Keepalive(self.read)
    }

    /// Whether no more batches come.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// It is asked for what comes next; with `reading` false for its end only.
    pub fn asked(&mut self, reading: bool, now: Instant) {
        if reading {
            self.idle = None;
        } else {
            self.idle.get_or_insert(now);
        }
    }

    /// Whether a stream is to take its place. Not while it has rows that wait to be handed
    /// out, nor while the slot is moved: who comes next would find it in use by that.
    pub fn turn(&mut self, has_rows: bool, is_moving: bool, now: Instant) -> Option<SwitchFeed> {
        if self.is_over {
            return (!has_rows && !is_moving).then_some(SwitchFeed::Now);
        }
        let idle = self.idle.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if idle < IDLE_LIMIT || self.open >= REPEATED {
            return None;
        }
        // What is open may be all that is not delivered, and no sign of it is left then.
        self.catch_up.put_off();
        Some(SwitchFeed::Now)
    }
}

/// A move of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where it stands, or before: beyond it is where somebody else has moved it.
    pub at: Lsn,
    /// Where it is to stand.
    pub to: Lsn,
}

/// When the slot is moved on behind the acknowledgements.
#[derive(Debug)]
pub struct SlotAdvanceSchedule {
    /// Where the slot stands.
    at: Lsn,
    wanted: Lsn,
    /// When the next move may begin.
    next: Instant,
    /// When the slot has to be used again, where the server gives up one that is not.
    touch: Option<Instant>,
    /// Since when one is under way.
    since: Option<Instant>,
}

impl SlotAdvanceSchedule {
    /// Of a slot that stands at `at`; a server that does not keep idle slots is shown that
    /// this one is in use.
    pub fn new(at: Lsn, keeps_idle_slots: bool, now: Instant) -> Self {
        let touch = (!keeps_idle_slots).then(|| now + TOUCH_INTERVAL);
        Self { at, wanted: at, next: now + MOVE_INTERVAL, touch, since: None }
    }

    /// Everything before `lsn` is durable, and was handed out.
    pub fn want(&mut self, lsn: Lsn) {
        self.wanted = self.wanted.max(lsn);
    }

    /// When the next move is to begin, if any is.
    pub fn due(&self) -> Option<Instant> {
        let due = if self.wanted > self.at { Some(self.next) } else { self.touch };
        due.filter(|_| self.since.is_none()).map(|due| due.max(self.next))
    }

    /// The next move begins.
    pub fn begin(&mut self, now: Instant) -> Move {
        self.since = Some(now);
        Move { at: self.at, to: self.wanted }
    }

    /// The move has ended; where the slot stands then, unless it failed.
    pub fn ended(&mut self, stands: Option<Lsn>, now: Instant) {
        if let Some(since) = self.since.take() {
            let took = now.saturating_duration_since(since);
            self.next = now + MOVE_INTERVAL.max(took * MOVE_SHARE);
            self.touch = self.touch.map(|_| now + TOUCH_INTERVAL);
        }
        self.at = stands.unwrap_or(self.at);
    }

    /// Whether one is under way.
    pub fn is_under_way(&self) -> bool {
        self.since.is_some()
    }

    /// Where the slot stands.
    pub fn stands(&self) -> Lsn {
        self.at
    }

    /// The next one need not wait.
    pub fn hurry(&mut self, now: Instant) {
        self.next = now;
    }

    /// Whether the slot is known to stand at `lsn` or beyond.
    pub fn has_reached(&self, lsn: Lsn) -> bool {
        self.at >= lsn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::{Commit, PgTimestamp};

    const LONG: Duration = Duration::from_secs(11);

    /// A feed of which nothing is taken after so many messages of an open transaction.
    fn held_back_within(messages: u64, catch_up: &CatchUp) -> (CatchupProgress, Instant) {
        let (mut handed, now) =
            (CatchupProgress::new(catch_up.clone(), Lsn::new(1)), Instant::now());
        (0..messages).for_each(|_| handed.message(&Message::Type));
        handed.asked(false, now);
        (handed, now)
    }

    #[test]
    fn batches_that_nobody_takes_give_way_and_are_not_begun_again_at_once() {
        let catch_up = CatchUp::above(1000);
        let (mut handed, now) = held_back_within(1, &catch_up);
        assert_eq!(handed.turn(true, false, now + Duration::from_secs(9)), None);
        assert!(catch_up.is_for(1001));
        assert_eq!(handed.turn(true, false, now + LONG), Some(SwitchFeed::Now));
        let outset = StartPosition { ack: Lsn::new(1), start: Lsn::new(1) };
        assert!(!outset.is_for_batches(Lsn::new(1 << 30), &catch_up), "a stream holds the slot");
        handed.asked(true, now + LONG);
        assert_eq!(handed.turn(true, false, now + LONG), None, "it is taken again");
    }

    #[test]
    fn a_transaction_of_which_much_was_handed_out_is_read_to_its_end_first() {
        let (mut handed, now) = held_back_within(REPEATED, &CatchUp::above(0));
        assert_eq!(handed.turn(true, false, now + LONG), None);
        let (commit_lsn, end_lsn, commit_time) = (Lsn::new(5), Lsn::new(6), PgTimestamp::default());
        handed.message(&Message::Commit(Commit { commit_lsn, end_lsn, commit_time }));
        assert_eq!(handed.turn(true, false, now + LONG), None, "something was taken");
        handed.asked(false, now);
        assert_eq!(handed.turn(true, false, now + LONG), Some(SwitchFeed::Now));
    }

    #[test]
    fn a_feed_that_is_over_waits_for_its_last_rows_and_for_the_last_move_of_the_slot() {
        let mut handed = CatchupProgress::new(CatchUp::above(0), Lsn::new(1));
        assert_eq!(handed.read_up_to(Lsn::new(9)), Received::Keepalive(Lsn::new(9)));
        assert_eq!(handed.ended(), Received::Keepalive(Lsn::new(9)));
        let now = Instant::now();
        let turns = [(true, false), (false, true), (false, false)]
            .map(|(has_rows, is_moving)| handed.turn(has_rows, is_moving, now));
        assert_eq!(turns, [None, None, Some(SwitchFeed::Now)]);
    }

    #[test]
    fn what_was_reached_is_the_last_commit_within_a_batch_and_its_end_after_it() {
        let mut handed = CatchupProgress::new(CatchUp::above(0), Lsn::new(1));
        handed.message(&Message::Type);
        assert_eq!(handed.reached(), (Lsn::new(1), 1));
        let (commit_lsn, end_lsn, commit_time) = (Lsn::new(5), Lsn::new(6), PgTimestamp::default());
        handed.message(&Message::Commit(Commit { commit_lsn, end_lsn, commit_time }));
        assert_eq!(handed.reached(), (Lsn::new(6), 0));
        handed.read_up_to(Lsn::new(9));
        assert_eq!(handed.reached(), (Lsn::new(9), 0));
    }

    #[test]
    fn a_batch_reads_to_where_the_log_was_flushed_and_not_too_far() {
        let stand =
            |flushed, read| WalPosition { flushed: Lsn::new(flushed), read: Lsn::new(read) };
        assert_eq!(stand(1000, 10).upto(), Lsn::new(1000));
        assert_eq!(stand(1 << 40, 10).upto(), Lsn::new(10 + RANGE));
        assert!(stand(20, 10).is_near_the_end(10) && !stand(21, 10).is_near_the_end(10));
        assert!(stand(20, 11).begins_beyond(Lsn::new(10)), "somebody has moved the slot");
        assert!(!stand(20, 10).begins_beyond(Lsn::new(10)));
    }
}
