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
use crate::source::identity::resume::Resume;

/// A stream takes over if the relay reads nothing from a catch-up for this long.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// The maximum number of messages of an open transaction at which the feed is switched immediately.
/// With more, it is switched after the commit: a stream reads the transaction from its start again,
/// so its records would be published twice.
const MAX_REPEATED_MESSAGES: u64 = 1000;

/// Minimum time between two advances of the slot, absolute and as a multiple of the last one's
/// duration: the server reads the WAL from the slot's `restart_lsn` for each.
const ADVANCE_INTERVAL: Duration = Duration::from_secs(1);
const ADVANCE_INTERVAL_FACTOR: u32 = 10;

/// How often an idle slot is used: far more often than `idle_replication_slot_timeout`, which is set
/// in minutes.
const TOUCH_INTERVAL: Duration = Duration::from_secs(20);

/// The position at which a feed starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPosition {
    /// The flush LSN.
    pub ack: Lsn,
    /// The position to read from: at or after the flush LSN.
    pub start: Lsn,
}

impl StartPosition {
    /// The start position on a slot that is confirmed up to `at_slot`.
    pub fn of(resume: &Resume, at_slot: Lsn) -> Self {
        match resume {
            // If another walpost advanced the slot, this one discards what it had read and reads it
            // again.
            Resume::At { confirmed, ack, start, .. } if at_slot <= *confirmed => {
                Self { ack: at_slot.max(*ack), start: *start }
            }
            Resume::At { .. } | Resume::AtSlot { .. } => Self { ack: at_slot, start: at_slot },
        }
    }

    /// Moves both positions back to `limit` if they lie after it.
    pub(in crate::source) fn at_most(self, limit: Lsn) -> Self {
        Self { ack: self.ack.min(limit), start: self.start.min(limit) }
    }

    /// Chooses the feed for a `backlog` that `catch_up` applies to; returns whether it is a
    /// catch-up. If a catch-up would cost too much, it is suspended.
    pub fn choose_catch_up(self, backlog: Backlog, catch_up: &CatchUp) -> bool {
        // A catch-up starts at the flush LSN: it would read records after it that are in flight a
        // second time.
        self.start == self.ack && catch_up.choose_batches(backlog)
    }

    /// The advance that brings the slot from `position` to the flush LSN, where its copy must start:
    /// a restarted server may have lost the last confirmed positions.
    pub fn first_advance(self, position: Lsn) -> Option<SlotAdvance> {
        (position < self.ack).then_some(SlotAdvance { from: position, to: self.ack })
    }
}

/// Detects a stream that falls behind because it is slow, not because the relay does not read it.
#[derive(Debug)]
pub struct LagDetector {
    catch_up: CatchUp,
    /// The stream's start position.
    start: Lsn,
    in_transaction: bool,
    /// The end of the last transaction received, or the position of a later keepalive.
    received: Lsn,
    /// The traffic received since the last sample, and the sample's start position.
    traffic: Traffic,
    sample_start: Lsn,
    /// Whether the relay did not read the stream at some time since the last measurement.
    was_paused: bool,
    is_behind: bool,
}

impl LagDetector {
    /// A detector for a stream that starts at `start`.
    pub fn new(catch_up: CatchUp, start: Lsn) -> Self {
        Self {
            catch_up,
            start,
            in_transaction: false,
            received: start,
            traffic: Traffic::default(),
            sample_start: start,
            was_paused: false,
            is_behind: false,
        }
    }

    /// Records a received message of `bytes` bytes, or a keepalive.
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

    /// Records that the relay polls the stream; with `reading` false it only waits for its end.
    pub fn polled(&mut self, reading: bool) {
        self.was_paused |= !reading;
    }

    /// Records the measured end of WAL, and the bytes of WAL that the server retains for the slot.
    pub fn measured(&mut self, wal_end: Lsn, retained: u64) {
        let unread = wal_end.bytes_since(self.received);
        let decoded_again = retained.saturating_sub(unread);
        let backlog = Backlog { decoded_again, unread, is_held: false };
        self.traffic.wal = self.received.bytes_since(self.sample_start);
        let is_first = self.traffic.messages > 0 && self.catch_up.traffic().is_none();
        if is_first || self.traffic.is_sample() {
            self.catch_up.record_traffic(std::mem::take(&mut self.traffic));
            self.sample_start = self.received;
        }
        let was_paused = std::mem::take(&mut self.was_paused);
        // After a switch within a transaction, or before the first one, the server would decode or
        // send the same WAL again.
        self.is_behind = self.received > self.start
            && !was_paused
            && !self.in_transaction
            && self.catch_up.applies_to(unread)
            && self.catch_up.costs_less_in_batches(backlog);
    }

