//! The position in a compacted Kafka topic of one partition.
//!
//! A thread of its own does the work, since librdkafka's transactional calls block. Opening:
//!
//! 1. `init_transactions` fences every other producer with the key's `transactional.id`
//!    ([KIP-98](https://cwiki.apache.org/confluence/display/KAFKA/KIP-98+-+Exactly+Once+Delivery+and+Transactional+Messaging)).
//! 2. A claim, a record with a random number, is committed.
//! 3. The topic is read, `read_committed`, until that claim comes back. Before it stands everything
//!    that a former instance has committed: its transactions ended before the claim began. The end
//!    of the partition would not do: another key's open transaction can hide what follows it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::destination::kafka::{self, Callbacks, KafkaConfig, KafkaSource, Transactions};
use crate::state::handle::{self, Order, StoreHandle};
use crate::state::{KeptState, State, StateEvent, StateFailure, StateKey};

/// Timeout for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of the first attempt to reach a broker, and twice that for each further one: a refused
/// login shows between two.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for the next record while reading, before the deadline is looked at.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// How often librdkafka may call back while there is nothing to write.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a delivery report is looked for.
const ACK_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long until rejected properties come first again.
const REJECTED_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The topic's only partition.
const PARTITION: i32 = 0;

/// A state topic of these brokers, with a producer of its own. It reads the properties and connects
/// each time that it is opened.
pub(crate) fn kafka_state(kafka: KafkaSource, topic: &str) -> StoreHandle {
    over(kafka, topic, OwnProducer(None))
}

/// A state topic of these brokers whose records are written in `transactions`, with the events.
pub(super) fn kafka_state_with_events(
    kafka: KafkaSource,
    topic: &str,
    transactions: Transactions,
) -> StoreHandle {
    over(kafka, topic, transactions)
}

fn over(kafka: KafkaSource, topic: &str, writer: impl Writer + 'static) -> StoreHandle {
    let (handle, orders) = StoreHandle::new("state topic");
    let properties = Properties { source: kafka, good: None, rejected: None };
    let mut worker = Worker { properties, topic: topic.to_owned(), writer, key: None };
    thread::spawn(move || {
        // Without it the channel is closed, which is seen with the first order.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build()
        else {
            return;
        };
        worker.work(&runtime, orders);
    });
    handle
}

/// The transactional producer that writes the records. Its calls block.
trait Writer: Send {
    /// Replaces the producer by one with this `transactional.id`, which fences all others with it.
    fn open(&mut self, kafka: &KafkaConfig, id: &str, topic: &str) -> Result<(), KafkaError>;

    /// Records why the properties that were read last are not used.
    fn reject(&self, reason: &str);

    /// Whether the producer must not write anything more.
    fn is_spent(&self) -> bool;

    /// Commits a record.
    fn commit(&mut self, topic: &str, key: &str, value: &str) -> Result<(), KafkaError>;

    /// The cluster's id, if the brokers report one.
    fn cluster_id(&self) -> Option<String>;

    /// Discards the producer.
    fn close(&mut self);

    /// Has librdkafka call back, now and then.
    fn poll(&self);
}

impl Writer for Transactions {
    fn open(&mut self, kafka: &KafkaConfig, id: &str, topic: &str) -> Result<(), KafkaError> {
        Self::open(self, kafka, (id, topic), STEP_TIMEOUT)
    }

    fn reject(&self, reason: &str) {
        Self::reject(self, reason.to_owned());
    }

    fn is_spent(&self) -> bool {
        Self::is_spent(self)
    }

    fn commit(&mut self, topic: &str, key: &str, value: &str) -> Result<(), KafkaError> {
        Self::commit(self, topic, key, value)
    }

    fn cluster_id(&self) -> Option<String> {
        Self::cluster_id(self, STEP_TIMEOUT)
    }

    fn close(&mut self) {
        self.discard();
    }

    /// The sink does.
    fn poll(&self) {}
}

/// A producer that writes nothing else.
struct OwnProducer(Option<Closing<BaseProducer<Callbacks>>>);

