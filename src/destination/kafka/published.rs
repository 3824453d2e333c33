//! Reads back the records of topics, up to their ends.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use tokio::time::{sleep, timeout};

use super::{Callbacks, KafkaConfig, MetadataClient, drop_on_threads};
use crate::destination::parts::Failure;
use crate::destination::published::{
    Found, Part, PublishedEvent, ReadError, ReadTopic, Reader, WantedRecords,
};

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

/// Topics that are read one after another.
pub(super) struct Topics {
    kafka: KafkaConfig,
    /// What there is to read of each topic, the next one last.
    ranges: Vec<(String, Ranges)>,
    /// The topic that is being read.
    reading: Option<Reading>,
}

/// A topic that is being read.
struct Reading {
    topic: String,
    /// One for each: the end of a partition is reported without its topic.
    consumer: StreamConsumer<Callbacks>,
    /// The ranges as they were at the start.
    all: Ranges,
    /// The ranges that are not read to their end.
    left: Ranges,
}

impl Topics {
    /// The topics of these brokers.
    pub(super) fn new(kafka: KafkaConfig) -> Self {
        Self { kafka, ranges: Vec::new(), reading: None }
    }
}

impl Reader for Topics {
    async fn find(
        &mut self,
        wanted: WantedRecords,
        note: &mut dyn FnMut(&str),
    ) -> Result<Found, ReadError> {
        let WantedRecords { topics, since_ms, .. } = wanted;
        let kafka = &self.kafka;
        let (committed, all) =
            (consumer(kafka, "read_committed")?, consumer(kafka, "read_uncommitted")?);
        let deadline = Instant::now() + OPEN_TRANSACTIONS;
        let mut found = Found { topics: Vec::with_capacity(topics.len()), records: 0 };
        for (name, is_compacted) in topics.iter().zip(compacted(kafka, &topics).await?) {
            // Records after an open transaction count too.
            let mut ranges = ranges_of(&all, name, since_ms)
                .map_err(|error| failed(name, "its offsets cannot be read", &error))?;
            ranges.ranges.retain(|_, range| range.from < range.end);
            for (partition, range) in &ranges.ranges {
                await_transactions(&committed, (name, *partition), range.end, deadline, note)
                    .await?;
                found.records += (range.end - range.from).unsigned_abs();
            }
            let gap = match (is_compacted, ranges.gap) {
                (Some(true), _) => Some("it is compacted"),
                (_, true) => Some("its oldest records are deleted"),
                (_, false) => None,
            };
            let is_unknown = is_compacted.is_none() && !ranges.ranges.is_empty();
            let doubt = "its cleanup.policy cannot be read; if it is compacted, events count as missing that \
                         are not";
            found.topics.push(ReadTopic {
                name: name.clone(),
                exists: ranges.exists,
                gap: gap.map(str::to_owned),
                doubt: is_unknown.then_some(doubt),
            });
            self.ranges.push((name.clone(), ranges.ranges));
        }
        self.ranges.reverse();
        drop_on_threads([committed, all]);
        Ok(found)
    }

    async fn part(&mut self) -> Result<Option<Part>, ReadError> {
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => match self.ranges.pop() {
                Some((topic, ranges)) => Reading::begin(&self.kafka, topic, ranges)?,
                None => return Ok(None),
            },
        };
        let part = reading.part().await;
        if part.is_ok() && !reading.left.is_empty() {
            self.reading = Some(reading);
        } else {
            drop_on_threads([reading.consumer]);
        }
        part.map(Some)
    }
}

