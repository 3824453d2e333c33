//! The dead-letter topic, read from what is not done yet to its end as of the start; and
//! what is done, committed for a consumer group.
//!
//! It joins no group: partitions are assigned, so that a start waits for nobody.

use std::collections::BTreeMap;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{CommitMode, Consumer as _, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Message as _, OwnedMessage};
use rdkafka::metadata::{MetadataPartition, MetadataTopic};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::timeout;

use super::ReplayError;
use super::progress::Marks;
use crate::excerpt::excerpt;
use crate::sink::{self, KafkaConfig};

/// How long each answer may take.
const ANSWER: Duration = Duration::from_secs(10);

/// How long to wait before the same is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// How long nothing may come where something should.
const SILENCE: Duration = Duration::from_secs(60);

/// The letters that are not done yet.
pub(crate) struct Letters {
    consumer: StreamConsumer<Quiet>,
    topic: String,
    group: String,
    partitions: BTreeMap<i32, Partition>,
    /// What was committed last, as far as this one knows.
    committed: Committed,
}

/// Offset and metadata of each partition.
type Committed = BTreeMap<i32, (Offset, String)>;

#[derive(Debug)]
struct Partition {
    marks: Marks,
    /// All before it was seen.
    seen: i64,
    /// Where it ended at the start.
    end: i64,
}

impl Letters {
    /// Finds out what there is, and what of it is done.
    pub(crate) fn open(kafka: &KafkaConfig, topic: &str, group: &str) -> Result<Self, ReplayError> {
        let failed = |what: &str, error: KafkaError| {
            let code = error.rdkafka_error_code();
            ReplayError::Reading(format!("{what}: {}", advised(&error, code, topic, group)))
        };
        let consumer: StreamConsumer<Quiet> = config(kafka, group)
            .create_with_context(Quiet)
            .map_err(|error| ReplayError::Sink(error.into()))?;
        let metadata = consumer
            .fetch_metadata(Some(topic), ANSWER)
            .map_err(|error| failed("asking for the topic's partitions", error))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let error = found.and_then(MetadataTopic::error).map(Code::from);
        let found = match (found, error) {
            (Some(found), None) => found,
            (_, None | Some(Code::UnknownTopicOrPartition | Code::UnknownTopic)) => {
                return Err(ReplayError::NoTopic { topic: topic.to_owned() });
            }
            (_, Some(code)) => {
                let error = KafkaError::MetadataFetch(code);
                return Err(failed("asking for the topic's partitions", error));
            }
        };
        let numbers = found.partitions().iter().map(MetadataPartition::id);
        let committed = committed(&consumer, topic, numbers)
            .map_err(|error| failed("asking how far it was read", error))?;
        let mut partitions = BTreeMap::new();
        for (&number, (offset, metadata)) in &committed {
            let (first, end) = consumer
                .fetch_watermarks(topic, number, ANSWER)
                .map_err(|error| failed("asking for its end", error))?;
            let mut marks = match *offset {
                Offset::Offset(offset) => Marks::committed(offset, metadata),
                _ => Marks::committed(first, ""),
            };
            // What is gone is done, and what was made anew under the old name is not.
            if marks.next() > end {
                marks = Marks::committed(first, "");
            }
            let next = marks.next();
            marks.add(next..first);
            let seen = marks.next();
            partitions.insert(number, Partition { marks, seen, end });
        }
        let mut list = TopicPartitionList::new();
        for (number, partition) in partitions.iter().filter(|(_, partition)| !partition.is_read()) {
            list.add_partition_offset(topic, *number, Offset::Offset(partition.seen))
                .map_err(|error| failed("beginning to read", error))?;
        }
        consumer.assign(&list).map_err(|error| failed("beginning to read", error))?;
        Ok(Self {
            consumer,
            topic: topic.to_owned(),
            group: group.to_owned(),
            partitions,
            committed,
        })
    }

    /// The next record that is not done; `None`: there is no other.
    pub(crate) async fn next(&mut self) -> Result<Option<OwnedMessage>, ReplayError> {
        while !self.partitions.values().all(Partition::is_read) {
            let received = timeout(SILENCE, self.consumer.recv()).await.map_err(|_| {
                let topic = &self.topic;
                ReplayError::Reading(format!("topic {topic}: nothing came for {SILENCE:?}"))
            })?;
            match received {
                Ok(message) => {
                    let offset = message.offset();
                    let partition = self.partitions.get_mut(&message.partition());
                    if partition.is_some_and(|partition| partition.takes(offset)) {
                        return Ok(Some(message.detach()));
                    }
                }
                Err(KafkaError::PartitionEOF(number)) => {
                    if let Some(partition) = self.partitions.get_mut(&number) {
                        partition.ended();
                    }
                }
                Err(error) => match error.rdkafka_error_code() {
                    // It connects again by itself.
                    Some(
                        Code::BrokerTransportFailure
                        | Code::AllBrokersDown
                        | Code::OperationTimedOut
                        | Code::Resolve,
                    ) => tracing::debug!(%error, "the dead-letter topic cannot be read for now"),
                    code => {
                        let text = advised(&error, code, &self.topic, &self.group);
                        return Err(ReplayError::Reading(text));
                    }
                },
            }
        }
        Ok(None)
    }

    /// Whether one more of that partition can be marked as done.
    pub(crate) fn has_room(&self, partition: i32) -> bool {
        self.partitions.get(&partition).is_none_or(|partition| partition.marks.has_room())
    }

