//! Reads the records of a topic with a consumer that is independent of walpost.
//!
//! [`read_all`] reads to the end and stops; a [`Tail`] calls back for each record as it arrives; a
//! [`Follower`] is a tail that keeps the records. All of them read committed records from the
//! beginning of every partition, including topics and partitions created later, and commit no
//! offsets.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use crate::eventually::{under_load, within, within_blocking};

/// How often a tail looks for new topics and partitions.
const LOOK: Duration = Duration::from_millis(250);
/// How long [`read_all`] waits for a record before it gives up.
const STALL: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(10);

/// A record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumed {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since 1970, where the record has a timestamp.
    pub timestamp_ms: Option<i64>,
}

impl Consumed {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            let pairs = headers.iter();
            pairs.map(|one| (one.key.to_owned(), one.value.map(<[u8]>::to_vec))).collect()
        });
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
            timestamp_ms: message.timestamp().to_millis(),
        }
    }

    /// The first header of this name, where it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(one, _)| one == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    pub fn key_text(&self) -> Option<&str> {
        std::str::from_utf8(self.key.as_deref()?).ok()
    }

    pub fn value_text(&self) -> Option<&str> {
        std::str::from_utf8(self.value.as_deref()?).ok()
    }
}

/// Which topics to read.
#[derive(Clone, Debug)]
pub enum Topics {
    Named(Vec<String>),
    /// All whose names start so.
    StartingWith(String),
}

impl Topics {
    pub fn named<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Named(names.into_iter().map(Into::into).collect())
    }

    pub fn starting_with(prefix: impl Into<String>) -> Self {
        Self::StartingWith(prefix.into())
    }

    fn contain(&self, topic: &str) -> bool {
        match self {
            Self::Named(names) => names.iter().any(|name| name == topic),
            Self::StartingWith(prefix) => topic.starts_with(prefix.as_str()),
        }
    }
}

impl From<&str> for Topics {
    fn from(name: &str) -> Self {
        Self::named([name])
    }
}

fn consumer(bootstrap: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        // An assignment wants a group's name; nothing is ever committed to it.
        .set("group.id", "walpost-bed")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("fetch.message.max.bytes", "8388608")
        // A full queue is looked at again at once: the usual second is idle time.
        .set("fetch.queue.backoff.ms", "2")
        // The end of an empty partition is reported only after this wait; usually it is 500.
        .set("fetch.wait.max.ms", "20")
        .set("queued.min.messages", "1000000")
        .set("queued.max.messages.kbytes", "262144")
        .set("fetch.error.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "200");
    config.create().expect("a plain configuration makes a consumer")
}

/// The partitions of the chosen topics, as the broker reports them.
fn partitions(consumer: &BaseConsumer, topics: &Topics) -> Result<Vec<(String, i32)>, KafkaError> {
    // All topics are asked for: to ask for one by its name could make it.
    let seen = consumer.fetch_metadata(None, ANSWER)?;
    let chosen = seen.topics().iter().filter(|topic| topics.contain(topic.name()));
    let pairs = chosen.flat_map(|topic| {
        let ids = topic.partitions().iter().map(rdkafka::metadata::MetadataPartition::id);
        ids.map(|id| (topic.name().to_owned(), id))
    });
    Ok(pairs.collect())
}

fn from_the_beginning<'a>(
    partitions: impl Iterator<Item = &'a (String, i32)>,
) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in partitions {
        list.add_partition_offset(topic, *partition, Offset::Beginning)
            .expect("the beginning is a valid offset");
    }
    list
}

/// All committed records, partition by partition in their order, up to each partition's
/// end at the time of the call (or a little past it).
///
/// Panics when the broker does not answer or stops sending.
pub async fn read_all(bootstrap: &str, topics: impl Into<Topics>) -> Vec<Consumed> {
    let (bootstrap, topics) = (bootstrap.to_owned(), topics.into());
    let reading = tokio::task::spawn_blocking(move || read_to_the_end(&bootstrap, &topics));
    reading.await.unwrap_or_else(|error| panic!("{error}"))
}

fn read_to_the_end(bootstrap: &str, topics: &Topics) -> Vec<Consumed> {
    let consumer = consumer(bootstrap);
    let found = partitions(&consumer, topics)
        .unwrap_or_else(|error| panic!("asking for the partitions of {topics:?}: {error}"));
    let mut by_topic: BTreeMap<String, Vec<(String, i32)>> = BTreeMap::new();
    for pair in found {
        by_topic.entry(pair.0.clone()).or_default().push(pair);
    }
    let mut records = Vec::new();
    // One topic at a time, since the end of a partition comes without its topic.
    for (topic, pairs) in by_topic {
        read_topic(&consumer, &topic, &pairs, &mut records);
    }
    records
        .sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
    records
}

fn read_topic(
    consumer: &BaseConsumer,
    topic: &str,
    pairs: &[(String, i32)],
    records: &mut Vec<Consumed>,
) {
    // Where a writer is busy the end never comes, so its place now counts too.
    let mut ends = BTreeMap::new();
    for (_, partition) in pairs {
        ends.insert(*partition, end_of(consumer, topic, *partition));
    }
    consumer
        .assign(&from_the_beginning(pairs.iter()))
        .unwrap_or_else(|error| panic!("assigning {topic}: {error}"));
    let mut last = Instant::now();
    while !ends.is_empty() {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) if message.topic() == topic => {
                last = Instant::now();
                let partition = message.partition();
                if ends.get(&partition).is_some_and(|end| message.offset() + 1 >= *end) {
                    ends.remove(&partition);
                }
                records.push(Consumed::of(&message));
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ends.remove(&partition);
            }
            Some(Ok(_) | Err(_)) | None => assert!(
                last.elapsed() < under_load(STALL),
                "{topic}: nothing came for {STALL:?}; unread to their ends: {ends:?}"
            ),
        }
    }
}

