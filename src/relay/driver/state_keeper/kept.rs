//! Which written position may be confirmed: one that the store cannot lose any more.
//!
//! A store may acknowledge a write before it has synced it, and lose it, with the events before it,
//! when its machine crashes. Until then PostgreSQL keeps the WAL, so walpost publishes them again.
//!
//! Time alone shows nothing: a machine that crashed a moment after its acknowledgement syncs nothing,
//! however long it is down. So a position is kept once the store has had the time to sync it, and has
//! then acknowledged another write.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Phase, StateKeeper};
use crate::lsn::Lsn;
use crate::state::{State, unix_ms};

/// How many positions are remembered: as many parts of the time in which one may be lost.
const PARTS: u32 = 64;

/// The positions that were written.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The slot's position when the store was opened. A server that has crashed, or was restored, may
    /// have an earlier one than it had before.
    slot: Lsn,
    upto: Lsn,
    /// The pending positions, in the order of positions and times.
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Pending {
    /// When the first of the positions that it stands for was written.
    since: Instant,
    /// When the store has synced it, unless it has crashed.
    at: Instant,
    upto: Lsn,
}

impl Kept {
    /// Everything before this LSN may be confirmed.
    pub(super) fn upto(&self) -> Lsn {
        self.upto
    }

    /// When another write shows that the next position is kept.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pending.front().map(|pending| pending.at)
    }

    /// Whether another write would show that a position is kept.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// Takes a write that the store has acknowledged at `acked`, and may lose for the time `may_lose`.
    /// It was ordered at `ordered`, so the store had not crashed by then.
    pub(super) fn written(
        &mut self,
        upto: Lsn,
        (ordered, acked): (Instant, Instant),
        may_lose: Duration,
    ) {
        while self.is_due(ordered)
            && let Some(pending) = self.pending.pop_front()
        {
            self.upto = pending.upto;
        }
        self.add(upto, acked, may_lose);
    }

    fn add(&mut self, upto: Lsn, acked: Instant, may_lose: Duration) {
        if upto <= self.pending.back().map_or(self.upto, |last| last.upto) {
            return;
        }
        if self.pending.is_empty() && may_lose.is_zero() {
            self.upto = upto;
            return;
        }
        let at = acked + may_lose;
        match self.pending.back_mut() {
            Some(last) if at <= last.at => last.upto = upto,
            Some(last) if acked - last.since < may_lose / PARTS => {
                (last.at, last.upto) = (at, upto);
            }
            _ => self.pending.push_back(Pending { since: acked, at, upto }),
        }
    }

    /// The store was opened, and has the position `upto`, for a slot that is confirmed up to `slot`.
    /// `is_own`: it is what this process has written last. Otherwise another process has written it, or
    /// the store has lost what was written last.
    pub(super) fn opened(
        &mut self,
        upto: Lsn,
        slot: Lsn,
        is_own: bool,
        may_lose: Duration,
        now: Instant,
    ) {
        self.slot = slot;
        if !is_own {
            self.pending.clear();
            self.upto = slot.min(upto);
        }
        self.reopened(upto, may_lose, now);
    }

    /// The store was opened, and has what this process has written last.
    pub(super) fn reopened(&mut self, upto: Lsn, may_lose: Duration, now: Instant) {
        self.pending.retain(|pending| pending.upto <= upto);
        self.add(upto, now, may_lose);
    }
}

impl StateKeeper {
    /// Everything that committed before this LSN may be confirmed.
    pub(in crate::relay::driver) fn covered(&self) -> Lsn {
        self.kept.upto()
    }

    /// The position to confirm now that everything before `flush_lsn` is acknowledged: one that was
    /// written, and of what is sent again from before it, one by which the state knows the slot
    /// ([`State::is_unknown`]).
    pub(in crate::relay::driver) fn to_confirm(&self, flush_lsn: Lsn) -> Lsn {
        let covered = self.covered();
        if !self.is_compared {
            return self.kept.slot;
        }
        if covered <= flush_lsn {
            return covered;
        }
        let last = self.state.as_ref().and_then(|state| state.last);
        let sent_again = last.map(|last| {
            if flush_lsn <= last.commit_lsn { flush_lsn } else { last.end_lsn.min(flush_lsn) }
        });
        sent_again.unwrap_or_default().max(self.kept.slot)
    }

    /// Whether `until` may be confirmed, or may be once it is written.
    pub(in crate::relay::driver) fn may_confirm(&self, until: Lsn) -> bool {
        self.store.may_lose().is_zero() || self.covered() >= until
    }

    /// Whether a position that is written may be confirmed only later than a switch of the feed waits.
    pub(in crate::relay::driver) fn confirms_late(&self) -> bool {
        self.store.may_lose() > Duration::from_secs(5)
    }

