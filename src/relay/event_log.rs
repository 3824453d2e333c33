//! What people are told of the sink: one line when it cannot be used, one for
//! each reason, and one when records are taken again. Decides nothing.

use crate::position::EventPosition;
use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::excerpt::line;
use crate::lsn::Lsn;
use crate::metrics::Metrics;

use crate::record::Policy;
use crate::relay::core::Diverted;
use crate::relay::core::DroppedHeaders;
use crate::sink::Condition;

/// For how long nothing may be in flight beside an open way, until what was the matter is
/// taken to be over though nothing was delivered.
const QUIET: Duration = Duration::from_secs(5);

/// How it stands with the records.
pub(super) struct SinkState<F> {
    /// Records delivered so far.
    pub(super) delivered: u64,
    /// Records in flight.
    pub(super) in_flight: usize,
    /// Whether a record failed that has to be delivered before all is well again.
    pub(super) failed: bool,
    /// Whether events would come that have not come before, and a broker is connected to take
    /// them.
    pub(super) open: F,
    pub(super) now: Instant,
}

/// What was told of the sink, and what is to be told.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    down: Option<Down>,
    /// Deliveries counted when the last replay began, until the record that failed
    /// is delivered.
    replayed: Option<u64>,
    /// Why replays began since then.
    reasons: Vec<String>,
    /// Whether the last one's reason had been told before.
    repeated: bool,
    /// Events that were told to be put aside, the last of them by position. One that the broker
    /// refuses is found after what stands behind it.
    told_aside: BTreeSet<EventPosition>,
    /// Since when nothing is in flight although the way is open.
    quiet: Option<Instant>,
    /// When dropped headers were told last.
    told_dropped: Option<Instant>,
}

/// How often dropped headers are told at most: a row may have them in each transaction.
const DROPPED_INTERVAL: Duration = Duration::from_secs(60);

/// Events put aside that are remembered at most; one that is forgotten may be told again.
const ASIDE: usize = 10_000;

/// Reasons that are remembered at most.
const REASONS: usize = 16;

/// Kafka was found unusable.
#[derive(Debug)]
struct Down {
    reason: String,
    /// Deliveries counted then: one more means that it is over. Where a part of
    /// the records may still be taken the sink itself says when it is.
    at: Option<u64>,
    /// Whether it is the credentials that it does not take.
    refused: bool,
    told: bool,
}

impl EventLog {
    /// The sink said this, after so many deliveries.
    pub(super) fn heard(&mut self, condition: Condition, delivered: u64) {
        self.quiet = None;
        // A reason may have a broker's words in it.
        match condition {
            Condition::Unreachable(reason) => {
                let fix = "see whether the brokers run and can be reached from here";
                let (reason, at) = (line(&format!("{reason}; {fix}")), Some(delivered));
                self.down.get_or_insert(Down { reason, at, refused: false, told: false });
            }
            Condition::Unauthenticated(reason) => {
                let fix = "give walpost's user its password back, or put the new one where walpost has it from";
                let reason = line(&format!("the credentials are refused: {reason}; {fix}"));
                // A broker that refuses them closes the connection too, before or after.
                if self.down.as_ref().is_none_or(|down| !down.refused) {
                    let at = Some(delivered);
                    self.down = Some(Down { reason, at, refused: true, told: false });
                }
            }
            Condition::Stalled { reason, .. } => {
                let reason = line(&reason);
                self.down = Some(Down { reason, at: None, refused: false, told: false });
            }
            Condition::Flowing => {
                if let Some(down) = self.down.as_mut().filter(|down| down.at.is_none()) {
                    down.at = Some(0);
                }
            }
            Condition::Repartitioned { topic, before, now } => tracing::warn!(
                topic,
                before,
                now,
                "the number of partitions of the topic changed: keys map to other partitions from here \
                 on, and the order of a key across this moment is not kept; where that matters, let \
                 consumers come to the end of the older records first"
            ),
            // It ends in a replay, which is told with its reason.
            Condition::Broken(_) => {}
        }
    }

