//! Logs the sink's state without repeats: one line when it becomes unusable, one for each reason,
//! and one when records are delivered again, for [`SETTLED`] at least. It decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::excerpt::line;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::position::EventPosition;
use crate::record::Policy;
use crate::sink::{Condition, Peer};
use walpost_core::relay::{Diverted, DroppedHeaders};

/// After this time without records in flight, with a broker connected, an outage counts as over
/// even if nothing was delivered.
const IDLE: Duration = Duration::from_secs(5);

/// An outage that begins again before that long is the same one to the log: a destination that rejects
/// some requests would fill it otherwise.
const SETTLED: Duration = Duration::from_secs(5);

/// The state of delivery.
pub(super) struct SinkState<F> {
    /// Records delivered so far.
    pub(super) delivered: u64,
    /// Records in flight.
    pub(super) in_flight: usize,
    /// Whether a failed record is not yet delivered.
    pub(super) failed: bool,
    /// Whether a broker is connected, and the events that would be read now are new.
    pub(super) open: F,
    pub(super) now: Instant,
}

/// What was logged about the sink, and what is still to be logged.
#[derive(Debug)]
pub(super) struct DeliveryLog {
    peer: &'static Peer,
    down: Option<Down>,
    /// When an outage that was logged ended, until that is logged.
    ended: Option<Instant>,
    /// The reasons that were logged since the outage began.
    down_reasons: Vec<String>,
    /// When one more may be logged in the place of the oldest one, once there are too many.
    next_of_many: Option<Instant>,
    /// Deliveries counted at the start of the last replay, until the failed record is delivered.
    replayed: Option<u64>,
    /// The reasons of replays since the outage began; the newest is the last.
    reasons: Vec<String>,
    /// Whether the last replay's reason had been logged before.
    repeated: bool,
    /// The last logged diverted events, by position. An event that the broker rejects is diverted
    /// after later events.
    logged_diverted: BTreeSet<EventPosition>,
    /// Since when nothing is in flight although a broker is connected.
    idle_since: Option<Instant>,
    /// When dropped headers were last logged.
    logged_dropped: Option<Instant>,
}

/// Minimum interval between log lines on dropped headers: every row may have some.
const DROPPED_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum interval between log lines with one of many reasons: each answer may have another one.
const MANY_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of diverted events kept; an event that is not kept may be logged again.
const DIVERTED_MAX: usize = 10_000;

/// Maximum number of reasons kept.
const REASONS_MAX: usize = 16;

/// Why the sink is unusable.
#[derive(Debug)]
struct Down {
    reason: String,
    /// Deliveries counted then: one more means that the outage is over. `None` if some records may
    /// still be delivered: then the sink itself reports the end.
    at: Option<u64>,
    logged: bool,
    /// Whether, and when, the credentials are the reason.
    refused: Option<Refused>,
    /// Whether it is logged only if that lasts, since there were many reasons.
    is_one_of_many: bool,
}

/// When credentials were refused, as seen by [`DeliveryLog::update`].
#[derive(Debug, Default)]
struct Refused {
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Refused {
    fn seen(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last.get_or_insert(now);
    }

    /// Whether they were refused again after so long that it is no accident of a connection.
    fn stays(&self) -> bool {
        let lasted = |(first, last): (Instant, Instant)| last.saturating_duration_since(first);
        self.first.zip(self.last).map(lasted).is_some_and(|lasted| lasted >= IDLE * 2)
    }
}

impl DeliveryLog {
    /// The log of outages of this destination.
    pub(super) fn of(peer: &'static Peer) -> Self {
        Self {
            peer,
            down: None,
            ended: None,
            down_reasons: Vec::new(),
            next_of_many: None,
            replayed: None,
            reasons: Vec::new(),
            repeated: false,
            logged_diverted: BTreeSet::new(),
            idle_since: None,
            logged_dropped: None,
        }
    }

    /// Records a condition that the sink reported after `delivered` deliveries.
    pub(super) fn on_condition(&mut self, condition: Condition, delivered: u64) {
        self.idle_since = None;
        let at = (!self.peer.has_lanes).then_some(delivered);
        // A reason may contain text from a broker, so it is escaped.
        match condition {
            Condition::Unreachable(reason) => {
                let reason = format!("{reason}; {}", self.peer.unreachable);
                if at.is_none() || self.down.is_none() {
                    self.goes_down(&reason, at, None);
                }
            }
            Condition::Unauthenticated(reason) => {
                let Peer { name, credentials, .. } = self.peer;
                // A broker that rejects credentials also closes the connection, before or after.
                if let Some(Down { refused: Some(refused), at: ends, .. }) = &mut self.down {
                    refused.last = None;
                    *ends = ends.filter(|_| at.is_some());
                } else {
                    let reason = format!(
                        "the credentials are refused: {reason}; restore what {name} accepts, or \
                         correct {credentials}"
                    );
                    self.goes_down(&reason, at, Some(Refused::default()));
                }
            }
            Condition::Stalled { reason, .. } => self.goes_down(&reason, None, None),
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
            // It causes a replay, which is logged with its reason; or the end.
            Condition::Broken(_) | Condition::Regressed(_) => {}
        }
    }

