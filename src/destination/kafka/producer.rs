//! The Kafka sink: idempotent librdkafka producers, `acks=all`. One at first, and several where the
//! brokers are far away and the rate is high ([`ProducerPool`]).
//!
//! Its callbacks run where the relay asks for reports, on the relay's own thread: a thread that
//! waits for each acknowledgement costs two switches between threads a batch, and half of
//! walpost's time at a thousand records a second (measured). While nobody asks, acknowledgements
//! wait in librdkafka's queue.
//!
//! A broker refuses a whole batch for one record that it will not take, and for
//! being larger than the topic's `max.message.bytes` although none of its
//! records is. So a producer that follows on such a refusal makes smaller
//! batches, down to single records, where a refusal names the guilty one; a while after the last
//! refusal batches are as configured again ([`BatchSize`]).
//!
//! Facts relied on (librdkafka's CONFIGURATION.md and INTRODUCTION.md):
//! idempotence keeps order with up to five requests in flight;
//! `message.timeout.ms=0` is no limit, so that a long outage never becomes a
//! gap. `enable.gapless.guarantee` makes the producer fail where it would otherwise
//! go on behind a batch that was refused for good: without it the records behind
//! are published ahead (measured); the first batch of all needs a gate too
//! ([`placement`](super::placement)).

mod client;
mod holding;
mod pool;
mod pool_reports;
mod swap;
mod transactional;
mod transactions;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::sleep;

use self::client::produce_error;
use self::pool::{PoolParts, ProducerPool};
use self::pool_reports::PoolReports;
use super::ack_monitor::AckMonitor;
use super::batch_size::BatchSize;
use super::config::{
    KafkaConfig, MESSAGE_MAX_BYTES, MissingTopics, batch_bytes, client_config, is_linger_free,
    key_hash, requests_in_flight,
};
use super::delivery_reports::Signals;
use super::diagnostics;
use super::error::{self, TopicAt};
use super::first_batch_gate::{Admission, Change, Counts, PartitionKey};
use super::held_records::HeldRecords;
use super::poll_interval::PollInterval;
use super::pool_size::PoolSizing;
use super::reload::Reload;
use super::round_trip::RoundTripProbe;
use super::spans::Spans;
use super::topic_lookup::{self, Found, News, RecordAction, TopicLookup};
use crate::crash_points;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Outlet, ProduceError, Refusal, hash};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{
    BoxFuture, Condition, Fault, KAFKA, Outcome, Peer, Reloader, Report, Sink, SinkError,
};

pub use transactional::TransactionalSink;
pub use transactions::Transactions;

/// How long a process that ends waits for its producer.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// How often is looked whether the producer is of no use any more.
const FATAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time for which a broker is taken to know the producer in a partition: well below the day
/// after which it forgets the producer.
const GATE_LIFETIME: Duration = Duration::from_secs(3600);

/// The idempotent producers behind the [`Sink`] seam.
pub struct KafkaSink {
    config: ClientConfig,
    /// Whether `linger.ms` is walpost's to choose.
    is_linger_free: bool,
    /// `batch.size`: the longest batch that the producer makes of several records.
    batches: BatchSize,
    /// `None` only while they are being replaced, or after that failed.
    pool: Option<ProducerPool>,
    sizing: PoolSizing,
    round_trip: RoundTripProbe,
    gate_since: Instant,
    counts: Arc<Counts>,
    topics: TopicLookup,
    missing_topics: MissingTopics,
    ack_monitor: AckMonitor,
    held: HeldRecords,
    /// The first record since the producers were replaced, if there was one.
    first_seq: Option<Seq>,
    /// What the producers say.
    reports: PoolReports,
    signals: Arc<Signals>,
    poll_interval: PollInterval,
    reload: Reload,
    /// The number of brokers by the last statistics; 0 before the first.
    brokers: u32,
    /// Producers that are to take the others' place.
    successor: Option<swap::Successor>,
    fatal: Fatal,
    metrics: Arc<Metrics>,
    spans: Spans,
}

