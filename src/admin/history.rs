//! The last quarter of an hour, from samples of the metrics: their number is fixed, and what is measured does
//! not depend on how often anybody looks.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::metrics::{AckTimes, Metrics};

/// Samples, about one a second.
const SAMPLES: usize = 900;

/// Their distance.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Over what rates are measured.
const RATE_SPAN: Duration = Duration::from_secs(10);

/// Over what the time to the acknowledgement is measured.
const LATENCY_SPANS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(900)];

/// How often records are counted by topic.
const TOPICS_INTERVAL: Duration = Duration::from_secs(5);

/// How many topics have a rate of their own.
const TOPICS: usize = 10;

/// The topic for the others, as in the metrics.
const OTHERS: &str = "(others)";

#[derive(Debug, Clone)]
struct Sample {
    at: Instant,
    received: u64,
    delivered: u64,
    ack_times: AckTimes,
    /// When the oldest unconfirmed transaction committed, that long before.
    lag_seconds: f64,
    /// WAL that is not confirmed, in bytes.
    lag_bytes: u64,
    slot: Option<SlotSample>,
}

/// What PostgreSQL has said of the slot, and when: sizes in bytes.
#[derive(Debug, Clone, Copy)]
struct SlotSample {
    observed: SystemTime,
    retained: u64,
    /// WAL that may be written before the slot may be lost.
    safe: Option<i64>,
}

/// Over how long, and by how many bytes, the WAL that is retained has to have grown before that is a rate: two
/// segments, since PostgreSQL removes whole ones.
const GROWTH_SPAN: Duration = Duration::from_secs(60);
const GROWTH: u64 = 32 << 20;

/// Samples a few seconds apart, as lines show them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) seconds_ago: f64,
    pub(super) lag_seconds: f64,
    pub(super) lag_bytes: u64,
    pub(super) received_per_second: f64,
    pub(super) published_per_second: f64,
}

/// How many samples are one [`Point`].
const POINT: usize = 5;

/// Samples of the metrics.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// How many came before these.
    removed: usize,
    /// Records of each topic, every [`TOPICS_INTERVAL`], over [`RATE_SPAN`].
    topics: VecDeque<(Instant, BTreeMap<String, u64>)>,
}

/// The time from commit to acknowledgement, in seconds: between bounds of the histogram by proportion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Over this time, or since the start.
    pub over_seconds: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Records of a topic that were acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicRate {
    /// The topic; `(others)` for all but the busiest.
    pub topic: String,
    /// Records per second over the last ten seconds.
    pub per_second: f64,
}

