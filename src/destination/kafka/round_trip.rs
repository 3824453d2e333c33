//! How long brokers take to answer, measured when the first record is produced: the number of
//! requests in flight depends on it, and librdkafka's statistics come only after five seconds. The
//! first record of all waits for it for a moment, since other producers can only follow once these
//! have sent what they have: with a backlog for 240 partitions 5 ms away, that took three seconds.
//!
//! A client beside the producer asks for the topic's metadata on an open connection, several times.
//! The shortest time counts. It is never shorter than the network's round trip. librdkafka's own
//! shortest time can be: it starts the clock after it has sent the request, and on a busy machine
//! the thread can lose the processor in between.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::delivery_reports::Signals;
use super::metadata::{MetadataClient, TopicError};
use super::pool_size::NEAR_UP_TO;

/// How often is asked at most.
const ATTEMPTS: usize = 10;

/// How long that may take in all, so that brokers at a great distance are asked less often.
const TIME_MAX: Duration = Duration::from_millis(100);

/// How long the first record of all waits for it.
const FIRST_RECORD_WAITS: Duration = Duration::from_millis(300);

/// The measurement of one sink: begun once, with the first record.
#[derive(Debug, Default)]
pub(super) struct RoundTripProbe {
    begun: Option<Instant>,
    answer: Option<oneshot::Receiver<Duration>>,
}

impl RoundTripProbe {
    /// Begins to measure with that topic, if that was not done yet.
    pub(super) fn begin(&mut self, config: &ClientConfig, topic: &str, signals: &Arc<Signals>) {
        if self.begun.is_some() {
            return;
        }
        self.begun = Some(Instant::now());
        let signals = Arc::clone(signals);
        let (sender, answer) = oneshot::channel();
        let (config, topic) = (config.clone(), topic.to_owned());
        // Without a thread, statistics are left.
        let _ = thread::Builder::new().name("round trip".to_owned()).spawn(move || {
            let Ok(client) = MetadataClient::to_measure(&config) else { return };
            let ask = || {
                let begun = Instant::now();
                let is_answered = !matches!(client.topic(&topic), Err(TopicError::NoAnswer(_)));
                is_answered.then(|| begun.elapsed())
            };
            // The first one includes the time to connect.
            if ask().is_some()
                && let Some(shortest) = shortest(ask)
            {
                // Nobody waits for it where the sink has ended.
                let _ = sender.send(shortest);
            }
            signals.stirred.notify_one();
        });
        self.answer = Some(answer);
    }

    /// Whether the first record of all is to wait.
    pub(super) fn is_awaited(&self, now: Instant) -> bool {
        let is_soon = |begun| now.saturating_duration_since(begun) < FIRST_RECORD_WAITS;
        self.answer.is_some() && self.begun.is_some_and(is_soon)
    }

    /// What was measured, once.
    pub(super) fn take(&mut self) -> Option<Duration> {
        match self.answer.as_mut()?.try_recv() {
            Err(TryRecvError::Empty) => None,
            answer => {
                self.answer = None;
                answer.ok()
            }
        }
    }

    /// Producers are made anew. Brokers that did not answer are asked again.
    pub(super) fn begin_again(&mut self) {
        *self = Self::default();
    }
}

/// The shortest of several answers; fewer are enough where one is that of near brokers.
fn shortest(ask: impl FnMut() -> Option<Duration>) -> Option<Duration> {
    let mut spent = Duration::ZERO;
    let mut is_enough = false;
    let answers = std::iter::repeat_with(ask).take(ATTEMPTS).map_while(|answer| {
        let took = answer.filter(|_| !is_enough)?;
        spent += took;
        is_enough = took <= NEAR_UP_TO || spent >= TIME_MAX;
        Some(took)
    });
    answers.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortest_of(micros: &[u64]) -> (Option<u64>, usize) {
        let mut asked = 0;
        let shortest = shortest(|| {
            let answer = micros.get(asked).map(|micros| Duration::from_micros(*micros));
            asked += 1;
            answer
        });
        (shortest.and_then(|it| u64::try_from(it.as_micros()).ok()), asked)
    }

    #[test]
    fn the_shortest_answer_counts_and_near_brokers_are_recognized_by_one() {
        assert_eq!(shortest_of(&[2_000, 900, 400, 300]), (Some(400), 4));
        assert_eq!(shortest_of(&[5_400; 20]), (Some(5_400), ATTEMPTS));
        assert_eq!(shortest_of(&[60_000; 20]), (Some(60_000), 3));
        assert_eq!(shortest_of(&[1_300, 1_200]), (Some(1_200), 3), "no answer");
        assert_eq!(shortest_of(&[]), (None, 1));
    }
}
