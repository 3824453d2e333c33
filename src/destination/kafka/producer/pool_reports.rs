//! What the producers of a pool say, as if one said it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::destination::kafka::delivery_reports::{Reports, Signals};
use crate::destination::kafka::pool_size::Load;
use crate::metrics::Metrics;
use crate::sink::{Condition, Report};

/// What each of them says.
pub(super) struct PoolReports {
    each: Vec<Arc<Reports>>,
    /// The producers that reach no broker, and why: reported once no producer reaches one.
    unreachable: Vec<(usize, Condition)>,
}

impl PoolReports {
    pub(super) fn new(each: Vec<Arc<Reports>>) -> Self {
        Self { each, unreachable: Vec::new() }
    }

    /// The reports of a pool without a producer, since none could be created.
    pub(super) fn of_none(signals: &Arc<Signals>, reason: String) -> Self {
        let none = Reports::new(signals);
        none.condition(Condition::Broken(reason));
        Self::new(vec![Arc::new(none)])
    }

    /// How many there are.
    pub(super) fn producers(&self) -> u64 {
        self.each.len() as u64
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Reports> {
        self.each.iter().map(|one| &**one)
    }

    /// Appends what became of records, and counts it.
    pub(super) fn take(&self, into: &mut Vec<Report>, metrics: &Metrics) {
        for one in &self.each {
            for (topic, published) in one.take(into) {
                metrics.published(&topic, published);
            }
        }
    }

    /// What is new, each once. That no broker can be reached is said once none of the producers
    /// reaches one.
    pub(super) fn take_conditions(&mut self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        for (number, one) in self.each.iter().enumerate() {
            for condition in one.take_conditions() {
                if matches!(condition, Condition::Unreachable(_)) {
                    self.unreachable.retain(|(other, _)| *other != number);
                    self.unreachable.push((number, condition));
                } else if !conditions.contains(&condition) {
                    conditions.push(condition);
                }
            }
        }
        let each = &self.each;
        self.unreachable.retain(|(number, _)| each[*number].is_connected() != Some(true));
        if self.is_connected() != Some(true) && !self.unreachable.is_empty() {
            let (_, condition) = self.unreachable.swap_remove(0);
            self.unreachable.clear();
            conditions.push(condition);
        }
        conditions
    }

    /// How many brokers they know.
    pub(super) fn brokers(&self) -> u32 {
        self.load(0, Duration::ZERO).brokers
    }

    /// Whether one of them is connected; `None` where nothing is known of any.
    pub(super) fn is_connected(&self) -> Option<bool> {
        self.each.iter().filter_map(|one| one.is_connected()).reduce(|one, other| one || other)
    }

    /// Whether the brokers have given each of them the producer id that it writes with.
    pub(super) fn have_ids(&self) -> bool {
        self.each.iter().all(|one| one.has_id())
    }

    /// Whether reports wait.
    pub(super) fn are_waiting(&self) -> bool {
        self.each.iter().any(|one| one.is_waiting())
    }

    /// Whether a broker refused a batch for a record in it.
    pub(super) fn is_refused(&self) -> bool {
        self.each.iter().any(|one| one.is_refused())
    }

    /// Passes the delivery reports of these producers, which have gone, to those of `next`.
    pub(super) fn followed_by(&self, next: &Self) {
        for (one, next) in self.each.iter().zip(next.each.iter().cycle()) {
            one.followed_by(next);
        }
    }

    /// What they have measured; `partitions` of the topics that they write to, and what all
    /// acknowledgements took together.
    pub(super) fn load(&self, partitions: u32, ack_time: Duration) -> Load {
        let mut load = Load { partitions, ack_time, ..Load::default() };
        let (mut shortest, mut median) = (Mean::default(), Mean::default());
        for one in &self.each {
            one.with_measured(|measured| {
                load.brokers = load.brokers.max(measured.brokers);
                for one in &measured.round_trips {
                    shortest.add(one.shortest, one.count);
                    median.add(one.median, one.count);
                }
            });
            load.requests += one.batches();
            load.delivered += one.delivered();
        }
        load.round_trip = shortest.get().zip(median.get());
        load
    }

    /// How many partitions each topic has, as far as all know of them that write to it.
    pub(super) fn partitions(&self) -> HashMap<String, u32> {
        let mut agreed = HashMap::new();
        for one in &self.each {
            one.with_measured(|measured| {
                for (topic, count) in &measured.partitions {
                    let least = agreed.entry(topic.clone()).or_insert(*count);
                    *least = (*least).min(*count);
                }
            });
        }
        agreed
    }
}

/// A mean of times in microseconds, each with its weight.
#[derive(Default)]
struct Mean {
    sum: u64,
    weight: u64,
}

impl Mean {
    fn add(&mut self, micros: u64, weight: u64) {
        self.sum = self.sum.saturating_add(micros.saturating_mul(weight));
        self.weight = self.weight.saturating_add(weight);
    }

