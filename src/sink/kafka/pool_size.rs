//! How many producers send, and with how many requests in flight each: by the round trip to the
//! brokers and the rate of records, as measured.
//!
//! librdkafka puts records of one partition into a request, so records that are spread over many
//! partitions need about a request each. A connection to a broker carries at most
//! [`FAR`] of them in a round trip, and with `acks=all` the broker answers them one after the
//! other. A producer has one connection to each broker. So where the brokers are far away and the
//! rate is high, records wait for a place; several producers have more places.
//!
//! How long replication takes shows in no round trip by itself. So where acknowledgements take much
//! longer than a round trip all the same, what the producers carry is taken as what they can carry
//! at most.
//!
//! More producers make more and smaller requests, which brokers may have no time for. So where
//! acknowledgements are not sooner with them, there are as many as before again.
//!
//! Where the brokers are near, one request in flight is enough: while it is, records gather, which
//! makes fewer and larger requests.
//!
//! Pure: the time is an argument.

use std::time::{Duration, Instant};

/// Requests in flight where brokers are far away: the most with which an idempotent producer
/// keeps the order.
const FAR: u32 = 5;

/// Requests in flight where they are near.
const NEAR: u32 = 1;

/// The longest round trip of brokers that are near, and the shortest of those that are far away.
/// Between the two nothing is changed.
const NEAR_UP_TO: Duration = Duration::from_micros(500);
const FAR_FROM: Duration = Duration::from_micros(800);

/// Records a second from which on it matters.
const NEAR_RATE: f64 = 200.0;

/// What of the places for requests is to be in use at most: beyond that records wait for long.
const UTILISATION: f64 = 0.65;

/// How long a broker takes for a request. It takes the next of the same connection after it.
const BROKER_TIME: Duration = Duration::from_micros(300);

/// Records of a request from which on a connection is limited by bytes, not by requests.
const BULK: u64 = 200;

/// By how much longer than a round trip acknowledgements take on average at least, where requests
/// have no place: this, and a round trip.
const WAIT: Duration = Duration::from_millis(3);

/// How often in a row that has to be seen, and for how long it counts.
const WAITS: u32 = 2;
const CAPACITY_LIFETIME: Duration = Duration::from_secs(3600);

/// How often is looked.
const INTERVAL: Duration = Duration::from_secs(5);

/// How long fewer have to be enough before there are fewer.
const SHRINKS_AFTER: Duration = Duration::from_secs(600);

/// How long after a try that failed the next one comes, and how long that gets.
const RETRY_AFTER: Duration = Duration::from_secs(60);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How many producers there are, and the requests that each may have in flight to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSize {
    pub(crate) producers: u32,
    pub(crate) in_flight: u32,
}

/// What the producers have measured, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    /// The shortest, if there was any.
    pub(crate) round_trip: Option<Duration>,
    pub(crate) brokers: u32,
    /// Of all topics that records go to.
    pub(crate) partitions: u32,
    /// Requests sent and records delivered, since there are these producers.
    pub(crate) requests: u64,
    pub(crate) delivered: u64,
    /// What all their acknowledgements took together.
    pub(crate) ack_time: Duration,
}

impl Load {
    /// What an acknowledgement took on average since `last`, if there was one.
    fn since(&self, last: &Self) -> Option<Duration> {
        let delivered = self.delivered.saturating_sub(last.delivered);
        let count = u32::try_from(delivered).ok().filter(|count| *count > 0)?;
        Some(self.ack_time.saturating_sub(last.ack_time) / count)
    }
}

/// More producers, which have to prove themselves.
#[derive(Debug)]
struct Trial {
    /// The size before, and how long an acknowledgement took with it.
    before: PoolSize,
    took: Duration,
    /// How often was looked since. The first time is that of the change itself.
    looks: u32,
}

/// The present size, and what decides on another.
#[derive(Debug)]
pub(crate) struct PoolSizing {
    max: u32,
    /// The user's own number of requests in flight.
    in_flight: Option<u32>,
    size: PoolSize,
    /// Whether that is by a measurement.
    is_measured: bool,
    /// What was looked at last, and when.
    last: (Load, Instant),
    trial: Option<Trial>,
    /// How often in a row records waited for long.
    waits: u32,
    /// Records a second that a producer can carry, and when that was seen.
    capacity: Option<(f64, Instant)>,
    /// Since when fewer producers would be enough.
    smaller_since: Option<Instant>,
    not_before: Instant,
    retry_after: Duration,
}

