//! Reads what is in Kafka: the event id of every record of some topics since a time, up to their
//! ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use sha2::{Digest as _, Sha256};
use tokio::time::{sleep, timeout};

use super::error::RecoveryError;
use crate::destination::kafka::{self, Callbacks, KafkaConfig, MetadataClient};
use crate::position::EventPosition;
use crate::record::dead_letter::Letter;
use crate::record::{ID_HEADER, POSITION_HEADER};

/// Timeout for each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for the next record before the end of a partition.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the transactions of other producers may stay open: until they end, readers do not see
/// what follows. `transaction.max.timeout.ms` of brokers is a quarter of an hour.
const OPEN_TRANSACTIONS: Duration = Duration::from_secs(900);

/// How often brokers are asked whether they have ended.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The consumer group, of which nothing is committed.
const GROUP: &str = "walpost-recover";

/// Records that are passed on together.
const BATCH: usize = 50_000;

/// What is in Kafka of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishedEvent {
    /// The event's id; `None`: the record does not have it.
    pub(super) id: Option<Vec<u8>>,
    /// The event's position; `None`: the record does not have it.
    pub(super) position: Option<EventPosition>,
    /// What its key and value are.
    pub(super) content: Content,
}

/// Tells keys and values apart: the start of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Content([u8; 4]);

impl Content {
    /// That of a record with this key and value.
    pub(super) fn of(key: Option<&[u8]>, value: Option<&[u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in [key, value] {
            // No two pairs are the same bytes.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            hash.update(length.to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        let mut start = [0; 4];
        start.copy_from_slice(&hash.finalize()[..4]);
        Self(start)
    }
}

/// A topic that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadTopic {
    /// The topic's name.
    pub(crate) name: String,
    /// Whether it exists.
    pub(crate) exists: bool,
    /// Why it may lack records of the time in question; `None`: it has all.
    pub(crate) gap: Option<String>,
    /// Whether that includes that it is not compacted.
    pub(crate) has_known_policy: bool,
}

/// The first offset to read, and the end at the start.
#[derive(Debug, Clone, Copy)]
struct Range {
    from: i64,
    end: i64,
}

impl Range {
    /// Whether offsets of it are gone from a partition with these watermarks: its retention has deleted
    /// records, or the topic was made again.
    fn is_gone(self, (first, end): (i64, i64)) -> bool {
        first > self.from || end < self.end
    }
}

/// The ranges of offsets by partition.
type Ranges = BTreeMap<i32, Range>;

/// The records of some topics.
pub(crate) struct PublishedRecords {
    kafka: KafkaConfig,
    /// What there is to read of each topic.
    ranges: Vec<(String, Ranges)>,
    /// The topics.
    pub(crate) topics: Vec<ReadTopic>,
    /// How many offsets there are to read.
    pub(crate) offsets: u64,
}

impl PublishedRecords {
    /// The records from `since_ms` on, in milliseconds since 1970, or all. Waits for the end of
    /// transactions that other producers have open, and calls `note` if there are any.
    pub(crate) async fn open(
        kafka: &KafkaConfig,
        topics: &[String],
        since_ms: Option<i64>,
        mut note: impl FnMut(&str),
    ) -> Result<Self, RecoveryError> {
        let (committed, all) =
            (consumer(kafka, "read_committed")?, consumer(kafka, "read_uncommitted")?);
        let deadline = Instant::now() + OPEN_TRANSACTIONS;
        let (mut ranges, mut read) = (Vec::new(), Vec::with_capacity(topics.len()));
        for (name, is_compacted) in topics.iter().zip(compacted(kafka, topics).await?) {
            // Records after an open transaction count too.
            let mut found = ranges_of(&all, name, since_ms)
                .map_err(|error| failed(name, "its offsets cannot be read", &error))?;
            found.ranges.retain(|_, range| range.from < range.end);
            for (partition, range) in &found.ranges {
                let mut is_noted = false;
                loop {
                    let visible = committed.fetch_watermarks(name, *partition, REQUEST_TIMEOUT);
                    let visible =
                        visible.map_err(|error| failed(name, "its end cannot be read", &error))?;
                    if visible.1 >= range.end {
                        break;
                    }
                    if Instant::now() >= deadline {
                        return Err(RecoveryError::OpenTransaction(name.clone()));
                    }
                    if !is_noted {
                        note(&format!(
                            "waiting for the end of a transaction that a producer has open in topic \
                             {name}, partition {partition}"
                        ));
                        is_noted = true;
                    }
                    sleep(RETRY_INTERVAL).await;
                }
            }
            let gap = match (is_compacted, found.gap) {
                (Some(true), _) => Some("it is compacted"),
                (_, true) => Some("its oldest records are deleted"),
                (_, false) => None,
            };
            let is_empty = found.ranges.is_empty();
            let exists = found.exists;
            ranges.push((name.clone(), found.ranges));
            read.push(ReadTopic {
                name: name.clone(),
                exists,
                gap: gap.map(str::to_owned),
                has_known_policy: is_compacted.is_some() || is_empty,
            });
        }
        let all = ranges.iter().flat_map(|(_, ranges)| ranges.values());
        let offsets = all.map(|range| (range.end - range.from).unsigned_abs()).sum();
        Ok(Self { kafka: kafka.clone(), ranges, topics: read, offsets })
    }

