//! Reads the dead-letter topic, from the first unprocessed dead letter to the end at the start of
//! the replay, and commits the progress for a consumer group. Nothing is deleted from the topic.
//!
//! It does not join the group: partitions are assigned manually, so a start waits for no rebalance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::timeout;

use super::{Callbacks, KafkaConfig, KafkaSink, MetadataClient, kafka};
use crate::config::Config;
use crate::destination::dead_letters::{
    LetterStore, LettersAt, LettersError, OneAtATime, PutBack, Restored, StoredLetter,
};
use crate::destination::parts::Failure;
use crate::destination::parts::progress::Progress;

/// The default consumer group.
const GROUP: &str = "walpost-replay-dead-letters";

/// Timeout for each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait before a request is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What is fetched ahead: records until so many are queued, since they are replayed one by one.
/// librdkafka's limit in bytes (`queued.max.messages.kbytes`) does not count keys (2.12,
/// `rd_kafka_op_new_fetch_msg`), and a key can be as large as a record. The next fetch is then
/// postponed by the second setting, by default for a second.
const PREFETCH: [(&str, &str); 2] =
    [("queued.min.messages", "32"), ("fetch.queue.backoff.ms", "5")];

/// How long to wait for the next record before the end of a partition.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A consumer of the unprocessed dead letters, and a producer.
pub(super) struct DeadLetterTopic {
    consumer: StreamConsumer<Callbacks>,
    producer: OneAtATime,
    topic: String,
    group: String,
    partitions: BTreeMap<i32, Partition>,
    /// The offsets that this process last read or committed.
    committed: Committed,
    /// Partition and offset of what was read last.
    last: (i32, i64),
}

/// Offset and metadata of each partition.
type Committed = BTreeMap<i32, (Offset, String)>;

#[derive(Debug)]
struct Partition {
    progress: Progress,
    /// All dead letters before this offset were read.
    seen: i64,
    /// The partition's end at the start.
    end: i64,
}

/// Opens the topic, and reads the group's progress.
pub(super) fn open(config: &Config, at: &LettersAt) -> Result<DeadLetterTopic, LettersError> {
    let mut kafka = kafka(config);
    MetadataClient::open(&kafka)?.reach(REQUEST_TIMEOUT).map_err(|failure| {
        if failure.is_refused_login() {
            let reason = failure.into_reason();
            Failure::Unauthenticated(format!("the credentials are refused: {reason}"))
        } else {
            Failure::Unreachable(format!("Kafka cannot be reached: {}", failure.into_reason()))
        }
    })?;
    let topic = at.from.as_ref().unwrap_or(&config.poison.dead_letter_topic);
    let group = at.group.as_deref().unwrap_or(GROUP);
    // Each record is sent separately.
    for (name, value) in [("linger.ms", "0"), ("batch.size", "1")] {
        kafka.properties.insert(name.to_owned(), value.to_owned());
    }
    DeadLetterTopic::open(&kafka, topic, group)
}

impl DeadLetterTopic {
    fn open(kafka: &KafkaConfig, topic: &str, group: &str) -> Result<Self, LettersError> {
        let failed = |what: &str, error: KafkaError| {
            Failure::Unusable(format!("{what}: {}", with_fix(&error, topic, group)))
        };
        let consumer = super::partition_consumer(kafka, group, &PREFETCH)
            .map_err(|error| LettersError::Client(error.into()))?;
        let numbers = super::partitions_of(&consumer, topic, REQUEST_TIMEOUT)
            .map_err(|error| failed("asking for the topic's partitions", error))?
            .ok_or_else(|| LettersError::Nowhere(format!("topic {topic}")))?;
        let committed = committed(&consumer, topic, numbers.into_iter())
            .map_err(|error| failed("asking how far it was read", error))?;
        let mut partitions = BTreeMap::new();
        for (&number, (offset, metadata)) in &committed {
            let (first, end) = consumer
                .fetch_watermarks(topic, number, REQUEST_TIMEOUT)
                .map_err(|error| failed("asking for its end", error))?;
            let mut progress = match *offset {
                Offset::Offset(offset) => Progress::committed(offset, metadata),
                // Nothing was committed for the group, or not as an offset.
                _ => Progress::committed(first, ""),
            };
            // Deleted dead letters count as processed; those of a recreated topic do not.
            if progress.next() > end {
                progress = Progress::committed(first, "");
            }
            let next = progress.next();
            progress.add(next..first);
            let seen = progress.next();
            partitions.insert(number, Partition { progress, seen, end });
        }
        let mut list = TopicPartitionList::new();
        for (number, partition) in partitions.iter().filter(|(_, partition)| !partition.is_read()) {
            list.add_partition_offset(topic, *number, Offset::Offset(partition.seen))
                .map_err(|error| failed("beginning to read", error))?;
        }
        consumer.assign(&list).map_err(|error| failed("beginning to read", error))?;
        Ok(Self {
            consumer,
            producer: OneAtATime::new(KafkaSink::new(kafka, Arc::default())?),
            topic: topic.to_owned(),
            group: group.to_owned(),
            partitions,
            committed,
            last: (0, 0),
        })
    }

    /// Records what was read last as processed.
    fn done(&mut self) {
        let (partition, offset) = self.last;
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.progress.add(offset..offset + 1);
        }
    }

    fn failed(&self, what: &str, error: &KafkaError) -> LettersError {
        Failure::Unusable(format!("{what}{}", with_fix(error, &self.topic, &self.group))).into()
    }
}

impl LetterStore for DeadLetterTopic {
    const KEEPS_LETTERS: bool = true;

