//! When to take a breath between two looks at a busy stream.
//!
//! PostgreSQL sends each message by itself, so a relay that is quicker than the
//! server is woken for each: tens of thousands of times a second, at the cost
//! of the very cores that the server needs. Nor does the producer wait for more:
//! what it is given it sends at once. Where messages come thick, a rest of some
//! milliseconds lets them gather. A stream of a thousand rows a second is left
//! alone, since there the rest would be nothing but delay.
//!
//! Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// What is judged at once.
const WINDOW: Duration = Duration::from_millis(10);

/// Messages in a window from which on it is thick, 5,000 a second, dense, 12,000, and packed,
/// 40,000: a transaction of one row makes three.
const THICK: u32 = 50;
const DENSE: u32 = 120;
const PACKED: u32 = 400;

/// How long a rest is. Measured at 5,000 rows a second on two cores that had to bear the broker's
/// requests too, with one in flight: 16 % of a core with 1 ms, 12 to 13 % with 2 ms and with 4 ms;
/// p99 was 7 and 11 ms, 6 and 7 ms, 13 and 22 ms, p50 1.6 to 1.8, 1.9, and 4 to 5 ms.
/// In 4 ms of a packed stream the socket fills and the server waits: so 300,000 rows were read at
/// 1.2 to 1.4 times the rate of `pg_recvlogical`, at 1.75 times with 1 ms and without a rest, which
/// takes a quarter more of a core.
const REST_IF_THICK: Duration = Duration::from_millis(1);
const REST_IF_DENSE: Duration = Duration::from_millis(2);
const REST_IF_PACKED: Duration = Duration::from_millis(1);

/// How thick messages come.
#[derive(Debug)]
pub(super) struct BatchingPause {
    window: Instant,
    messages: u32,
    rest: Option<Duration>,
}

impl BatchingPause {
    pub(super) fn new(now: Instant) -> Self {
        Self { window: now, messages: 0, rest: None }
    }

    /// So many messages were taken since the last time, and no more are there; how long to rest.
    pub(super) fn taken(&mut self, messages: u32, now: Instant) -> Option<Duration> {
        self.messages = self.messages.saturating_add(messages);
        let spell = now.saturating_duration_since(self.window);
        if spell >= WINDOW {
            let windows = u32::try_from(spell.as_micros() / WINDOW.as_micros()).unwrap_or(u32::MAX);
            self.rest = match self.messages / windows.max(1) {
                ..THICK => None,
                THICK..DENSE => Some(REST_IF_THICK),
                DENSE..PACKED => Some(REST_IF_DENSE),
                PACKED.. => Some(REST_IF_PACKED),
            };
            self.window = now;
            self.messages = 0;
        }
        self.rest.filter(|_| messages > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rests in a second of messages that come one by one, `micros` apart.
    fn rests(micros: u64) -> usize {
        let begun = Instant::now();
        let mut pace = BatchingPause::new(begun);
        let count = 1_000_000 / micros;
        (1..=count)
            .filter(|n| pace.taken(1, begun + Duration::from_micros(n * micros)).is_some())
            .count()
    }

    #[test]
    fn a_thick_stream_is_given_time_to_gather_and_a_thin_one_is_not() {
        assert_eq!(rests(250), 0, "4,000 messages a second");
        assert!(rests(166) > 5_900, "6,000 messages a second");
        assert!(rests(20) > 49_000, "50,000 messages a second");
    }

    #[test]
    fn how_long_the_rest_is_goes_by_how_thick_they_come() {
        let begun = Instant::now();
        let mut pace = BatchingPause::new(begun);
        assert_eq!(pace.taken(THICK, begun + WINDOW), Some(REST_IF_THICK));
        assert_eq!(pace.taken(DENSE, begun + WINDOW * 2), Some(REST_IF_DENSE));
        assert_eq!(pace.taken(PACKED, begun + WINDOW * 3), Some(REST_IF_PACKED));
        assert_eq!(pace.taken(THICK - 1, begun + WINDOW * 4), None);
    }

    #[test]
    fn the_rests_end_with_the_rush() {
        let begun = Instant::now();
        let mut pace = BatchingPause::new(begun);
        assert!(pace.taken(1000, begun + WINDOW).is_some());
        assert!(pace.taken(0, begun + WINDOW).is_none(), "nothing came");
        assert!(pace.taken(1, begun + Duration::from_secs(1)).is_none());
    }
}