impl Writer for OwnProducer {
    fn open(&mut self, kafka: &KafkaConfig, id: &str, topic: &str) -> Result<(), KafkaError> {
        self.close();
        let config = kafka::client_config(kafka);
        let producer = kafka::transactional_producer(&config, id, topic, STEP_TIMEOUT)?;
        self.0 = Some(Closing(Some(producer)));
        Ok(())
    }

    /// The sink tries them too, and logs it.
    fn reject(&self, _: &str) {}

    fn commit(&mut self, topic: &str, key: &str, value: &str) -> Result<(), KafkaError> {
        let producer = self.0.as_ref().ok_or(KafkaError::Canceled)?;
        producer.begin_transaction()?;
        let record = BaseRecord::to(topic).partition(PARTITION).key(key).payload(value);
        producer.send(record).map_err(|(error, _)| error)?;
        // Not by `flush`: each of its polls takes a tenth of a second.
        let deadline = Instant::now() + STEP_TIMEOUT;
        while producer.in_flight_count() > 0 && Instant::now() < deadline {
            producer.poll(Duration::ZERO);
            thread::sleep(ACK_POLL_INTERVAL);
        }
        // Fails if the record was not acknowledged.
        producer.commit_transaction(STEP_TIMEOUT)
    }

    fn cluster_id(&self) -> Option<String> {
        self.0.as_ref()?.client().fetch_cluster_id(STEP_TIMEOUT)
    }

    fn close(&mut self) {
        self.0 = None;
    }

    /// Each record has the whole position, so a repeated end of a transaction does no harm.
    fn is_spent(&self) -> bool {
        false
    }

    fn poll(&self) {
        if let Some(producer) = &self.0 {
            producer.poll(Duration::ZERO);
        }
    }
}

/// What the thread works with.
struct Worker<W> {
    properties: Properties,
    topic: String,
    writer: W,
    /// Whose record is written; `None` before it is open.
    key: Option<StateKey>,
}

/// A failure; `None` if the topic does not exist.
type Failed = Option<StateFailure>;

/// Kafka's properties, read again for each opening. Those of the last successful opening are used
/// while it fails with what was read.
struct Properties {
    source: KafkaSource,
    good: Option<KafkaConfig>,
    /// What was read and not used, and when.
    rejected: Option<(KafkaConfig, Instant)>,
}

impl Properties {
    /// The properties to try, in this order.
    fn candidates(&self, now: Instant) -> Result<Vec<KafkaConfig>, String> {
        let good = self.good.clone();
        let read = match self.source.read() {
            Ok(read) => read,
            Err(error) => return good.map(|good| vec![good]).ok_or(error),
        };
        let Some(good) = good.filter(|good| *good != read) else { return Ok(vec![read]) };
        let is_rejected = self.rejected.as_ref().is_some_and(|(rejected, at)| {
            *rejected == read && now.saturating_duration_since(*at) < REJECTED_RETRY_INTERVAL
        });
        Ok(if is_rejected { vec![good, read] } else { vec![read, good] })
    }

    /// Records an opening with these properties, after it failed with `failed`.
    fn opened(&mut self, kafka: KafkaConfig, failed: Option<KafkaConfig>, now: Instant) {
        // While the good ones work, others stay rejected.
        if let Some(failed) = failed {
            self.rejected = Some((failed, now));
        } else if self.good.as_ref() != Some(&kafka) {
            self.rejected = None;
        }
        self.good = Some(kafka);
    }
}

impl<W: Writer> Worker<W> {
    /// Executes orders until the store is gone.
    fn work(&mut self, runtime: &Runtime, (mut orders, reports): handle::Worker) {
        loop {
            // Only the wait is the runtime's: librdkafka's calls block.
            let order =
                runtime.block_on(async { timeout(IDLE_POLL_INTERVAL, orders.recv()).await });
            let done = match order {
                Ok(Some(Order::Open(key))) => self.open(key),
                Ok(Some(Order::Write(state) | Order::Adopt(state))) => {
                    self.write(&state).map(|()| StateEvent::Written)
                }
                Ok(None) => return,
                Err(_) => {
                    self.writer.poll();
                    continue;
                }
            };
            let event = done.unwrap_or_else(|failure| {
                self.key = None;
                self.writer.close();
                failure.map_or(StateEvent::Missing, StateEvent::Failed)
            });
            if reports.send(event).is_err() {
                return;
            }
        }
    }

