//! The Kafka sink: one idempotent librdkafka producer, `acks=all`.
//!
//! The delivery callback runs on the producer's polling thread. It takes one
//! short lock to append to a list and wakes the relay; it never logs a record,
//! blocks or panics.
//!
//! A broker refuses a whole batch for one record that it will not take, and for
//! being larger than the topic's `max.message.bytes` although none of its
//! records is. So a producer that follows on such a refusal makes smaller
//! batches, down to single records, where a refusal names the guilty one.
//!
//! Facts relied on (librdkafka's CONFIGURATION.md and INTRODUCTION.md):
//! idempotence keeps order with up to five requests in flight;
//! `message.timeout.ms=0` is no limit, so that a long outage never becomes a
//! gap. `enable.gapless.guarantee` makes the producer fail where it would otherwise
//! go on behind a batch that was refused for good: without it the records behind
//! are published ahead (measured); the first batch of all needs [`Leads`] too.

mod renew;

use std::error::Error;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header as KafkaHeader, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use tokio::sync::Notify;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::config::{KafkaConfig, batch_bytes, client_config};
use super::leads::{Change, Counts, KeyPartitioner, Leads, Turn, Way};
use super::partitions::{self, Partitions, Verdict};
use super::renewal::Renewal;
use super::spans::Spans;
use super::stall::Watch;
use super::{
    Condition, Outcome, Report, Sink, SinkError, features, inquiry, refusal, statistics, token,
};
use crate::crash;
use crate::ledger::Seq;
use crate::metrics::{Metrics, Published};
use crate::record::Record;
use crate::relay::outlet::{Outlet, ProduceError, Refusal};

pub use renew::RenewHandle;

/// How long a process that ends waits for its producer.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// How long after the last connection broke its reason is awaited.
const REASON_LIMIT: Duration = Duration::from_secs(2);

/// For how long it counts that a broker knows the producer in a partition: well
/// below the day after which it forgets it.
const LEADS_LIMIT: Duration = Duration::from_secs(3600);

/// By how much a refusal makes batches smaller: few steps from the default to
/// single records, and the first of them fits most topics with a limit of their own.
const BATCH_SHRINKS_BY: u32 = 16;

/// The idempotent producer behind the [`Sink`] seam.
pub struct KafkaSink {
    config: ClientConfig,
    /// `batch.size`: the longest batch that the producer makes of several records.
    batch_bytes: u32,
    /// Whether that is because of a refusal.
    smaller_batches: bool,
    /// `None` only while one is being replaced, or after that failed.
    producer: Option<ThreadedProducer<Context, KeyPartitioner>>,
    leads: Leads,
    leads_since: Instant,
    counts: Arc<Counts>,
    partitions: Partitions,
    watch: Watch,
    reports: Arc<Reports>,
    renewal: Renewal,
    /// A producer that takes the other's place once that has nothing in flight.
    successor: Option<renew::Successor>,
    metrics: Arc<Metrics>,
    spans: Spans,
}

/// What the polling thread leaves for the relay.
#[derive(Debug, Default)]
struct Reports {
    waiting: Mutex<Waiting>,
    stirred: Notify,
    /// Whether the relay waits for acknowledgements.
    eager: AtomicBool,
    /// Whether somebody asks for the configuration to be read again.
    asked: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    reports: Vec<Report>,
    /// What was delivered by topic since it was last taken, the last topic last.
    published: Vec<(String, Published)>,
    conditions: Vec<Condition>,
    /// What last became of a connection to a broker.
    connection: Option<String>,
    /// No broker is connected, since then, and why is not known yet.
    unreachable: Option<(String, Instant)>,
    /// Whether the broker refused a batch of this producer's.
    refused: bool,
}

/// librdkafka's callbacks.
struct Context {
    reports: Arc<Reports>,
    metrics: Arc<Metrics>,
    partitioner: KeyPartitioner,
}

impl KafkaSink {
    /// Makes the producer. It connects in the background: a broker that cannot
    /// be reached is no error here.
    /// What it does shows in `metrics`.
    pub fn new(config: &KafkaConfig, metrics: Arc<Metrics>) -> Result<Self, SinkError> {
        let (batch_bytes, renewal) = (batch_bytes(&config.properties), Renewal::new(config));
        let config = client_config(config);
        let reports = Arc::new(Reports::default());
        let counts = Arc::new(Counts::default());
        let (producer, leads) = make_producer(&config, &reports, &counts, &metrics)?;
        let now = Instant::now();
        Ok(Self {
            config,
            batch_bytes,
            smaller_batches: false,
            producer: Some(producer),
            leads,
            leads_since: now,
            counts,
            partitions: Partitions::default(),
            watch: Watch::new(now),
            reports,
            renewal,
            successor: None,
            metrics,
            spans: Spans::default(),
        })
    }

