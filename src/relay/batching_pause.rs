//! When to pause between two reads of a busy stream, so that messages accumulate.
//!
//! PostgreSQL sends each message separately. A relay that is faster than the server is woken for
//! each one: tens of thousands of times per second, which takes CPU from the server. Nor does the
//! producer wait for more: it sends a record as soon as it has it. In a dense stream, a pause of 1
//! to 2 milliseconds lets messages accumulate. A stream of a few thousand rows per second gets no
//! pause, because there it would only add latency.
//!
//! [`BatchingPause`] is pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The window over which the message rate is measured.
const WINDOW: Duration = Duration::from_millis(10);

/// Messages per window from which a stream is dense (10,000 per second) or saturated (40,000): a
/// transaction of one row has three messages.
///
/// Commits come in bursts: at 1,000 rows per second a window often has 50 messages, and with pauses
/// from there on p50 was 0.70 to 0.89 ms instead of 0.37 to 0.39, with the same 9.3 to 9.5 % of a
/// core; at 2,000 rows it was 1.2 instead of 0.6 ms, with 11.3 instead of 12.1 %. With pauses from
/// 150 messages on, a stream of 5,000 rows sometimes had none: 24 % of a core and p99 21 ms, where
/// 11 % and 6 ms are usual. All on two cores that also ran the servers.
const DENSE: u32 = 100;
const SATURATED: u32 = 400;

/// Duration of a pause, measured with a sleeping thread. At 5,000 rows per second on two cores that
/// also ran the broker, with one request in flight: 16 % of a core with 1 ms, 12 to 13 % with 2 ms
/// and with 4 ms; p99 was 7 and 11 ms, 6 and 7 ms, 13 and 22 ms, p50 1.6 to 1.8, 1.9, and 4 to 5
/// ms.
///
/// With 4 ms in a saturated stream the socket fills and the server waits: 300,000 rows were read at
/// 1.2 to 1.4 times the rate of `pg_recvlogical`, compared with 1.75 times with 1 ms or without a
/// pause, which takes a quarter more of a core.
const PAUSE_IF_DENSE: Duration = Duration::from_millis(2);
const PAUSE_IF_SATURATED: Duration = Duration::from_millis(1);

/// Pauses. Nothing is lost: what arrives meanwhile waits in its channel or socket.
pub(super) async fn pause(duration: Duration, owns_thread: bool) {
    if owns_thread {
        // Blocks the thread deliberately: the runtime would poll the session's task for each
        // message that arrives, and the pause exists to avoid those wake-ups. All other tasks of
        // the program can wait this long.
        std::thread::sleep(duration);
    } else {
        tokio::time::sleep(duration).await;
    }
}

/// Tracks the message rate and derives the pause from it.
#[derive(Debug)]
pub(super) struct BatchingPause {
    window: Instant,
    messages: u32,
    pause: Option<Duration>,
}

impl BatchingPause {
    pub(super) fn new(now: Instant) -> Self {
        Self { window: now, messages: 0, pause: None }
    }

    /// Counts the messages taken since the last call, after which none were left; returns how long
    /// to pause.
    pub(super) fn taken(&mut self, messages: u32, now: Instant) -> Option<Duration> {
        self.messages = self.messages.saturating_add(messages);
        let elapsed = now.saturating_duration_since(self.window);
        if elapsed >= WINDOW {
            let windows =
                u32::try_from(elapsed.as_micros() / WINDOW.as_micros()).unwrap_or(u32::MAX);
            self.pause = match self.messages / windows.max(1) {
                ..DENSE => None,
                DENSE..SATURATED => Some(PAUSE_IF_DENSE),
                SATURATED.. => Some(PAUSE_IF_SATURATED),
            };
            self.window = now;
            self.messages = 0;
        }
        self.pause.filter(|_| messages > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A burst of 17 transactions of one row, about what a stream of 1,000 rows per second has.
    #[test]
    fn a_burst_of_single_rows_gets_no_pause() {
        let start = Instant::now();
        let mut batching = BatchingPause::new(start);
        assert_eq!(batching.taken(17 * 3, start + WINDOW), None);
    }

    /// The number of pauses in one second of messages that arrive one by one, `micros` apart.
    fn pauses(micros: u64) -> usize {
        let start = Instant::now();
        let mut batching = BatchingPause::new(start);
        let count = 1_000_000 / micros;
        (1..=count)
            .filter(|n| batching.taken(1, start + Duration::from_micros(n * micros)).is_some())
            .count()
    }

    #[test]
    fn only_a_dense_stream_gets_pauses() {
        assert_eq!(pauses(111), 0, "9,000 messages a second");
        assert!(pauses(90) > 10_900, "11,000 messages a second");
        assert!(pauses(20) > 49_000, "50,000 messages a second");
    }

    #[test]
    fn pause_depends_on_the_message_rate() {
        let start = Instant::now();
        let mut batching = BatchingPause::new(start);
        assert_eq!(batching.taken(DENSE, start + WINDOW), Some(PAUSE_IF_DENSE));
        assert_eq!(batching.taken(SATURATED, start + WINDOW * 2), Some(PAUSE_IF_SATURATED));
        assert_eq!(batching.taken(DENSE - 1, start + WINDOW * 3), None);
    }

    #[test]
    fn pauses_end_with_the_burst() {
        let start = Instant::now();
        let mut batching = BatchingPause::new(start);
        assert!(batching.taken(1000, start + WINDOW).is_some());
        assert!(batching.taken(0, start + WINDOW).is_none(), "no message arrived");
        assert!(batching.taken(1, start + Duration::from_secs(1)).is_none());
    }
}
