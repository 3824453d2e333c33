//! When to replace a producer that cannot deliver a record.
//!
//! A producer without a message timeout retries silently for as long as necessary: with too few
//! in-sync replicas, or a partition without a leader. It can also be stuck although the brokers are
//! healthy. So the oldest in-flight record is observed: if it stays the same for long although the
//! brokers respond, the producer is replaced. The replay repeats what was acknowledged after that
//! record, so each further replacement in the same stall waits twice as long.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Seq;
use crate::lsn::Lsn;
use crate::sink::{Condition, Fault};

/// How long a record may be in flight if the brokers report no cause.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);

/// The factor on that time if they report one.
const BROKER_FAULT_FACTOR: u32 = 10;

/// Maximum number of times that the timeout is doubled.
const DOUBLINGS: u32 = 6;

/// The oldest record in flight, since when it is the oldest, and the fault that the sink reports.
#[derive(Debug)]
pub(super) struct StalledProducer {
    oldest: Option<Seq>,
    since: Instant,
    fault: Option<Fault>,
    /// Whether to restart the time: no broker was reachable until now.
    restarts: bool,
    /// Producers replaced since the flush LSN last advanced, and the flush LSN at that time.
    replaced: (u32, Lsn),
}

impl StalledProducer {
    pub(super) fn new(now: Instant) -> Self {
        Self { oldest: None, since: now, fault: None, restarts: false, replaced: (0, Lsn::ZERO) }
    }

    /// Records a condition reported by the sink.
    pub(super) fn on_condition(&mut self, condition: &Condition) {
        match condition {
            Condition::Stalled { fault, .. } => {
                self.restarts |= self.fault == Some(Fault::OutOfReach);
                self.fault = Some(*fault);
            }
            Condition::Unreachable(_) | Condition::Unauthenticated(_) => {
                self.fault = Some(Fault::OutOfReach);
            }
            Condition::Flowing => self.fault = None,
            Condition::Broken(_) | Condition::Regressed(_) | Condition::Repartitioned { .. } => {}
        }
    }

    /// Updates the oldest record in flight and the flush LSN. Returns whether the producer has
    /// timed out on that record and must be replaced.
    pub(super) fn is_timed_out(
        &mut self,
        oldest: Option<Seq>,
        flush_lsn: Lsn,
        now: Instant,
    ) -> bool {
        if oldest != self.oldest || std::mem::take(&mut self.restarts) {
            (self.oldest, self.since) = (oldest, now);
        }
        if flush_lsn > self.replaced.1 {
            self.replaced = (0, flush_lsn);
        }
        let factor = match self.fault {
            // A new producer could not reach the brokers either.
            None | Some(Fault::OutOfReach) => return false,
            Some(Fault::Brokers) => BROKER_FAULT_FACTOR,
            Some(Fault::Unknown) => 1,
        };
        let timeout = ACK_TIMEOUT * factor * (1 << self.replaced.0.min(DOUBLINGS));
        let is_timed_out = oldest.is_some() && now.saturating_duration_since(self.since) >= timeout;
        if is_timed_out {
            self.replaced.0 += 1;
            self.since = now;
        }
        is_timed_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalled(fault: Fault) -> Condition {
        Condition::Stalled { reason: "why".to_owned(), fault }
    }

    /// After how many seconds a producer that keeps record `seq` is replaced.
    fn seconds(
        stall: &mut StalledProducer,
        flush_lsn: u64,
        seq: impl Fn(u32) -> u64,
    ) -> Option<u32> {
        let start = Instant::now();
        stall.oldest = None;
        (0..100_000).find(|n| {
            let now = start + Duration::from_secs((*n).into());
            stall.is_timed_out(Some(Seq::new(seq(*n))), Lsn::new(flush_lsn), now)
        })
    }

    #[test]
    fn timeout_doubles_with_each_unsuccessful_replacement() {
        let mut stall = StalledProducer::new(Instant::now());
        stall.on_condition(&stalled(Fault::Unknown));
        assert_eq!(seconds(&mut stall, 7, |_| 1), Some(60));
        assert_eq!(seconds(&mut stall, 7, |_| 2), Some(120));
        stall.on_condition(&stalled(Fault::Brokers));
        assert_eq!(seconds(&mut stall, 7, |_| 3), Some(2400));
        assert_eq!(seconds(&mut stall, 8, |_| 4), Some(600), "the flush LSN rose");
    }

    #[test]
    fn a_producer_is_kept_while_records_move_or_no_broker_is_reachable() {
        let mut stall = StalledProducer::new(Instant::now());
        assert_eq!(seconds(&mut stall, 7, |_| 1), None, "the sink has reported no stall");
        stall.on_condition(&stalled(Fault::Unknown));
        let moving = |second| u64::from(second / 50);
        assert_eq!(seconds(&mut stall, 7, moving), None, "it moves");
        stall.on_condition(&Condition::Unreachable("down".to_owned()));
        assert_eq!(seconds(&mut stall, 7, |_| 2), None, "a new one would reach them no better");
        stall.on_condition(&Condition::Flowing);
        assert_eq!(seconds(&mut stall, 7, |_| 3), None, "it is over");
        assert!(!stall.is_timed_out(None, Lsn::new(7), Instant::now()), "nothing in flight");
    }

    /// Whether it is timed out with one record in flight, this long after `start`.
    fn is_timed_out(stall: &mut StalledProducer, start: Instant, seconds: u64) -> bool {
        stall.is_timed_out(Some(Seq::new(1)), Lsn::new(7), start + Duration::from_secs(seconds))
    }

    #[test]
    fn two_conditions_in_a_row_restart_the_time_once() {
        let start = Instant::now();
        let mut stall = StalledProducer::new(start);
        let is_timed_out = |stall: &mut _, seconds| is_timed_out(stall, start, seconds);
        stall.on_condition(&stalled(Fault::OutOfReach));
        assert!(!is_timed_out(&mut stall, 0) && !is_timed_out(&mut stall, 5000));
        stall.on_condition(&stalled(Fault::Brokers));
        stall.on_condition(&stalled(Fault::Unknown));
        assert!(!is_timed_out(&mut stall, 5001) && is_timed_out(&mut stall, 5061));
    }

    #[test]
    fn an_outage_does_not_count_towards_the_timeout() {
        let start = Instant::now();
        let mut stall = StalledProducer::new(start);
        let is_timed_out = |stall: &mut _, seconds| is_timed_out(stall, start, seconds);
        stall.on_condition(&stalled(Fault::OutOfReach));
        assert!(!is_timed_out(&mut stall, 0) && !is_timed_out(&mut stall, 5000));
        stall.on_condition(&stalled(Fault::Unknown));
        assert!(
            !is_timed_out(&mut stall, 5001)
                && !is_timed_out(&mut stall, 5060)
                && is_timed_out(&mut stall, 5061)
        );
    }
}