    /// Whether the topic has the partition that a record names.
    fn look_for(&mut self, topic: &str, partition: i32) -> Result<(), ProduceError> {
        let verdict = self.partitions.verdict(topic, partition, || {
            let (tell, answer) = oneshot::channel();
            let tell = |count: Option<u32>| {
                // Nobody waits for it any more where the producer was replaced.
                let _ = count.map(|count| tell.send(count));
            };
            inquiry::partitions(&self.config, topic.to_owned(), tell);
            answer
        });
        match verdict {
            Verdict::Go => Ok(()),
            Verdict::Wait => Err(ProduceError::Full),
            Verdict::Beyond(count) => {
                Err(ProduceError::Refused(partitions::refusal(topic, partition, count)))
            }
        }
    }

    /// To be asked once a producer that was refused a batch is gone.
    fn make_smaller_batches(&mut self) {
        let smaller = (self.batch_bytes / BATCH_SHRINKS_BY).max(1);
        if smaller == self.batch_bytes {
            return;
        }
        (self.batch_bytes, self.smaller_batches) = (smaller, true);
        self.config.set("batch.size", smaller.to_string());
        tracing::warn!(
            batch_size = smaller,
            "the broker refused a batch of records: making smaller ones, to find the one that it \
             refuses, until walpost starts again; where only batches are too large for a topic, set \
             -X batch.size below its max.message.bytes"
        );
    }
}

/// Why Kafka cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// Its client refuses the configuration.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The broker refuses the credentials; its words.
    #[error("{0}")]
    Unauthenticated(String),
    /// No broker answers; why.
    #[error("{0}")]
    Unreachable(String),
}

/// Asks the brokers for their metadata. Blocks for at most `within`.
pub fn reach(config: &KafkaConfig, within: Duration) -> Result<(), ReachError> {
    let reports = Arc::new(Reports::default());
    let (producer, _) =
        make_producer(&client_config(config), &reports, &Arc::default(), &Arc::default())?;
    let Err(error) = producer.client().fetch_metadata(None, within) else {
        return Ok(());
    };
    let mut conditions = mem::take(&mut reports.lock().conditions);
    let connection = reports.lock().connection.take();
    conditions.extend(connection.map(Condition::Unreachable));
    let unauthenticated = conditions.iter().find_map(|condition| match condition {
        Condition::Unauthenticated(reason) => Some(reason.clone()),
        _ => None,
    });
    let unreachable = conditions.into_iter().find_map(|condition| match condition {
        Condition::Unreachable(reason) => Some(reason),
        _ => None,
    });
    Err(match unauthenticated {
        Some(reason) => ReachError::Unauthenticated(reason),
        None => ReachError::Unreachable(unreachable.unwrap_or_else(|| error.to_string())),
    })
}

impl Outlet for KafkaSink {
    fn produce(&mut self, seq: Seq, record: &Record<'_>) -> Result<(), ProduceError> {
        if self.is_leaving() {
            return Err(ProduceError::Full);
        }
        let Ok(opaque) = usize::try_from(seq) else {
            return Err(ProduceError::Broken("production numbers are used up".into()));
        };
        let way = Way::of(record);
        let turn = self.leads.turn(record.topic, way);
        if turn == Turn::Wait {
            return Err(ProduceError::Full);
        }
        if let Some(partition) = record.partition {
            self.look_for(record.topic, partition)?;
        }
        let Some(producer) = &self.producer else {
            return Err(ProduceError::Broken("the producer could not be replaced".into()));
        };
        let outgoing = BaseRecord::<[u8], [u8], usize> {
            topic: record.topic,
            partition: record.partition,
            payload: record.value,
            key: record.key,
            // To librdkafka 0 is the time of the call, another at each replay.
            timestamp: Some(record.timestamp_ms.max(1)),
            headers: headers(record),
            delivery_opaque: opaque,
        };
        producer.send(outgoing).map_err(|(error, _)| {
            let fatal = || producer.client().fatal_error();
            let told = produce_error(&error, fatal, record.topic);
            if matches!(told, ProduceError::Refused(_)) {
                self.metrics.publish_error(record.topic, &refusal::code_of(&error));
            }
            told
        })?;
        crash::point!("produced");
        self.watch.produced(seq, Instant::now());
        self.spans.produced(seq, record);
        if let Some(way) = way
            && (self.leads.begin_anew() || turn == Turn::Lead)
        {
            self.leads.queued(seq, record.topic, way);
        }
        Ok(())
    }
}

