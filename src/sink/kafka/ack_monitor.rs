//! Sees that nothing is acknowledged for long, has the brokers asked why, and
//! tells what they say: once, once more after they could not be reached, and once
//! more when it is over.
//!
//! It only tells. What to do about a producer that is stuck is for the relay.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::ack_age::Ages;
use super::diagnostics::{self, Diagnosis};
use super::first_batch_gate::Counts;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::sink::{Condition, Fault, Outcome, Report};

/// How long the oldest record in flight may wait before somebody asks.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after a question the next is asked.
const DIAGNOSIS_INTERVAL: Duration = Duration::from_secs(30);

/// Looks after the records in flight.
#[derive(Debug)]
pub(crate) struct AckMonitor {
    ages: Ages,
    /// What all acknowledgements of these producers took together.
    ack_time: Duration,
    /// The time, as of the last look at reports.
    now: Instant,
    diagnosed_at: Option<Instant>,
    diagnosis: Option<oneshot::Receiver<Diagnosis>>,
    reported: Option<String>,
    /// Whether no broker could be reached since that was reported: it is reported again,
    /// for somebody who waits for them to come back.
    report_again: bool,
    /// Whether anything was acknowledged since that was reported.
    acknowledged: bool,
    /// Whether the client has said already that no broker can be reached.
    out_of_reach: bool,
}