    fn open(&mut self, key: StateKey) -> Result<StateEvent, Failed> {
        self.key = None;
        let unavailable = |error| Some(StateFailure::Unavailable(error));
        let candidates = self.properties.candidates(Instant::now()).map_err(unavailable)?;
        let mut first: Option<(KafkaConfig, Failed)> = None;
        for kafka in candidates {
            match self.open_with(&kafka, &key) {
                Ok(event) => {
                    if let Some((_, failure)) = &first {
                        let missing = || format!("topic {} does not exist", self.topic);
                        let reason = failure.as_ref().map_or_else(missing, ToString::to_string);
                        self.writer.reject(&reason);
                    }
                    let failed = first.map(|(kafka, _)| kafka);
                    self.properties.opened(kafka, failed, Instant::now());
                    self.key = Some(key);
                    return Ok(event);
                }
                // Another instance has the position.
                Err(Some(StateFailure::Fenced)) => return Err(Some(StateFailure::Fenced)),
                Err(failure) => first = first.or(Some((kafka, failure))),
            }
        }
        Err(first.and_then(|(_, failure)| failure))
    }

    fn open_with(&mut self, kafka: &KafkaConfig, key: &StateKey) -> Result<StateEvent, Failed> {
        let failed = |error: &KafkaError| Some(failure(error, &self.topic));
        let consumer = consumer(kafka, &[]).map_err(|error| failed(&error))?;
        // By this client: the events' producer may be allowed to create topics.
        if !has_topic(&consumer, &self.topic, failure)? {
            return Err(None);
        }
        let id = key.transactional_id();
        self.writer.open(kafka, &id, &self.topic).map_err(|error| failed(&error))?;
        let nonce = format!("{:016x}{:08x}", unix_nanos(), std::process::id());
        let claimed = self.writer.commit(&self.topic, &key.claim_key(), &nonce);
        claimed.map_err(|error| failed(&error))?;
        // By a slow coordinator. The claim is committed, and a new producer can read on from it.
        if self.writer.is_spent() {
            self.writer.open(kafka, &id, &self.topic).map_err(|error| failed(&error))?;
        }
        let state = self.read(&consumer, key, &nonce)?;
        let transaction_timeout = Some(kafka::transaction_timeout(kafka));
        let cluster = self.writer.cluster_id();
        Ok(StateEvent::Opened {
            state,
            cluster,
            published: None,
            is_diverged: false,
            transaction_timeout,
        })
    }

    /// The newest record of `key`, once the claim has come back.
    fn read(
        &self,
        consumer: &BaseConsumer<Callbacks>,
        key: &StateKey,
        nonce: &str,
    ) -> Result<Option<State>, Failed> {
        let failed = |error: &KafkaError| Some(failure(error, &self.topic));
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(&self.topic, PARTITION, Offset::Beginning)
            .and_then(|()| consumer.assign(&from))
            .map_err(|error| failed(&error))?;
        let (record_key, claim_key) = (key.record_key(), key.claim_key());
        let mut deadline = Instant::now() + STEP_TIMEOUT;
        let mut found = None;
        while Instant::now() < deadline {
            let message = match consumer.poll(POLL_TIMEOUT) {
                None => continue,
                Some(Err(error)) if kafka::is_reconnecting(&error, consumer.context()) => continue,
                Some(message) => message.map_err(|error| failed(&error))?,
            };
            deadline = Instant::now() + STEP_TIMEOUT;
            let value = message.payload().unwrap_or_default();
            if message.key() == Some(record_key.as_bytes()) {
                found = message.payload().map(<[u8]>::to_vec);
            } else if message.key() == Some(claim_key.as_bytes()) && value == nonce.as_bytes() {
                return state_of(found, &self.topic).map_err(Some);
            }
        }
        Err(Some(unread(&self.topic)))
    }

    fn write(&mut self, state: &State) -> Result<(), Failed> {
        let Some(key) = &self.key else {
            return Err(Some(StateFailure::Unavailable("it is not open".to_owned())));
        };
        let written = self.writer.commit(&self.topic, &key.record_key(), &state.to_json());
        written.map_err(|error| Some(failure(&error, &self.topic)))
    }
}

/// A client that is dropped on a thread of its own.
struct Closing<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Deref for Closing<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken on drop only")
    }
}