impl KafkaSink {
    /// Makes the producer. It connects in the background: a broker that cannot
    /// be reached is no error here.
    /// What it does shows in `metrics`.
    pub fn new(config: &KafkaConfig, metrics: Arc<Metrics>) -> Result<Self, SinkError> {
        let (batch_bytes, reload) = (batch_bytes(&config.properties), Reload::new(config));
        let (missing_topics, now) = (config.missing_topics.clone(), Instant::now());
        let in_flight = requests_in_flight(&config.properties);
        let is_linger_free = is_linger_free(&config.properties);
        let mut sizing = PoolSizing::new(config.max_producers, in_flight, now);
        if crash_points::is_armed("several_producers") {
            sizing.applied(sizing.largest(), now);
        }
        let key_hash = key_hash(&config.properties);
        let config = client_config(config);
        let (signals, counts) = (Arc::<Signals>::default(), Arc::new(Counts::of_keys(key_hash)));
        let parts = PoolParts {
            signals: Arc::clone(&signals),
            counts: Arc::clone(&counts),
            metrics: Arc::clone(&metrics),
            is_linger_free,
        };
        let (pool, reports) = ProducerPool::new(&config, sizing.size(), 1, &parts)?;
        metrics.sink_producers.set(reports.producers());
        Ok(Self {
            config,
            is_linger_free,
            batches: BatchSize::new(batch_bytes),
            pool: Some(pool),
            sizing,
            round_trip: RoundTripProbe::default(),
            gate_since: now,
            counts,
            topics: TopicLookup::default(),
            missing_topics,
            ack_monitor: AckMonitor::new(now),
            held: HeldRecords::default(),
            first_seq: None,
            reports,
            signals,
            poll_interval: PollInterval::default(),
            reload,
            brokers: 0,
            successor: None,
            fatal: Fatal::new(now),
            metrics,
            spans: Spans::default(),
        })
    }

    /// What a pool is made with, beside the configuration.
    fn parts(&self) -> PoolParts {
        PoolParts {
            signals: Arc::clone(&self.signals),
            counts: Arc::clone(&self.counts),
            metrics: Arc::clone(&self.metrics),
            is_linger_free: self.is_linger_free,
        }
    }

    /// Has librdkafka call back.
    fn poll(&self) {
        let successor = self.successor.as_ref();
        let successor = successor.map(|successor| (&successor.pool, &successor.reports));
        let pool = self.pool.as_ref().map(|pool| (pool, &self.reports));
        for (pool, reports) in pool.into_iter().chain(successor) {
            if pool.poll(reports) {
                self.poll_interval.note_activity(Instant::now());
            }
        }
    }

    /// A record is this sink's, sent or kept, as production `seq`.
    fn note_produced(&mut self, seq: Seq, record: &Record<'_>) {
        let now = Instant::now();
        self.first_seq.get_or_insert(seq);
        self.poll_interval.note_activity(now);
        self.ack_monitor.produced(seq, now);
        self.spans.produced(seq, record);
    }

    /// Queues a record that was admitted so, with the producer that has its partition.
    fn send(
        &mut self,
        seq: Seq,
        record: &Record<'_>,
        key: Option<PartitionKey>,
        admission: Admission,
    ) -> Result<(), ProduceError> {
        let Ok(opaque) = usize::try_from(seq.as_u64()) else {
            return Err(ProduceError::Broken("production numbers are used up".into()));
        };
        let Some(pool) = &mut self.pool else {
            return Err(ProduceError::Broken("the producer could not be replaced".into()));
        };
        if record.partition.is_some()
            && let Some(count) = self.topics.partitions(record.topic)
        {
            pool.placement.learn(record.topic, count);
        }
        pool.send(record, key, opaque).map_err(|(error, fatal)| {
            let reported =
                produce_error(&error, fatal.as_ref(), TopicAt::new(record.topic, &self.config));
            if matches!(reported, ProduceError::Refused(_) | ProduceError::Suspect(_)) {
                self.metrics.publish_error(record.topic, &error::code_name(&error));
            }
            reported
        })?;
        pool.placement.queued(seq, record.topic, key, admission);
        Ok(())
    }
}

