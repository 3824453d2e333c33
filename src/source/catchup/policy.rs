//! Decides which feed reads the WAL, from which position, and when to switch to the other one.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::cost::{Backlog, Traffic};
use crate::lsn::Lsn;
use crate::pgoutput::Message;
use crate::source::config::CatchUp;
use crate::source::feed::{Received, SwitchFeed};
use crate::source::resume::Resume;

/// How long nothing may be taken before a stream has to hold the slot.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Messages of an open transaction above which it is read to its end before a switch: a stream
/// starts the transaction over, and its records would be published twice.
const REPEATED: u64 = 1000;

/// Least time between two advances of the slot, absolute and as a multiple of the last one's
/// duration: for each the server reads the WAL again from the slot's `restart_lsn`.
const MOVE_INTERVAL: Duration = Duration::from_secs(1);
const MOVE_SHARE: u32 = 10;

/// How often an idle slot is used: well within `idle_replication_slot_timeout`, which is set in
/// minutes.
const TOUCH_INTERVAL: Duration = Duration::from_secs(20);

/// The position at which a feed starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPosition {
    /// The flush LSN.
    pub ack: Lsn,
    /// Where reading starts: at or after the flush LSN.
    pub start: Lsn,
}

impl StartPosition {
    /// On a slot that is confirmed up to `at_slot`.
    pub fn of(resume: &Resume, at_slot: Lsn) -> Self {
        match resume {
            // If another walpost advanced the slot, what this one had read beyond is discarded and
            // read again.
            Resume::At { confirmed, start, .. } if at_slot <= *confirmed => {
                Self { ack: *confirmed, start: *start }
            }
            Resume::At { .. } | Resume::AtSlot { .. } => Self { ack: at_slot, start: at_slot },
        }
    }

    /// Whether to catch up, with `backlog` behind the flush LSN. A catch-up starts at the flush LSN,
    /// so it would read records beyond it that are in flight a second time.
    pub fn is_for_batches(self, backlog: Backlog, catch_up: &CatchUp) -> bool {
        if self.start != self.ack || !catch_up.is_for(backlog.unread) {
            return false;
        }
        let is_worth_it = catch_up.is_worth_a_trial(backlog);
        if !is_worth_it {
            catch_up.leave(backlog);
        }
        is_worth_it
    }

    /// The advance that brings the slot from `stands` to the flush LSN, where a copy of it has to
    /// start: a restarted server may have forgotten its last positions.
    pub fn first_move(self, stands: Lsn) -> Option<Move> {
        (stands < self.ack).then_some(Move { at: stands, to: self.ack })
    }
}

/// Detects a stream that has fallen behind since it is slow, not since it was not read.
#[derive(Debug)]
pub struct LagDetector {
    catch_up: CatchUp,
    /// Where the stream started.
    start: Lsn,
    in_transaction: bool,
    /// The end of the last transaction that came, or a keepalive's position.
    received: Lsn,
    /// What has come since that of before was noted, and from where on.
    traffic: Traffic,
    since: Lsn,
    /// Whether the stream was not read for a while since the last measurement.
    was_held_back: bool,
    is_behind: bool,
}

impl LagDetector {
    /// For a stream that starts at `start`.
    pub fn new(catch_up: CatchUp, start: Lsn) -> Self {
        Self {
            catch_up,
            start,
            in_transaction: false,
            received: start,
            traffic: Traffic::default(),
            since: start,
            was_held_back: false,
            is_behind: false,
        }
    }

    /// The stream received this, a message of so many bytes.
    pub fn received(&mut self, received: &Received, bytes: usize) {
        if let Received::Message(_) = received {
            self.traffic.messages += 1;
            self.traffic.bytes += bytes as u64;
        }
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

    /// The end of WAL was measured, and how much WAL the server keeps for the slot.
    pub fn looked(&mut self, wal_end: Lsn, retained: u64) {
        let unread = wal_end.bytes_since(self.received);
        let decoded_again = retained.saturating_sub(unread);
        let backlog = Backlog { decoded_again, unread, is_held: false };
        self.traffic.wal = self.received.bytes_since(self.since);
        let is_first = self.traffic.messages > 0 && self.catch_up.traffic().is_none();
        if is_first || self.traffic.is_sample() {
            self.catch_up.came(std::mem::take(&mut self.traffic));
            self.since = self.received;
        }
        let was_held_back = std::mem::take(&mut self.was_held_back);
        // Within a transaction, or before the first one, a switch would make the server send or read
        // the same WAL again.
        self.is_behind = self.received > self.start
            && !was_held_back
            && !self.in_transaction
            && self.catch_up.is_for(unread)
            && self.catch_up.pays(backlog);
    }

    /// Whether a catch-up has to take over.
    pub fn turn(&self) -> Option<SwitchFeed> {
        self.is_behind.then_some(SwitchFeed::Drained)
    }
}

/// The end of WAL, and the positions of the slot's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalPosition {
    /// The server's flush position.
    pub flushed: Lsn,
    /// Where the server begins to decode for the next batch.
    pub restart: Lsn,
    /// Whether an open transaction keeps it there.
    pub is_held: bool,
    /// Everything that committed before it was handed out.
    pub read: Lsn,
}

impl WalPosition {
    /// What lies before the next batch.
    pub fn backlog(self) -> Backlog {
        Backlog::between(self.restart, self.read, self.flushed, self.is_held)
    }

    /// Whether the slot had been advanced beyond `from` when the copy was made: what committed in
    /// between is in no batch.
    pub fn begins_beyond(self, from: Lsn) -> bool {
        self.read > from
    }

