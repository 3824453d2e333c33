//! Sizes for loads of one moment and of some minutes.

use super::*;

const MAX: u32 = 8;

/// A sizing whose wishes are carried out, with the load of its producers.
pub(super) struct Driven {
    pub(super) sizing: PoolSizing,
    begun: Instant,
    now: Instant,
    load: Load,
}

impl Driven {
    pub(super) fn new(in_flight: Option<u32>, max: u32) -> Self {
        let now = Instant::now();
        let load = Load { brokers: 1, partitions: 50, ..Load::default() };
        Self { sizing: PoolSizing::new(max, in_flight, now), begun: now, now, load }
    }

    pub(super) fn partitions(mut self, partitions: u32) -> Self {
        self.load.partitions = partitions;
        self
    }

    /// A second of so many records, each in a request of its own, and acknowledged after so long.
    pub(super) fn second_of(&mut self, rate: u64, ack: Duration) -> Option<PoolSize> {
        self.load.delivered += rate;
        self.load.requests += rate;
        self.load.ack_time += ack * u32::try_from(rate).expect("few");
        self.now += INTERVAL;
        self.look()
    }

    pub(super) fn look(&mut self) -> Option<PoolSize> {
        let size = self.sizing.wanted(self.load, self.now)?;
        self.sizing.applied(size, self.now);
        let Load { brokers, partitions, .. } = self.load;
        self.load = Load { brokers, partitions, ..Load::default() };
        Some(size)
    }

    /// So many seconds; the last wish, and after how many it came.
    fn seconds_of(&mut self, seconds: u64, rate: u64, ack_millis: u64) -> Option<(u64, u32)> {
        let mut last = None;
        for second in 1..=seconds {
            if let Some(size) = self.second_of(rate, Duration::from_millis(ack_millis)) {
                last = Some((second, size.producers));
            }
        }
        last
    }

    fn statistics(&mut self, shortest: u64, median: u64) {
        let [shortest, median] = [shortest, median].map(Duration::from_micros);
        self.load.round_trip = Some((shortest, median));
    }
}

fn measured(round_trip_micros: u64) -> Driven {
    let mut driven = Driven::new(None, MAX);
    driven.sizing.note_round_trip(Duration::from_micros(round_trip_micros));
    driven
}

/// The size after three seconds.
fn settled(mut driven: Driven, rate: u64) -> PoolSize {
    let round_trip = driven.sizing.round_trip.unwrap_or_default();
    driven.look();
    for _ in 0..3 {
        driven.second_of(rate, round_trip);
    }
    driven.sizing.size()
}

fn size(producers: u32, in_flight: u32) -> PoolSize {
    PoolSize { producers, in_flight }
}

#[test]
fn far_brokers_and_a_high_rate_need_several_producers() {
    assert_eq!(settled(measured(300), 5000), size(1, NEAR));
    assert_eq!(settled(measured(700), 5000), size(1, NEAR), "it may be either");
    assert_eq!(settled(Driven::new(None, MAX), 5000), size(1, NEAR), "nothing is known");
    assert_eq!(settled(measured(1300), 1000), size(1, FAR));
    assert_eq!(settled(measured(1300), 5000), size(3, FAR));
    assert_eq!(settled(measured(5400), 100), size(1, FAR));
    assert_eq!(settled(measured(5400), 1000), size(2, FAR));
    assert_eq!(settled(measured(5400), 5000), size(MAX, FAR));
    let mut of_three = measured(5400);
    of_three.load.brokers = 3;
    assert_eq!(settled(of_three, 5000), size(3, FAR));
}

#[test]
fn few_partitions_have_no_use_for_many_producers() {
    assert_eq!(settled(measured(5400).partitions(12), 5000), size(5, FAR));
    assert_eq!(settled(measured(5400).partitions(3), 5000), size(2, FAR));
    assert_eq!(settled(measured(5400).partitions(1), 5000), size(1, FAR));
}