impl Outlet for KafkaSink {
    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        Some(topic_lane(record))
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        admits(&self.config, &self.metrics, topic, bytes)
    }

    fn produce(
        &mut self,
        seq: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        if self.is_draining() || self.held.has_failed {
            return Err(ProduceError::Full);
        }
        let partition_key = PartitionKey::of(record, self.counts.hash());
        if record.partition.is_some() || self.missing_topics.are_looked_up(record.topic) {
            let (topics, clients) = (&mut self.topics, (&self.config, &self.missing_topics));
            check_topic(topics, clients, record.topic, record.partition)?;
        }
        if self.sizing.asks_for_round_trip() {
            self.round_trip.begin(&self.config, record.topic, &self.signals);
        }
        if self.first_seq.is_none() && !self.is_sized(Instant::now()) {
            return Err(ProduceError::Full);
        }
        let Some(pool) = &mut self.pool else {
            return Err(ProduceError::Broken("the producer could not be replaced".into()));
        };
        let admission = pool.placement.admission(record.topic, partition_key);
        if let (Some(key), Admission::Wait) = (partition_key, admission) {
            if !self.can_hold(record) {
                return Err(ProduceError::Full);
            }
            self.hold(seq, key, record);
            return Ok(());
        }
        self.send(seq, record, partition_key, admission)?;
        crash_points::point!("produced");
        self.note_produced(seq, record);
        Ok(())
    }
}

