//! Which written position may be confirmed: one that the store cannot lose any more.
//!
//! A store may acknowledge a write before it has synced it, and lose it, with the events before it,
//! when its machine crashes. Until then PostgreSQL keeps the WAL, so walpost publishes them again.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::lsn::Lsn;

/// How many positions are remembered: as many parts of the time in which one may be lost.
const PARTS: u32 = 64;

/// The positions that were written.
#[derive(Debug, Default)]
pub(super) struct Kept {
    upto: Lsn,
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Pending {
    /// When the first of the positions that it stands for was written.
    since: Instant,
    /// When it is kept.
    at: Instant,
    upto: Lsn,
}

impl Kept {
    /// Everything before this LSN may be confirmed.
    pub(super) fn upto(&self) -> Lsn {
        self.upto
    }

    /// When the next position is kept.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pending.front().map(|pending| pending.at)
    }

    /// Takes the positions that are kept by now.
    pub(super) fn settle(&mut self, now: Instant) {
        while let Some(pending) = self.pending.front().filter(|pending| pending.at <= now) {
            self.upto = self.upto.max(pending.upto);
            self.pending.pop_front();
        }
    }

    /// The store has acknowledged a position that it may lose for that long.
    pub(super) fn written(&mut self, upto: Lsn, may_lose: Duration, now: Instant) {
        let at = now + may_lose;
        match self.pending.back_mut() {
            Some(last) if now - last.since < may_lose / PARTS => (last.at, last.upto) = (at, upto),
            _ => self.pending.push_back(Pending { since: now, at, upto }),
        }
        self.settle(now);
    }

    /// The store was opened, and has what this process has written last.
    pub(super) fn reopened(&mut self, upto: Lsn, may_lose: Duration, now: Instant) {
        self.pending.retain(|pending| pending.upto <= upto);
        if upto > self.pending.back().map_or(self.upto, |last| last.upto) {
            self.written(upto, may_lose, now);
        }
    }

    /// The store was opened, and has the position of another process, or has lost what was written
    /// last; the slot is confirmed up to `confirmed`.
    pub(super) fn opened(&mut self, upto: Lsn, confirmed: Lsn, may_lose: Duration, now: Instant) {
        self.pending.clear();
        self.upto = self.upto.max(confirmed).min(upto);
        self.written(upto, may_lose, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::property::holds;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn position_is_kept_once_it_cannot_be_lost() {
        let now = Instant::now();
        let mut kept = Kept::default();
        kept.opened(Lsn::new(50), Lsn::new(20), MINUTE, now);
        assert_eq!((kept.upto(), kept.next()), (Lsn::new(20), Some(now + MINUTE)));
        kept.settle(now + MINUTE);
        assert_eq!((kept.upto(), kept.next()), (Lsn::new(50), None));
        kept.written(Lsn::new(70), Duration::ZERO, now + MINUTE);
        assert_eq!(kept.upto(), Lsn::new(70));
        kept.written(Lsn::new(80), MINUTE, now + MINUTE);
        kept.reopened(Lsn::new(90), MINUTE, now + 2 * MINUTE);
        kept.settle(now + 2 * MINUTE);
        assert_eq!((kept.upto(), kept.next()), (Lsn::new(80), Some(now + 3 * MINUTE)));
        // The store has lost something.
        kept.opened(Lsn::new(60), Lsn::new(20), MINUTE, now + MINUTE);
        assert_eq!(kept.upto(), Lsn::new(60));
    }

    /// Never too early, not for ever, and in bounded memory.
    #[test]
    fn each_position_is_kept_in_time_and_not_before() {
        let pauses = proptest::collection::vec(0_u64..5_000, 1..300);
        holds("each_position_is_kept_in_time_and_not_before", 200, &pauses, |pauses| {
            let (mut kept, mut now, mut written) = (Kept::default(), Instant::now(), Vec::new());
            for (number, pause) in (1..).zip(pauses) {
                now += Duration::from_millis(pause);
                kept.settle(now);
                let is_due = |slack: Duration| {
                    let due = written.iter().rev().find(|(at, _)| *at + MINUTE + slack <= now);
                    due.map_or(Lsn::ZERO, |(_, upto)| *upto)
                };
                assert!(kept.upto() <= is_due(Duration::ZERO), "too early");
                assert!(kept.upto() >= is_due(MINUTE / PARTS), "too late");
                kept.written(Lsn::new(number), MINUTE, now);
                written.push((now, Lsn::new(number)));
                assert!(kept.pending.len() <= PARTS as usize + 1);
            }
        });
    }
}