impl Sink for KafkaSink {
    fn take_reports(&mut self, into: &mut Vec<Report>) {
        let before = into.len();
        let mut waiting = self.reports.lock();
        into.append(&mut waiting.reports);
        let published = mem::take(&mut waiting.published);
        drop(waiting);
        for (topic, published) in published {
            self.metrics.published(&topic, published);
        }
        for report in into[before..].iter().filter(|one| one.outcome == Outcome::Delivered) {
            self.leads.delivered(report.seq);
            self.renewal.delivered();
        }
        let now = Instant::now();
        self.watch.reported(&into[before..], now, &self.metrics);
        self.spans.reported(&into[before..]);
        if now.saturating_duration_since(self.leads_since) >= LEADS_LIMIT {
            self.leads_since = now;
            self.leads.forget();
        }
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        let mut conditions = self.reports.take_conditions();
        self.watch.look(&self.config, &self.counts, &mut conditions);
        let changes = self.counts.take_changes().into_iter();
        conditions.extend(changes.map(|Change { topic, before, now }| Condition::Repartitioned {
            topic,
            before,
            now,
        }));
        self.renew(&mut conditions);
        conditions
    }

    async fn stirred(&self, eager: bool) {
        self.reports.eager.store(eager, Ordering::SeqCst);
        // What was reported before that store has woken nobody.
        if eager && !self.reports.lock().reports.is_empty() {
            return;
        }
        self.reports.stirred.notified().await;
    }

