//! Whether a topic has the partition that a record names, and whether it exists, where a
//! missing one is not waited for.
//!
//! librdkafka only says that it knows of none, perhaps minutes after one was
//! added. So the brokers are asked, on a thread: at the first record of a topic, and before one
//! is refused.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::outlet::{Ground, Refusal};

/// For how long a topic that was found to be missing is taken to be so: the rows that name one
/// are not held up by a question each.
const MISSING_TTL: Duration = Duration::from_secs(1);

/// The topics that were asked for.
#[derive(Debug, Default)]
pub(crate) struct TopicLookup {
    known: HashMap<String, u32>,
    /// The topics that were found to be missing, and when.
    missing: HashMap<String, Instant>,
    lookup: Option<Lookup>,
}

#[derive(Debug)]
struct Lookup {
    topic: String,
    answer: oneshot::Receiver<Found>,
}

/// What the brokers say of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// How many partitions it has.
    Partitions(u32),
    /// There is no such topic.
    Missing,
}

/// What may be done with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Queue it: the partition is there, or nobody knows.
    Go,
    /// Offer it again: the topic is being looked up.
    Wait,
    /// The topic has only so many partitions.
    Beyond(u32),
    /// There is no such topic.
    Missing,
}

impl TopicLookup {
    /// What may be done with a record for `topic`, which names a partition or leaves it open;
    /// `look_up` starts a request. Without an answer no broker can be reached, which the producer
    /// reports itself.
    pub(crate) fn verdict(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        now: Instant,
        look_up: impl FnOnce() -> oneshot::Receiver<Found>,
    ) -> Verdict {
        let is_there = |count: u32| {
            partition.is_none_or(|number| u32::try_from(number).is_ok_and(|number| number < count))
        };
        let is_recent = |since: Instant| now.saturating_duration_since(since) < MISSING_TTL;
        if let Some(lookup) = &mut self.lookup {
            let answer = match lookup.answer.try_recv() {
                Err(TryRecvError::Empty) => return Verdict::Wait,
                answer => answer.ok(),
            };
            let about = self.lookup.take().map(|lookup| lookup.topic).unwrap_or_default();
            let is_mine = about == topic;
            match answer {
                Some(Found::Partitions(count)) => {
                    self.known.insert(about, count);
                }
                Some(Found::Missing) => {
                    self.known.remove(&about);
                    self.missing.retain(|_, since| is_recent(*since));
                    self.missing.insert(about, now);
                }
                None => {
                    self.known.remove(&about);
                }
            }
            match answer {
                // Of another topic: it is kept, and this one is looked up below.
                Some(_) | None if !is_mine => {}
                Some(Found::Partitions(count)) if !is_there(count) => {
                    return Verdict::Beyond(count);
                }
                Some(Found::Missing) => return Verdict::Missing,
                Some(Found::Partitions(_)) | None => return Verdict::Go,
            }
        }
        if self.known.get(topic).is_some_and(|count| is_there(*count)) {
            return Verdict::Go;
        }
        if self.missing.get(topic).is_some_and(|since| is_recent(*since)) {
            return Verdict::Missing;
        }
        self.lookup = Some(Lookup { topic: topic.to_owned(), answer: look_up() });
        Verdict::Wait
    }

    /// How many partitions the topic has, as far as that was asked.
    pub(crate) fn partitions(&self, topic: &str) -> Option<u32> {
        self.known.get(topic).copied()
    }

    /// Topics may have been made anew.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Why a record that names a partition beyond `count` is refused.
pub(crate) fn refusal(topic: &str, partition: i32, count: u32) -> Refusal {
    let needed = i64::from(partition) + 1;
    let last = i64::from(count) - 1;
    let reason = format!(
        "it names partition {partition}, and the topic has {count}, 0 to {last}; add partitions \
         (kafka-topics.sh --alter --topic {topic} --partitions {needed}), or change what writes the \
         column, or record.place"
    );
    Refusal { ground: Ground::Other, may_pass: false, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of that partition, where the brokers say that at once.
    fn verdict(partitions: &mut TopicLookup, partition: i32, count: Option<u32>) -> Verdict {
        partitions.verdict("t", Some(partition), Instant::now(), || {
            let (sender, answer) = oneshot::channel();
            if let Some(count) = count {
                sender.send(Found::Partitions(count)).expect("it is awaited");
            }
            answer
        })
    }

    #[test]
    fn the_brokers_are_asked_once_a_topic_and_again_before_a_refusal() {
        let mut partitions = TopicLookup::default();
        assert_eq!(verdict(&mut partitions, 2, Some(3)), Verdict::Wait);
        for _ in 0..2 {
            assert_eq!(verdict(&mut partitions, 2, None), Verdict::Go);
        }
        // One that was added since.
        assert_eq!(verdict(&mut partitions, 3, Some(4)), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 3, None), Verdict::Go);
        assert_eq!(verdict(&mut partitions, 4, Some(4)), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 4, None), Verdict::Beyond(4));
        partitions.forget();
        assert_eq!(verdict(&mut partitions, 0, Some(1)), Verdict::Wait);
    }

    #[test]
    fn what_nobody_knows_is_left_to_the_producer() {
        let mut partitions = TopicLookup::default();
        assert_eq!(verdict(&mut partitions, 2, None), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 2, None), Verdict::Go);
    }

    #[test]
    fn a_missing_topic_is_looked_up_once_per_second() {
        let (mut partitions, begin) = (TopicLookup::default(), Instant::now());
        let mut verdict = |after: Duration, found: Found| {
            partitions.verdict("t", None, begin + after, || {
                let (sender, answer) = oneshot::channel();
                sender.send(found).expect("it is awaited");
                answer
            })
        };
        for after in [Duration::ZERO, MISSING_TTL] {
            assert_eq!(verdict(after, Found::Missing), Verdict::Wait);
            for _ in 0..2 {
                assert_eq!(verdict(after, Found::Partitions(1)), Verdict::Missing);
            }
        }
        let after = 2 * MISSING_TTL;
        assert_eq!(verdict(after, Found::Partitions(1)), Verdict::Wait);
        assert_eq!(verdict(after, Found::Missing), Verdict::Go);
    }

    #[test]
    fn an_answer_about_another_topic_is_kept_for_it() {
        let mut partitions = TopicLookup::default();
        let (sender, answer) = oneshot::channel();
        let now = Instant::now();
        assert_eq!(partitions.verdict("other", Some(0), now, || answer), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 0, None), Verdict::Wait);
        sender.send(Found::Partitions(1)).expect("it is awaited");
        assert_eq!(verdict(&mut partitions, 0, Some(1)), Verdict::Wait, "asks for its own");
        assert_eq!(verdict(&mut partitions, 0, None), Verdict::Go);
        assert_eq!(partitions.verdict("other", None, now, || panic!("it is known")), Verdict::Go);
    }

    #[test]
    fn a_refusal_says_how_many_there_are_and_what_to_do() {
        let reason = refusal("orders", 7, 3).reason;
        for part in ["partition 7", "has 3, 0 to 2", "--alter --topic orders --partitions 8"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
}
