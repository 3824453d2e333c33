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
const PATIENCE: Duration = Duration::from_secs(10);

/// How long after a question the next is asked.
const AGAIN: Duration = Duration::from_secs(30);

/// Looks after the records in flight.
#[derive(Debug)]
pub(crate) struct AckMonitor {
    ages: Ages,
    /// The time, as of the last look at reports.
    now: Instant,
    asked: Option<Instant>,
    answer: Option<oneshot::Receiver<Diagnosis>>,
    told: Option<String>,
    /// Whether no broker could be reached since that was told: it has to be told again,
    /// for somebody who waits for them to come back.
    again: bool,
    /// Whether anything was acknowledged since that was told.
    acknowledged: bool,
    /// Whether the client has said already that no broker can be reached.
    out_of_reach: bool,
}

impl AckMonitor {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            ages: Ages::default(),
            now,
            asked: None,
            answer: None,
            told: None,
            again: false,
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
                    metrics.broker_ack(report.at.saturating_duration_since(produced));
                }
                self.acknowledged = true;
                self.out_of_reach = false;
            }
        }
    }

    /// Everything in flight went with its producer.
    pub(crate) fn replaced(&mut self) {
        self.ages.clear();
        self.acknowledged = false;
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.ages.oldest().is_none()
    }

    /// Adds what there is to tell beside `conditions`; asks where nobody knows.
    pub(crate) fn look(
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
        let condition = self.judge(|| {
            let (tell, answer) = oneshot::channel();
            // Nobody waits for it any more where the sink has gone.
            diagnostics::diagnose_stall(config, counts.topics(), |it| drop(tell.send(it)));
            answer
        });
        conditions.extend(condition);
    }

    fn unreachable(&mut self) {
        (self.out_of_reach, self.again) = (true, true);
    }

    fn judge(&mut self, ask: impl FnOnce() -> oneshot::Receiver<Diagnosis>) -> Option<Condition> {
        let now = self.now;
        let waits = |since| now.saturating_duration_since(since);
        if self.ages.oldest().is_none_or(|since| waits(since) < PATIENCE) {
            (self.asked, self.answer) = (None, None);
            let over = self.acknowledged && self.told.take().is_some();
            return over.then_some(Condition::Flowing);
        }
        let answered = self.answer.as_mut().map(oneshot::Receiver::try_recv);
        if answered.as_ref().is_some_and(|answered| *answered != Err(TryRecvError::Empty)) {
            self.answer = None;
        }
        if let Some(Ok(finding)) = answered {
            let known = finding.fault == Fault::OutOfReach && self.out_of_reach;
            let new = self.told.as_ref() != Some(&finding.reason);
            if !known && (new || std::mem::take(&mut self.again)) {
                (self.acknowledged, self.again) = (false, false);
                self.told = Some(finding.reason.clone());
                let Diagnosis { reason, fault } = finding;
                return Some(Condition::Stalled { reason, fault });
            }
        }
        let first = self.asked.is_none();
        if self.answer.is_none() && self.asked.is_none_or(|then| waits(then) >= AGAIN) {
            self.asked = Some(now);
            // Why it stalls is known then, at first.
            if !(first && self.out_of_reach) {
                self.answer = Some(ask());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told `seconds` after the beginning, where an inquiry finds this.
    fn judged(
        watch: &mut AckMonitor,
        begun: Instant,
        seconds: u64,
        matter: &str,
    ) -> Option<Condition> {
        watch.reported(&[], begun + Duration::from_secs(seconds), &Metrics::default());
        let finding = Diagnosis { reason: matter.to_owned(), fault: Fault::Brokers };
        watch.judge(|| {
            let (tell, answer) = oneshot::channel();
            tell.send(finding).expect("it is awaited");
            answer
        })
    }

    fn stalled(reason: &str) -> Condition {
        Condition::Stalled { reason: reason.to_owned(), fault: Fault::Brokers }
    }

    #[test]
    fn a_stall_is_told_once_for_each_reason_and_once_when_it_is_over() {
        let begun = Instant::now();
        let mut watch = AckMonitor::new(begun);
        watch.produced(1, begun);
        assert_eq!(judged(&mut watch, begun, 9, "why"), None);
        assert_eq!(judged(&mut watch, begun, 10, "why"), None, "asks");
        assert_eq!(judged(&mut watch, begun, 11, "why"), Some(stalled("why")));
        for seconds in 12..60 {
            assert_eq!(judged(&mut watch, begun, seconds, "why"), None, "{seconds}");
        }
        assert_eq!(judged(&mut watch, begun, 70, "else"), None, "asks again");
        assert_eq!(judged(&mut watch, begun, 71, "else"), Some(stalled("else")));
        let delivered = Report::new(1, Outcome::Delivered);
        watch.reported(&[delivered], begun + Duration::from_secs(72), &Metrics::default());
        assert_eq!(judged(&mut watch, begun, 72, ""), Some(Condition::Flowing));
        assert_eq!(judged(&mut watch, begun, 73, ""), None);
    }

    #[test]
    fn a_replaced_producer_is_no_end_of_a_stall() {
        let begun = Instant::now();
        let mut watch = AckMonitor::new(begun);
        watch.produced(1, begun);
        assert_eq!(judged(&mut watch, begun, 10, "why"), None);
        assert_eq!(judged(&mut watch, begun, 11, "why"), Some(stalled("why")));
        watch.replaced();
        assert_eq!(judged(&mut watch, begun, 12, "why"), None);
    }

    #[test]
    fn a_stall_is_told_again_after_an_outage() {
        let begun = Instant::now();
        let mut watch = AckMonitor::new(begun);
        watch.produced(1, begun);
        assert_eq!(judged(&mut watch, begun, 10, "why"), None);
        assert_eq!(judged(&mut watch, begun, 11, "why"), Some(stalled("why")));
        watch.unreachable();
        assert_eq!(judged(&mut watch, begun, 40, "why"), None, "asks again");
        assert_eq!(judged(&mut watch, begun, 41, "why"), Some(stalled("why")));
        assert_eq!(judged(&mut watch, begun, 70, "why"), None, "asks again");
        assert_eq!(judged(&mut watch, begun, 71, "why"), None);
    }

    #[test]
    fn brokers_that_are_known_to_be_out_of_reach_are_not_asked_at_once() {
        let begun = Instant::now();
        let mut watch = AckMonitor::new(begun);
        watch.produced(1, begun);
        watch.unreachable();
        for seconds in 10..40 {
            assert_eq!(judged(&mut watch, begun, seconds, "why"), None, "{seconds}");
        }
        assert_eq!(judged(&mut watch, begun, 40, "why"), None, "asks");
        assert_eq!(judged(&mut watch, begun, 41, "why"), Some(stalled("why")));
    }
}
