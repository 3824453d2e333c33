//! How long to wait before librdkafka is asked again what has come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shortest wait where somebody waits for acknowledgements, and where nobody does: those of
/// a busy producer come together in it.
const SHORTEST_EAGER: Duration = Duration::from_millis(1);
const SHORTEST: Duration = Duration::from_millis(4);

/// The longest: an error, and a token that is asked for, are noticed after it.
const LONGEST: Duration = Duration::from_millis(500);

/// What share of the time since something last happened is waited.
const SHARE: u32 = 4;

/// When something last happened: a record was given to the producer, or it called back.
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

    /// The longer nothing has happened, the longer; `eager`: somebody waits for acknowledgements.
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
    fn what_has_just_happened_is_looked_at_soon_and_a_long_silence_seldom() {
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
