//! Whether acknowledgements have stopped to come.
//!
//! A producer without a time limit for its messages retries in silence for as
//! long as it takes: too few replicas in sync, a partition without a leader. And
//! one may be stuck, though the brokers are well. What is watched is the oldest
//! record in flight: where it stays the same, the sink is asked why. A producer
//! that does not get rid of it though nothing is amiss is thrown away. Since a
//! replay repeats what others had acknowledged behind that record, each further
//! one in a stall is twice as long in coming.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Seq;

/// How long the oldest record may be in flight before the sink is asked, and how
/// often it is asked from there on.
const ASK_INTERVAL: Duration = Duration::from_secs(10);

/// How long it may be in flight while the brokers are well.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much longer where the brokers have a reason not to acknowledge it.
const EXCUSED: u32 = 10;

/// Most times that the patience is doubled.
const DOUBLINGS: u32 = 6;

/// The oldest record in flight, and since when it is.
#[derive(Debug)]
pub(super) struct Stall {
    oldest: Option<Seq>,
    since: Instant,
    asked: Instant,
    /// Producers that were thrown away since anything was acknowledged.
    replaced: u32,
    told: bool,
}

impl Stall {
    pub(super) fn new(now: Instant) -> Self {
        Self { oldest: None, since: now, asked: now, replaced: 0, told: false }
    }

    /// The oldest record in flight is this now; whether the sink is to be asked
    /// for what keeps it.
    pub(super) fn see(&mut self, oldest: Option<Seq>, now: Instant) -> bool {
        if oldest != self.oldest {
            (self.oldest, self.since, self.asked) = (oldest, now, now);
        }
        let ask = oldest.is_some() && now.saturating_duration_since(self.asked) >= ASK_INTERVAL;
        if ask {
            self.asked = now;
        }
        ask
    }

    /// A record was acknowledged; whether a stall ends by that of which was told.
    pub(super) fn acknowledged(&mut self) -> bool {
        self.replaced = 0;
        std::mem::take(&mut self.told)
    }

    /// For how long the oldest record has been in flight, the first time that
    /// this is asked in a stall.
    pub(super) fn tell(&mut self, now: Instant) -> Option<Duration> {
        let stalled = self.stalled(now)?;
        (!std::mem::replace(&mut self.told, true)).then_some(stalled)
    }

    /// Whether the producer has had its time, and is to be thrown away now;
    /// `excused` where the brokers have a reason not to acknowledge.
    pub(super) fn is_out_of_patience(&mut self, excused: bool, now: Instant) -> bool {
        let factor = (1 << self.replaced.min(DOUBLINGS)) * if excused { EXCUSED } else { 1 };
        let out = self.stalled(now).is_some_and(|stalled| stalled >= PATIENCE * factor);
        self.replaced += u32::from(out);
        out
    }

    fn stalled(&self, now: Instant) -> Option<Duration> {
        let stalled = now.saturating_duration_since(self.since);
        (self.oldest.is_some() && stalled >= ASK_INTERVAL).then_some(stalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_sink_is_asked_for_a_record_that_stays_and_for_no_other() {
        let begun = Instant::now();
        let mut stall = Stall::new(begun);
        let asked = |stall: &mut Stall, oldest: &dyn Fn(u32) -> Option<Seq>| {
            (0..60).filter(|n| stall.see(oldest(*n), begun + SECOND * *n)).count()
        };
        assert_eq!(asked(&mut stall, &|_| None), 0);
        assert_eq!(asked(&mut stall, &|second| Some(Seq::from(second / 5))), 0, "it moves");
        let mut stall = Stall::new(begun);
        assert_eq!(asked(&mut stall, &|_| Some(7)), 5, "every ten seconds");
    }

    #[test]
    fn patience_grows_with_each_producer_that_did_not_help() {
        let begun = Instant::now();
        let mut stall = Stall::new(begun);
        let mut seq = 0;
        let mut gone = |stall: &mut Stall, excused: bool| {
            seq += 1;
            stall.see(Some(seq), begun);
            (1..100_000).find(|n| stall.is_out_of_patience(excused, begun + SECOND * *n))
        };
        assert_eq!(gone(&mut stall, false), Some(60));
        assert_eq!(gone(&mut stall, false), Some(120));
        assert_eq!(gone(&mut stall, true), Some(2400));
        stall.acknowledged();
        assert_eq!(gone(&mut stall, true), Some(600));
        assert!(!stall.is_out_of_patience(false, begun), "nothing has stalled then");
    }

    #[test]
    fn a_stall_is_told_once_and_so_is_its_end() {
        let begun = Instant::now();
        let mut stall = Stall::new(begun);
        stall.see(Some(1), begun);
        assert_eq!(stall.tell(begun + SECOND), None, "too soon to speak of it");
        assert_eq!(stall.tell(begun + SECOND * 12), Some(SECOND * 12));
        assert_eq!(stall.tell(begun + SECOND * 30), None);
        assert!(stall.acknowledged());
        assert!(!stall.acknowledged());
    }
}