impl<T: Send + 'static> Drop for Closing<T> {
    fn drop(&mut self) {
        drop(kafka::drop_on_threads(self.0.take()));
    }
}

/// The newest committed record of `key`, without a claim: its writer goes on, and may have written a
/// newer one already. Blocks.
pub(crate) fn read_newest(
    kafka: &KafkaConfig,
    topic: &str,
    key: &StateKey,
) -> Result<KeptState, StateFailure> {
    let failed = |error: KafkaError| reading_failure(&error, topic);
    let consumer = consumer(kafka, &[("enable.partition.eof", "true")]).map_err(failed)?;
    match has_topic(&consumer, topic, reading_failure) {
        Ok(true) => {}
        Ok(false) | Err(None) => return Ok(KeptState::NoPlace),
        Err(Some(failure)) => return Err(failure),
    }
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(topic, PARTITION, Offset::Beginning)
        .and_then(|()| consumer.assign(&from))
        .map_err(failed)?;
    let mut deadline = Instant::now() + STEP_TIMEOUT;
    let mut found = BTreeMap::new();
    while Instant::now() < deadline {
        let message = match consumer.poll(POLL_TIMEOUT) {
            None => continue,
            Some(Err(error)) if kafka::is_reconnecting(&error, consumer.context()) => continue,
            // Or at what follows a transaction that is still open.
            Some(Err(KafkaError::PartitionEOF(_))) => {
                let own = found.remove(key.record_key().as_bytes());
                let Some(state) = state_of(own, topic)? else { return Ok(KeptState::NoRecord) };
                let cluster = consumer.client().fetch_cluster_id(STEP_TIMEOUT);
                let others = others_of(key, found, topic)?;
                return Ok(KeptState::Record { state, cluster, others });
            }
            Some(message) => message.map_err(failed)?,
        };
        deadline = Instant::now() + STEP_TIMEOUT;
        match (message.key(), message.payload()) {
            (Some(key), Some(json)) => drop(found.insert(key.to_vec(), json.to_vec())),
            (Some(key), None) => drop(found.remove(key)),
            (None, _) => {}
        }
    }
    Err(unread(topic))
}

/// The records of the other slots of the database of `key`.
fn others_of(
    key: &StateKey,
    found: BTreeMap<Vec<u8>, Vec<u8>>,
    topic: &str,
) -> Result<Vec<(String, State)>, StateFailure> {
    let mut others = Vec::new();
    for (other, json) in found {
        let Some(other) = StateKey::of_record_key(&other) else { continue };
        if (&other.system_identifier, other.database_oid)
            == (&key.system_identifier, key.database_oid)
            && other.slot != key.slot
        {
            others.extend(state_of(Some(json), topic)?.map(|state| (other.slot, state)));
        }
    }
    Ok(others)
}

fn state_of(json: Option<Vec<u8>>, topic: &str) -> Result<Option<State>, StateFailure> {
    let state = json.map(|json| State::of_json(&json)).transpose();
    state.map_err(|error| {
        StateFailure::Unreadable(format!("the record in topic {topic} cannot be read: {error}"))
    })
}

fn unread(topic: &str) -> StateFailure {
    StateFailure::Unavailable(format!(
        "topic {topic} could not be read to its end: nothing came for {STEP_TIMEOUT:?}"
    ))
}

/// Whether the brokers know the topic.
fn has_topic(
    consumer: &BaseConsumer<Callbacks>,
    topic: &str,
    failure: fn(&KafkaError, &str) -> StateFailure,
) -> Result<bool, Failed> {
    let deadline = Instant::now() + STEP_TIMEOUT;
    let mut attempt = ATTEMPT_TIMEOUT;
    let metadata = loop {
        match consumer.fetch_metadata(Some(topic), attempt) {
            Ok(metadata) => break metadata,
            Err(error) => {
                if let Some(reason) = refused_login(consumer) {
                    return Err(Some(StateFailure::Unauthenticated(reason)));
                }
                if Instant::now() >= deadline {
                    return Err(Some(failure(&error, topic)));
                }
                attempt = (attempt * 2).min(STEP_TIMEOUT);
            }
        }
    };
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    match found.and_then(MetadataTopic::error).map(Code::from) {
        None => Ok(found.is_some_and(|found| !found.partitions().is_empty())),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(false),
        Some(code) => Err(Some(failure(&KafkaError::MetadataFetch(code), topic))),
    }
}