#[test]
fn a_measured_round_trip_is_applied_at_once() {
    let mut driven = measured(1300);
    assert!(driven.sizing.is_due(driven.begun), "without a wait");
    assert_eq!((driven.look(), driven.look()), (Some(size(1, FAR)), None));
    assert!(!driven.sizing.is_due(driven.begun) && !driven.sizing.asks_for_round_trip());
}

#[test]
fn brokers_that_answered_late_at_first_are_measured_again() {
    let mut driven = measured(900);
    driven.look();
    let mut measurements = Vec::new();
    for second in 1..=100 {
        driven.statistics(200, 1500);
        driven.second_of(5000, Duration::from_millis(3));
        if driven.sizing.asks_for_round_trip() {
            measurements.push(second);
            driven.sizing.note_round_trip(Duration::from_micros(1200));
        }
    }
    assert_eq!(driven.sizing.round_trip, Some(Duration::from_micros(900)), "the shortest");
    assert_eq!(measurements, [5, 10, 20, 40, 80]);
    assert!(driven.sizing.size().producers > 1);
    while !driven.sizing.asks_for_round_trip() {
        driven.statistics(200, 1500);
        driven.second_of(5000, Duration::from_millis(3));
    }
    driven.sizing.note_round_trip(Duration::from_micros(300));
    assert_eq!(driven.look(), Some(size(1, NEAR)), "at once");
    for _ in 0..5000 {
        driven.statistics(200, 1500);
        assert_eq!(driven.second_of(5000, Duration::from_millis(3)), None);
    }
    assert!(!driven.sizing.asks_for_round_trip());
}

#[test]
fn statistics_count_where_they_are_clear() {
    let after = |driven: &mut Driven, shortest, median| {
        driven.statistics(shortest, median);
        driven.second_of(1000, Duration::from_millis(1));
        driven.sizing.size().in_flight
    };
    let mut far = measured(1200);
    far.look();
    assert_eq!(after(&mut far, 300, 1300), FAR, "a thread lost the processor after sending");
    assert_eq!(after(&mut far, 300, 900), FAR);
    let mut near = measured(300);
    near.look();
    assert_eq!(after(&mut near, 400, 2000), NEAR, "the brokers are busy");
    assert_eq!(after(&mut near, 900, 1100), FAR);
    let mut unknown = Driven::new(None, MAX);
    assert_eq!(after(&mut unknown, 300, 700), NEAR);
    assert_eq!(after(&mut unknown, 300, 1300), FAR);
}

#[test]
fn a_backlog_in_large_requests_changes_nothing() {
    let mut driven = measured(20_000);
    driven.look();
    for _ in 0..10 {
        driven.load.delivered += 100_000;
        driven.load.requests += 100;
        driven.now += INTERVAL;
        assert_eq!(driven.look(), None);
    }
}

#[test]
fn what_the_user_sets_stands() {
    let mut driven = Driven::new(Some(3), 1);
    assert!(!driven.sizing.asks_for_round_trip());
    for round_trip in [5400, 300] {
        driven.statistics(round_trip, round_trip);
        assert_eq!(driven.seconds_of(5, 5000, 5), None);
    }
    assert_eq!(driven.sizing.size(), size(1, 3));
}

#[test]
fn there_are_fewer_only_after_a_long_time_in_which_fewer_are_enough() {
    let mut driven = measured(5400);
    assert_eq!(settled(measured(5400), 5000), size(MAX, FAR));
    driven.look();
    assert_eq!(driven.seconds_of(590, 5000, 5), Some((2, MAX)));
    assert_eq!(driven.seconds_of(590, 100, 5), None);
    assert_eq!(driven.seconds_of(10, 5000, 5), None);
    assert_eq!(driven.seconds_of(620, 100, 5), Some((601, 1)));
}

#[test]
fn a_second_of_many_records_is_not_enough_for_more_producers() {
    let mut driven = measured(5400);
    driven.look();
    for _ in 0..10 {
        assert_eq!(driven.seconds_of(1, 5000, 5), None);
        assert_eq!(driven.seconds_of(1, 100, 5), None);
    }
}