impl PoolSizing {
    /// At most `max` producers; `in_flight`: the user's own number of requests in flight.
    pub(crate) fn new(max: u32, in_flight: Option<u32>, now: Instant) -> Self {
        let size = PoolSize { producers: 1, in_flight: in_flight.unwrap_or(FAR) };
        Self {
            max: max.max(1),
            in_flight,
            size,
            is_measured: false,
            last: (Load::default(), now),
            trial: None,
            waits: 0,
            capacity: None,
            smaller_since: None,
            not_before: now,
            retry_after: RETRY_AFTER,
        }
    }

    pub(crate) fn size(&self) -> PoolSize {
        self.size
    }

    /// The configuration is another one from now on.
    pub(crate) fn configure(&mut self, in_flight: Option<u32>) {
        self.in_flight = in_flight;
        if let Some(in_flight) = in_flight {
            self.size.in_flight = in_flight;
        }
    }

    /// Whether it is time to look again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last.1) >= INTERVAL
    }

    /// The size that is wanted instead of the present one.
    pub(crate) fn wanted(&mut self, load: Load, now: Instant) -> Option<PoolSize> {
        let took = load.since(&self.last.0);
        if self.trial.is_some() {
            self.last = (load, now);
            let before = self.unless_sooner(took)?;
            self.failed(now);
            return Some(before);
        }
        let wanted = self.fitting(&load, now);
        self.last = (load, now);
        let wanted = wanted.filter(|wanted| *wanted != self.size)?;
        let is_smaller = wanted.producers < self.size.producers
            || self.is_measured && wanted.in_flight < self.size.in_flight;
        if !is_smaller {
            self.smaller_since = None;
        } else if now.saturating_duration_since(*self.smaller_since.get_or_insert(now))
            < SHRINKS_AFTER
        {
            return None;
        }
        if now < self.not_before {
            return None;
        }
        if wanted.producers > self.size.producers {
            self.trial = took.map(|took| Trial { before: self.size, took, looks: 0 });
        }
        Some(wanted)
    }

    /// The size before the last change, where acknowledgements are not sooner since.
    fn unless_sooner(&mut self, took: Option<Duration>) -> Option<PoolSize> {
        let trial = self.trial.as_mut()?;
        trial.looks += 1;
        if trial.looks < 2 {
            return None;
        }
        let Trial { before, took: took_before, .. } = self.trial.take()?;
        if took.is_some_and(|took| took * 10 > took_before * 9) {
            return Some(before);
        }
        self.retry_after = RETRY_AFTER;
        None
    }

    /// The producers are of that size from now on, and have measured nothing yet.
    pub(crate) fn applied(&mut self, size: PoolSize, now: Instant) {
        self.size = size;
        self.is_measured = true;
        self.smaller_since = None;
        self.last = (Load::default(), now);
    }

    /// That size could not be had.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.trial = None;
        self.capacity = None;
        self.not_before = now + self.retry_after;
        self.retry_after = (self.retry_after * 2).min(RETRY_AFTER_MAX);
    }

    /// Producers failed, so that a replay begins: with one, whatever it was that failed.
    pub(crate) fn replay(&mut self, now: Instant) {
        if self.size.producers > 1 {
            self.failed(now);
        }
        self.trial = None;
        self.size.producers = 1;
        self.smaller_since = None;
        self.last = (Load::default(), now);
    }

    /// The size for what happened since the last look; `None`: that says nothing.
    fn fitting(&mut self, load: &Load, now: Instant) -> Option<PoolSize> {
        let (last, then) = self.last;
        let elapsed = now.saturating_duration_since(then);
        let round_trip = load.round_trip?;
        let delivered = load.delivered.saturating_sub(last.delivered);
        let requests = load.requests.saturating_sub(last.requests).max(1);
        if delivered / requests >= BULK {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = delivered as f64 / elapsed.as_secs_f64().max(0.001);
        if round_trip <= NEAR_UP_TO {
            let busy = (rate >= NEAR_RATE).then_some(NEAR);
            let in_flight = self.in_flight.or(busy).unwrap_or(self.size.in_flight);
            return Some(PoolSize { producers: 1, in_flight });
        } else if round_trip < FAR_FROM {
            return None;
        }
        let in_flight = self.in_flight.unwrap_or(FAR);
        let of_network = round_trip.as_secs_f64() / f64::from(in_flight);
        let busy = of_network.max(BROKER_TIME.as_secs_f64());
        let connections = (rate * busy / UTILISATION).ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let connections = connections as u32;
        let useful = connections.min(load.partitions);
        let by_round_trip = useful.div_ceil(load.brokers.max(1));
        let wait = load.since(&last).unwrap_or_default().saturating_sub(round_trip);
        let by_waiting = self.by_waiting(wait >= WAIT.max(round_trip), rate, now);
        let by_waiting = by_waiting.min(load.partitions);
        let producers = by_round_trip.max(by_waiting).clamp(1, self.max);
        Some(PoolSize { producers, in_flight })
    }

    /// How many producers that rate needs by what they could carry when records waited; 0: they
    /// did not.
    fn by_waiting(&mut self, waits: bool, rate: f64, now: Instant) -> u32 {
        self.waits = if waits { self.waits + 1 } else { 0 };
        if self.waits >= WAITS {
            self.waits = 0;
            self.capacity = Some((rate / f64::from(self.size.producers), now));
        }
        let lives = |then: Instant| now.saturating_duration_since(then) < CAPACITY_LIFETIME;
        self.capacity = self.capacity.filter(|(capacity, then)| *capacity > 0.0 && lives(*then));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let needed = |capacity: f64| (rate / (capacity * UTILISATION)).ceil() as u32;
        self.capacity.map_or(0, |(capacity, _)| needed(capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 8;

    /// A second of so many records, each in a request of its own.
    fn load(round_trip_micros: u64, rate: u64, partitions: u32) -> Load {
        Load {
            round_trip: Some(Duration::from_micros(round_trip_micros)),
            brokers: 1,
            partitions,
            requests: rate * 5,
            delivered: rate * 5,
            ack_time: Duration::from_micros(round_trip_micros) * u32::try_from(rate * 5).unwrap(),
        }
    }

    fn wanted(load: Load) -> PoolSize {
        let now = Instant::now();
        let mut sizing = PoolSizing::new(MAX, None, now);
        sizing.wanted(load, now + INTERVAL).unwrap_or(sizing.size())
    }

    #[test]
    fn far_brokers_and_a_high_rate_need_several_producers() {
        let size = |producers, in_flight| PoolSize { producers, in_flight };
        assert_eq!(wanted(load(300, 5000, 50)), size(1, NEAR));
        assert_eq!(wanted(load(300, 100, 50)), size(1, FAR), "it makes no difference");
        assert_eq!(wanted(load(700, 5000, 50)), size(1, FAR), "it may be either");
        assert_eq!(wanted(load(1300, 1000, 50)), size(1, FAR));
        assert_eq!(wanted(load(1300, 5000, 50)), size(3, FAR));
        assert_eq!(wanted(load(5400, 100, 50)), size(1, FAR));
        assert_eq!(wanted(load(5400, 1000, 12)), size(2, FAR));
        assert_eq!(wanted(load(5400, 5000, 50)), size(MAX, FAR));
        assert_eq!(wanted(load(5400, 5000, 3)), size(3, FAR), "a partition is of one producer");
        let of_three = Load { brokers: 3, ..load(5400, 5000, 50) };
        assert_eq!(wanted(of_three), size(3, FAR));
    }

    #[test]
    fn a_backlog_in_large_requests_changes_nothing() {
        let backlog = Load { requests: 100, ..load(20_000, 100_000, 50) };
        assert_eq!(wanted(backlog), PoolSize { producers: 1, in_flight: FAR });
        assert_eq!(wanted(Load::default()), PoolSize { producers: 1, in_flight: FAR });
    }

    #[test]
    fn what_the_user_sets_stands() {
        let now = Instant::now();
        let mut sizing = PoolSizing::new(1, Some(3), now);
        assert_eq!(sizing.wanted(load(5400, 5000, 50), now + INTERVAL), None);
        assert_eq!(sizing.wanted(load(300, 5000, 50), now + 2 * INTERVAL), None);
        assert_eq!(sizing.size(), PoolSize { producers: 1, in_flight: 3 });
    }

    #[test]
    fn there_are_fewer_only_after_a_long_time_in_which_fewer_are_enough() {
        let begun = Instant::now();
        let mut sizing = PoolSizing::new(MAX, None, begun);
        sizing.applied(PoolSize { producers: 4, in_flight: FAR }, begun);
        let mut at = |after: Duration, rate: u64| {
            // Each look begins at nothing.
            let look = begun + after;
            (sizing.last, sizing.trial) = ((Load::default(), look), None);
            sizing.wanted(load(5400, rate, 50), look + INTERVAL)
        };
        assert_eq!(at(INTERVAL, 100), None);
        assert_eq!(at(SHRINKS_AFTER / 2, 5000).map(|size| size.producers), Some(MAX));
        assert_eq!(at(SHRINKS_AFTER, 100), None);
        assert_eq!(at(SHRINKS_AFTER * 2, 100).map(|size| size.producers), Some(1));
    }

    #[test]
    fn where_records_wait_for_requests_again_and_again_there_are_more_producers() {
        let begun = Instant::now();
        let mut sizing = PoolSizing::new(MAX, None, begun);
        let mut at = |seconds: u64, rate: u64, ack_millis: u64| {
            let look = begun + Duration::from_secs(seconds);
            (sizing.last, sizing.trial) = ((Load::default(), look), None);
            let now = look + INTERVAL;
            let ack_time = Duration::from_millis(ack_millis * rate * 5);
            let size = sizing.wanted(Load { ack_time, ..load(2600, rate, 50) }, now);
            size.inspect(|size| sizing.applied(*size, now)).map(|size| size.producers)
        };
        assert_eq!(at(5, 1000, 6), None, "once is not enough");
        assert_eq!((at(10, 1000, 5), at(15, 1000, 6)), (None, None), "that was not long");
        assert_eq!(at(20, 1000, 6), Some(2));
        assert_eq!((at(25, 1000, 6), at(30, 1000, 6)), (None, Some(4)));
        assert_eq!(at(35, 1000, 3), None, "it is enough");
        assert_eq!((at(40, 100, 3), at(640, 100, 3)), (None, Some(1)));
        assert_eq!(at(645, 1000, 3), Some(4), "it is known what they carry");
        assert_eq!((at(4000, 1000, 3), at(4600, 1000, 3)), (None, Some(1)), "for an hour");
    }

    #[test]
    fn more_producers_that_make_nothing_sooner_are_given_up_for_a_while() {
        let begun = Instant::now();
        let mut sizing = PoolSizing::new(MAX, None, begun);
        let mut at = |seconds: u64, ack_millis: u64| {
            let look = begun + Duration::from_secs(seconds);
            sizing.last = (Load::default(), look);
            let now = look + INTERVAL;
            let ack_time = Duration::from_millis(ack_millis * 5000);
            let size = sizing.wanted(Load { ack_time, ..load(5400, 1000, 50) }, now);
            size.inspect(|size| sizing.applied(*size, now)).map(|size| size.producers)
        };
        assert_eq!(at(0, 20), Some(2));
        assert_eq!((at(5, 50), at(10, 19)), (None, Some(1)), "hardly sooner");
        assert_eq!((at(15, 20), at(60, 20)), (None, None));
        assert_eq!((at(75, 20), at(80, 50), at(85, 8)), (Some(2), None, None), "much sooner");
        assert_eq!(at(90, 8), None, "they stay");
    }

    #[test]
    fn brokers_that_seem_near_after_all_change_little_for_a_while() {
        let begun = Instant::now();
        let mut sizing = PoolSizing::new(MAX, None, begun);
        let mut at = |after: Duration, round_trip: u64| {
            let look = begun + after;
            sizing.last = (Load::default(), look);
            let size = sizing.wanted(load(round_trip, 1000, 50), look + INTERVAL);
            size.inspect(|size| sizing.applied(*size, look)).map(|size| size.in_flight)
        };
        assert_eq!(at(INTERVAL, 300), Some(NEAR), "at once");
        assert_eq!(at(2 * INTERVAL, 1300), Some(FAR), "at once");
        assert_eq!(at(3 * INTERVAL, 300), None);
        assert_eq!(at(4 * INTERVAL + SHRINKS_AFTER, 300), Some(NEAR));
    }

    #[test]
    fn after_a_replay_there_is_one_and_several_are_tried_later_each_time() {
        let mut now = Instant::now();
        let mut sizing = PoolSizing::new(MAX, None, now);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let begun = now;
            let size = loop {
                sizing.last = (Load::default(), now);
                now += INTERVAL;
                if let Some(size) = sizing.wanted(load(5400, 1000, 50), now) {
                    break size;
                }
            };
            waits.push((now - begun).as_secs());
            sizing.applied(size, now);
            sizing.replay(now);
            assert_eq!(sizing.size().producers, 1);
        }
        assert_eq!(waits, [5, 60, 120, 240, 480, 960, 1920, 3600]);
    }
}