    /// Tells what has changed. Whether Kafka can be used matters only where there is
    /// something to deliver.
    pub(super) fn tell(
        &mut self,
        SinkState { delivered, in_flight, failed, open, now }: SinkState<impl FnOnce() -> bool>,
    ) {
        let told = self.is_trouble_told();
        let matters = in_flight > 0 || delivered == 0;
        if in_flight == 0 && !failed && self.is_trouble() && open() {
            let since = *self.quiet.get_or_insert(now);
            if now.saturating_duration_since(since) >= QUIET {
                (self.down, self.replayed, self.repeated) = (None, None, false);
                self.reasons.clear();
            }
        } else {
            self.quiet = None;
        }
        match &mut self.down {
            Some(down) if down.at.is_some_and(|at| delivered > at) => self.down = None,
            // A connection that closes while nothing is to be sent is no news.
            Some(down) if matters && !down.told => {
                down.told = true;
                tracing::warn!(
                    reason = %down.reason,
                    "cannot deliver to Kafka; retrying while PostgreSQL retains the WAL"
                );
            }
            _ => {}
        }
        if !failed && self.replayed.take_if(|at| delivered > *at).is_some() {
            self.reasons.clear();
            self.repeated = false;
        }
        if told && !self.is_trouble_told() {
            tracing::info!("delivering to Kafka again");
        }
    }

    /// Tells of each event that was put aside, once: a replay meets it again.
    pub(super) fn diverted(&mut self, events: Vec<Diverted>, metrics: &Metrics) {
        for Diverted { origin, poison, topic } in events {
            if !self.told_aside.insert(poison.position) {
                continue;
            }
            if self.told_aside.len() > ASIDE {
                self.told_aside.pop_first();
            }
            let cause = poison.cause.key();
            let policy = if topic.is_some() { Policy::DeadLetter } else { Policy::Skip };
            metrics.poisoned(cause, policy.name());
            if let Some(topic) = topic {
                tracing::warn!(
                    cause,
                    topic,
                    "{origin}, {poison}: written to the dead-letter topic"
                );
            } else {
                tracing::warn!(cause, "{origin}, {poison}: skipped");
            }
        }
    }

    /// Tells that an event's own headers were dropped, `count` so far: not more than once in a
    /// while.
    pub(super) fn dropped_headers(&mut self, dropped: &DroppedHeaders, count: u64, now: Instant) {
        let is_due = |told: Instant| now.saturating_duration_since(told) >= DROPPED_INTERVAL;
        if !self.told_dropped.is_none_or(is_due) {
            return;
        }
        self.told_dropped = Some(now);
        let DroppedHeaders { origin, position, name } = dropped;
        tracing::warn!(
            %origin,
            %position,
            header = name,
            count,
            "dropped row headers with reserved names: rename these members of the \
             row's headers"
        );
    }

    /// What people were told that keeps Kafka from taking records, as long as it does.
    pub(super) fn trouble(&self) -> Option<&str> {
        let down = self.down.as_ref().filter(|down| down.told).map(|down| down.reason.as_str());
        let replayed = self.replayed.and(self.reasons.last()).map(String::as_str);
        down.or(replayed)
    }

    fn is_trouble(&self) -> bool {
        self.replayed.is_some() || self.down.is_some()
    }

    fn is_trouble_told(&self) -> bool {
        self.replayed.is_some() || self.down.as_ref().is_some_and(|down| down.told)
    }

    /// Whether a replay is under way of which nothing is to be told any more.
    pub(super) fn is_told(&self) -> bool {
        self.repeated
    }

