//! How many producers send, and with how many requests in flight each: by the round trip to the
//! brokers and the rate of records, as measured.
//!
//! librdkafka puts records of one partition into a request, so records that are spread over many
//! partitions need about a request each. A connection to a broker carries at most
//! [`FAR`] of them in a round trip, and with `acks=all` the broker answers them one after the
//! other. A producer has one connection to each broker. So where the brokers are far away and the
//! rate is high, records wait for a free request; several producers have more of them.
//!
//! How long replication takes is not part of the measured round trip. So where acknowledgements take
//! much longer than a round trip all the same, the present rate is taken as the most that these
//! producers can carry.
//!
//! More producers make more and smaller requests, which brokers may have no time for. So where
//! acknowledgements do not get faster with them, the previous number is restored.
//!
//! Where the brokers are near, one request in flight is enough: records accumulate meanwhile, which
//! makes fewer and larger requests. So walpost starts with one, and has the round trip measured with
//! the first record ([`round_trip`](super::round_trip)). Later, librdkafka's statistics count where
//! they are clear: its shortest time can be too short on a busy machine, and its median too long.
//! Brokers that have just started, or are busy, answer late, so near ones can seem far away. That is
//! doubted if the statistics have a short time: then the round trip is measured again, and the
//! shortest measurement counts. (On loopback at 5,000 records a second to 12 partitions, five
//! producers instead of one made p99 88 ms instead of 15.)
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
pub(super) const NEAR_UP_TO: Duration = Duration::from_micros(500);
const FAR_FROM: Duration = Duration::from_micros(800);

/// Records a second from which on it matters.
const NEAR_RATE: f64 = 200.0;

/// The share of the possible requests that may be in use: beyond that records wait for long.
const UTILISATION: f64 = 0.65;

/// How long a broker takes for a request. It takes the next of the same connection after it.
const BROKER_TIME: Duration = Duration::from_micros(300);

/// Records of a request from which on a connection is limited by bytes, not by requests.
const BULK: u64 = 200;

/// The minimum by which acknowledgements take longer than a round trip on average where records
/// wait for a free request: this, and a round trip.
const WAIT: Duration = Duration::from_millis(3);

/// How many requests in flight a partition needs at most: with more, its records seldom wait.
const REQUESTS_PER_PARTITION: u32 = 2;

/// How many more producers than there are must be needed before some are added: a share of those.
const GROWS_FROM: f64 = 1.1;

/// How often in a row that has to be seen, and for how long it counts.
const WAITS: u32 = 4;
const CAPACITY_LIFETIME: Duration = Duration::from_secs(3600);

/// How often the load is looked at. The statistics are less frequent.
const INTERVAL: Duration = Duration::from_secs(1);

/// A change of the number disturbs the producers: they connect, and the first record to each of the
/// partitions blocks the next until it is acknowledged. With 240 partitions, acknowledgements were
/// slower for five seconds than before the change (up to 0.8 s), and then ten times as fast. So the
/// first looks do not count, more producers are kept once two looks in a row are good, and they are
/// given up only if that does not happen in all of the trial.
const TRIAL_LOOKS: u32 = 15;
const UNCOUNTED_LOOKS: u32 = 2;
const GOOD_LOOKS: u32 = 2;

/// How long fewer have to be enough before there are fewer.
const SHRINKS_AFTER: Duration = Duration::from_secs(600);

/// How long after a try that failed the next one comes, and how long that gets.
const RETRY_AFTER: Duration = Duration::from_secs(60);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How long after a measurement it can be doubted, which doubles each time up to a maximum.
const DOUBT_AFTER: Duration = Duration::from_secs(5);
const DOUBT_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How many producers there are, and the requests that each may have in flight to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSize {
    pub(crate) producers: u32,
    pub(crate) in_flight: u32,
}

impl PoolSize {
    /// Whether the brokers are taken to be far away.
    pub(crate) fn is_far(self) -> bool {
        self.in_flight == FAR
    }
}