/// The end of a partition, which may have no leader yet: its topic is just being created.
///
/// librdkafka takes a partition without a leader for one that does not exist, by the metadata that
/// it has: each look at the end without a new look at the metadata would fail like the first.
fn end_of(consumer: &BaseConsumer, topic: &str, partition: i32) -> i64 {
    let end = || match consumer.fetch_watermarks(topic, partition, ANSWER) {
        Ok((_, end)) => Ok(end),
        Err(error) => {
            consumer.fetch_metadata(None, ANSWER)?;
            Err(error)
        }
    };
    within_blocking(STALL, end)
        .unwrap_or_else(|seen| panic!("the end of {topic}/{partition}: {seen}"))
}

/// Calls back, on a thread of its own, for each committed record as it comes.
///
/// It outlives restarts of the broker. Dropped, it ends within a tenth of a second.
#[derive(Debug)]
pub struct Tail {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tail {
    /// The message is librdkafka's own, so that a bench that counts copies nothing.
    pub fn start(
        bootstrap: &str,
        topics: impl Into<Topics>,
        mut each: impl FnMut(&BorrowedMessage<'_>) + Send + 'static,
    ) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (ended, bootstrap, topics) = (Arc::clone(&ends), bootstrap.to_owned(), topics.into());
        let thread = std::thread::spawn(move || {
            let consumer = consumer(&bootstrap);
            let mut known = HashSet::new();
            let mut looked: Option<Instant> = None;
            while !ended.load(Ordering::Relaxed) {
                if looked.is_none_or(|then| then.elapsed() >= LOOK) {
                    take_new_partitions(&consumer, &topics, &mut known);
                    looked = Some(Instant::now());
                }
                // An error is the broker's absence, which a tail outlives, or an end.
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) {
                    each(&message);
                }
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the callback has been printed by its thread.
            let _ = thread.join();
        }
    }
}

fn take_new_partitions(
    consumer: &BaseConsumer,
    topics: &Topics,
    known: &mut HashSet<(String, i32)>,
) {
    let Ok(found) = partitions(consumer, topics) else {
        return;
    };
    let new: Vec<_> = found.into_iter().filter(|pair| !known.contains(pair)).collect();
    if !new.is_empty() && consumer.incremental_assign(&from_the_beginning(new.iter())).is_ok() {
        known.extend(new);
    }
}

/// A [`Tail`] that keeps what it sees, for tests that await something.
#[derive(Debug)]
pub struct Follower {
    seen: Arc<Mutex<Vec<Consumed>>>,
    _tail: Tail,
}

impl Follower {
    pub fn start(bootstrap: &str, topics: impl Into<Topics>) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let tail = Tail::start(bootstrap, topics, move |message| {
            let record = Consumed::of(message);
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        });
        Self { seen, _tail: tail }
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Consumed>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self) -> usize {
        self.seen().len()
    }

    /// What has come so far; the order holds within a partition only.
    pub fn records(&self) -> Vec<Consumed> {
        self.seen().clone()
    }

    /// Awaits the first time that `done` holds for what has come; it is asked
    /// again only when more has come. Panics with what was seen at the deadline.
    pub async fn until(
        &self,
        what: &str,
        deadline: Duration,
        mut done: impl FnMut(&[Consumed]) -> bool,
    ) -> Vec<Consumed> {
        let mut judged = None;
        let found = within(deadline, async || {
            let seen = self.seen();
            if judged != Some(seen.len()) {
                judged = Some(seen.len());
                if done(&seen) {
                    return Ok(seen.clone());
                }
            }
            Err(seen.len())
        })
        .await;
        found.unwrap_or_else(|count| {
            let last = self.seen().last().map(|one| (one.topic.clone(), one.partition, one.offset));
            panic!("not within {deadline:?}: {what}; {count} records came, the last is {last:?}")
        })
    }

    /// Awaits at least this many records.
    pub async fn until_count(&self, count: usize, deadline: Duration) -> Vec<Consumed> {
        let what = format!("{count} records");
        self.until(&what, deadline, |seen| seen.len() >= count).await
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::*;

    #[test]
    fn partition_that_had_no_leader_is_read_once_it_has_one() {
        let cluster = MockCluster::new(1).expect("librdkafka's own brokers");
        cluster.create_topic("orders", 1, 1).expect("a topic");
        cluster.partition_leader("orders", 0, None).expect("no leader");
        let consumer = consumer(&cluster.bootstrap_servers());
        let found = partitions(&consumer, &Topics::from("orders")).expect("its metadata");
        assert_eq!(found, [("orders".to_owned(), 0)]);
        consumer.fetch_watermarks("orders", 0, ANSWER).expect_err("it has no leader");
        cluster.partition_leader("orders", 0, Some(1)).expect("a leader");
        assert_eq!(end_of(&consumer, "orders", 0), 0);
    }
}
