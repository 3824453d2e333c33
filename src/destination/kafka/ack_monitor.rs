//! Detects that nothing is acknowledged for long, asks the brokers for the reason, and reports it:
//! once, again after the brokers were unreachable, and when acknowledgements resume.
//!
//! It only reports. The relay decides what to do about a stuck producer.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::ack_age::AckAges;
use super::diagnostics::{self, Diagnosis};
use super::first_batch_gate::Counts;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::sink::{Condition, Fault, Outcome, Report};

/// How long the oldest record in flight may wait before the brokers are asked.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two diagnoses.
const DIAGNOSIS_INTERVAL: Duration = Duration::from_secs(30);

/// Monitors the records in flight.
#[derive(Debug)]
pub(crate) struct AckMonitor {
    ages: AckAges,
    /// The total time that all acknowledgements of these producers took.
    ack_time: Duration,
    /// The time when reports were last read.
    now: Instant,
    diagnosed_at: Option<Instant>,
    diagnosis: Option<oneshot::Receiver<Diagnosis>>,
    reported: Option<String>,
    /// Whether the brokers were unreachable since the stall was reported: it is then reported again.
    report_again: bool,
    /// Whether anything was acknowledged since the stall was reported.
    acknowledged: bool,
    /// Whether the client has already reported that no broker can be reached.
    out_of_reach: bool,
}

impl AckMonitor {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            ages: AckAges::default(),
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

    /// Records the reports received up to now.
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

    /// Forgets the records in flight: their producer was replaced.
    pub(crate) fn replaced(&mut self) {
        self.ages.clear();
        self.ack_time = Duration::ZERO;
        self.acknowledged = false;
    }

    /// The total time that all acknowledgements of these producers took.
    pub(crate) fn ack_time(&self) -> Duration {
        self.ack_time
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.ages.oldest().is_none()
    }

    /// Adds the conditions to report to `conditions`, and starts a diagnosis if the cause is unknown.
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
            // The receiver is gone if the sink was dropped.
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
            // The cause of the stall is known at first.
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

    /// The condition `seconds` after the start, if the diagnosis is `cause`.
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
    fn stall_is_reported_once_per_reason_and_when_it_is_over() {
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
    fn replaced_producer_does_not_end_a_stall() {
        let begun = Instant::now();
        let mut monitor = AckMonitor::new(begun);
        monitor.produced(Seq::new(1), begun);
        assert_eq!(verdict_at(&mut monitor, begun, 10, "why"), None);
        assert_eq!(verdict_at(&mut monitor, begun, 11, "why"), Some(stalled("why")));
        monitor.replaced();
        assert_eq!(verdict_at(&mut monitor, begun, 12, "why"), None);
    }

    #[test]
    fn stall_is_reported_again_after_an_outage() {
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
    fn unreachable_brokers_are_not_asked_at_once() {
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
