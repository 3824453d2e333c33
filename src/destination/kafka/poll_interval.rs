//! How long to wait before librdkafka is polled again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The minimum interval if the relay waits for acknowledgements, and otherwise. Several
/// acknowledgements of a busy producer arrive within it.
const SHORTEST_EAGER: Duration = Duration::from_millis(1);
const SHORTEST: Duration = Duration::from_millis(4);

/// The maximum interval: errors and token requests are detected within it.
const LONGEST: Duration = Duration::from_millis(500);

/// The interval as a share of the time since the last activity.
const SHARE: u32 = 4;

/// The last activity: a record was queued, or the producer called back.
#[derive(Debug)]
pub(super) struct PollInterval {
    created: Instant,
    /// Microseconds after that.
    last_activity: AtomicU64,
}

impl Default for PollInterval {
    fn default() -> Self {
        Self { created: Instant::now(), last_activity: AtomicU64::new(0) }
    }
}

impl PollInterval {
    pub(super) fn note_activity(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.created).as_micros();
        self.last_activity.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The interval, which grows with the time since the last activity. With `eager`, the relay waits
    /// for acknowledgements.
    pub(super) fn until_next_poll(&self, now: Instant, eager: bool) -> Duration {
        let shortest = if eager { SHORTEST_EAGER } else { SHORTEST };
        let last_activity =
            self.created + Duration::from_micros(self.last_activity.load(Ordering::Relaxed));
        (now.saturating_duration_since(last_activity) / SHARE).clamp(shortest, LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_short_after_activity_and_long_when_idle() {
        let interval = PollInterval::default();
        let now = interval.created + Duration::from_secs(100);
        assert_eq!(interval.until_next_poll(now, true), LONGEST);
        interval.note_activity(now);
        assert_eq!(interval.until_next_poll(now, true), SHORTEST_EAGER);
        assert_eq!(interval.until_next_poll(now, false), SHORTEST);
        assert_eq!(
            interval.until_next_poll(now + Duration::from_millis(40), true),
            Duration::from_millis(10)
        );
        assert_eq!(interval.until_next_poll(now + Duration::from_secs(60), false), LONGEST);
    }
}