#[test]
fn where_records_wait_for_requests_again_and_again_there_are_more_producers() {
    let mut driven = measured(2600);
    driven.look();
    assert_eq!(driven.seconds_of(3, 500, 6), None, "not often enough");
    assert_eq!(driven.seconds_of(10, 500, 5), None, "that was not long");
    assert_eq!(driven.seconds_of(5, 500, 6), Some((5, 2)));
    assert_eq!(driven.seconds_of(20, 500, 3), None, "it is enough");
    assert_eq!(driven.seconds_of(602, 100, 3), Some((601, 1)));
    assert_eq!(driven.seconds_of(10, 500, 3), Some((2, 2)), "it is known what they carry");
    assert_eq!(driven.seconds_of(4600, 100, 3), Some((601, 1)));
    assert_eq!(driven.seconds_of(10, 500, 3), None, "for an hour");
}

#[test]
fn more_producers_that_make_nothing_faster_are_given_up_for_a_while() {
    let mut driven = measured(5400);
    driven.look();
    assert_eq!(driven.seconds_of(4, 500, 20), None);
    assert_eq!(driven.seconds_of(1, 500, 20), Some((1, 2)));
    assert_eq!(driven.seconds_of(1, 500, 50), None, "the change itself");
    assert_eq!(driven.seconds_of(14, 500, 19), Some((14, 1)), "hardly faster");
    assert_eq!(driven.seconds_of(59, 500, 7), None);
}

#[test]
fn producers_that_the_rate_asks_for_stay_unless_acknowledgements_get_much_slower() {
    for (after, expected) in [(6, None), (10, None), (11, Some((14, 1)))] {
        let mut driven = measured(5400);
        driven.look();
        assert_eq!(driven.seconds_of(2, 1000, 6), Some((2, 2)));
        assert_eq!(driven.seconds_of(1, 1000, 50), None, "the change itself");
        assert_eq!(driven.seconds_of(14, 1000, after), expected);
        assert_eq!(driven.seconds_of(50, 1000, 6), None);
    }
}

#[test]
fn records_that_waited_before_the_change_are_not_held_against_more_producers() {
    let mut driven = measured(5400);
    driven.look();
    assert_eq!(driven.seconds_of(2, 1000, 20), Some((2, 2)));
    // As measured with 240 partitions of a broker that had just started.
    for ack in [58, 179, 666, 757, 412, 90, 7, 30, 7, 7] {
        assert_eq!(driven.seconds_of(1, 1000, ack), None, "{ack} ms");
    }
    assert_eq!(driven.seconds_of(50, 1000, 7), None);
    assert_eq!(driven.sizing.size(), size(2, FAR));
}

#[test]
fn brokers_that_seem_near_after_all_change_little_for_a_while() {
    let mut driven = measured(1300);
    driven.look();
    driven.statistics(300, 400);
    assert_eq!(driven.seconds_of(600, 1000, 1), None);
    assert_eq!(driven.seconds_of(2, 1000, 1), Some((1, 1)));
    assert_eq!(driven.sizing.size(), size(1, NEAR));
    driven.statistics(1300, 1400);
    driven.second_of(1000, Duration::from_millis(1));
    assert_eq!(driven.sizing.size(), size(1, FAR), "at once");
}

#[test]
fn after_a_replay_there_is_one_and_several_are_tried_later_each_time() {
    let mut driven = measured(5400);
    driven.look();
    let mut waits = Vec::new();
    for _ in 0..8 {
        let begun = driven.now;
        while driven.sizing.size().producers == 1 {
            driven.second_of(1000, Duration::from_millis(6));
        }
        waits.push((driven.now - begun).as_secs());
        driven.sizing.replay(driven.now);
        assert_eq!(driven.sizing.size(), size(1, FAR));
    }
    assert_eq!(waits, [2, 60, 120, 240, 480, 960, 1920, 3600]);
}