    /// Whether a catch-up should take over.
    pub fn wanted_switch(&self) -> Option<SwitchFeed> {
        self.is_behind.then_some(SwitchFeed::Drained)
    }
}

/// The end of WAL, and the positions of the slot's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalPosition {
    /// The server's flush position.
    pub flushed: Lsn,
    /// The copy's `restart_lsn`: the server decodes from there for the next batch.
    pub restart: Lsn,
    /// Whether an open transaction keeps the `restart_lsn` from advancing.
    pub is_held: bool,
    /// Everything that committed before it was read.
    pub read: Lsn,
}

impl WalPosition {
    /// The backlog before the next batch.
    pub fn backlog(self) -> Backlog {
        Backlog::between(self.restart, self.read, self.flushed, self.is_held)
    }

    /// Whether the slot had been advanced past `from` when it was copied: the batches do not have
    /// what committed in between.
    pub fn starts_after(self, from: Lsn) -> bool {
        self.read > from
    }

    /// Whether at most `stream_tail_bytes` bytes of WAL are left, which a stream reads.
    pub fn is_near_end(self, stream_tail_bytes: u64) -> bool {
        self.flushed.bytes_since(self.read) <= stream_tail_bytes
    }
}

/// How far the relay has read a catch-up, and whether the catch-up is over.
#[derive(Debug)]
pub struct CatchupProgress {
    /// Messages read of an open transaction.
    open: u64,
    /// Since when the relay has read nothing.
    idle: Option<Instant>,
    is_over: bool,
    /// The start position, and the end of the last complete batch.
    start: Lsn,
    read: Lsn,
    /// The end of the last transaction that was read.
    committed: Lsn,
    catch_up: CatchUp,
}

impl CatchupProgress {
    /// The progress of a catch-up that starts at `start`.
    pub fn new(catch_up: CatchUp, start: Lsn) -> Self {
        let (read, committed) = (start, start);
        Self { open: 0, idle: None, is_over: false, start, read, committed, catch_up }
    }

    /// Records that the relay reads a message of a batch.
    pub fn message(&mut self, message: &Message) {
        self.idle = None;
        match message {
            Message::Commit(commit) => (self.open, self.committed) = (0, commit.end_lsn),
            _ => self.open += 1,
        }
    }

    /// Records the end of a batch: everything that committed before `upto` was read.
    pub fn read_up_to(&mut self, upto: Lsn) -> Received {
        self.read = self.read.max(upto);
        self.keepalive()
    }

    /// Ends the catch-up, since the backlog is nearly read.
    pub fn ended(&mut self) -> Received {
        self.catch_up.succeeded();
        self.is_over = true;
        self.keepalive()
    }

    /// Ends the catch-up, since a stream reads the `rest` at a lower cost.
    pub fn stream_costs_less(&mut self, rest: Backlog) -> Received {
        self.catch_up.stream_instead(rest);
        self.is_over = true;
        self.keepalive()
    }

    /// Ends the catch-up, since the server rejected it for this reason.
    pub fn refused(&mut self, reason: &str) -> Received {
        self.catch_up.refused(reason);
        self.is_over = true;
        self.keepalive()
    }

    /// Records a lost connection. If it was lost before the end of the first batch, catch-up is
    /// suspended: something may end every long-lived connection.
    pub fn connection_lost(&self) {
        if self.read == self.start {
            self.catch_up.refused("the connection was lost before the end of the first batch");
        }
    }

    /// The position up to which transactions were read, and the messages read of an open one.
    pub fn reached(&self) -> (Lsn, u64) {
        (self.read.max(self.committed), self.open)
    }

    /// A keepalive with the end of the last complete batch.
    pub fn keepalive(&self) -> Received {
        Received::Keepalive(self.read)
    }

    /// Has a stream follow: a comparison that a catch-up has not completed begins again, and another one
    /// might not complete it either.
    pub fn stream_next(&self) {
        self.catch_up.postpone();
    }

    /// Whether no more batches follow.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Records that the relay polls the feed; with `reading` false it only waits for its end.
    pub fn polled(&mut self, reading: bool, now: Instant) {
        if reading {
            self.idle = None;
        } else {
            self.idle.get_or_insert(now);
        }
    }

    /// Whether a stream should take over. It waits for buffered rows, and for an advance of the slot
    /// in progress: the next session would find the slot in use.
    pub fn wanted_switch(
        &mut self,
        has_rows: bool,
        is_advancing: bool,
        now: Instant,
    ) -> Option<SwitchFeed> {
        if self.is_over {
            return (!has_rows && !is_advancing).then_some(SwitchFeed::Now);
        }
        let idle = self.idle.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if idle < IDLE_LIMIT || self.open >= MAX_REPEATED_MESSAGES {
            return None;
        }
        // The open transaction may be the only undelivered one: the next session would otherwise
        // start with a catch-up of the same transaction.
        self.catch_up.postpone();
        Some(SwitchFeed::Now)
    }
}

