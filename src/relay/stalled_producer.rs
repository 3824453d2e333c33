//! When to throw away a producer that does not get rid of a record.
//!
//! A producer without a time limit for its messages retries in silence for as
//! long as it takes: too few replicas in sync, a partition without a leader. And
//! one may be stuck, though the brokers are well. What is watched is the oldest
//! record in flight: where it stays the same for long although the brokers answer,
//! a new producer begins again at A. Since a replay repeats what others had
//! acknowledged behind that record, each further one in a stall is twice as
//! long in coming.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Seq;
use crate::lsn::Lsn;
use crate::sink::{Condition, Fault};

/// How long a record may be in flight while the brokers show no reason for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much longer where they do.
const EXCUSED: u32 = 10;

/// Most times that the patience is doubled.
const DOUBLINGS: u32 = 6;

/// The oldest record in flight, since when it is, and what the sink says of it.
#[derive(Debug)]
pub(super) struct StalledProducer {
    oldest: Option<Seq>,
    since: Instant,
    fault: Option<Fault>,
    /// Whether the time before now does not count: nobody could be reached.
    afresh: bool,
    /// Producers that were thrown away since A rose, and A then.
    replaced: (u32, Lsn),
}

impl StalledProducer {
    pub(super) fn new(now: Instant) -> Self {
        Self { oldest: None, since: now, fault: None, afresh: false, replaced: (0, Lsn::ZERO) }
    }

    /// The sink said this.
    pub(super) fn heard(&mut self, condition: &Condition) {
        match condition {
            Condition::Stalled { fault, .. } => {
                self.afresh |= self.fault == Some(Fault::OutOfReach);
                self.fault = Some(*fault);
            }
            Condition::Unreachable(_) | Condition::Unauthenticated(_) => {
                self.fault = Some(Fault::OutOfReach);
            }
            Condition::Flowing => self.fault = None,
            Condition::Broken(_) | Condition::Repartitioned { .. } => {}
        }
    }

    /// This is the oldest record in flight now, and this is A; whether the producer
    /// has had its time with that record, and is to be thrown away.
    pub(super) fn is_out_of_patience(
        &mut self,
        oldest: Option<Seq>,
        confirmable: Lsn,
        now: Instant,
    ) -> bool {
        if oldest != self.oldest || std::mem::take(&mut self.afresh) {
            (self.oldest, self.since) = (oldest, now);
        }
        if confirmable > self.replaced.1 {
            self.replaced = (0, confirmable);
        }
        let factor = match self.fault {
            // A new one would reach them no better.
            None | Some(Fault::OutOfReach) => return false,
            Some(Fault::Brokers) => EXCUSED,
            Some(Fault::Unknown) => 1,
        };
        let patience = PATIENCE * factor * (1 << self.replaced.0.min(DOUBLINGS));
        let out = oldest.is_some() && now.saturating_duration_since(self.since) >= patience;
        if out {
            self.replaced.0 += 1;
            self.since = now;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalled(fault: Fault) -> Condition {
        Condition::Stalled { reason: "why".to_owned(), fault }
    }

    /// After how many seconds a producer that keeps record `seq` is thrown away.
    fn seconds(
        stall: &mut StalledProducer,
        confirmable: u64,
        seq: impl Fn(u32) -> u64,
    ) -> Option<u32> {
        let begun = Instant::now();
        stall.oldest = None;
        (0..100_000).find(|n| {
            let now = begun + Duration::from_secs((*n).into());
            stall.is_out_of_patience(Some(Seq::new(seq(*n))), Lsn::new(confirmable), now)
        })
    }

    #[test]
    fn patience_grows_with_each_producer_that_did_not_help() {
        let mut stall = StalledProducer::new(Instant::now());
        stall.heard(&stalled(Fault::Unknown));
        assert_eq!(seconds(&mut stall, 7, |_| 1), Some(60));
        assert_eq!(seconds(&mut stall, 7, |_| 2), Some(120));
        stall.heard(&stalled(Fault::Brokers));
        assert_eq!(seconds(&mut stall, 7, |_| 3), Some(2400));
        assert_eq!(seconds(&mut stall, 8, |_| 4), Some(600), "A rose");
    }

    #[test]
    fn a_producer_is_kept_while_records_move_or_nobody_can_be_reached() {
        let mut stall = StalledProducer::new(Instant::now());
        assert_eq!(seconds(&mut stall, 7, |_| 1), None, "nobody has said that it stalls");
        stall.heard(&stalled(Fault::Unknown));
        let moving = |second| u64::from(second / 50);
        assert_eq!(seconds(&mut stall, 7, moving), None, "it moves");
        stall.heard(&Condition::Unreachable("down".to_owned()));
        assert_eq!(seconds(&mut stall, 7, |_| 2), None, "a new one would reach them no better");
        stall.heard(&Condition::Flowing);
        assert_eq!(seconds(&mut stall, 7, |_| 3), None, "it is over");
        assert!(!stall.is_out_of_patience(None, Lsn::new(7), Instant::now()), "nothing in flight");
    }

    #[test]
    fn what_is_heard_twice_in_a_row_begins_afresh_once_all_the_same() {
        let begun = Instant::now();
        let mut stall = StalledProducer::new(begun);
        let out = |stall: &mut StalledProducer, seconds| {
            stall.is_out_of_patience(
                Some(Seq::new(1)),
                Lsn::new(7),
                begun + Duration::from_secs(seconds),
            )
        };
        stall.heard(&stalled(Fault::OutOfReach));
        assert!(!out(&mut stall, 0) && !out(&mut stall, 5000));
        stall.heard(&stalled(Fault::Brokers));
        stall.heard(&stalled(Fault::Unknown));
        assert!(!out(&mut stall, 5001) && out(&mut stall, 5061));
    }

    #[test]
    fn an_outage_does_not_use_up_the_patience() {
        let begun = Instant::now();
        let mut stall = StalledProducer::new(begun);
        let out = |stall: &mut StalledProducer, seconds| {
            stall.is_out_of_patience(
                Some(Seq::new(1)),
                Lsn::new(7),
                begun + Duration::from_secs(seconds),
            )
        };
        stall.heard(&stalled(Fault::OutOfReach));
        assert!(!out(&mut stall, 0) && !out(&mut stall, 5000));
        stall.heard(&stalled(Fault::Unknown));
        assert!(!out(&mut stall, 5001) && !out(&mut stall, 5060) && out(&mut stall, 5061));
    }
}
