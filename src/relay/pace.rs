//! When to take a breath between two looks at a busy stream.
//!
//! PostgreSQL sends each message by itself, so a relay that is quicker than the
//! server is woken for each: tens of thousands of times a second, at the cost
//! of the very cores that the server needs. Nor does the producer wait for more:
//! what it is given it sends at once. Where messages come thick, a millisecond's
//! rest lets them gather. A stream of a thousand rows a second is left alone,
//! since there the rest would be nothing but delay.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// What is judged at once.
const WINDOW: Duration = Duration::from_millis(2);

/// Messages in a window that make it dense: 4,000 a second, of which a transaction of one row
/// makes three.
const DENSE: u32 = 8;

/// How long a rest is.
const REST: Duration = Duration::from_millis(1);

/// How thick messages come.
#[derive(Debug)]
pub(super) struct Pace {
    window: Instant,
    messages: u32,
    dense: bool,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { window: now, messages: 0, dense: false }
    }

    /// So many messages were taken, and no more are there; how long to rest.
    pub(super) fn taken(&mut self, messages: u32, now: Instant) -> Option<Duration> {
        self.messages = self.messages.saturating_add(messages);
        let spell = now.saturating_duration_since(self.window);
        if spell >= WINDOW {
            let windows = u32::try_from(spell.as_micros() / WINDOW.as_micros()).unwrap_or(u32::MAX);
            self.dense = self.messages / windows.max(1) >= DENSE;
            self.window = now;
            self.messages = 0;
        }
        (self.dense && messages > 0).then_some(REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rests in a second of messages that come one by one, `micros` apart.
    fn rests(micros: u64) -> usize {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let count = 1_000_000 / micros;
        (1..=count)
            .filter(|n| pace.taken(1, begun + Duration::from_micros(n * micros)).is_some())
            .count()
    }

    #[test]
    fn a_thick_stream_is_given_time_to_gather_and_a_thin_one_is_not() {
        assert_eq!(rests(334), 0, "3,000 messages a second");
        assert!(rests(20) > 49_000, "50,000 messages a second");
    }

    #[test]
    fn the_rests_end_with_the_rush() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        assert!(pace.taken(1000, begun + WINDOW).is_some());
        assert!(pace.taken(0, begun + WINDOW).is_none(), "nothing came");
        assert!(pace.taken(1, begun + Duration::from_secs(1)).is_none());
    }
}