/// What the producers have measured, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    /// The shortest and the median by the last statistics, if there was any.
    pub(crate) round_trip: Option<(Duration, Duration)>,
    pub(crate) brokers: u32,
    /// The number of partitions of all topics that records go to.
    pub(crate) partitions: u32,
    /// Requests acknowledged and records delivered, since there are these producers.
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
    /// Whether records waited: then acknowledgements have to be faster. Where only the rate asks
    /// for more producers, records do not wait yet, and it is enough that they are not much slower.
    has_to_be_faster: bool,
    /// How many looks there were since, and how many of the last ones were good.
    looks: u32,
    good: u32,
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
    round_trip: Option<Duration>,
    /// Whether the round trip was measured since the last look.
    is_new: bool,
    /// Whether it is to be measured again, when that is possible, and for how long it is not.
    is_doubted: bool,
    doubt_from: Instant,
    doubt_after: Duration,
    /// What was looked at last, and when.
    last: (Load, Instant),
    trial: Option<Trial>,
    /// How often in a row records waited for long.
    waits: u32,
    /// How many producers the last look asked for, where those were more.
    more: Option<u32>,
    /// Records a second that a producer can carry, and when that was seen.
    capacity: Option<(f64, Instant)>,
    /// Since when fewer producers would be enough.
    smaller_since: Option<Instant>,
    not_before: Instant,
    retry_after: Duration,
}

impl PoolSizing {
    /// A pool of at most `max` producers; `in_flight`: the user's own number of requests in flight.
    pub(crate) fn new(max: u32, in_flight: Option<u32>, now: Instant) -> Self {
        let size = PoolSize { producers: 1, in_flight: in_flight.unwrap_or(NEAR) };
        Self {
            max: max.max(1),
            in_flight,
            size,
            is_measured: false,
            round_trip: None,
            is_new: false,
            is_doubted: false,
            doubt_from: now + DOUBT_AFTER,
            doubt_after: DOUBT_AFTER,
            last: (Load::default(), now),
            trial: None,
            waits: 0,
            more: None,
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

    /// The largest size.
    pub(crate) fn largest(&self) -> PoolSize {
        PoolSize { producers: self.max, in_flight: self.in_flight.unwrap_or(FAR) }
    }

    /// Whether the round trip decides something, and is not known.
    pub(crate) fn asks_for_round_trip(&self) -> bool {
        (self.round_trip.is_none() || self.is_doubted) && (self.in_flight.is_none() || self.max > 1)
    }

    /// Whether the last measurement is doubted, so that it must be repeated.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_doubted
    }

    /// The round trip was measured: never too short.
    pub(crate) fn note_round_trip(&mut self, round_trip: Duration) {
        let before = self.round_trip.filter(|_| self.is_doubted);
        let shortest = before.map_or(round_trip, |before| before.min(round_trip));
        (self.round_trip, self.is_new, self.is_doubted) = (Some(shortest), true, false);
    }

    /// Whether it is time to look again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.is_new || now.saturating_duration_since(self.last.1) >= INTERVAL
    }

