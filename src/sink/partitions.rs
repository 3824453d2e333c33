//! Whether a topic has the partition that a record names.
//!
//! librdkafka only says that it knows of none, perhaps minutes after one was
//! added. So the brokers are asked, on a thread: at the first record that names a
//! partition of a topic, and before one is refused.

use std::collections::HashMap;

use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::relay::outlet::Refusal;

/// The topics whose number of partitions was asked for.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    known: HashMap<String, u32>,
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    topic: String,
    answer: oneshot::Receiver<u32>,
}

/// What may be done with a record that names a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Queue it: the partition is there, or nobody knows.
    Go,
    /// Offer it again: the brokers are asked.
    Wait,
    /// The topic has only so many.
    Beyond(u32),
}

impl Partitions {
    /// What may be done; `ask` has the brokers asked, and no answer is that there is no such
    /// topic, or that no broker can be reached: what is then is the producer's to find out.
    pub(super) fn verdict(
        &mut self,
        topic: &str,
        partition: i32,
        ask: impl FnOnce() -> oneshot::Receiver<u32>,
    ) -> Verdict {
        let is_there = |count: u32| u32::try_from(partition).is_ok_and(|number| number < count);
        if let Some(asked) = &mut self.asked {
            let answer = match asked.answer.try_recv() {
                Err(TryRecvError::Empty) => return Verdict::Wait,
                answer => answer.ok(),
            };
            let about = self.asked.take().map(|asked| asked.topic).unwrap_or_default();
            let is_mine = about == topic;
            match answer {
                Some(count) => self.known.insert(about, count),
                None => self.known.remove(&about),
            };
            match answer {
                Some(count) if is_mine && !is_there(count) => return Verdict::Beyond(count),
                _ if is_mine => return Verdict::Go,
                _ => {}
            }
        }
        if self.known.get(topic).is_some_and(|count| is_there(*count)) {
            return Verdict::Go;
        }
        self.asked = Some(Asked { topic: topic.to_owned(), answer: ask() });
        Verdict::Wait
    }

    /// Topics may have been made anew.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Why a record that names a partition beyond `count` is refused.
pub(super) fn refusal(topic: &str, partition: i32, count: u32) -> Refusal {
    let needed = i64::from(partition) + 1;
    let last = i64::from(count) - 1;
    let reason = format!(
        "it names partition {partition}, and the topic has {count}, 0 to {last}; add partitions \
         (kafka-topics.sh --alter --topic {topic} --partitions {needed}), or change what writes the \
         column, or record.place"
    );
    Refusal { is_too_large: false, may_pass: false, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of that partition, where the brokers say that at once.
    fn verdict(partitions: &mut Partitions, partition: i32, count: Option<u32>) -> Verdict {
        partitions.verdict("t", partition, || {
            let (tell, answer) = oneshot::channel();
            if let Some(count) = count {
                tell.send(count).expect("it is awaited");
            }
            answer
        })
    }

    #[test]
    fn the_brokers_are_asked_once_a_topic_and_again_before_a_refusal() {
        let mut partitions = Partitions::default();
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
        let mut partitions = Partitions::default();
        assert_eq!(verdict(&mut partitions, 2, None), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 2, None), Verdict::Go);
    }

    #[test]
    fn an_answer_about_another_topic_is_kept_for_it() {
        let mut partitions = Partitions::default();
        let (tell, answer) = oneshot::channel();
        assert_eq!(partitions.verdict("other", 0, || answer), Verdict::Wait);
        assert_eq!(verdict(&mut partitions, 0, None), Verdict::Wait);
        tell.send(1).expect("it is awaited");
        assert_eq!(verdict(&mut partitions, 0, Some(1)), Verdict::Wait, "asks for its own");
        assert_eq!(verdict(&mut partitions, 0, None), Verdict::Go);
        assert_eq!(partitions.verdict("other", 0, || panic!("it is known")), Verdict::Go);
    }

    #[test]
    fn a_refusal_says_how_many_there_are_and_what_to_do() {
        let reason = refusal("orders", 7, 3).reason;
        for part in ["partition 7", "has 3, 0 to 2", "--alter --topic orders --partitions 8"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
}