    /// Calls `each` with what `choose` takes of the records of a topic, some at a time. Returns the topics
    /// of which records may have been deleted meanwhile, with the reason.
    pub(super) async fn read<T>(
        self,
        choose: impl Fn(PublishedEvent) -> Option<T>,
        mut each: impl AsyncFnMut(Vec<T>) -> Result<(), RecoveryError>,
    ) -> Result<Vec<(String, String)>, RecoveryError> {
        crate::crash_points::point!("records_counted");
        let mut gaps = Vec::new();
        for (topic, ranges) in self.ranges {
            let all: Vec<_> = ranges.iter().map(|(number, range)| (*number, *range)).collect();
            // One for each: the end of a partition is reported without its topic.
            let consumer = consumer(&self.kafka, "read_committed")?;
            let read = read_topic(&consumer, &topic, ranges, &choose, &mut each).await;
            // The consumer goes on at the first record that is left, and reports nothing.
            let is_gone = read.and_then(|()| is_gone(&consumer, &topic, &all));
            kafka::drop_on_threads([consumer]);
            if is_gone? {
                let why = "records were deleted while it was read".to_owned();
                gaps.push((topic, why));
            }
        }
        Ok(gaps)
    }
}

/// Whether offsets of these ranges are gone.
fn is_gone(
    consumer: &StreamConsumer<Callbacks>,
    topic: &str,
    ranges: &[(i32, Range)],
) -> Result<bool, RecoveryError> {
    for (partition, range) in ranges {
        let found = consumer.fetch_watermarks(topic, *partition, REQUEST_TIMEOUT);
        let found = found.map_err(|error| failed(topic, "its offsets cannot be read", &error))?;
        if range.is_gone(found) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The event in a record, or in a dead letter.
fn event_of(record: &BorrowedMessage<'_>) -> PublishedEvent {
    let header = |name: &str| {
        let mut headers = record.headers()?.iter();
        headers.find(|header| header.key == name)?.value
    };
    let content = Content::of(record.key(), record.payload());
    if let Ok(Some(letter)) = Letter::read(record.key(), record.payload(), header) {
        let (id, position) = (letter.id().map(<[u8]>::to_vec), Some(letter.position));
        return PublishedEvent { id, position, content };
    }
    let position = header(POSITION_HEADER).and_then(|text| std::str::from_utf8(text).ok());
    let id = header(ID_HEADER).map(<[u8]>::to_vec);
    PublishedEvent { id, position: position.and_then(EventPosition::from_text), content }
}

async fn read_topic<T>(
    consumer: &StreamConsumer<Callbacks>,
    topic: &str,
    mut ranges: Ranges,
    choose: &impl Fn(PublishedEvent) -> Option<T>,
    each: &mut impl AsyncFnMut(Vec<T>) -> Result<(), RecoveryError>,
) -> Result<(), RecoveryError> {
    let mut chosen = Vec::new();
    let unreadable = |error: KafkaError| failed(topic, "it cannot be read", &error);
    let mut list = TopicPartitionList::new();
    for (partition, range) in &ranges {
        list.add_partition_offset(topic, *partition, Offset::Offset(range.from))
            .map_err(unreadable)?;
    }
    consumer.assign(&list).map_err(unreadable)?;
    while !ranges.is_empty() {
        let received = timeout(IDLE_TIMEOUT, consumer.recv()).await;
        let received = received.map_err(|_| RecoveryError::Kafka {
            topic: topic.to_owned(),
            why: format!("nothing was received for {IDLE_TIMEOUT:?}"),
        })?;
        match received {
            Ok(record) => {
                let Some(range) = ranges.get(&record.partition()) else { continue };
                if record.offset() < range.end {
                    chosen.extend(choose(event_of(&record)));
                }
                if record.offset() + 1 >= range.end {
                    ranges.remove(&record.partition());
                }
            }
            // The offsets that are left have no record, such as the ends of transactions.
            Err(KafkaError::PartitionEOF(partition)) => {
                ranges.remove(&partition);
            }
            Err(error) if kafka::is_reconnecting(&error, consumer.context()) => {
                tracing::debug!(%error, "Kafka cannot be read for now");
            }
            Err(error) => return Err(unreadable(error)),
        }
        if chosen.len() >= BATCH {
            each(std::mem::take(&mut chosen)).await?;
        }
    }
    each(chosen).await
}

fn failed(topic: &str, what: &str, error: &KafkaError) -> RecoveryError {
    RecoveryError::Kafka { topic: topic.to_owned(), why: format!("{what}: {error}") }
}

fn consumer(
    kafka: &KafkaConfig,
    isolation: &str,
) -> Result<StreamConsumer<Callbacks>, RecoveryError> {
    kafka::partition_consumer(kafka, GROUP, &[("isolation.level", isolation)])
        .map_err(|error| failed("", "the consumer cannot be created", &error))
}

struct Found {
    ranges: Ranges,
    /// Whether there is such a topic.
    exists: bool,
    /// Whether records from the time on may be deleted.
    gap: bool,
}

/// The offsets of a topic from a time on. A topic that does not exist has none.
fn ranges_of(
    consumer: &StreamConsumer<Callbacks>,
    topic: &str,
    since_ms: Option<i64>,
) -> Result<Found, KafkaError> {
    let numbers = kafka::partitions_of(consumer, topic, REQUEST_TIMEOUT)?;
    let mut found = Found { ranges: Ranges::new(), exists: numbers.is_some(), gap: false };
    let numbers = numbers.unwrap_or_default();
    let mut times = TopicPartitionList::new();
    for number in &numbers {
        let offset = Offset::Offset(since_ms.unwrap_or_default().max(0));
        times.add_partition_offset(topic, *number, offset)?;
    }
    let times = match since_ms {
        Some(_) if !numbers.is_empty() => Some(consumer.offsets_for_times(times, REQUEST_TIMEOUT)?),
        _ => None,
    };
    for number in numbers {
        let (first, end) = consumer.fetch_watermarks(topic, number, REQUEST_TIMEOUT)?;
        let at = times.as_ref().and_then(|times| times.find_partition(topic, number));
        let from = match at.map(|at| at.offset()) {
            Some(Offset::Offset(offset)) => offset.max(first),
            // No record is as young as that.
            Some(_) => end,
            None => first,
        };
        // Something before the time is left: nothing after it is deleted.
        found.gap |= first > 0 && from <= first;
        found.ranges.insert(number, Range { from, end });
    }
    Ok(found)
}

/// Which of the topics are compacted; `None`: the brokers do not tell.
async fn compacted(
    kafka: &KafkaConfig,
    topics: &[String],
) -> Result<Vec<Option<bool>>, RecoveryError> {
    let (kafka, topics) = (kafka.clone(), topics.to_vec());
    // The client waits for the brokers' answers.
    let asked = tokio::task::spawn_blocking(move || {
        let client = MetadataClient::open(&kafka)?;
        client.reach(REQUEST_TIMEOUT).map_err(|failure| RecoveryError::Kafka {
            topic: String::new(),
            why: failure.into_reason(),
        })?;
        let is_compacted = |topic: &String| {
            let settings = client.topic_settings(topic)?;
            Some(settings.get("cleanup.policy")?.contains("compact"))
        };
        Ok(topics.iter().map(is_compacted).collect())
    });
    asked
        .await
        .map_err(|error| RecoveryError::Kafka { topic: String::new(), why: error.to_string() })?
}

#[cfg(test)]
mod tests {
    use super::Range;

    #[test]
    fn records_that_were_deleted_before_they_could_be_read_are_noticed() {
        let range = Range { from: 10, end: 20 };
        for (first, end, is_gone) in
            [(0, 20, false), (10, 25, false), (11, 25, true), (20, 20, true), (0, 19, true)]
        {
            assert_eq!(range.is_gone((first, end)), is_gone, "{first}..{end}");
        }
    }
}
