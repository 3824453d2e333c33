//! Guarantees of the two feeds and of switching between them: nothing is lost, nothing is
//! duplicated unless it was interrupted, and no process continues after another client has advanced
//! the slot.

use std::collections::HashSet;

use walpost::Lsn;
use walpost::record::Policy;

use super::{Checker, Process, Verdict};
use crate::trace::{Left, Why};
use crate::wal::{Item, Poison};

/// Minimum time for which a stream holds the slot after an unread catch-up.
const HELD_MS: u64 = 10_000;

/// The state of a process's feeds.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct Feeds {
    in_batches: bool,
    /// How and when the last one was closed.
    left: Option<(u64, Left)>,
    /// Whether it was switched although the process was asked to stop.
    left_late: bool,
    broke: bool,
    /// Where another client has advanced the slot to since it started.
    moved_to: Lsn,
    /// Whether the producer was replaced since it was left.
    is_replay: bool,
    /// The last session, counted from one, that was lost: what it had started may be repeated.
    cut_off: usize,
    /// Events that this process has produced itself; all transactions before that index are
    /// seen to be, or were another's.
    own: HashSet<usize>,
    covered: usize,
}

impl Feeds {
    pub(super) fn broke(&mut self) {
        self.broke = true;
    }

    /// The producer is another one: the feed was not left for the sake of another.
    pub(super) fn is_replayed(&mut self) {
        self.is_replay = true;
    }

    pub(super) fn was_left(&mut self, now_ms: u64, left: Left, was_told: bool) {
        self.left = Some((now_ms, left));
        self.left_late = was_told && !self.broke && matches!(left, Left::Turned { .. });
    }

    pub(super) fn was_left_late(&self) -> bool {
        self.left_late
    }

    pub(super) fn produced(&mut self, event: usize) {
        self.own.insert(event);
    }

    /// The transactions before that one are committed with the position in the state topic, perhaps by
    /// another process.
    pub(super) fn committed_before(&mut self, item: usize) {
        self.covered = self.covered.max(item);
    }

    pub(super) fn in_batches(&self) -> bool {
        self.in_batches
    }

    /// Whether what was produced in that session, counted from one, may be repeated.
    pub(super) fn may_repeat(&self, then: usize) -> bool {
        then <= self.cut_off
    }

    pub(super) fn moved_by_somebody(&mut self, to: Lsn) {
        self.moved_to = self.moved_to.max(to);
    }

    /// Records that the session advanced the slot to what it has delivered.
    pub(super) fn advanced(&self, confirmed: Lsn) -> Verdict {
        if self.in_batches && self.moved_to > confirmed {
            return Err("I12: it continues after another client has advanced the slot".into());
        }
        Ok(())
    }
}

/// A feed that starts.
pub(super) struct Opened {
    pub(super) start: Lsn,
    pub(super) from: Lsn,
    /// Whether it starts at the slot's position, without the state of the process.
    pub(super) anew: bool,
    pub(super) in_batches: bool,
}

impl Process {
    /// Its producer is replaced: a replay follows, also if the last feed wanted to be switched.
    pub(super) fn discarded(&mut self) {
        self.whole = Lsn::ZERO;
        self.feeds.is_replayed();
    }
}

impl Checker<'_> {
    /// A feed starts where the previous one ended, and is of the right kind.
    pub(super) fn feed_opened(&mut self, now_ms: u64, process: usize, opened: &Opened) -> Verdict {
        let Opened { start, from, anew, in_batches } = *opened;
        let begins = |item: &Item| item.commit().is_none_or(|commit| commit < start);
        let first = self.log.items.iter().take_while(|item| begins(item)).count();
        let Process { feeds, opened, .. } = self.process(process);
        let left = feeds.left.take().filter(|_| !feeds.broke);
        feeds.broke = false;
        feeds.moved_to = Lsn::ZERO;
        let is_replay = std::mem::take(&mut feeds.is_replay);
        feeds.in_batches = in_batches;
        if !matches!(left, Some((_, Left::Turned { within: false, .. }))) {
            feeds.cut_off = *opened - 1;
        }
        if anew {
            feeds.covered = first;
        }
        if in_batches && from != start {
            return Err(format!("I5: batches are read from {from}, but the flush LSN is {start}"));
        }
        match left {
            Some((
                _,
                Left::Turned { why: Why::Behind | Why::Over | Why::StreamCostsLess, within: true },
            )) if !is_replay => Err("I5: a feed is switched within a transaction".into()),
            Some((_, Left::Turned { why: Why::Behind, .. }))
                if from != start && !anew && !is_replay =>
            {
                Err("I5: a stream is switched to a catch-up with records in flight".into())
            }
            Some((then, Left::Turned { why: Why::Idle, .. }))
                if in_batches && now_ms < then + HELD_MS =>
            {
                Err("the relay reads nothing, and no session holds the slot".into())
            }
            _ => Ok(()),
        }
    }

    /// A process confirms only what it has delivered itself since it started or took over from
    /// another: it detects events that another client has skipped by advancing the slot.
    pub(super) fn own_cover(&mut self, process: usize, lsn: Lsn) -> Verdict {
        let (log, policy) = (self.log, self.schedule.policy);
        let Process { feeds, .. } = self.process(process);
        while let Some(item) = log.items.get(feeds.covered) {
            if item.commit().map_or(item.end() > lsn, |commit| commit >= lsn) {
                break;
            }
            let is_skipped =
                |event: &usize| policy == Policy::Skip && log.events[*event].poison != Poison::None;
            let mut events = item.events();
            if let Some(event) = events.find(|it| !feeds.own.contains(it) && !is_skipped(it)) {
                return Err(format!(
                    "I12: {lsn} is confirmed, but event {event} was never received"
                ));
            }
            feeds.covered += 1;
        }
        Ok(())
    }
}