    /// A reason that was logged since the outage began is not logged again.
    fn goes_down(&mut self, reason: &str, at: Option<u64>, refused: Option<Refused>) {
        let reason = line(reason);
        let is_known = self.down_reasons.contains(&reason);
        let is_one_of_many = !is_known && self.down_reasons.len() >= REASONS_MAX;
        let logged = is_known || is_one_of_many;
        self.down = Some(Down { reason, at, logged, refused, is_one_of_many });
    }

    /// Logs one of many reasons in the place of the oldest one, if it lasts.
    fn note_lasting(&mut self, now: Instant) {
        if let Some(down) = self.down.as_mut().filter(|down| down.is_one_of_many) {
            let next = self.next_of_many.get_or_insert(now + SETTLED);
            if now >= *next {
                (down.is_one_of_many, down.logged) = (false, false);
                *next = now + MANY_INTERVAL;
                self.down_reasons.remove(0);
            }
        }
    }

    /// Logs changes. An unusable sink is logged only if there is something to deliver.
    pub(super) fn update(
        &mut self,
        SinkState { delivered, in_flight, failed, open, now }: SinkState<impl FnOnce() -> bool>,
    ) {
        let was_logged = self.is_outage_logged();
        let is_needed = in_flight > 0 || delivered == 0;
        if let Some(Down { refused: Some(refused), .. }) = &mut self.down {
            refused.seen(now);
        }
        if in_flight == 0 && !failed && self.is_outage() && open() {
            let since = *self.idle_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= IDLE {
                (self.replayed, self.repeated) = (None, false);
                self.down = None;
            }
        } else {
            self.idle_since = None;
        }
        self.note_lasting(now);
        match &mut self.down {
            Some(down) if down.at.is_some_and(|at| delivered > at) => self.down = None,
            // A connection that closes while nothing is to be sent is not logged.
            Some(down)
                if (is_needed || down.refused.as_ref().is_some_and(Refused::stays))
                    && !down.logged =>
            {
                down.logged = true;
                self.down_reasons.push(down.reason.clone());
                tracing::warn!(
                    reason = %down.reason,
                    "cannot deliver to {}; retrying while PostgreSQL retains the WAL", self.peer.name
                );
            }
            _ => {}
        }
        if !failed && self.replayed.take_if(|at| delivered > *at).is_some() {
            self.repeated = false;
        }
        if self.is_outage_logged() {
            self.ended = None;
        } else if was_logged || (self.ended.is_none() && !self.down_reasons.is_empty()) {
            // Or it ended as another one began, which is not logged yet.
            self.ended = Some(now);
        }
        let is_settled = |ended| now.saturating_duration_since(ended) >= SETTLED;
        if self.down.is_none() && self.ended.is_some_and(is_settled) {
            tracing::info!("delivering to {} again", self.peer.name);
            self.ended = None;
            self.down_reasons.clear();
            self.next_of_many = None;
            self.reasons.clear();
        }
    }

    /// Logs each diverted event once: a replay diverts it again.
    pub(super) fn diverted(&mut self, events: Vec<Diverted>, metrics: &Metrics) {
        for Diverted { origin, poison, topic } in events {
            if !self.logged_diverted.insert(poison.position) {
                continue;
            }
            if self.logged_diverted.len() > DIVERTED_MAX {
                self.logged_diverted.pop_first();
            }
            let cause = poison.cause.key();
            let policy = if topic.is_some() { Policy::DeadLetter } else { Policy::Skip };
            metrics.poisoned(cause, policy.name(), poison.position);
            if let Some(topic) = topic {
                tracing::warn!(cause, topic, "{origin}, {poison}: goes to the dead-letter topic");
            } else {
                tracing::warn!(cause, "{origin}, {poison}: skipped");
            }
        }
    }

    /// Logs each event that was skipped by an operator's order once.
    pub(super) fn skipped(&mut self, positions: Vec<EventPosition>) {
        for position in positions {
            if self.logged_diverted.insert(position) {
                tracing::warn!(%position, "event not published, as ordered by walpost skip");
            }
        }
    }