    async fn replace_producer(&mut self) -> Result<(), SinkError> {
        // It is waited for, so that nothing of the old producer is sent after the
        // new one's first. An error is that it has gone.
        let _ = end(self.producer.take()).await;
        // What it said of itself goes with it; what it said of records counts.
        let mut waiting = self.reports.lock();
        waiting.conditions.clear();
        (waiting.connection, waiting.unreachable) = (None, None);
        let refused = mem::take(&mut waiting.refused);
        drop(waiting);
        if refused {
            self.make_smaller_batches();
        }
        self.watch.replaced();
        self.spans.replaced();
        self.partitions.forget();
        self.make_anew()
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        // A broker's thread may be looking up a name: the process does not wait
        // for long. What was in flight is not confirmed either way.
        drop(end(self.successor.take().map(|successor| successor.producer)));
        let mut ended = end(self.producer.take());
        let deadline = Instant::now() + DROP_LIMIT;
        while ended.try_recv() == Err(TryRecvError::Empty) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Drops a producer on a thread of its own, since that purges it and joins
/// librdkafka's threads; the receiver is told, or closed, when it has gone.
fn end(producer: Option<ThreadedProducer<Context, KeyPartitioner>>) -> oneshot::Receiver<()> {
    let (ended, receiver) = oneshot::channel();
    if let Some(producer) = producer {
        // Where no thread can be had, the closure is dropped here and now.
        let _ = thread::Builder::new().name("producer's end".to_owned()).spawn(move || {
            drop(producer);
            let _ = ended.send(());
        });
    }
    receiver
}

impl Waiting {
    /// A record was delivered. Records of a topic come one after the other.
    fn count(&mut self, topic: &str, bytes: u64) {
        let known = self.published.iter().rposition(|(name, _)| name == topic);
        let at = known.unwrap_or_else(|| {
            self.published.push((topic.to_owned(), Published::default()));
            self.published.len() - 1
        });
        let (_, published) = &mut self.published[at];
        published.events += 1;
        published.bytes += bytes;
    }
}

impl Reports {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: Report, published: Option<(&str, u64)>) {
        let failed = report.outcome != Outcome::Delivered;
        let mut waiting = self.lock();
        waiting.refused |= matches!(report.outcome, Outcome::Refused(_));
        if !failed {
            waiting.connection = None;
            waiting.unreachable = None;
        }
        waiting.reports.push(report);
        if let Some((topic, bytes)) = published {
            waiting.count(topic, bytes);
        }
        drop(waiting);
        if failed || self.eager.load(Ordering::SeqCst) {
            self.stirred.notify_one();
        }
    }

    /// No broker is connected. `count` only counts them: what became of the last
    /// connection says why, and may still be to come.
    fn unreachable(&self, count: String) {
        let mut waiting = self.lock();
        match waiting.connection.take() {
            Some(reason) => {
                drop(waiting);
                self.condition(Condition::Unreachable(reason));
            }
            None => waiting.unreachable = Some((count, Instant::now())),
        }
    }

    /// A connection broke or could not be made.
    fn connection(&self, reason: String) {
        let mut waiting = self.lock();
        if waiting.unreachable.take().is_some() {
            drop(waiting);
            self.condition(Condition::Unreachable(reason));
        } else {
            waiting.connection = Some(reason);
        }
    }

    fn take_conditions(&self) -> Vec<Condition> {
        let mut waiting = self.lock();
        if let Some((count, _)) =
            waiting.unreachable.take_if(|(_, then)| then.elapsed() >= REASON_LIMIT)
        {
            waiting.conditions.push(Condition::Unreachable(count));
        }
        mem::take(&mut waiting.conditions)
    }

    fn condition(&self, condition: Condition) {
        let mut waiting = self.lock();
        if !waiting.conditions.contains(&condition) && waiting.conditions.len() < 16 {
            waiting.conditions.push(condition);
        }
        drop(waiting);
        self.stirred.notify_one();
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        token::token(config)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // Changes of state are told once, by the relay; this is the detail.
        match level {
            // A fatal error of the producer's is a condition, and told as such.
            _ if facility == "FATAL" => {
                tracing::debug!(target: "librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(target: "librdkafka", facility, "{message}");
            }
            _ => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.metrics.sink_connected(statistics::is_connected(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = reason.to_owned();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                self.metrics.sink_connected(false);
                self.reports.unreachable(reason);
            }
            Some(RDKafkaErrorCode::Authentication) => {
                self.metrics.sink_connected(false);
                self.reports.condition(Condition::Unauthenticated(reason));
            }
            Some(RDKafkaErrorCode::Fatal) => self.reports.condition(Condition::Broken(reason)),
            code => {
                tracing::debug!(target: "librdkafka", %error, "{reason}");
                if code.is_some_and(refusal::is_of_a_connection) {
                    self.reports.connection(reason);
                }
            }
        }
    }
}

impl ProducerContext<KeyPartitioner> for Context {
    type DeliveryOpaque = usize;

    fn get_custom_partitioner(&self) -> Option<&KeyPartitioner> {
        Some(&self.partitioner)
    }

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        crash::point!("callback");
        let (outcome, published) = match result {
            Ok(message) => {
                let len = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
                let bytes = len(message.key()) + len(message.payload());
                (Outcome::Delivered, Some((message.topic(), bytes as u64)))
            }
            Err((error, message)) => {
                let outcome = refusal::outcome(error, message.topic());
                if outcome != Outcome::Purged {
                    self.metrics.publish_error(message.topic(), &refusal::code_of(error));
                }
                (outcome, None)
            }
        };
        if !crash::is_armed("unacknowledged") {
            self.metrics.sink_connected(true);
            self.reports.report(Report::new(opaque as Seq, outcome), published);
        }
    }
}

fn make_producer(
    config: &ClientConfig,
    reports: &Arc<Reports>,
    counts: &Arc<Counts>,
    metrics: &Arc<Metrics>,
) -> Result<(ThreadedProducer<Context, KeyPartitioner>, Leads), SinkError> {
    features::require(config)?;
    let partitioner = KeyPartitioner::new(Arc::clone(counts));
    let (reports, metrics) = (Arc::clone(reports), Arc::clone(metrics));
    let context = Context { reports, metrics, partitioner };
    Ok((config.create_with_context(context)?, Leads::new(Arc::clone(counts))))
}

fn headers(record: &Record<'_>) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let empty = OwnedHeaders::new_with_capacity(record.headers.len());
    Some(record.headers.iter().fold(empty, |headers, header| {
        headers.insert(KafkaHeader { key: &header.name, value: header.value.as_deref() })
    }))
}

/// What a record that was not queued means; `fatal` is asked why the producer is
/// of no use, where it is of none.
fn produce_error(
    error: &KafkaError,
    fatal: impl FnOnce() -> Option<(RDKafkaErrorCode, String)>,
    topic: &str,
) -> ProduceError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::QueueFull) => ProduceError::Full,
        Some(RDKafkaErrorCode::Fatal) => match fatal() {
            // The record that is the cause is about to be reported, with its reason.
            Some((RDKafkaErrorCode::GaplessGuarantee, _)) => ProduceError::Full,
            Some((code, _)) => ProduceError::Broken(refusal::reason(code, topic)),
            None => ProduceError::Broken(error.to_string()),
        },
        Some(code) if refusal::is_refusal(code) => {
            ProduceError::Refused(refusal::by_the_client(code))
        }
        Some(code) => ProduceError::Broken(refusal::reason(code, topic)),
        None => ProduceError::Refused(Refusal { is_too_large: false, reason: error.to_string() }),
    }
}