impl History {
    /// Adds a sample.
    pub(super) fn sample(&mut self, now: Instant, metrics: &Metrics) {
        let slot = metrics.slot_metrics();
        self.samples.push_back(Sample {
            at: now,
            received: metrics.new_events.get(),
            delivered: metrics.delivered.get(),
            ack_times: metrics.ack_times(),
            lag_seconds: metrics.lag_seconds(SystemTime::now()),
            lag_bytes: slot.as_ref().map_or(0, |slot| slot.lag_bytes),
            slot: slot.map(|slot| SlotSample {
                observed: slot.observed,
                retained: slot.retained_bytes,
                safe: slot.safe_bytes,
            }),
        });
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
            self.removed += 1;
        }
        // The relay counts under the same lock.
        if self.topics.back().is_none_or(|(then, _)| now.duration_since(*then) >= TOPICS_INTERVAL) {
            self.topics.push_back((now, metrics.records_by_topic()));
        }
        while self.topics.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= RATE_SPAN) {
            self.topics.pop_front();
        }
    }

    /// The newest sample, and the one from that long before it, or the oldest.
    fn over(&self, span: Duration) -> Option<(&Sample, &Sample)> {
        let last = self.samples.back()?;
        let is_within = |sample: &&Sample| last.at.duration_since(sample.at) <= span;
        Some((self.samples.iter().find(is_within)?, last))
    }

    /// New events that were received, and records that were acknowledged, per second.
    pub(super) fn rates(&self) -> (f64, f64) {
        let Some((first, last)) = self.over(RATE_SPAN) else { return (0.0, 0.0) };
        let over = last.at.duration_since(first.at);
        let rate = |of: fn(&Sample) -> u64| per_second(of(first), of(last), over);
        (rate(|sample| sample.received), rate(|sample| sample.delivered))
    }

    /// The samples as lines show them: of each few, the highest lag and the mean rates.
    pub(super) fn points(&self) -> Vec<Point> {
        let Some(last) = self.samples.back() else { return Vec::new() };
        // The same ones whenever it is asked, and the newest.
        let is_end = |at: &usize| (self.removed + at).is_multiple_of(POINT);
        let newest = self.samples.len() - 1;
        let ends: Vec<_> = (0..newest).filter(is_end).chain([newest]).collect();
        let point = |ends: &[usize]| {
            let (first, end) = (&self.samples[ends[0]], &self.samples[ends[1]]);
            let over = end.at.duration_since(first.at);
            let few = || self.samples.range(ends[0]..=ends[1]);
            Point {
                seconds_ago: last.at.duration_since(end.at).as_secs_f64(),
                lag_seconds: few().map(|one| one.lag_seconds).fold(0.0, f64::max),
                lag_bytes: few().map(|one| one.lag_bytes).max().unwrap_or_default(),
                received_per_second: per_second(first.received, end.received, over),
                published_per_second: per_second(first.delivered, end.delivered, over),
            }
        };
        ends.windows(2).map(point).collect()
    }

    /// The time from commit to acknowledgement, where something was acknowledged.
    pub(super) fn latency(&self) -> Vec<Latency> {
        let of = |span| {
            let (first, last) = self.over(span)?;
            let times = last.ack_times.since(&first.ack_times);
            let over = last.at.duration_since(first.at);
            // Samples are a little more than a second apart.
            let is_whole = over + 2 * SAMPLE_INTERVAL >= span;
            let over_seconds = if is_whole { span } else { over }.as_secs_f64().round();
            Some(Latency { over_seconds, p50: times.quantile(0.5)?, p99: times.quantile(0.99)? })
        };
        let mut found: Vec<_> = LATENCY_SPANS.into_iter().filter_map(of).collect();
        // Before a minute is over both are the same.
        found.dedup();
        found
    }

    /// The rates of the busiest topics, and of the others together.
    pub(super) fn topics(&self) -> Vec<TopicRate> {
        let (Some((first, before)), Some((last, now))) = (self.topics.front(), self.topics.back())
        else {
            return Vec::new();
        };
        let over = last.duration_since(*first);
        let rate = |(topic, count): (&String, &u64)| {
            let before = before.get(topic).copied().unwrap_or_default();
            TopicRate { topic: topic.clone(), per_second: per_second(before, *count, over) }
        };
        let rates = now.iter().map(rate).filter(|one| one.per_second > 0.0);
        // The metrics count some together.
        let (mut rest, mut rates): (Vec<_>, Vec<_>) = rates.partition(|one| one.topic == OTHERS);
        rates.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
        rest.extend(rates.split_off(TOPICS.min(rates.len())));
        if !rest.is_empty() {
            let per_second = rest.iter().map(|one| one.per_second).sum();
            rates.push(TopicRate { topic: OTHERS.to_owned(), per_second });
        }
        rates
    }

    /// The time until the slot may be lost, at the rate of the last quarter of an hour; `None`: WAL that is
    /// retained does not grow, or has no limit.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn seconds_until_lost(&self) -> Option<f64> {
        let first = self.samples.iter().find_map(|sample| sample.slot)?;
        let last = self.samples.back()?.slot?;
        let over = last.observed.duration_since(first.observed).ok()?;
        let grown = last.retained.saturating_sub(first.retained);
        let is_known = over >= GROWTH_SPAN && grown >= GROWTH;
        let left = last.safe?.max(0) as f64;
        is_known.then(|| left * over.as_secs_f64() / grown as f64)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn per_second(before: u64, now: u64, over: Duration) -> f64 {
    let seconds = over.as_secs_f64();
    if seconds == 0.0 { 0.0 } else { now.saturating_sub(before) as f64 / seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::metrics::Published;
    use crate::source::SlotMetrics;

    /// A history of so many seconds; each is told to `work`.
    fn history(seconds: u64, work: impl Fn(u64, &Metrics)) -> History {
        let (begun, metrics) = (Instant::now(), Metrics::default());
        let mut history = History::default();
        for second in 0..=seconds {
            work(second, &metrics);
            history.sample(begun + Duration::from_secs(second), &metrics);
        }
        history
    }

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9
    }

    #[test]
    fn rates_are_those_of_the_last_ten_seconds() {
        let (received, delivered) = History::default().rates();
        assert!(close(received, 0.0) && close(delivered, 0.0));
        let history = history(2_000, |second, metrics| {
            metrics.new_events.set(second * 7);
            metrics.delivered.set(second.min(1_995) * 20);
        });
        let (received, delivered) = history.rates();
        assert!(close(received, 7.0) && close(delivered, 10.0), "{received} {delivered}");
        assert_eq!((history.samples.len(), history.topics.len()), (SAMPLES, 3));
    }

    #[test]
    fn latency_is_that_of_a_minute_and_of_a_quarter_of_an_hour() {
        let history = history(1_000, |second, metrics| {
            let millis = if second > 960 { 40 } else { 4 };
            metrics.commit_to_ack(Duration::from_millis(millis));
        });
        let [minute, quarter] = history.latency().try_into().expect("two");
        assert!(close(minute.over_seconds, 60.0) && close(quarter.over_seconds, 900.0));
        // Bounds are 2 and 5 ms, and 25 and 50 ms.
        assert!((0.025..0.05).contains(&minute.p50) && (0.002..0.005).contains(&quarter.p50));
        assert!((0.025..0.05).contains(&quarter.p99), "{quarter:?}");
        assert_eq!(super::History::default().latency(), []);
    }

    #[test]
    fn slot_is_lost_when_retained_wal_has_grown_by_what_is_left() {
        let of = |growth: u64, seconds: u64| {
            let start = SystemTime::now();
            let history = history(seconds, |second, metrics| {
                let mut slot = slot(start + Duration::from_secs(second));
                slot.retained_bytes += second * growth;
                // Before that PostgreSQL was not asked.
                if second > 2 {
                    metrics.slot(slot);
                }
            });
            history.seconds_until_lost()
        };
        let left = of(1 << 20, 100).expect("it grows");
        assert!((left - 1024.0).abs() < 1.0, "1 GiB at 1 MiB a second: {left}");
        assert_eq!((of(0, 100), of(1 << 20, 30), of(1 << 16, 100)), (None, None, None));
    }

    fn slot(observed: SystemTime) -> SlotMetrics {
        SlotMetrics {
            observed,
            wal_end: Lsn::ZERO,
            lag_bytes: 0,
            retained_bytes: 0,
            safe_bytes: Some(1 << 30),
            limit_bytes: Some(1 << 30),
            wal_status: None,
            spilled_bytes: 0,
            horizon: None,
        }
    }

    #[test]
    fn points_are_the_same_ones_each_second() {
        let shown = |seconds| {
            let history = history(seconds, |second, metrics| metrics.new_events.set(second));
            let points = history.points();
            assert!(points.iter().all(|point| close(point.received_per_second, 1.0)));
            (points.len(), points.last().map(|point| point.seconds_ago))
        };
        assert_eq!((shown(0), shown(3)), ((0, None), (1, Some(0.0))));
        assert_eq!((shown(1_000).1, shown(1_002)), (Some(0.0), (180, Some(0.0))));
    }

    #[test]
    fn busiest_topics_have_rates_and_the_others_one() {
        let history = history(20, |_, metrics| {
            for topic in 0..15_u64 {
                metrics.published(&format!("t{topic}"), Published { events: topic, bytes: 1 });
            }
        });
        let topics = history.topics();
        assert_eq!(topics.len(), TOPICS + 1);
        assert!(topics[0].topic == "t14" && close(topics[0].per_second, 14.0), "{topics:?}");
        let others = topics.last().expect("others");
        assert!(others.topic == OTHERS && close(others.per_second, 10.0), "{others:?}");
    }
}