/// Waits until the transactions of other producers before this end are complete.
async fn await_transactions(
    committed: &StreamConsumer<Callbacks>,
    (topic, partition): (&str, i32),
    end: i64,
    deadline: Instant,
    note: &mut dyn FnMut(&str),
) -> Result<(), ReadError> {
    let mut is_noted = false;
    loop {
        let visible = committed.fetch_watermarks(topic, partition, REQUEST_TIMEOUT);
        let visible = visible.map_err(|error| failed(topic, "its end cannot be read", &error))?;
        if visible.1 >= end {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(ReadError::OpenTransaction(topic.to_owned()));
        }
        if !is_noted {
            note(&format!(
                "waiting for the end of a transaction that a producer has open in topic {topic}, partition \
                 {partition}"
            ));
            is_noted = true;
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Whether offsets of these ranges are gone.
fn is_gone(
    consumer: &StreamConsumer<Callbacks>,
    topic: &str,
    ranges: &Ranges,
) -> Result<bool, ReadError> {
    for (partition, range) in ranges {
        let found = consumer.fetch_watermarks(topic, *partition, REQUEST_TIMEOUT);
        let found = found.map_err(|error| failed(topic, "its offsets cannot be read", &error))?;
        if range.is_gone(found) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn event_of(record: &BorrowedMessage<'_>) -> PublishedEvent {
    PublishedEvent::of(record.key(), record.payload(), |name| {
        let mut headers = record.headers()?.iter();
        headers.find(|header| header.key == name)?.value
    })
}

impl Reading {
    fn begin(kafka: &KafkaConfig, topic: String, ranges: Ranges) -> Result<Self, ReadError> {
        let consumer = consumer(kafka, "read_committed")?;
        let unreadable = |error: KafkaError| failed(&topic, "it cannot be read", &error);
        let mut list = TopicPartitionList::new();
        for (partition, range) in &ranges {
            list.add_partition_offset(&topic, *partition, Offset::Offset(range.from))
                .map_err(unreadable)?;
        }
        consumer.assign(&list).map_err(unreadable)?;
        Ok(Self { topic, consumer, all: ranges.clone(), left: ranges })
    }

    /// Some of the records that are left; with the last ones, whether others were deleted meanwhile.
    async fn part(&mut self) -> Result<Part, ReadError> {
        let events = self.events().await?;
        let mut gaps = Vec::new();
        // The consumer goes on at the first record that is left, and reports nothing.
        if self.left.is_empty() && is_gone(&self.consumer, &self.topic, &self.all)? {
            gaps.push((self.topic.clone(), "records were deleted while it was read".to_owned()));
        }
        Ok(Part { events, gaps })
    }

    /// Some of the records that are left.
    async fn events(&mut self) -> Result<Vec<PublishedEvent>, ReadError> {
        let mut events = Vec::new();
        while !self.left.is_empty() && events.len() < BATCH {
            let received = timeout(IDLE_TIMEOUT, self.consumer.recv()).await;
            let received = received.map_err(|_| ReadError::Topic {
                topic: self.topic.clone(),
                why: format!("nothing was received for {IDLE_TIMEOUT:?}"),
            })?;
            match received {
                Ok(record) => {
                    let Some(range) = self.left.get(&record.partition()) else { continue };
                    if record.offset() < range.end {
                        events.push(event_of(&record));
                    }
                    if record.offset() + 1 >= range.end {
                        self.left.remove(&record.partition());
                    }
                }
                // The offsets that are left have no record, such as the ends of transactions.
                Err(KafkaError::PartitionEOF(partition)) => {
                    self.left.remove(&partition);
                }
                Err(error) if super::is_reconnecting(&error, self.consumer.context()) => {
                    tracing::debug!(%error, "Kafka cannot be read for now");
                }
                Err(error) => return Err(failed(&self.topic, "it cannot be read", &error)),
            }
        }
        Ok(events)
    }
}

fn failed(topic: &str, what: &str, error: &KafkaError) -> ReadError {
    ReadError::Topic { topic: topic.to_owned(), why: format!("{what}: {error}") }
}

fn consumer(kafka: &KafkaConfig, isolation: &str) -> Result<StreamConsumer<Callbacks>, ReadError> {
    super::partition_consumer(kafka, GROUP, &[("isolation.level", isolation)]).map_err(|error| {
        Failure::Unusable(format!("the consumer cannot be created: {error}")).into()
    })
}

struct Offsets {
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
) -> Result<Offsets, KafkaError> {
    let numbers = super::partitions_of(consumer, topic, REQUEST_TIMEOUT)?;
    let mut found = Offsets { ranges: Ranges::new(), exists: numbers.is_some(), gap: false };
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
async fn compacted(kafka: &KafkaConfig, topics: &[String]) -> Result<Vec<Option<bool>>, ReadError> {
    let (kafka, topics) = (kafka.clone(), topics.to_vec());
    // The client waits for the brokers' answers.
    let asked = tokio::task::spawn_blocking(move || {
        let client = MetadataClient::open(&kafka)?;
        let reached = client.reach(REQUEST_TIMEOUT);
        reached.map_err(|failure| Failure::Unreachable(failure.into_reason()))?;
        let is_compacted = |topic: &String| {
            let settings = client.topic_settings(topic)?;
            Some(settings.get("cleanup.policy")?.contains("compact"))
        };
        Ok(topics.iter().map(is_compacted).collect())
    });
    asked.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
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