/// A consumer of committed records, of no partition yet; with further settings.
fn consumer(
    kafka: &KafkaConfig,
    settings: &[(&str, &str)],
) -> Result<Closing<BaseConsumer<Callbacks>>, KafkaError> {
    let mut config = kafka::consumer_config(kafka, "walpost-state");
    for (name, value) in settings {
        config.set(*name, *value);
    }
    // The claim becomes readable within milliseconds.
    config.set("fetch.wait.max.ms", "20");
    let consumer: BaseConsumer<_> = config.create_with_context(Callbacks::default())?;
    consumer.poll(Duration::ZERO);
    Ok(Closing(Some(consumer)))
}

/// Why a login of this consumer failed, which reads nothing yet: its requests only time out then.
fn refused_login(consumer: &BaseConsumer<Callbacks>) -> Option<String> {
    std::iter::from_fn(|| consumer.poll(Duration::ZERO)).for_each(drop);
    consumer.context().refused_login().map(str::to_owned)
}

fn failure(error: &KafkaError, topic: &str) -> StateFailure {
    match kafka::code_of(error) {
        Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch) => {
            StateFailure::Fenced
        }
        Some(Code::TransactionalIdAuthorizationFailed) => StateFailure::Unauthorized(
            "walpost's Kafka user needs the ACL operations WRITE and DESCRIBE on the \
             TransactionalId of the state topic's producer: see docs/security.md"
                .to_owned(),
        ),
        Some(Code::TopicAuthorizationFailed) => StateFailure::Unauthorized(format!(
            "walpost's Kafka user needs the ACL operations READ, WRITE and DESCRIBE on topic {topic}"
        )),
        _ => StateFailure::Unavailable(format!("topic {topic}: {error}")),
    }
}

/// The failure of a client that only reads.
fn reading_failure(error: &KafkaError, topic: &str) -> StateFailure {
    match kafka::code_of(error) {
        Some(Code::TopicAuthorizationFailed) => StateFailure::Unauthorized(format!(
            "this Kafka user needs the ACL operations READ and DESCRIBE on topic {topic}"
        )),
        _ => failure(error, topic),
    }
}

fn unix_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::destination::kafka::MissingTopics;

    fn kafka(servers: &str) -> KafkaConfig {
        KafkaConfig {
            bootstrap_servers: servers.to_owned(),
            properties: BTreeMap::new(),
            in_flight_bytes: 1 << 20,
            max_producers: 1,
            missing_topics: MissingTopics::default(),
        }
    }

    #[test]
    fn properties_that_worked_are_tried_after_those_that_are_read_and_before_rejected_ones() {
        let file = Arc::new(Mutex::new(Ok(kafka("a"))));
        let source = Arc::clone(&file);
        let source = KafkaSource::new(move || source.lock().expect("no panic").clone());
        let mut properties = Properties { source, good: None, rejected: None };
        let now = Instant::now();
        let tried = |properties: &Properties, now| {
            let candidates = properties.candidates(now).unwrap_or_default();
            candidates.into_iter().map(|one| one.bootstrap_servers).collect::<Vec<_>>()
        };
        assert_eq!(tried(&properties, now), ["a"]);
        properties.opened(kafka("a"), None, now);
        assert_eq!(tried(&properties, now), ["a"]);
        *file.lock().expect("no panic") = Ok(kafka("b"));
        assert_eq!(tried(&properties, now), ["b", "a"]);
        properties.opened(kafka("a"), Some(kafka("b")), now);
        assert_eq!(tried(&properties, now), ["a", "b"], "b was rejected");
        assert_eq!(tried(&properties, now + REJECTED_RETRY_INTERVAL), ["b", "a"]);
        *file.lock().expect("no panic") = Err("no file".to_owned());
        assert_eq!(tried(&properties, now), ["a"]);
        *file.lock().expect("no panic") = Ok(kafka("b"));
        properties.opened(kafka("b"), Some(kafka("a")), now);
        assert_eq!(tried(&properties, now), ["b"]);
    }
}
