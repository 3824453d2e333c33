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
    made: Instant,
    /// Microseconds after that.
    beat: AtomicU64,
}

impl Default for PollInterval {
    fn default() -> Self {
        Self { made: Instant::now(), beat: AtomicU64::new(0) }
    }
}

impl PollInterval {
    pub(super) fn beat(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.made).as_micros();
        self.beat.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The longer nothing has happened, the longer; `eager`: somebody waits for acknowledgements.
    pub(super) fn rest(&self, now: Instant, eager: bool) -> Duration {
        let shortest = if eager { SHORTEST_EAGER } else { SHORTEST };
        let beat = self.made + Duration::from_micros(self.beat.load(Ordering::Relaxed));
        (now.saturating_duration_since(beat) / SHARE).clamp(shortest, LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_just_happened_is_looked_at_soon_and_a_long_silence_seldom() {
        let pulse = PollInterval::default();
        let now = pulse.made + Duration::from_secs(100);
        assert_eq!(pulse.rest(now, true), LONGEST);
        pulse.beat(now);
        assert_eq!(pulse.rest(now, true), SHORTEST_EAGER);
        assert_eq!(pulse.rest(now, false), SHORTEST);
        assert_eq!(pulse.rest(now + Duration::from_millis(40), true), Duration::from_millis(10));
        assert_eq!(pulse.rest(now + Duration::from_secs(60), false), LONGEST);
    }
}