/// An advance of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotAdvance {
    /// The slot's position, as far as this feed knows.
    pub from: Lsn,
    /// The new position. If the slot is past it, another client advanced it.
    pub to: Lsn,
}

/// Schedules the advances of the slot to acknowledged positions.
#[derive(Debug)]
pub struct SlotAdvanceSchedule {
    /// The slot's position.
    at: Lsn,
    wanted: Lsn,
    /// When the next advance may start.
    next: Instant,
    /// When the slot must be used again, if the server invalidates idle slots.
    touch: Option<Instant>,
    /// Since when another client uses the slot: a further attempt is due, whatever is wanted.
    in_use_since: Option<Instant>,
    /// Since when an advance is in progress.
    since: Option<Instant>,
}

impl SlotAdvanceSchedule {
    /// The schedule for a slot whose position is `at`. If the server may invalidate idle slots, the
    /// slot is used regularly.
    pub fn new(at: Lsn, keeps_idle_slots: bool, now: Instant) -> Self {
        let touch = (!keeps_idle_slots).then(|| now + TOUCH_INTERVAL);
        Self {
            at,
            wanted: at,
            next: now + ADVANCE_INTERVAL,
            touch,
            in_use_since: None,
            since: None,
        }
    }

    /// Requests an advance to `lsn`: everything before it was read and is durable.
    pub fn want(&mut self, lsn: Lsn) {
        self.wanted = self.wanted.max(lsn);
    }

    /// When the next advance is due, if any is.
    pub fn due(&self) -> Option<Instant> {
        let is_wanted = self.wanted > self.at || self.in_use_since.is_some();
        let due = if is_wanted { Some(self.next) } else { self.touch };
        due.filter(|_| self.since.is_none()).map(|due| due.max(self.next))
    }

    /// Starts the next advance.
    pub fn begin(&mut self, now: Instant) -> SlotAdvance {
        self.since = Some(now);
        SlotAdvance { from: self.at, to: self.wanted }
    }

    /// Records the end of the advance, with the slot's new position unless it failed.
    pub fn ended(&mut self, position: Option<Lsn>, now: Instant) {
        if let Some(since) = self.since.take() {
            let took = now.saturating_duration_since(since);
            self.next = now + ADVANCE_INTERVAL.max(took * ADVANCE_INTERVAL_FACTOR);
            self.touch = self.touch.map(|_| now + TOUCH_INTERVAL);
        }
        self.at = position.unwrap_or(self.at);
    }

    /// Records whether another client uses the slot.
    pub fn in_use(&mut self, is_in_use: bool, now: Instant) {
        self.in_use_since = is_in_use.then(|| self.in_use_since.unwrap_or(now));
    }

    /// Since when another client uses the slot, if one does.
    pub fn in_use_since(&self) -> Option<Instant> {
        self.in_use_since
    }

    /// Whether an advance is in progress.
    pub fn is_advancing(&self) -> bool {
        self.since.is_some()
    }

    /// The slot's position.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// The position that the slot is to have: everything before it was read and is durable.
    pub fn wanted(&self) -> Lsn {
        self.wanted
    }

    /// Lets the next advance start without delay.
    pub fn hurry(&mut self, now: Instant) {
        self.next = now;
    }

    /// Whether the slot's known position is `lsn` or later.
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

    /// A feed that the relay stops reading after `messages` messages of an open transaction.
    fn paused_within(messages: u64, catch_up: &CatchUp) -> (CatchupProgress, Instant) {
        let (mut progress, now) =
            (CatchupProgress::new(catch_up.clone(), Lsn::new(1)), Instant::now());
        (0..messages).for_each(|_| progress.message(&Message::Origin));
        progress.polled(false, now);
        (progress, now)
    }

    #[test]
    fn unread_catch_up_switches_to_a_stream_and_is_suspended() {
        let catch_up = CatchUp::above(1000);
        let (mut progress, now) = paused_within(1, &catch_up);
        assert_eq!(progress.wanted_switch(true, false, now + Duration::from_secs(9)), None);
        assert!(catch_up.applies_to(1001));
        assert_eq!(progress.wanted_switch(true, false, now + LONG), Some(SwitchFeed::Now));
        assert!(!catch_up.applies_to(1 << 30), "a stream holds the slot");
        progress.polled(true, now + LONG);
        assert_eq!(progress.wanted_switch(true, false, now + LONG), None, "the relay reads again");
    }