impl AckMonitor {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            ages: Ages::default(),
            ack_time: Duration::ZERO,
            now,
            diagnosed_at: None,
            diagnosis: None,
            reported: None,
            report_again: false,
            acknowledged: false,
            out_of_reach: false,
        }
    }

    pub(crate) fn produced(&mut self, seq: Seq, now: Instant) {
        self.ages.produced(seq, now);
    }

    /// These came, up to now.
    pub(crate) fn reported(&mut self, reports: &[Report], now: Instant, metrics: &Metrics) {
        self.now = now;
        for report in reports {
            let produced = self.ages.reported(report.seq);
            if report.outcome == Outcome::Delivered {
                if let Some(produced) = produced {
                    let took = report.at.saturating_duration_since(produced);
                    self.ack_time = self.ack_time.saturating_add(took);
                    metrics.broker_ack(took);
                }
                self.acknowledged = true;
                self.out_of_reach = false;
            }
        }
    }

    /// Everything in flight went with its producer.
    pub(crate) fn replaced(&mut self) {
        self.ages.clear();
        self.ack_time = Duration::ZERO;
        self.acknowledged = false;
    }

    /// What all acknowledgements took together, since there are these producers.
    pub(crate) fn ack_time(&self) -> Duration {
        self.ack_time
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.ages.oldest().is_none()
    }

    /// Adds what is to be reported to `conditions`, and starts a diagnosis where the cause is
    /// unknown.
    pub(crate) fn check(
        &mut self,
        config: &ClientConfig,
        counts: &Counts,
        conditions: &mut Vec<Condition>,
    ) {
        if conditions.iter().any(|condition| {
            matches!(condition, Condition::Unreachable(_) | Condition::Unauthenticated(_))
        }) {
            self.unreachable();
        }
        let condition = self.verdict(|| {
            let (sender, answer) = oneshot::channel();
            // Nobody waits for it any more where the sink has gone.
            diagnostics::diagnose_stall(config, counts.topics(), |it| drop(sender.send(it)));
            answer
        });
        conditions.extend(condition);
    }

    fn unreachable(&mut self) {
        (self.out_of_reach, self.report_again) = (true, true);
    }

    fn verdict(
        &mut self,
        diagnose: impl FnOnce() -> oneshot::Receiver<Diagnosis>,
    ) -> Option<Condition> {
        let now = self.now;
        let waits = |since| now.saturating_duration_since(since);
        if self.ages.oldest().is_none_or(|since| waits(since) < STALL_TIMEOUT) {
            (self.diagnosed_at, self.diagnosis) = (None, None);
            let over = self.acknowledged && self.reported.take().is_some();
            return over.then_some(Condition::Flowing);
        }
        let answered = self.diagnosis.as_mut().map(oneshot::Receiver::try_recv);
        if answered.as_ref().is_some_and(|answered| *answered != Err(TryRecvError::Empty)) {
            self.diagnosis = None;
        }
        if let Some(Ok(diagnosis)) = answered {
            let known = diagnosis.fault == Fault::OutOfReach && self.out_of_reach;
            let new = self.reported.as_ref() != Some(&diagnosis.reason);
            if !known && (new || std::mem::take(&mut self.report_again)) {
                (self.acknowledged, self.report_again) = (false, false);
                self.reported = Some(diagnosis.reason.clone());
                let Diagnosis { reason, fault } = diagnosis;
                return Some(Condition::Stalled { reason, fault });
            }
        }
        let first = self.diagnosed_at.is_none();
        if self.diagnosis.is_none()
            && self.diagnosed_at.is_none_or(|then| waits(then) >= DIAGNOSIS_INTERVAL)
        {
            self.diagnosed_at = Some(now);
            // Why it stalls is known then, at first.
            if !(first && self.out_of_reach) {
                self.diagnosis = Some(diagnose());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The condition `seconds` after the start, where the diagnosis is `cause`.
    fn verdict_at(
        monitor: &mut AckMonitor,
        begun: Instant,
        seconds: u64,
        cause: &str,
    ) -> Option<Condition> {
        monitor.reported(&[], begun + Duration::from_secs(seconds), &Metrics::default());
        let diagnosis = Diagnosis { reason: cause.to_owned(), fault: Fault::Brokers };
        monitor.verdict(|| {
            let (sender, answer) = oneshot::channel();
            sender.send(diagnosis).expect("it is awaited");
            answer
        })
    }

    fn stalled(reason: &str) -> Condition {
        Condition::Stalled { reason: reason.to_owned(), fault: Fault::Brokers }
    }

    #[test]
    fn a_stall_is_told_once_for_each_reason_and_once_when_it_is_over() {
        let begun = Instant::now();
        let mut monitor = AckMonitor::new(begun);
        monitor.produced(Seq::new(1), begun);
        assert_eq!(verdict_at(&mut monitor, begun, 9, "why"), None);
        assert_eq!(verdict_at(&mut monitor, begun, 10, "why"), None, "asks");
        assert_eq!(verdict_at(&mut monitor, begun, 11, "why"), Some(stalled("why")));
        for seconds in 12..60 {
            assert_eq!(verdict_at(&mut monitor, begun, seconds, "why"), None, "{seconds}");
        }
        assert_eq!(verdict_at(&mut monitor, begun, 70, "else"), None, "asks again");
        assert_eq!(verdict_at(&mut monitor, begun, 71, "else"), Some(stalled("else")));
        let delivered = Report::new(Seq::new(1), Outcome::Delivered);
        monitor.reported(&[delivered], begun + Duration::from_secs(72), &Metrics::default());
        assert_eq!(verdict_at(&mut monitor, begun, 72, ""), Some(Condition::Flowing));
        assert_eq!(verdict_at(&mut monitor, begun, 73, ""), None);
    }

    #[test]
    fn a_replaced_producer_is_no_end_of_a_stall() {
        let begun = Instant::now();
        let mut monitor = AckMonitor::new(begun);
        monitor.produced(Seq::new(1), begun);
        assert_eq!(verdict_at(&mut monitor, begun, 10, "why"), None);
        assert_eq!(verdict_at(&mut monitor, begun, 11, "why"), Some(stalled("why")));
        monitor.replaced();
        assert_eq!(verdict_at(&mut monitor, begun, 12, "why"), None);
    }

    #[test]
    fn a_stall_is_told_again_after_an_outage() {
        let begun = Instant::now();
        let mut monitor = AckMonitor::new(begun);
        monitor.produced(Seq::new(1), begun);
        assert_eq!(verdict_at(&mut monitor, begun, 10, "why"), None);
        assert_eq!(verdict_at(&mut monitor, begun, 11, "why"), Some(stalled("why")));
        monitor.unreachable();
        assert_eq!(verdict_at(&mut monitor, begun, 40, "why"), None, "asks again");
        assert_eq!(verdict_at(&mut monitor, begun, 41, "why"), Some(stalled("why")));
        assert_eq!(verdict_at(&mut monitor, begun, 70, "why"), None, "asks again");
        assert_eq!(verdict_at(&mut monitor, begun, 71, "why"), None);
    }

    #[test]
    fn brokers_that_are_known_to_be_out_of_reach_are_not_asked_at_once() {
        let begun = Instant::now();
        let mut monitor = AckMonitor::new(begun);
        monitor.produced(Seq::new(1), begun);
        monitor.unreachable();
        for seconds in 10..40 {
            assert_eq!(verdict_at(&mut monitor, begun, seconds, "why"), None, "{seconds}");
        }
        assert_eq!(verdict_at(&mut monitor, begun, 40, "why"), None, "asks");
        assert_eq!(verdict_at(&mut monitor, begun, 41, "why"), Some(stalled("why")));
    }
}