    async fn take(&mut self) -> Result<Option<StoredLetter>, LettersError> {
        while !self.partitions.values().all(Partition::is_read) {
            let received = timeout(IDLE_TIMEOUT, self.consumer.recv()).await.map_err(|_| {
                let topic = &self.topic;
                Failure::Unusable(format!(
                    "topic {topic}: nothing was received for {IDLE_TIMEOUT:?}"
                ))
            })?;
            match received {
                Ok(message) => {
                    let at = (message.partition(), message.offset());
                    let partition = self.partitions.get_mut(&at.0);
                    if partition.is_some_and(|partition| partition.takes(at.1)) {
                        self.last = at;
                        return Ok(Some(stored(&message)));
                    }
                }
                Err(KafkaError::PartitionEOF(number)) => {
                    if let Some(partition) = self.partitions.get_mut(&number) {
                        partition.ended();
                    }
                }
                Err(error) if super::is_reconnecting(&error, self.consumer.context()) => {
                    tracing::debug!(%error, "the dead-letter topic cannot be read for now");
                }
                // By default the replay fails, which loses nothing: the next replay reads
                // unprocessed dead letters again.
                Err(error) => return Err(self.failed("", &error)),
            }
        }
        Ok(None)
    }

    async fn put_back(&mut self, restored: Restored<'_, '_>) -> Result<PutBack, LettersError> {
        let partition = self.partitions.get(&self.last.0);
        if partition.is_some_and(|partition| !partition.progress.has_room()) {
            return Err(LettersError::Scattered { place: restored.place.to_owned() });
        }
        let put_back = self.producer.deliver(restored).await?;
        if matches!(put_back, PutBack::Published) {
            self.done();
        }
        Ok(put_back)
    }

    async fn processed(&mut self) -> Result<(), LettersError> {
        self.done();
        Ok(())
    }

    /// Commits the progress, even if it has not changed: brokers expire old commits
    /// (`offsets.retention.minutes`).
    async fn store_progress(&mut self) -> Result<(), LettersError> {
        let failed = |error: KafkaError| self.failed("committing what is done: ", &error);
        let numbers = self.partitions.keys().copied();
        if committed(&self.consumer, &self.topic, numbers).map_err(failed)? != self.committed {
            return Err(LettersError::Another(format!("the group {}", self.group)));
        }
        let mut list = TopicPartitionList::new();
        let mut ours = Committed::new();
        for (number, partition) in &self.partitions {
            let offset = Offset::Offset(partition.progress.next());
            ours.insert(*number, (offset, partition.progress.metadata()));
            let mut element = list.add_partition(&self.topic, *number);
            element.set_offset(offset).map_err(failed)?;
            let metadata = partition.progress.metadata();
            if !metadata.is_empty() {
                element.set_metadata(metadata);
            }
        }
        retry_coordinator_errors(|| self.consumer.commit(&list, CommitMode::Sync))
            .map_err(failed)?;
        self.committed = ours;
        Ok(())
    }
}

/// The record with its place.
fn stored(message: &BorrowedMessage<'_>) -> StoredLetter {
    let bytes = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    let headers = headers.filter_map(|header| Some((header.key.to_owned(), bytes(header.value)?)));
    StoredLetter {
        place: format!("{}/{}", message.partition(), message.offset()),
        lane: message.partition(),
        key: bytes(message.key()),
        value: bytes(message.payload()),
        headers: headers.collect(),
    }
}

impl Partition {
    fn is_read(&self) -> bool {
        self.seen >= self.end
    }

    /// Whether the record that was just read at `offset` is to be replayed.
    fn takes(&mut self, offset: i64) -> bool {
        self.has_nothing_before(offset.min(self.end));
        if offset >= self.end {
            return false;
        }
        self.seen = offset + 1;
        !self.progress.contains(offset)
    }

    /// Handles the broker's end-of-partition event. It marks nothing as processed: a new leader may
    /// report it too early.
    fn ended(&mut self) {
        self.seen = self.seen.max(self.end);
    }

    /// Records that there are no records between those already read and `offset`.
    fn has_nothing_before(&mut self, offset: i64) {
        self.progress.add(self.seen..offset);
        self.seen = self.seen.max(offset);
    }
}

/// The committed offsets of the consumer's group.
fn committed(
    consumer: &StreamConsumer<Callbacks>,
    topic: &str,
    partitions: impl Iterator<Item = i32>,
) -> Result<Committed, KafkaError> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(topic, partition);
    }
    retry_coordinator_errors(|| {
        let found = consumer.committed_offsets(list.clone(), REQUEST_TIMEOUT)?;
        let found = found.elements().into_iter().map(|one| {
            one.error()?;
            Ok((one.partition(), (one.offset(), one.metadata().to_owned())))
        });
        found.collect()
    })
}

/// Retries a request while the group's coordinator is created or moved.
fn retry_coordinator_errors<T>(
    mut ask: impl FnMut() -> Result<T, KafkaError>,
) -> Result<T, KafkaError> {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    loop {
        match ask() {
            Err(error) if is_coordinator_error(&error) && Instant::now() < deadline => {
                thread::sleep(RETRY_INTERVAL);
            }
            answer => return answer,
        }
    }
}

fn is_coordinator_error(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::NotCoordinator | Code::CoordinatorNotAvailable | Code::CoordinatorLoadInProgress
        )
    )
}

/// An error with its remedy, if known.
fn with_fix(error: &KafkaError, topic: &str, group: &str) -> String {
    match error.rdkafka_error_code() {
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