impl Sink for KafkaSink {
    fn peer(&self) -> &'static Peer {
        &KAFKA
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        self.poll();
        let before = into.len();
        self.reports.take(into, &self.metrics);
        self.settle_held(into, before);
        if into[before..].iter().any(|one| one.outcome == Outcome::Delivered) {
            self.reload.set_healthy();
        }
        let now = Instant::now();
        if into.len() > before {
            self.note_acknowledgement(now);
        }
        self.ack_monitor.reported(&into[before..], now, &self.metrics);
        self.spans.reported(&into[before..]);
        if self.is_draining() {
            self.swap_if_drained(now);
        }
        if now.saturating_duration_since(self.gate_since) >= GATE_LIFETIME {
            self.gate_since = now;
            if let Some(pool) = &mut self.pool {
                pool.placement.forget();
            }
        }
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        let mut conditions = self.reports.take_conditions();
        self.ack_monitor.check(&self.config, &self.counts, &mut conditions);
        note_topics(&mut self.topics, &self.config, &mut conditions);
        let pool = self.pool.as_ref();
        let fatal = || pool.and_then(ProducerPool::fatal_error);
        conditions.extend(self.fatal.check(fatal, Instant::now()));
        let changes = self.counts.take_changes().into_iter();
        conditions.extend(changes.map(|Change { topic, before, now }| Condition::Repartitioned {
            topic,
            before,
            now,
        }));
        self.poll_reload(&mut conditions);
        conditions
    }

    fn is_connected(&self) -> Option<bool> {
        // Their first word comes late, and what the cluster is called they know from the first answer.
        let answered = || self.pool.as_ref()?.is_answered().then_some(true);
        self.reports.is_connected().or_else(answered)
    }

    fn wait_for_events(&self, eager: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let eager = eager || !self.held.is_empty();
            loop {
                if eager && self.reports.are_waiting() {
                    return;
                }
                tokio::select! {
                    // A condition that waits is returned before librdkafka is polled for more: the relay
                    // is to see it first. Polling cannot starve, since the loop returns in that case.
                    biased;
                    () = self.signals.stirred.notified() => return,
                    () = sleep(self.poll_interval.until_next_poll(Instant::now(), eager)) => self.poll(),
                }
            }
        })
    }

    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async move {
            // It is waited for, so that nothing of the old producers is sent after the
            // new one's first. An error is that they have gone.
            if let Some(pool) = self.pool.take() {
                let _ = pool.end().await;
            }
            if self.reports.is_refused() {
                make_smaller_batches(&mut self.batches, &mut self.config);
            }
            (self.held, self.first_seq) = (HeldRecords::default(), None);
            self.ack_monitor.replaced();
            self.spans.replaced();
            self.topics.forget();
            self.make_replacement()
        })
    }

    fn reload(&self) -> Option<Reloader> {
        Some(swap::reload(&self.signals))
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        // A broker's thread may be looking up a name: the process does not wait
        // for long. What was in flight is not confirmed either way.
        drop(self.successor.take().map(|successor| successor.pool.end()));
        let Some(mut ended) = self.pool.take().map(ProducerPool::end) else { return };
        let deadline = Instant::now() + DROP_TIMEOUT;
        while ended.try_recv() == Err(TryRecvError::Empty) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether the topic exists, and has the partition that a record names.
fn check_topic(
    topics: &mut TopicLookup,
    (config, missing): (&ClientConfig, &MissingTopics),
    topic: &str,
    partition: Option<i32>,
) -> Result<(), ProduceError> {
    let action = topics.action(topic, partition, Instant::now(), || {
        let (sender, answer) = oneshot::channel();
        let done = |found: Found| {
            // Nobody waits for it any more where the producer was replaced.
            let _ = sender.send(found);
        };
        diagnostics::find_topic(config, missing.creates, topic.to_owned(), done);
        answer
    });
    match action {
        RecordAction::Go => Ok(()),
        RecordAction::Wait => Err(ProduceError::Full),
        RecordAction::Beyond(count) => {
            let partition = partition.unwrap_or_default();
            Err(ProduceError::Refused(topic_lookup::missing_partition(topic, partition, count)))
        }
        RecordAction::Missing(why) => {
            let refusal = error::missing_topic(TopicAt::new(topic, config), why.as_deref());
            match (missing.waits_for.is_it(topic), why) {
                (false, _) => Err(ProduceError::Refused(refusal)),
                (true, Some(_)) => Err(ProduceError::Broken(refusal.reason)),
                // The brokers answer so too.
                (true, None) => Ok(()),
            }
        }
    }
}

/// The conditions of topics that are to be created: what is in flight is delivered meanwhile.
fn note_topics(topics: &mut TopicLookup, config: &ClientConfig, conditions: &mut Vec<Condition>) {
    conditions.extend(topics.take_news().map(|news| match news {
        News::NotCreated { topic, why } => {
            let missing = error::missing_topic(TopicAt::new(&topic, config), Some(&why));
            Condition::Stalled { reason: missing.reason, fault: Fault::Brokers }
        }
        News::Created => Condition::Flowing,
    }));
}

/// Consumers may drop what has a lower position than the last record of its partition, and a key's
/// partition is not known for sure.
fn topic_lane(record: &Record<'_>) -> u64 {
    hash(&record.topic)
}

/// The longest record that the producer accepts.
fn max_record_bytes(config: &ClientConfig) -> u64 {
    let given = config.get("message.max.bytes").and_then(|max| max.trim().parse().ok());
    given.unwrap_or(MESSAGE_MAX_BYTES)
}

/// Whether the producer accepts a record of that size.
fn admits(
    config: &ClientConfig,
    metrics: &Metrics,
    topic: &str,
    bytes: u64,
) -> Result<(), Refusal> {
    if bytes <= max_record_bytes(config) {
        return Ok(());
    }
    let code = RDKafkaErrorCode::MessageSizeTooLarge;
    metrics.publish_error(topic, &format!("{code:?}"));
    Err(error::client_refusal(code))
}

/// To be called once a producer that was refused a batch is gone.
fn make_smaller_batches(batches: &mut BatchSize, config: &mut ClientConfig) {
    let Some(smaller) = batches.refused(Instant::now()) else { return };
    config.set("batch.size", smaller.to_string());
    tracing::warn!(
        batch_size = smaller,
        "the broker rejected a batch of records: making smaller ones for a while, to find the \
         one that it refuses; where only batches are too large for a topic, set -X batch.size \
         below its max.message.bytes"
    );
}

/// Sees whether a producer is of no use any more: not every such error is called back.
struct Fatal {
    checked_at: Instant,
    reported: bool,
}

impl Fatal {
    fn new(now: Instant) -> Self {
        Self { checked_at: now, reported: false }
    }

    /// `error`: why the producer has failed for good, if it has.
    fn check(
        &mut self,
        error: impl FnOnce() -> Option<(RDKafkaErrorCode, String)>,
        now: Instant,
    ) -> Option<Condition> {
        if self.reported || now.saturating_duration_since(self.checked_at) < FATAL_CHECK_INTERVAL {
            return None;
        }
        self.checked_at = now;
        let (code, reason) = error()?;
        // Of a record that was refused: it is reported, and replayed.
        self.reported = code != RDKafkaErrorCode::GaplessGuarantee;
        self.reported.then(|| Condition::Broken(error::fatal_reason(&reason)))
    }
}
