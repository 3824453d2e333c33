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
    /// The topics that have not been created yet, when that was tried, and why not.
    not_created: HashMap<String, (Instant, String)>,
    news: Option<News>,
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

/// What is new about topics that are to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// This one has not been created yet, for this reason.
    NotCreated { topic: String, why: String },
    /// All are there now.
    Created,
}

/// How to handle a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordAction {
    /// Queue it: the partition exists, or that is unknown.
    Go,
    /// Offer it again: the topic is being looked up.
    Wait,
    /// Reject it: the topic has only this many partitions.
    Beyond(u32),
    /// The topic does not exist, and the brokers do not create it for this reason if that was tried.
    Missing(Option<String>),
}

impl TopicLookup {
    /// How to handle a record for `topic`, with or without a partition; `look_up` starts a lookup. If
    /// it has no result, no broker can be reached, which the producer itself reports.
    pub(crate) fn action(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        now: Instant,
        look_up: impl FnOnce() -> oneshot::Receiver<Found>,
    ) -> RecordAction {
        let is_there = |count: u32| {
            partition.is_none_or(|number| u32::try_from(number).is_ok_and(|number| number < count))
        };
        let is_recent = |since: Instant| now.saturating_duration_since(since) < MISSING_TTL;
        if let Some(lookup) = &mut self.lookup {
            let answer = match lookup.answer.try_recv() {
                Err(TryRecvError::Empty) => return RecordAction::Wait,
                answer => answer.ok(),
            };
            let about = self.lookup.take().map(|lookup| lookup.topic).unwrap_or_default();
            let is_mine = about == topic;
            if let Some(Found::NotCreated(why)) = &answer {
                self.not_created.insert(about.clone(), (now, why.clone()));
                self.news = Some(News::NotCreated { topic: about.clone(), why: why.clone() });
            } else if self.not_created.remove(&about).is_some() && self.not_created.is_empty() {
                self.news = Some(News::Created);
            }
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
                    return RecordAction::Beyond(count);
                }
                Some(Found::Missing(why)) => return RecordAction::Missing(why),
                Some(Found::NotCreated(_)) => return RecordAction::Wait,
                Some(Found::Partitions(_)) | None => return RecordAction::Go,
            }
        }
        if self.known.get(topic).is_some_and(|count| is_there(*count)) {
            return RecordAction::Go;
        }
        if let Some((_, why)) = self.missing.get(topic).filter(|(since, _)| is_recent(*since)) {
            return RecordAction::Missing(why.clone());
        }
        if self.not_created.get(topic).is_some_and(|(at, _)| is_recent(*at)) {
            return RecordAction::Wait;
        }
        self.lookup = Some(Lookup { topic: topic.to_owned(), answer: look_up() });
        RecordAction::Wait
    }

    /// The topic's number of partitions, if it was looked up.
    pub(crate) fn partitions(&self, topic: &str) -> Option<u32> {
        self.known.get(topic).copied()
    }

    /// What is new about topics that are to be created.
    pub(crate) fn take_news(&mut self) -> Option<News> {
        self.news.take()
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

    /// The action on that partition, if the brokers respond at once.
    fn action(partitions: &mut TopicLookup, partition: i32, count: Option<u32>) -> RecordAction {
        partitions.action("t", Some(partition), Instant::now(), || {
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
        assert_eq!(action(&mut partitions, 2, Some(3)), RecordAction::Wait);
        for _ in 0..2 {
            assert_eq!(action(&mut partitions, 2, None), RecordAction::Go);
        }
        // A partition that was added since.
        assert_eq!(action(&mut partitions, 3, Some(4)), RecordAction::Wait);
        assert_eq!(action(&mut partitions, 3, None), RecordAction::Go);
        assert_eq!(action(&mut partitions, 4, Some(4)), RecordAction::Wait);
        assert_eq!(action(&mut partitions, 4, None), RecordAction::Beyond(4));
        partitions.forget();
        assert_eq!(action(&mut partitions, 0, Some(1)), RecordAction::Wait);
    }

    #[test]
    fn record_is_queued_if_the_lookup_has_no_result() {
        let mut partitions = TopicLookup::default();
        assert_eq!(action(&mut partitions, 2, None), RecordAction::Wait);
        assert_eq!(action(&mut partitions, 2, None), RecordAction::Go);
    }

    #[test]
    fn missing_topic_is_looked_up_once_per_second() {
        let (mut partitions, begin) = (TopicLookup::default(), Instant::now());
        let mut action = |after: Duration, found: Found| {
            partitions.action("t", None, begin + after, || {
                let (sender, answer) = oneshot::channel();
                sender.send(found).expect("it is awaited");
                answer
            })
        };
        for after in [Duration::ZERO, MISSING_TTL] {
            assert_eq!(action(after, Found::Missing(None)), RecordAction::Wait);
            for _ in 0..2 {
                assert_eq!(action(after, Found::Partitions(1)), RecordAction::Missing(None));
            }
        }
        let after = 2 * MISSING_TTL;
        assert_eq!(action(after, Found::Partitions(1)), RecordAction::Wait);
        assert_eq!(action(after, Found::Missing(None)), RecordAction::Go);
    }

    #[test]
    fn creation_is_tried_once_per_second_for_each_topic() {
        let (mut topics, begin) = (TopicLookup::default(), Instant::now());
        let mut asked = 0;
        let mut offer = |topics: &mut TopicLookup, topic: &str, after: Duration, found: Found| {
            let action = topics.action(topic, None, begin + after, || {
                asked += 1;
                let (sender, answer) = oneshot::channel();
                sender.send(found).expect("it is awaited");
                answer
            });
            (asked, action)
        };
        let not = || Found::NotCreated("few".to_owned());
        let news =
            |topic: &str| Some(News::NotCreated { topic: topic.to_owned(), why: "few".to_owned() });
        assert_eq!(offer(&mut topics, "a", Duration::ZERO, not()), (1, RecordAction::Wait));
        // The answer comes to a record of another topic.
        assert_eq!(offer(&mut topics, "b", Duration::ZERO, not()), (2, RecordAction::Wait));
        assert_eq!(topics.take_news(), news("a"));
        let half = MISSING_TTL / 2;
        assert_eq!(offer(&mut topics, "a", half, not()), (2, RecordAction::Wait));
        assert_eq!((topics.take_news(), topics.take_news()), (news("b"), None));
        assert_eq!(offer(&mut topics, "b", half, not()), (2, RecordAction::Wait));
        let there = || Found::Partitions(1);
        let later = half + MISSING_TTL;
        assert_eq!(offer(&mut topics, "a", later, there()), (3, RecordAction::Wait));
        assert_eq!(offer(&mut topics, "b", later, there()), (4, RecordAction::Wait));
        assert_eq!(topics.take_news(), None, "one is left");
        assert_eq!(offer(&mut topics, "b", later, not()), (4, RecordAction::Go));
        assert_eq!(topics.take_news(), Some(News::Created));
    }

    #[test]
    fn result_for_another_topic_is_kept() {
        let mut partitions = TopicLookup::default();
        let (sender, answer) = oneshot::channel();
        let now = Instant::now();
        assert_eq!(partitions.action("other", Some(0), now, || answer), RecordAction::Wait);
        assert_eq!(action(&mut partitions, 0, None), RecordAction::Wait);
        sender.send(Found::Partitions(1)).expect("it is awaited");
        assert_eq!(
            action(&mut partitions, 0, Some(1)),
            RecordAction::Wait,
            "starts a lookup of its own"
        );
        assert_eq!(action(&mut partitions, 0, None), RecordAction::Go);
        assert_eq!(
            partitions.action("other", None, now, || panic!("it is known")),
            RecordAction::Go
        );
    }

    #[test]
    fn rejection_has_the_number_of_partitions_and_the_fix() {
        let reason = missing_partition("orders", 7, 3).reason;
        for part in ["partition 7", "has 3, 0 to 2", "--alter --topic orders --partitions 8"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
}