    /// The size that is wanted instead of the present one.
    pub(crate) fn wanted(&mut self, load: Load, now: Instant) -> Option<PoolSize> {
        self.note_statistics(&load, now);
        if std::mem::take(&mut self.is_new) {
            return self.by_measurement().filter(|size| *size != self.size);
        }
        if self.trial.is_some() {
            let took = load.since(&self.last.0);
            self.last = (load, now);
            let before = self.unless_faster(took)?;
            self.failed(now);
            return Some(before);
        }
        let took = load.since(&self.last.0);
        let wanted = self.fitting(&load, now);
        self.last = (load, now);
        let wanted = self.steady(wanted?);
        if wanted == self.size {
            self.smaller_since = None;
            return None;
        }
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
            let before = self.size;
            self.trial = took.map(|took| {
                let has_to_be_faster = self.is_wait(took);
                Trial { before, took, has_to_be_faster, looks: 0, good: 0 }
            });
        }
        Some(wanted)
    }

    /// What a measurement decides at once.
    fn by_measurement(&mut self) -> Option<PoolSize> {
        let round_trip = self.round_trip?;
        if round_trip >= FAR_FROM {
            return self.in_flight.is_none().then_some(PoolSize { in_flight: FAR, ..self.size });
        }
        if round_trip > NEAR_UP_TO || !self.is_measured {
            return None;
        }
        // They seemed to be far away.
        self.trial = None;
        Some(PoolSize { producers: 1, in_flight: self.in_flight.unwrap_or(NEAR) })
    }

    /// Takes the round trip of the statistics where they are clear, and doubts a long one.
    fn note_statistics(&mut self, load: &Load, now: Instant) {
        let Some((shortest, median)) = load.round_trip else { return };
        let seems_far = self.round_trip.is_some_and(|round_trip| round_trip > NEAR_UP_TO);
        if seems_far && shortest <= NEAR_UP_TO && now >= self.doubt_from && !self.is_doubted {
            self.is_doubted = true;
            self.doubt_from = now + self.doubt_after;
            self.doubt_after = (self.doubt_after * 2).min(DOUBT_AFTER_MAX);
        }
        if median <= NEAR_UP_TO || shortest >= FAR_FROM {
            self.round_trip = Some(shortest);
        } else if self.round_trip.is_none() && median >= FAR_FROM {
            self.round_trip = Some(median);
        }
    }

    /// More producers only where two looks in a row ask for them: the smaller number of both.
    fn steady(&mut self, wanted: PoolSize) -> PoolSize {
        let more = Some(wanted.producers).filter(|producers| *producers > self.size.producers);
        let before = std::mem::replace(&mut self.more, more);
        let Some(more) = more else { return wanted };
        let producers = before.map_or(self.size.producers, |before| more.min(before));
        PoolSize { producers, ..wanted }
    }

    /// Whether acknowledgements that take so long wait for more than the network.
    fn is_wait(&self, took: Duration) -> bool {
        let round_trip = self.round_trip.unwrap_or_default();
        took.saturating_sub(round_trip) >= WAIT.max(round_trip)
    }

    /// The size before the last change, if acknowledgements did not get faster in all of the trial.
    /// `took`: an acknowledgement since the last look.
    fn unless_faster(&mut self, took: Option<Duration>) -> Option<PoolSize> {
        let trial = self.trial.as_ref()?;
        let limit = if trial.has_to_be_faster { trial.took * 9 / 10 } else { trial.took * 3 / 2 };
        let is_good = took.is_none_or(|took| took <= limit || !self.is_wait(took));
        let trial = self.trial.as_mut()?;
        trial.looks += 1;
        trial.good = if is_good && trial.looks > UNCOUNTED_LOOKS { trial.good + 1 } else { 0 };
        if trial.good >= GOOD_LOOKS {
            self.trial = None;
            self.retry_after = RETRY_AFTER;
            return None;
        }
        let before = trial.before;
        self.trial.take_if(|trial| trial.looks >= TRIAL_LOOKS).map(|_| before)
    }

    /// The producers are of that size from now on.
    pub(crate) fn applied(&mut self, size: PoolSize, now: Instant) {
        self.size = size;
        self.is_measured = true;
        self.begin_anew(now);
    }

    /// Forgets the measurements: the producers are others, which have measured nothing yet.
    fn begin_anew(&mut self, now: Instant) {
        (self.smaller_since, self.more, self.waits) = (None, None, 0);
        self.last = (Load::default(), now);
    }

    /// Producers of another size were not put in place after all, whatever the reason.
    pub(crate) fn given_up(&mut self) {
        self.trial = None;
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
        self.begin_anew(now);
    }

    /// The size for what happened since the last look; `None`: that says nothing.
    fn fitting(&mut self, load: &Load, now: Instant) -> Option<PoolSize> {
        let (last, then) = self.last;
        let elapsed = now.saturating_duration_since(then);
        let round_trip = self.round_trip?;
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
        let by_round_trip = rate * busy / UTILISATION / f64::from(load.brokers.max(1));
        let waits = load.since(&last).is_some_and(|took| self.is_wait(took));
        let by_waiting = self.by_waiting(waits, rate, now);
        let needed = by_round_trip.max(by_waiting);
        let requests = load.partitions.saturating_mul(REQUESTS_PER_PARTITION);
        let useful = requests.div_ceil(in_flight * load.brokers.max(1)).min(load.partitions);
        let present = self.size.producers;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let rounded = needed.ceil() as u32;
        let is_enough = rounded > present && needed <= f64::from(present) * GROWS_FROM;
        let producers = if is_enough { present } else { rounded };
        // Before the first statistics of any producer the brokers are not counted.
        let max = if load.brokers == 0 { present } else { self.max };
        let producers = producers.min(useful).clamp(1, max);
        Some(PoolSize { producers, in_flight })
    }

    /// How many producers that rate needs by what they could carry when records waited; 0: they
    /// did not.
    fn by_waiting(&mut self, waits: bool, rate: f64, now: Instant) -> f64 {
        self.waits = if waits { self.waits + 1 } else { 0 };
        if self.waits >= WAITS {
            self.waits = 0;
            self.capacity = Some((rate / f64::from(self.size.producers), now));
        }
        let lives = |then: Instant| now.saturating_duration_since(then) < CAPACITY_LIFETIME;
        self.capacity = self.capacity.filter(|(capacity, then)| *capacity > 0.0 && lives(*then));
        self.capacity.map_or(0.0, |(capacity, _)| rate / (capacity * UTILISATION))
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