    /// That record is done with.
    pub(crate) fn done(&mut self, partition: i32, offset: i64) {
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.marks.add(offset..offset + 1);
        }
    }

    /// Commits what is done. Also where nothing is new: brokers forget what was committed
    /// long ago (`offsets.retention.minutes`).
    pub(crate) fn commit(&mut self) -> Result<(), ReplayError> {
        let failed = |error: KafkaError| {
            let code = error.rdkafka_error_code();
            let text = advised(&error, code, &self.topic, &self.group);
            ReplayError::Reading(format!("committing what is done: {text}"))
        };
        let numbers = self.partitions.keys().copied();
        if committed(&self.consumer, &self.topic, numbers).map_err(failed)? != self.committed {
            return Err(ReplayError::Another { group: self.group.clone() });
        }
        let mut list = TopicPartitionList::new();
        let mut ours = Committed::new();
        for (number, partition) in &self.partitions {
            let offset = Offset::Offset(partition.marks.next());
            ours.insert(*number, (offset, partition.marks.metadata()));
            let mut element = list.add_partition(&self.topic, *number);
            element.set_offset(offset).map_err(failed)?;
            let metadata = partition.marks.metadata();
            if !metadata.is_empty() {
                element.set_metadata(metadata);
            }
        }
        once_coordinated(|| self.consumer.commit(&list, CommitMode::Sync)).map_err(failed)?;
        self.committed = ours;
        Ok(())
    }
}

impl Partition {
    fn is_read(&self) -> bool {
        self.seen >= self.end
    }

    /// Whether the record there, which has just come, is one to look at.
    fn takes(&mut self, offset: i64) -> bool {
        self.has_nothing_before(offset.min(self.end));
        if offset >= self.end {
            return false;
        }
        self.seen = offset + 1;
        !self.marks.contains(offset)
    }

    /// The broker says that no more stands there. That is no reason to mark anything: one that
    /// has just become the leader may say so too early.
    fn ended(&mut self) {
        self.seen = self.seen.max(self.end);
    }

    /// No record stands between those that came and `offset`.
    fn has_nothing_before(&mut self, offset: i64) {
        self.marks.add(self.seen..offset);
        self.seen = self.seen.max(offset);
    }
}

/// What is committed for the group of that consumer.
fn committed(
    consumer: &StreamConsumer<Quiet>,
    topic: &str,
    partitions: impl Iterator<Item = i32>,
) -> Result<Committed, KafkaError> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(topic, partition);
    }
    once_coordinated(|| {
        let found = consumer.committed_offsets(list.clone(), ANSWER)?;
        let found = found.elements().into_iter().map(|one| {
            one.error()?;
            Ok((one.partition(), (one.offset(), one.metadata().to_owned())))
        });
        found.collect()
    })
}

/// Asks again while the group's coordinator is being made or moved.
fn once_coordinated<T>(mut ask: impl FnMut() -> Result<T, KafkaError>) -> Result<T, KafkaError> {
    let deadline = Instant::now() + ANSWER;
    loop {
        match ask() {
            Err(error) if is_of_the_coordinator(&error) && Instant::now() < deadline => {
                thread::sleep(AGAIN);
            }
            answer => return answer,
        }
    }
}

fn is_of_the_coordinator(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::NotCoordinator | Code::CoordinatorNotAvailable | Code::CoordinatorLoadInProgress
        )
    )
}

fn config(kafka: &KafkaConfig, group: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("client.id", "walpost");
    for (name, value) in &kafka.properties {
        config.set(name, value);
    }
    config
        .set("bootstrap.servers", &kafka.bootstrap_servers)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        // To look for letters is not to make their topic, whatever the producer may do.
        .set("allow.auto.create.topics", "false")
        .set("enable.partition.eof", "true");
    config
}

/// An error in words, with what to do where that is known.
fn advised(error: &KafkaError, code: Option<Code>, topic: &str, group: &str) -> String {
    match code {
        Some(Code::TopicAuthorizationFailed) => {
            format!(
                "walpost's user may not read topic {topic}; give it the ACL operation READ on it"
            )
        }
        Some(Code::GroupAuthorizationFailed) => format!(
            "walpost's user may not use the consumer group {group}; give it the ACL operation READ \
             on it"
        ),
        Some(code) => format!("{code} (topic {topic}, group {group})"),
        None => error.to_string(),
    }
}

/// The client's own lines are of no interest: what it reports is.
struct Quiet;

impl ClientContext for Quiet {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        sink::oauth_token(config)
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::trace!(target: "librdkafka", facility, "{}", excerpt(message));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{}", excerpt(reason));
    }
}

impl ConsumerContext for Quiet {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_done_and_records_beyond_the_end_are_not_taken() {
        let mut partition =
            Partition { marks: Marks::committed(2, "done beyond: 3+1"), seen: 2, end: 9 };
        assert!(partition.takes(2));
        assert!(!partition.takes(5), "it was done");
        assert_eq!(partition.marks.metadata(), "done beyond: 1+3");
        assert!(partition.takes(6) && !partition.is_read());
        assert!(!partition.takes(12) && partition.is_read());
        assert_eq!(
            (partition.marks.next(), partition.marks.metadata()),
            (2, "done beyond: 1+3 1+2".into())
        );
    }

    #[test]
    fn an_end_that_comes_too_early_marks_nothing_as_done() {
        let mut partition = Partition { marks: Marks::committed(2, ""), seen: 2, end: 9 };
        assert!(partition.takes(2));
        partition.marks.add(2..3);
        partition.ended();
        assert!(partition.is_read());
        assert_eq!((partition.marks.next(), partition.marks.metadata()), (3, String::new()));
    }
}