    fn get(&self) -> Option<Duration> {
        self.sum.checked_div(self.weight).map(Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::kafka::statistics::{ConnectionState, Measured, RoundTrips};

    const AWAY: ConnectionState = ConnectionState { is_connected: false, has_id: false };
    const THERE: ConnectionState = ConnectionState { is_connected: true, has_id: true };

    fn pool() -> PoolReports {
        let signals = Arc::default();
        PoolReports::new((0..2).map(|_| Arc::new(Reports::new(&signals))).collect())
    }

    fn state(pool: &PoolReports, number: usize, state: ConnectionState) {
        pool.each[number].update_statistics((state, Measured::default()));
    }

    #[test]
    fn brokers_are_out_of_reach_once_no_producer_reaches_one_and_that_is_said_once() {
        let mut pool = pool();
        let unreachable = || vec![Condition::Unreachable("refused".to_owned())];
        (0..2).for_each(|number| state(&pool, number, THERE));
        assert!(pool.have_ids());
        (0..2).for_each(|number| pool.each[number].connection("refused".to_owned()));
        state(&pool, 0, AWAY);
        assert_eq!((pool.take_conditions(), pool.is_connected()), (vec![], Some(true)));
        state(&pool, 1, AWAY);
        assert_eq!((pool.take_conditions(), pool.is_connected()), (unreachable(), Some(false)));
        assert_eq!(pool.take_conditions(), []);
        state(&pool, 1, THERE);
        pool.each[1].connection("refused".to_owned());
        state(&pool, 1, AWAY);
        assert_eq!(pool.take_conditions(), unreachable(), "the next outage");
    }

    #[test]
    fn one_that_reaches_a_broker_again_is_forgotten() {
        let mut pool = pool();
        (0..2).for_each(|number| state(&pool, number, THERE));
        pool.each[0].connection("refused".to_owned());
        state(&pool, 0, AWAY);
        assert_eq!(pool.take_conditions(), []);
        state(&pool, 0, THERE);
        assert_eq!(pool.take_conditions(), []);
        state(&pool, 1, AWAY);
        state(&pool, 0, AWAY);
        assert_eq!(pool.take_conditions(), [], "nothing has failed since");
    }

    #[test]
    fn partitions_count_once_all_that_write_to_the_topic_know_of_them() {
        let pool = pool();
        let measured = |partitions: &[(&str, u32)], micros| Measured {
            brokers: 3,
            round_trips: vec![RoundTrips { shortest: micros, median: 2 * micros, count: 4 }],
            partitions: partitions.iter().map(|(name, count)| ((*name).into(), *count)).collect(),
        };
        pool.each[0].update_statistics((THERE, measured(&[("t", 4), ("u", 1)], 1000)));
        pool.each[1].update_statistics((THERE, measured(&[("t", 3)], 3000)));
        let expected = HashMap::from([("t".to_owned(), 3), ("u".to_owned(), 1)]);
        assert_eq!(pool.partitions(), expected);
        pool.each.iter().for_each(|one| one.note_batch());
        let load = pool.load(5, Duration::from_secs(7));
        let expected = Load {
            round_trip: Some((Duration::from_millis(2), Duration::from_millis(4))),
            ack_time: Duration::from_secs(7),
            brokers: 3,
            partitions: 5,
            requests: 2,
            delivered: 0,
        };
        assert_eq!(load, expected);
    }
}
