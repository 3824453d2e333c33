//! Guarantees of the two feeds and of switching between them: nothing is lost, nothing is
//! duplicated unless it was interrupted, and no process continues after another client has advanced
//! the slot.

use std::collections::HashSet;

use walpost::Lsn;
use walpost::record::Policy;

use super::{Checker, Process, Verdict};
use crate::trace::{Left, Why};
use crate::wal::{Item, Poison};

/// For how long a stream holds the slot after nothing was taken of a batch, at least.
const HELD_MS: u64 = 10_000;

/// What a process has had of its feeds.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a matter of its own")]
pub(super) struct Feeds {
    in_batches: bool,
    /// How the last one was left, and when.
    left: Option<(u64, Left)>,
    /// It was left for another although the process was asked to stop.
    left_late: bool,
    broke: bool,
    /// Somebody else has moved the slot since it began.
    is_moved: bool,
    /// The last session, counted from one, that was cut off: what it had begun may come twice.
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

    pub(super) fn in_batches(&self) -> bool {
        self.in_batches
    }

    /// Whether what was produced in that session, counted from one, may come again.
    pub(super) fn may_repeat(&self, then: usize) -> bool {
        then <= self.cut_off
    }

    pub(super) fn moved_by_somebody(&mut self) {
        self.is_moved = true;
    }

    /// The session moved the slot.
    pub(super) fn advanced(&self) -> Verdict {
        if self.in_batches && self.is_moved {
            return Err("I12: it goes on where somebody else has moved the slot".into());
        }
        Ok(())
    }
}

/// What begins.
pub(super) struct Opened {
    pub(super) start: Lsn,
    pub(super) from: Lsn,
    /// It begins where the slot is, whatever the process had before.
    pub(super) anew: bool,
    pub(super) in_batches: bool,
}

impl Checker<'_> {
    /// A feed begins where another left off, and is the one that it should be.
    pub(super) fn feed_opened(&mut self, now_ms: u64, process: usize, opened: &Opened) -> Verdict {
        let Opened { start, from, anew, in_batches } = *opened;
        let begins = |item: &Item| item.commit().is_none_or(|commit| commit < start);
        let first = self.log.items.iter().take_while(|item| begins(item)).count();
        let Process { feeds, opened, .. } = self.process(process);
        let left = feeds.left.take().filter(|_| !feeds.broke);
        feeds.broke = false;
        feeds.is_moved = false;
        feeds.in_batches = in_batches;
        if !matches!(left, Some((_, Left::Turned { within: false, .. }))) {
            feeds.cut_off = *opened - 1;
        }
        if anew {
            feeds.covered = first;
        }
        if in_batches && from != start {
            return Err(format!("I5: batches are read from {from}, and the flush LSN is {start}"));
        }
        match left {
            Some((
                _,
                Left::Turned { why: Why::Behind | Why::Over | Why::StreamCostsLess, within: true },
            )) => Err("I5: a feed gives way to another within a transaction".into()),
            Some((_, Left::Turned { why: Why::Behind, .. })) if from != start && !anew => {
                Err("I5: a stream gives way to batches with records in flight".into())
            }
            Some((then, Left::Turned { why: Why::Idle, .. }))
                if in_batches && now_ms < then + HELD_MS =>
            {
                Err("nothing is taken, and nobody holds the slot".into())
            }
            _ => Ok(()),
        }
    }

    /// What a process confirms it has delivered itself, since it began, or continued behind
    /// another: a slot that someone has moved on passes nothing over unseen.
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
                return Err(format!("I12: {lsn} is confirmed, and event {event} never came"));
            }
            feeds.covered += 1;
        }
        Ok(())
    }
}