    /// Everything from `from` on is produced again, for this reason: told once,
    /// since what lasts for hours is tried every few seconds.
    pub(super) fn replay(&mut self, reason: &str, from: Lsn, delay: Duration, delivered: u64) {
        self.quiet = None;
        let reason = line(reason);
        self.repeated = self.reasons.contains(&reason);
        self.replayed = Some(delivered);
        if self.repeated {
            tracing::debug!(reason, %from, ?delay, "a record still is not delivered");
            return;
        }
        tracing::warn!(
            reason,
            %from,
            "delivery failed; replaying from the last confirmed position with a new producer"
        );
        self.reasons.truncate(REASONS - 1);
        self.reasons.push(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Fault;

    /// Tells, so long after the beginning.
    fn tell(
        event_log: &mut EventLog,
        delivered: u64,
        in_flight: usize,
        open: bool,
        after: Duration,
    ) {
        let now = *BEGAN.get_or_init(Instant::now) + after;
        let open = || open;
        event_log.tell(SinkState { delivered, in_flight, failed: false, open, now });
    }

    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

    fn unreachable() -> Condition {
        Condition::Unreachable("refused".into())
    }

    #[test]
    fn what_was_told_is_over_where_brokers_are_connected_and_nothing_is_to_be_sent() {
        let mut event_log = EventLog::default();
        event_log.heard(unreachable(), 0);
        tell(&mut event_log, 0, 0, false, Duration::ZERO);
        assert!(event_log.trouble().is_some_and(|told| told.contains("refused")));
        tell(&mut event_log, 0, 0, true, QUIET);
        assert!(event_log.trouble().is_some(), "they may be gone again at once");
        tell(&mut event_log, 0, 0, true, QUIET * 2);
        assert_eq!(event_log.trouble(), None);
        // The same for a producer that was replaced.
        event_log.replay("fatal", Lsn::ZERO, Duration::ZERO, 7);
        tell(&mut event_log, 7, 0, true, QUIET * 3);
        tell(&mut event_log, 7, 1, true, QUIET * 4);
        assert_eq!(event_log.trouble(), Some("fatal"), "a record is on its way");
        tell(&mut event_log, 7, 0, true, QUIET * 5);
        tell(&mut event_log, 7, 0, false, QUIET * 6);
        tell(&mut event_log, 7, 0, true, QUIET * 7);
        assert_eq!(event_log.trouble(), Some("fatal"), "not for long enough");
        tell(&mut event_log, 7, 0, true, QUIET * 8);
        assert_eq!(event_log.trouble(), None);
    }

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        let text = format!("a\nforged\u{1b}[2J{}", "x".repeat(1 << 20));
        let assert_tame = |event_log: &EventLog| {
            let told = event_log.trouble().expect("it is told");
            assert!(told.len() < 10_000, "{} bytes", told.len());
            assert!(told.contains(r"a\nforged\u{1b}[2Jx"), "{told}");
        };
        for condition in [
            Condition::Unreachable(text.clone()),
            Condition::Unauthenticated(text.clone()),
            Condition::Stalled { reason: text.clone(), fault: Fault::Brokers },
        ] {
            let mut event_log = EventLog::default();
            event_log.heard(condition, 0);
            tell(&mut event_log, 0, 0, false, Duration::ZERO);
            assert_tame(&event_log);
        }
        let mut event_log = EventLog::default();
        event_log.replay(&text, Lsn::ZERO, Duration::ZERO, 7);
        assert_tame(&event_log);
    }

    #[test]
    fn an_outage_while_nothing_was_to_be_sent_is_not_told_later() {
        let mut event_log = EventLog::default();
        event_log.heard(unreachable(), 3);
        tell(&mut event_log, 3, 0, true, Duration::ZERO);
        tell(&mut event_log, 3, 0, true, QUIET);
        tell(&mut event_log, 3, 1, true, QUIET * 100);
        assert_eq!(event_log.trouble(), None);
        // But one that lasts is.
        event_log.heard(unreachable(), 3);
        tell(&mut event_log, 3, 0, false, QUIET * 101);
        assert_eq!(event_log.trouble(), None);
        tell(&mut event_log, 3, 1, false, QUIET * 102);
        assert!(event_log.trouble().is_some());
    }
}