    /// Writes the position again if the store has had the time to sync an earlier one: its
    /// acknowledgement shows that it has not crashed meanwhile.
    pub(super) fn show_what_is_kept(&mut self) {
        if let (Phase::Open, Some(state)) = (&self.phase, &self.state)
            && self.kept.is_due(Instant::now())
        {
            self.write(State { at_ms: unix_ms(), ..state.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::property::holds;

    const MINUTE: Duration = Duration::from_secs(60);

    fn write(kept: &mut Kept, upto: u64, may_lose: Duration, now: Instant) {
        kept.written(Lsn::new(upto), (now, now), may_lose);
    }

    #[test]
    fn position_is_kept_once_it_cannot_be_lost() {
        let now = Instant::now();
        let mut kept = Kept::default();
        kept.opened(Lsn::new(50), Lsn::new(20), false, MINUTE, now);
        assert_eq!((kept.upto(), kept.next()), (Lsn::new(20), Some(now + MINUTE)));
        // Written again, as a sign of life.
        write(&mut kept, 50, MINUTE, now + MINUTE / 2);
        assert_eq!((kept.upto(), kept.is_due(now + MINUTE / 2)), (Lsn::new(20), false));
        assert!(kept.is_due(now + MINUTE));
        write(&mut kept, 50, MINUTE, now + MINUTE);
        assert_eq!((kept.upto(), kept.next()), (Lsn::new(50), None));
        write(&mut kept, 70, Duration::ZERO, now + MINUTE);
        assert_eq!(kept.upto(), Lsn::new(70));
        write(&mut kept, 80, MINUTE, now + MINUTE);
        // Found, and written nobody knows when.
        kept.reopened(Lsn::new(90), MINUTE, now + 2 * MINUTE);
        assert_eq!((kept.upto(), kept.next()), (Lsn::new(70), Some(now + 2 * MINUTE)));
        write(&mut kept, 90, MINUTE, now + 2 * MINUTE);
        assert_eq!((kept.upto(), kept.next()), (Lsn::new(80), Some(now + 3 * MINUTE)));
        // The store has lost something, or has what another process wrote.
        for found in [60, 120] {
            kept.opened(Lsn::new(found), Lsn::new(20), false, MINUTE, now + MINUTE);
            assert_eq!((kept.upto(), kept.pending.len()), (Lsn::new(20), 1));
        }
    }

    #[test]
    fn slot_that_has_fallen_back_is_known_by_its_own_position() {
        for is_own in [false, true] {
            let (now, mut kept) = (Instant::now(), Kept::default());
            kept.opened(Lsn::new(120), Lsn::new(100), false, Duration::ZERO, now);
            kept.opened(Lsn::new(120), Lsn::new(80), is_own, Duration::ZERO, now);
            assert_eq!(kept.slot, Lsn::new(80));
        }
    }

    /// The store's machine crashes, and loses what it has not synced. Nothing of that was confirmed,
    /// however long it takes to notice. Before, nothing waits for ever, in bounded memory.
    #[test]
    fn nothing_is_confirmed_that_a_crash_loses() {
        use proptest::bool::weighted;
        let times = (0_u64..6_000, 0_u64..300, 0_u64..9_000);
        let step = (times, proptest::option::weighted(0.02, 0_usize..3), weighted(0.8));
        let cases = (proptest::collection::vec(step, 1..200), 0_usize..3, 0_u64..900_000);
        holds(
            "nothing_is_confirmed_that_a_crash_loses",
            500,
            &cases,
            |(steps, mut loss, crash)| {
                let start = Instant::now();
                let (mut kept, mut now, crash) =
                    (Kept::default(), start, start + Duration::from_millis(crash));
                // Positions, and when each is synced.
                let mut synced = vec![(Lsn::ZERO, start)];
                let mut upto = 0;
                let has = |synced: &[(Lsn, Instant)], at: Instant| {
                    let kept = synced.iter().filter(|(_, by)| *by <= at).map(|(lsn, _)| *lsn);
                    kept.max().unwrap_or_default()
                };
                for ((pause, takes, answer), other, is_new) in steps {
                    loss = other.unwrap_or(loss);
                    let may_lose = [Duration::ZERO, MINUTE / 20, MINUTE][loss];
                    let ordered = now + Duration::from_millis(pause);
                    // The answer may come after the crash.
                    let executed = ordered + Duration::from_millis(takes);
                    now = executed + Duration::from_millis(answer);
                    if executed > crash {
                        break;
                    }
                    let (before, waits) = (kept.upto(), 2 * MINUTE);
                    upto += u64::from(is_new);
                    kept.written(Lsn::new(upto), (ordered, now), may_lose);
                    if is_new {
                        synced.push((Lsn::new(upto), executed + may_lose));
                    }
                    let late = ordered.checked_sub(waits).unwrap_or(start).max(start);
                    assert!(kept.upto() >= has(&synced, late).max(before), "it waits for too long");
                    assert!(kept.pending.len() <= 3 * PARTS as usize, "{}", kept.pending.len());
                }
                assert!(kept.upto() <= has(&synced, crash), "a crash has lost what is confirmed");
            },
        );
    }

    /// With the same time for all, a position is kept with the first sign of life behind that.
    #[test]
    fn each_position_is_kept_in_time_and_not_before() {
        let pauses = proptest::collection::vec(0_u64..5_000, 1..300);
        holds("each_position_is_kept_in_time_and_not_before", 200, &pauses, |pauses| {
            let (mut kept, mut now, mut written) = (Kept::default(), Instant::now(), Vec::new());
            for (number, pause) in (1..).zip(pauses) {
                now += Duration::from_millis(pause);
                write(&mut kept, number, MINUTE, now);
                let is_due = |slack: Duration| {
                    let due = written.iter().rev().find(|(at, _)| *at + MINUTE + slack <= now);
                    due.map_or(Lsn::ZERO, |(_, upto)| *upto)
                };
                assert!(kept.upto() <= is_due(Duration::ZERO), "too early");
                assert!(kept.upto() >= is_due(MINUTE / PARTS), "too late");
                written.push((now, Lsn::new(number)));
                assert!(kept.pending.len() <= PARTS as usize + 1);
            }
        });
    }
}