    #[test]
    fn large_open_transaction_is_read_to_its_commit_before_a_switch() {
        let (mut progress, now) = paused_within(MAX_REPEATED_MESSAGES, &CatchUp::above(0));
        assert_eq!(progress.wanted_switch(true, false, now + LONG), None);
        let (commit_lsn, end_lsn, commit_time) = (Lsn::new(5), Lsn::new(6), PgTimestamp::default());
        progress.message(&Message::Commit(Commit { commit_lsn, end_lsn, commit_time }));
        assert_eq!(
            progress.wanted_switch(true, false, now + LONG),
            None,
            "the relay has read a message"
        );
        progress.polled(false, now);
        assert_eq!(progress.wanted_switch(true, false, now + LONG), Some(SwitchFeed::Now));
    }

    #[test]
    fn switch_waits_for_buffered_rows_and_for_an_advance_in_progress() {
        let mut progress = CatchupProgress::new(CatchUp::above(0), Lsn::new(1));
        assert_eq!(progress.read_up_to(Lsn::new(9)), Received::Keepalive(Lsn::new(9)));
        assert_eq!(progress.ended(), Received::Keepalive(Lsn::new(9)));
        let now = Instant::now();
        let switches = [(true, false), (false, true), (false, false)]
            .map(|(has_rows, is_advancing)| progress.wanted_switch(has_rows, is_advancing, now));
        assert_eq!(switches, [None, None, Some(SwitchFeed::Now)]);
    }

    #[test]
    fn reached_position_is_the_last_commit_or_the_end_of_the_batch() {
        let mut progress = CatchupProgress::new(CatchUp::above(0), Lsn::new(1));
        progress.message(&Message::Origin);
        assert_eq!(progress.reached(), (Lsn::new(1), 1));
        let (commit_lsn, end_lsn, commit_time) = (Lsn::new(5), Lsn::new(6), PgTimestamp::default());
        progress.message(&Message::Commit(Commit { commit_lsn, end_lsn, commit_time }));
        assert_eq!(progress.reached(), (Lsn::new(6), 0));
        progress.read_up_to(Lsn::new(9));
        assert_eq!(progress.reached(), (Lsn::new(9), 0));
    }

    #[test]
    fn catch_up_is_near_its_end_once_only_the_stream_tail_is_left() {
        let position = |flushed, read| {
            let restart = Lsn::new(1);
            WalPosition {
                flushed: Lsn::new(flushed),
                restart,
                is_held: false,
                read: Lsn::new(read),
            }
        };
        assert!(position(20, 10).is_near_end(10) && !position(21, 10).is_near_end(10));
        assert!(position(20, 11).starts_after(Lsn::new(10)), "another client advanced the slot");
        assert!(!position(20, 10).starts_after(Lsn::new(10)));
    }

    /// A stream from 0 that has received `messages` messages up to `read`, between transactions.
    fn streamed(catch_up: &CatchUp, messages: u64, read: u64) -> LagDetector {
        let mut lag = LagDetector::new(catch_up.clone(), Lsn::ZERO);
        for _ in 0..messages {
            lag.received(&Received::Message(Message::Origin), 100);
        }
        lag.received(&Received::Keepalive(Lsn::new(read)), 0);
        lag
    }

    #[test]
    fn lagging_stream_switches_to_catch_up_if_batches_cost_less() {
        // Messages in the last 32 MiB, MiB retained before the unread WAL, and MiB unread.
        for (messages, retained, unread, switches) in [
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
            lag.measured(Lsn::new((32 + unread) * MIB), (retained + unread) * MIB);
            assert_eq!(lag.wanted_switch().is_some(), switches, "{messages} {retained} {unread}");
        }
    }

    #[test]
    fn catch_up_that_costs_more_than_a_stream_is_suspended() {
        let catch_up = CatchUp::above(1000);
        let position = StartPosition { ack: Lsn::new(20 * MIB), start: Lsn::new(20 * MIB) };
        let backlog =
            |restart| Backlog::between(Lsn::new(restart), position.ack, Lsn::new(40 * MIB), false);
        assert!(!position.choose_catch_up(backlog(0), &catch_up), "much WAL is decoded again");
        assert!(!catch_up.applies_to(u64::MAX), "it is suspended");
        let catch_up = CatchUp::above(1000);
        assert!(position.choose_catch_up(backlog(20 * MIB), &catch_up));
        assert!(catch_up.applies_to(u64::MAX));
        let ahead = StartPosition { start: Lsn::new(21 * MIB), ..position };
        assert!(!ahead.choose_catch_up(backlog(20 * MIB), &catch_up), "records are in flight");
        assert!(catch_up.applies_to(u64::MAX));
        let mut progress = CatchupProgress::new(catch_up.clone(), position.ack);
        assert_eq!(progress.stream_costs_less(backlog(0)), Received::Keepalive(position.ack));
        assert_eq!(progress.wanted_switch(false, false, Instant::now()), Some(SwitchFeed::Now));
        assert!(!catch_up.applies_to(u64::MAX));
    }
}