    /// Logs that headers of an event were dropped, `count` in total: at most once per
    /// [`DROPPED_INTERVAL`].
    pub(super) fn dropped_headers(&mut self, dropped: &DroppedHeaders, count: u64, now: Instant) {
        let is_due = |logged: Instant| now.saturating_duration_since(logged) >= DROPPED_INTERVAL;
        if !self.logged_dropped.is_none_or(is_due) {
            return;
        }
        self.logged_dropped = Some(now);
        let DroppedHeaders { origin, position, name } = dropped;
        tracing::warn!(
            %origin,
            %position,
            header = name,
            count,
            "dropped row headers with reserved names, or names that the destination cannot have: \
             rename these members of the row's headers"
        );
    }

    /// The destination has answered, so what was wrong before is over.
    pub(super) fn answers(&mut self) {
        self.down = None;
    }

    /// Why records are not delivered, as logged; `None` once they are.
    pub(super) fn trouble(&self) -> Option<&str> {
        let down = self.down.as_ref().filter(|down| down.logged).map(|down| down.reason.as_str());
        let replayed = self.replayed.and(self.reasons.last()).map(String::as_str);
        down.or(replayed)
    }

    fn is_outage(&self) -> bool {
        self.replayed.is_some() || self.down.is_some()
    }

    fn is_outage_logged(&self) -> bool {
        self.replayed.is_some() || self.down.as_ref().is_some_and(|down| down.logged)
    }

    /// Whether a replay is in progress for a reason that was logged before.
    pub(super) fn is_repeating(&self) -> bool {
        self.repeated
    }

