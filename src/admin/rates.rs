//! The recent rate of acknowledged records per second.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The window.
const SPAN: Duration = Duration::from_secs(10);

/// Samples of a counter, about one per second.
#[derive(Debug, Default)]
pub(super) struct Rates(VecDeque<(Instant, u64)>);

impl Rates {
    /// Adds a sample.
    pub(super) fn sample(&mut self, now: Instant, count: u64) {
        self.0.push_back((now, count));
        while self.0.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= SPAN) {
            self.0.pop_front();
        }
    }

    /// The increase per second since the sample of ten seconds ago, or the first one.
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub(super) fn per_second(&self) -> f64 {
        let (Some((first, before)), Some((last, now))) = (self.0.front(), self.0.back()) else {
            return 0.0;
        };
        let seconds = last.duration_since(*first).as_secs_f64();
        if seconds == 0.0 { 0.0 } else { now.saturating_sub(*before) as f64 / seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let begun = Instant::now();
        let mut rates = Rates::default();
        assert!(rates.per_second().abs() < f64::EPSILON);
        for second in 0..=100_u64 {
            rates.sample(begun + Duration::from_secs(second), second.min(95) * 20);
        }
        assert!((rates.per_second() - 10.0).abs() < 1e-9, "{}", rates.per_second());
        assert_eq!(rates.0.len(), 11);
    }
}
