//! A histogram of durations; an observation costs three additions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets in milliseconds, except the last bucket, which has none: from the
/// duration of one batch to a broker outage of minutes.
pub(super) const BOUNDS_MS: [u64; 17] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000,
    300_000,
];

/// Counts by duration.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_micros: AtomicU64,
}

/// How many durations were in each bucket at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckTimes([u64; BOUNDS_MS.len() + 1]);

impl AckTimes {
    /// Those that came since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut counts = self.0;
        for (count, before) in counts.iter_mut().zip(before.0) {
            *count = count.saturating_sub(before);
        }
        Self(counts)
    }

    /// The quantile in seconds, by proportion within its bucket, as Prometheus has it; `None`: there is no
    /// duration.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn quantile(&self, of: f64) -> Option<f64> {
        let all: u64 = self.0.iter().sum();
        let rank = all as f64 * of;
        let (mut below, mut lower) = (0.0, 0.0);
        for (count, bound) in self.0.iter().zip(BOUNDS_MS) {
            let (count, upper) = (*count as f64, bound as f64 / 1000.0);
            if count > 0.0 && below + count >= rank {
                return Some(lower + (upper - lower) * ((rank - below) / count));
            }
            (below, lower) = (below + count, upper);
        }
        (all > 0).then_some(lower)
    }
}

/// A snapshot of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Snapshot {
    /// The sum in seconds.
    pub(super) sum: f64,
    pub(super) count: u64,
    /// Upper bound in seconds, and the count of this bucket alone.
    pub(super) buckets: Vec<(f64, u64)>,
}

impl Histogram {
    pub(super) fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MS.iter().position(|bound| micros <= bound * 1000);
        self.buckets[bucket.unwrap_or(BOUNDS_MS.len())].fetch_add(1, Relaxed);
        self.sum_micros.fetch_add(micros, Relaxed);
    }

    pub(super) fn counts(&self) -> AckTimes {
        AckTimes(self.buckets.each_ref().map(|count| count.load(Relaxed)))
    }

    pub(super) fn held(&self) -> Snapshot {
        let counts = self.counts().0;
        #[allow(clippy::cast_precision_loss, reason = "a bound of 300 s at most")]
        let bounds = BOUNDS_MS.iter().map(|bound| *bound as f64 / 1000.0).chain([f64::INFINITY]);
        #[allow(clippy::cast_precision_loss, reason = "2^53 µs are 285 years")]
        let sum = self.sum_micros.load(Relaxed) as f64 / 1e6;
        Snapshot { sum, count: counts.iter().sum(), buckets: bounds.zip(counts).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_counts_in_the_first_bucket_with_a_sufficient_bound() {
        let histogram = Histogram::default();
        for micros in [0, 1000, 1001, 2_000_000, 300_000_000, 300_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let held = histogram.held();
        let filled: Vec<_> = held.buckets.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [&(0.001, 2), &(0.002, 1), &(2.5, 1), &(300.0, 1), &(f64::INFINITY, 1)]);
        assert_eq!(held.count, 6);
        assert!((held.sum - 602.002_002).abs() < 1e-9, "{}", held.sum);
    }
}