    /// Whether at most `little` bytes of WAL are left, which a stream reads.
    pub fn is_near_the_end(self, little: u64) -> bool {
        self.flushed.bytes_since(self.read) <= little
    }
}

/// What a catch-up has handed out, and whether it is over.
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

    /// Everything that committed before `upto` was handed out; only the reader knows that.
    pub fn read_up_to(&mut self, upto: Lsn) -> Received {
        self.read = self.read.max(upto);
        self.stands()
    }

    /// No more batches follow: little is left.
    pub fn ended(&mut self) -> Received {
        self.catch_up.succeeded();
        self.is_over = true;
        self.stands()
    }

    /// No more batches follow: a stream reads the rest for less.
    pub fn left(&mut self, rest: Backlog) -> Received {
        self.catch_up.leave(rest);
        self.is_over = true;
        self.stands()
    }

    /// The server refuses to be read in batches, for that reason.
    pub fn refused(&mut self, reason: &str) -> Received {
        self.catch_up.refused(reason);
        self.is_over = true;
        self.stands()
    }

    /// The connection is lost. If not even one batch was complete, the next may not be either, since
    /// something may end each connection that takes long.
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

    /// Whether a stream has to take over. Not while rows wait to be handed out, nor while the slot is
    /// being advanced: the next session would find it in use.
    pub fn turn(&mut self, has_rows: bool, is_moving: bool, now: Instant) -> Option<SwitchFeed> {
        if self.is_over {
            return (!has_rows && !is_moving).then_some(SwitchFeed::Now);
        }
        let idle = self.idle.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if idle < IDLE_LIMIT || self.open >= REPEATED {
            return None;
        }
        // The open transaction may be the only undelivered one: without this the next session could
        // begin with a catch-up of the same transaction.
        self.catch_up.postpone();
        Some(SwitchFeed::Now)
    }
}

/// An advance of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The slot's position, or a lower one: a higher one means that another client advanced it.
    pub at: Lsn,
    /// The new position.
    pub to: Lsn,
}

/// When the slot is advanced behind the acknowledgements.
#[derive(Debug)]
pub struct SlotAdvanceSchedule {
    /// The slot's position.
    at: Lsn,
    wanted: Lsn,
    /// When the next advance may begin.
    next: Instant,
    /// When the slot has to be used again, if the server invalidates idle slots.
    touch: Option<Instant>,
    /// Since when an advance is in progress.
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

    /// The slot's position.
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

    const MIB: u64 = 1 << 20;
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
        let backlog = Backlog::between(Lsn::new(1), Lsn::new(1), Lsn::new(1 << 30), false);
        assert!(!outset.is_for_batches(backlog, &catch_up), "a stream holds the slot");
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
    fn a_catch_up_is_near_the_end_once_little_is_left() {
        let stand = |flushed, read| {
            let restart = Lsn::new(1);
            WalPosition {
                flushed: Lsn::new(flushed),
                restart,
                is_held: false,
                read: Lsn::new(read),
            }
        };
        assert!(stand(20, 10).is_near_the_end(10) && !stand(21, 10).is_near_the_end(10));
        assert!(stand(20, 11).begins_beyond(Lsn::new(10)), "somebody has moved the slot");
        assert!(!stand(20, 10).begins_beyond(Lsn::new(10)));
    }

    /// A stream from 0 that has read to `read`: so many messages, between transactions.
    fn streamed(catch_up: &CatchUp, messages: u64, read: u64) -> LagDetector {
        let mut lag = LagDetector::new(catch_up.clone(), Lsn::ZERO);
        for _ in 0..messages {
            lag.received(&Received::Message(Message::Type), 100);
        }
        lag.received(&Received::Keepalive(Lsn::new(read)), 0);
        lag
    }

    #[test]
    fn a_stream_that_is_behind_gives_way_where_batches_cost_the_server_less() {
        // Messages of the last 32 MiB, what is kept for the slot beyond what is unread, and unread.
        for (messages, kept, unread, turns) in [
            (200_000, 0, 32, true),
            (200_000, 32, 32, true),
            (200_000, 2000, 32, false),
            (2000, 1, 500, true),
            (2000, 100, 500, false),
            (0, 1, 500, false),
            (200_000, 0, 15, false),
        ] {
            let catch_up = CatchUp::above(16 * MIB);
            let mut lag = streamed(&catch_up, messages, 32 * MIB);
            lag.looked(Lsn::new((32 + unread) * MIB), (kept + unread) * MIB);
            assert_eq!(lag.turn().is_some(), turns, "{messages} {kept} {unread}");
        }
    }

    #[test]
    fn a_catch_up_that_costs_more_than_a_stream_is_left_alone_for_a_while() {
        let catch_up = CatchUp::above(1000);
        let outset = StartPosition { ack: Lsn::new(20 * MIB), start: Lsn::new(20 * MIB) };
        let ahead =
            |restart| Backlog::between(Lsn::new(restart), outset.ack, Lsn::new(40 * MIB), false);
        assert!(!outset.is_for_batches(ahead(0), &catch_up), "much is decoded again");
        assert!(!outset.is_for_batches(ahead(20 * MIB), &catch_up), "it has just been left");
        let catch_up = CatchUp::above(1000);
        assert!(outset.is_for_batches(ahead(20 * MIB), &catch_up));
        let mut handed = CatchupProgress::new(catch_up.clone(), outset.ack);
        assert_eq!(handed.left(ahead(0)), Received::Keepalive(outset.ack));
        assert_eq!(handed.turn(false, false, Instant::now()), Some(SwitchFeed::Now));
        assert!(!outset.is_for_batches(ahead(20 * MIB), &catch_up));
    }
}
