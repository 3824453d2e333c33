//! Finds out whether a topic has the partition that a record names, and whether it exists if walpost
//! does not wait for missing topics.
//!
//! librdkafka only reports that it knows no such partition, perhaps minutes after one was added. So
//! a thread queries the brokers: at the first record of a topic, and before a record is rejected.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::outlet::{Ground, Refusal};

/// How long a topic counts as missing after a lookup: rows that name it do not wait for a lookup
/// each.
const MISSING_TTL: Duration = Duration::from_secs(1);

/// The topics that were looked up.
#[derive(Debug, Default)]
pub(crate) struct TopicLookup {
    known: HashMap<String, u32>,
    /// The missing topics, when they were looked up, and why they were not created.
    missing: HashMap<String, (Instant, Option<String>)>,
    /// The topic that has not been created yet, when that was tried, and why not.
    not_created: Option<(String, Instant, String)>,
    lookup: Option<Lookup>,
}

#[derive(Debug)]
struct Lookup {
    topic: String,
    answer: oneshot::Receiver<Found>,
}

/// The result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// The number of partitions.
    Partitions(u32),
    /// The topic does not exist, and the brokers do not create it for this reason if that was tried.
    Missing(Option<String>),
    /// The topic has not been created yet for this reason.
    NotCreated(String),
}

/// How to handle a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Queue it: the partition exists, or that is unknown.
    Go,
    /// Offer it again: the topic is being looked up.
    Wait,
    /// Reject it: the topic has only this many partitions.
    Beyond(u32),
    /// The topic does not exist, and the brokers do not create it for this reason if that was tried.
    Missing(Option<String>),
    /// Offer it again: the topic has not been created yet, for this reason, which is a new one.
    NotCreated(String),
}

impl TopicLookup {
    /// How to handle a record for `topic`, with or without a partition; `look_up` starts a lookup. If
    /// it has no result, no broker can be reached, which the producer itself reports.
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
                Some(Found::Missing(ref why)) => {
                    self.known.remove(&about);
                    self.missing.retain(|_, (since, _)| is_recent(*since));
                    self.missing.insert(about, (now, why.clone()));
                }
                Some(Found::NotCreated(_)) | None => {
                    self.known.remove(&about);
                }
            }
            match answer {
                // The result for another topic: it is kept, and this topic is looked up below.
                Some(_) | None if !is_mine => {}
                Some(Found::Partitions(count)) if !is_there(count) => {
                    return Verdict::Beyond(count);
                }
                Some(Found::Missing(why)) => return Verdict::Missing(why),
                Some(Found::NotCreated(why)) => {
                    let known = self.not_created.replace((topic.to_owned(), now, why.clone()));
                    let is_known = known.is_some_and(|(of, _, known)| of == topic && known == why);
                    return if is_known { Verdict::Wait } else { Verdict::NotCreated(why) };
                }
                Some(Found::Partitions(_)) | None => return Verdict::Go,
            }
        }
        if self.known.get(topic).is_some_and(|count| is_there(*count)) {
            return Verdict::Go;
        }
        if let Some((_, why)) = self.missing.get(topic).filter(|(since, _)| is_recent(*since)) {
            return Verdict::Missing(why.clone());
        }
        if self.not_created.as_ref().is_some_and(|(of, at, _)| of == topic && is_recent(*at)) {
            return Verdict::Wait;
        }
        self.lookup = Some(Lookup { topic: topic.to_owned(), answer: look_up() });
        Verdict::Wait
    }

    /// The topic's number of partitions, if it was looked up.
    pub(crate) fn partitions(&self, topic: &str) -> Option<u32> {
        self.known.get(topic).copied()
    }

    /// Forgets all topics: they may have been created again.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Why a record for a partition that does not exist is rejected.