    /// Logs a replay from `from` on, for this reason, at this event: once in an outage of hours.
    pub(super) fn replay(
        &mut self,
        (reason, event): (&str, Option<EventPosition>),
        from: Lsn,
        delay: Duration,
        delivered: u64,
    ) {
        self.idle_since = None;
        let reason = line(reason);
        let known = self.reasons.iter().position(|known| *known == reason);
        self.repeated = known.is_some();
        self.replayed = Some(delivered);
        if let Some(known) = known {
            self.reasons[known..].rotate_left(1);
            tracing::debug!(reason, %from, ?delay, "a record still is not delivered");
            return;
        }
        tracing::warn!(
            reason,
            event = event.map(tracing::field::display),
            %from,
            "delivery failed; replaying from the last confirmed position with a new producer"
        );
        self.reasons.truncate(REASONS_MAX - 1);
        self.reasons.push(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Fault, KAFKA};

    /// Updates the log at this time after the start.
    fn update(
        log: &mut DeliveryLog,
        delivered: u64,
        in_flight: usize,
        open: bool,
        after: Duration,
    ) {
        let now = *STARTED.get_or_init(Instant::now) + after;
        let open = || open;
        log.update(SinkState { delivered, in_flight, failed: false, open, now });
    }

    static STARTED: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

    fn unreachable() -> Condition {
        Condition::Unreachable("refused".into())
    }

    #[test]
    fn an_outage_ends_when_brokers_are_connected_and_nothing_is_in_flight() {
        let mut log = DeliveryLog::of(&KAFKA);
        log.on_condition(unreachable(), 0);
        update(&mut log, 0, 0, false, Duration::ZERO);
        assert!(log.trouble().is_some_and(|logged| logged.contains("refused")));
        update(&mut log, 0, 0, true, IDLE);
        assert!(log.trouble().is_some(), "they may be gone again at once");
        update(&mut log, 0, 0, true, IDLE * 2);
        assert_eq!(log.trouble(), None);
        // The same for a producer that was replaced.
        log.replay(("fatal", None), Lsn::ZERO, Duration::ZERO, 7);
        update(&mut log, 7, 0, true, IDLE * 3);
        update(&mut log, 7, 1, true, IDLE * 4);
        assert_eq!(log.trouble(), Some("fatal"), "a record is on its way");
        update(&mut log, 7, 0, true, IDLE * 5);
        update(&mut log, 7, 0, false, IDLE * 6);
        update(&mut log, 7, 0, true, IDLE * 7);
        assert_eq!(log.trouble(), Some("fatal"), "not for long enough");
        update(&mut log, 7, 0, true, IDLE * 8);
        assert_eq!(log.trouble(), None);
    }

    /// A connection that is lost while nothing is to be sent may be there again in time: refused
    /// credentials will not.
    #[test]
    fn only_refused_credentials_are_logged_while_nothing_is_to_be_sent() {
        for (condition, is_logged) in
            [(unreachable(), false), (Condition::Unauthenticated("no".into()), true)]
        {
            let mut log = DeliveryLog::of(&KAFKA);
            log.on_condition(condition.clone(), 7);
            update(&mut log, 7, 0, false, Duration::ZERO);
            assert_eq!(log.trouble(), None, "it may be an accident");
            update(&mut log, 7, 0, false, IDLE * 2);
            assert_eq!(log.trouble(), None, "it was not refused again");
            log.on_condition(condition, 7);
            update(&mut log, 7, 0, false, IDLE * 2);
            assert_eq!(log.trouble().is_some(), is_logged);
            update(&mut log, 7, 1, false, IDLE * 2);
            let trouble = log.trouble().expect("something is to be sent");
            assert_eq!(trouble.contains("correct security.protocol"), is_logged, "{trouble}");
        }
    }

    /// Though others are delivered.
    #[test]
    fn a_lane_that_fails_is_an_outage_until_the_sink_reports_its_end() {
        static LANES: Peer = Peer { has_lanes: true, ..KAFKA };
        for condition in [unreachable(), Condition::Unauthenticated("no".into())] {
            let mut log = DeliveryLog::of(&LANES);
            log.on_condition(condition.clone(), 3);
            update(&mut log, 4, 1, true, Duration::ZERO);
            assert!(log.trouble().is_some(), "{condition:?}");
            // It begins again at once.
            log.on_condition(Condition::Flowing, 4);
            log.on_condition(condition, 4);
            update(&mut log, 5, 1, true, Duration::ZERO);
            assert!(log.trouble().is_some());
            log.on_condition(Condition::Flowing, 5);
            update(&mut log, 6, 1, true, Duration::ZERO);
            assert_eq!(log.trouble(), None);
        }
    }

    #[test]
    fn reasons_that_alternate_are_logged_once() {
        let mut log = DeliveryLog::of(&KAFKA);
        let stalled = || Condition::Stalled { reason: "busy".into(), fault: Fault::Brokers };
        let is_logged = |log: &DeliveryLog| log.down.as_ref().is_some_and(|down| down.logged);
        for (condition, is_new) in [
            (stalled(), true),
            (Condition::Unauthenticated("no".into()), true),
            (stalled(), false),
            (Condition::Unauthenticated("no".into()), false),
        ] {
            log.on_condition(condition, 3);
            assert_eq!(is_logged(&log), !is_new);
            update(&mut log, 3, 1, false, Duration::ZERO);
            assert!(is_logged(&log));
        }
        let up = |log: &mut DeliveryLog, after| {
            log.on_condition(Condition::Flowing, 4);
            update(log, 5, 0, true, after);
            assert_eq!(log.trouble(), None);
        };
        up(&mut log, Duration::ZERO);
        log.on_condition(stalled(), 5);
        assert!(is_logged(&log), "the same outage, so soon");
        up(&mut log, Duration::ZERO);
        up(&mut log, SETTLED);
        log.on_condition(stalled(), 5);
        assert!(!is_logged(&log), "another outage");
    }

    #[test]
    fn a_reason_is_logged_once_while_a_replay_lasts() {
        let mut log = DeliveryLog::of(&KAFKA);
        let stalled = || Condition::Stalled { reason: "busy".into(), fault: Fault::Brokers };
        log.replay(("lost", None), Lsn::ZERO, Duration::ZERO, 0);
        for _ in 0..REASONS_MAX * 2 {
            log.on_condition(stalled(), 0);
            update(&mut log, 0, 1, true, Duration::ZERO);
            log.on_condition(Condition::Flowing, 0);
            update(&mut log, 1, 1, true, Duration::ZERO);
        }
        assert_eq!(log.down_reasons, ["busy"]);
    }

    /// An endpoint may put the number of a request into its answers.
    #[test]
    fn one_of_many_reasons_is_logged_if_it_lasts() {
        static LANES: Peer = Peer { has_lanes: true, ..KAFKA };
        let mut log = DeliveryLog::of(&LANES);
        let mut fails = |reason: String, after| {
            log.on_condition(Condition::Stalled { reason, fault: Fault::Brokers }, 0);
            update(&mut log, 0, 1, true, after);
            assert!(log.trouble().is_some());
            log.down_reasons.clone()
        };
        let all: Vec<_> = (0..20).map(|number| format!("request {number}")).collect();
        for reason in &all {
            fails(reason.clone(), Duration::ZERO);
        }
        assert_eq!(fails(all[19].clone(), Duration::ZERO), all[..REASONS_MAX]);
        let logged = fails("gone".to_owned(), SETTLED);
        assert_eq!((logged.len(), logged[0].as_str()), (REASONS_MAX, "request 1"));
        assert_eq!(logged[REASONS_MAX - 1], "gone");
        for number in 20..31 {
            let after = SETTLED * (number - 18);
            assert_eq!(fails(format!("request {number}"), after), logged, "{after:?}");
            assert_eq!(fails(logged[1].clone(), after), logged, "one of those that are known");
        }
        let after = SETTLED + MANY_INTERVAL;
        assert_eq!(fails("request 31".to_owned(), after)[REASONS_MAX - 1], "request 31");
    }

    #[test]
    fn the_end_is_not_logged_while_another_outage_waits_to_be_logged() {
        let mut log = DeliveryLog::of(&KAFKA);
        log.on_condition(unreachable(), 3);
        update(&mut log, 3, 1, false, Duration::ZERO);
        update(&mut log, 4, 0, false, Duration::ZERO);
        // Unreachable while nothing is to be sent, for another reason.
        log.on_condition(Condition::Unreachable("reset".into()), 4);
        update(&mut log, 4, 0, false, SETTLED * 2);
        assert!(log.ended.is_some());
        update(&mut log, 4, 1, false, SETTLED * 2);
        assert!(log.ended.is_none() && log.trouble().is_some());
    }

    /// With nothing to be sent, as when a login is repaired and an exchange is missing.
    #[test]
    fn an_outage_that_another_one_replaced_without_a_line_is_over_with_that() {
        let mut log = DeliveryLog::of(&KAFKA);
        let stalled =
            |reason: &str| Condition::Stalled { reason: reason.to_owned(), fault: Fault::Brokers };
        log.on_condition(stalled("refused"), 4);
        update(&mut log, 4, 1, false, Duration::ZERO);
        assert_eq!(log.trouble(), Some("refused"));
        log.on_condition(stalled("missing"), 4);
        update(&mut log, 4, 0, false, Duration::ZERO);
        log.on_condition(Condition::Flowing, 4);
        update(&mut log, 5, 0, true, Duration::ZERO);
        update(&mut log, 5, 0, true, SETTLED);
        assert!(log.ended.is_none() && log.down_reasons.is_empty(), "{log:?}");
    }

    #[test]
    fn replays_that_follow_each_other_are_one_outage() {
        let mut log = DeliveryLog::of(&KAFKA);
        for (reason, after, is_repeated) in [
            ("lost", Duration::ZERO, false),
            ("reset", Duration::ZERO, false),
            ("lost", SETTLED / 2, true),
            ("lost", SETTLED * 3, false),
        ] {
            update(&mut log, 7, 0, true, after);
            log.replay((reason, None), Lsn::ZERO, Duration::ZERO, 7);
            assert_eq!(log.is_repeating(), is_repeated, "{reason} {after:?}");
            assert_eq!(log.trouble(), Some(reason));
            update(&mut log, 8, 0, true, after);
            assert_eq!(log.trouble(), None);
        }
    }

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        let text = format!("a\nforged\u{1b}[2J{}", "x".repeat(1 << 20));
        let assert_tame = |log: &DeliveryLog| {
            let logged = log.trouble().expect("it is logged");
            assert!(logged.len() < 10_000, "{} bytes", logged.len());
            assert!(logged.contains(r"a\nforged\u{1b}[2Jx"), "{logged}");
        };
        for condition in [
            Condition::Unreachable(text.clone()),
            Condition::Unauthenticated(text.clone()),
            Condition::Stalled { reason: text.clone(), fault: Fault::Brokers },
        ] {
            let mut log = DeliveryLog::of(&KAFKA);
            log.on_condition(condition, 0);
            update(&mut log, 0, 0, false, Duration::ZERO);
            assert_tame(&log);
        }
        let mut log = DeliveryLog::of(&KAFKA);
        log.replay((&text, None), Lsn::ZERO, Duration::ZERO, 7);
        assert_tame(&log);
    }

    #[test]
    fn an_outage_while_nothing_was_to_be_sent_is_not_logged_later() {
        let mut log = DeliveryLog::of(&KAFKA);
        log.on_condition(unreachable(), 3);
        update(&mut log, 3, 0, true, Duration::ZERO);
        update(&mut log, 3, 0, true, IDLE);
        update(&mut log, 3, 1, true, IDLE * 100);
        assert_eq!(log.trouble(), None);
        // But one that persists is.
        log.on_condition(unreachable(), 3);
        update(&mut log, 3, 0, false, IDLE * 101);
        assert_eq!(log.trouble(), None);
        update(&mut log, 3, 1, false, IDLE * 102);
        assert!(log.trouble().is_some());
    }
}