pub(crate) fn missing_partition(topic: &str, partition: i32, count: u32) -> Refusal {
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

    /// The verdict on that partition, if the brokers respond at once.
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
    fn topic_is_looked_up_once_and_again_before_a_rejection() {
        let mut partitions = TopicLookup::default();
        assert_eq!(verdict(&mut partitions, 2, Some(3)), Verdict::Wait);
        for _ in 0..2 {
            assert_eq!(verdict(&mut partitions, 2, None), Verdict::Go);
        }
        // A partition that was added since.
        assert_eq!(verdict(&mut partitions, 3, Some(4)), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 3, None), Verdict::Go);
        assert_eq!(verdict(&mut partitions, 4, Some(4)), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 4, None), Verdict::Beyond(4));
        partitions.forget();
        assert_eq!(verdict(&mut partitions, 0, Some(1)), Verdict::Wait);
    }

    #[test]
    fn record_is_queued_if_the_lookup_has_no_result() {
        let mut partitions = TopicLookup::default();
        assert_eq!(verdict(&mut partitions, 2, None), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 2, None), Verdict::Go);
    }

    #[test]
    fn missing_topic_is_looked_up_once_per_second() {
        let (mut partitions, begin) = (TopicLookup::default(), Instant::now());
        let mut verdict = |after: Duration, found: Found| {
            partitions.verdict("t", None, begin + after, || {
                let (sender, answer) = oneshot::channel();
                sender.send(found).expect("it is awaited");
                answer
            })
        };
        for after in [Duration::ZERO, MISSING_TTL] {
            assert_eq!(verdict(after, Found::Missing(None)), Verdict::Wait);
            for _ in 0..2 {
                assert_eq!(verdict(after, Found::Partitions(1)), Verdict::Missing(None));
            }
        }
        let after = 2 * MISSING_TTL;
        assert_eq!(verdict(after, Found::Partitions(1)), Verdict::Wait);
        assert_eq!(verdict(after, Found::Missing(None)), Verdict::Go);
    }

    #[test]
    fn creation_is_tried_once_per_second_and_its_failure_is_told_once() {
        let (mut topics, begin) = (TopicLookup::default(), Instant::now());
        let mut verdict = |after: Duration, why: &str| {
            topics.verdict("t", None, begin + after, || {
                let (sender, answer) = oneshot::channel();
                sender.send(Found::NotCreated(why.to_owned())).expect("it is awaited");
                answer
            })
        };
        let told = |why: &str| Verdict::NotCreated(why.to_owned());
        assert_eq!(verdict(Duration::ZERO, "one"), Verdict::Wait);
        assert_eq!(verdict(Duration::ZERO, "not asked"), told("one"));
        assert_eq!(verdict(MISSING_TTL / 2, "not asked"), Verdict::Wait);
        assert_eq!(verdict(MISSING_TTL, "one"), Verdict::Wait, "asked again");
        assert_eq!(verdict(MISSING_TTL, "not asked"), Verdict::Wait, "known");
        assert_eq!(verdict(2 * MISSING_TTL, "two"), Verdict::Wait);
        assert_eq!(verdict(2 * MISSING_TTL, "not asked"), told("two"));
    }

    #[test]
    fn result_for_another_topic_is_kept() {
        let mut partitions = TopicLookup::default();
        let (sender, answer) = oneshot::channel();
        let now = Instant::now();
        assert_eq!(partitions.verdict("other", Some(0), now, || answer), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 0, None), Verdict::Wait);
        sender.send(Found::Partitions(1)).expect("it is awaited");
        assert_eq!(
            verdict(&mut partitions, 0, Some(1)),
            Verdict::Wait,
            "starts a lookup of its own"
        );
        assert_eq!(verdict(&mut partitions, 0, None), Verdict::Go);
        assert_eq!(partitions.verdict("other", None, now, || panic!("it is known")), Verdict::Go);
    }

    #[test]
    fn rejection_has_the_number_of_partitions_and_the_fix() {
        let reason = missing_partition("orders", 7, 3).reason;
        for part in ["partition 7", "has 3, 0 to 2", "--alter --topic orders --partitions 8"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
}
