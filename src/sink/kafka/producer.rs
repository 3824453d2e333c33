//! The Kafka sink: one idempotent librdkafka producer, `acks=all`.
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
//! are published ahead (measured); the first batch of all needs [`FirstBatchGate`] too.

mod swap;

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header as KafkaHeader, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::sleep;

use super::ack_monitor::AckMonitor;
use super::batch_size::BatchSize;
use super::config::{KafkaConfig, MESSAGE_MAX_BYTES, WaitsFor, batch_bytes, client_config};
use super::first_batch_gate::{
    Admission, Change, Counts, FirstBatchGate, KeyPartitioner, PartitionKey,
};
use super::reload::Reload;
use super::spans::Spans;
use super::topic_lookup::{Found, TopicLookup, Verdict};
use super::{diagnostics, error, features, oauth_token, statistics, topic_lookup};
use crate::crash_points;
use crate::excerpt::excerpt;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Ground, Outlet, ProduceError, Refusal};
use crate::record::Record;
use crate::sink::{Condition, Outcome, Report, Sink, SinkError};

use super::delivery_reports::{Reports, Signals};
use super::poll_interval::PollInterval;
pub use swap::ReloadHandle;

/// How long a process that ends waits for its producer.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// How often is looked whether the producer is of no use any more.
const FATAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// For how long it counts that a broker knows the producer in a partition: well
/// below the day after which it forgets it.
const GATE_LIFETIME: Duration = Duration::from_secs(3600);

/// Events of librdkafka's that are taken in a row: what is left waits for the next time.
const POLLS_MAX: usize = 64;

/// The client below a [`KafkaSink`].
type Producer = BaseProducer<Context, KeyPartitioner>;

/// The idempotent producer behind the [`Sink`] seam.
pub struct KafkaSink {
    config: ClientConfig,
    /// `batch.size`: the longest batch that the producer makes of several records.
    batches: BatchSize,
    /// `None` only while one is being replaced, or after that failed.
    producer: Option<Producer>,
    gate: FirstBatchGate,
    gate_since: Instant,
    counts: Arc<Counts>,
    topics: TopicLookup,
    waits_for: WaitsFor,
    ack_monitor: AckMonitor,
    /// What the producer says.
    reports: Arc<Reports>,
    signals: Arc<Signals>,
    poll_interval: PollInterval,
    reload: Reload,
    /// A producer that is to take the other's place.
    successor: Option<swap::Successor>,
    fatal: Fatal,
    metrics: Arc<Metrics>,
    spans: Spans,
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
        let (batch_bytes, reload) = (batch_bytes(&config.properties), Reload::new(config));
        let waits_for = config.waits_for.clone();
        let config = client_config(config);
        let signals = Arc::default();
        let reports = Arc::new(Reports::new(&signals));
        let counts = Arc::new(Counts::default());
        let (producer, gate) = make_producer(&config, &reports, &counts, &metrics)?;
        let now = Instant::now();
        Ok(Self {
            config,
            batches: BatchSize::new(batch_bytes),
            producer: Some(producer),
            gate,
            gate_since: now,
            counts,
            topics: TopicLookup::default(),
            waits_for,
            ack_monitor: AckMonitor::new(now),
            reports,
            signals,
            poll_interval: PollInterval::default(),
            reload,
            successor: None,
            fatal: Fatal::new(now),
            metrics,
            spans: Spans::default(),
        })
    }

    /// Has librdkafka call back what has come.
    fn poll(&self) {
        let successor = self.successor.as_ref();
        let successor = successor.map(|successor| (&successor.producer, &successor.reports));
        let producer = self.producer.as_ref().map(|producer| (producer, &self.reports));
        for (producer, reports) in producer.into_iter().chain(successor) {
            if poll(producer, reports) {
                self.poll_interval.note_activity(Instant::now());
            }
        }
    }

    /// Whether the topic exists, and has the partition that a record names.
    fn check_topic(&mut self, topic: &str, partition: Option<i32>) -> Result<(), ProduceError> {
        let verdict = self.topics.verdict(topic, partition, Instant::now(), || {
            let (sender, answer) = oneshot::channel();
            let done = |found: Found| {
                // Nobody waits for it any more where the producer was replaced.
                let _ = sender.send(found);
            };
            diagnostics::find_topic(&self.config, topic.to_owned(), done);
            answer
        });
        match verdict {
            Verdict::Go => Ok(()),
            Verdict::Wait => Err(ProduceError::Full),
            Verdict::Beyond(count) => {
                let partition = partition.unwrap_or_default();
                Err(ProduceError::Refused(topic_lookup::refusal(topic, partition, count)))
            }
            Verdict::Missing if self.waits_for.is_it(topic) => Ok(()),
            Verdict::Missing => Err(ProduceError::Refused(error::missing_topic(topic))),
        }
    }

    /// To be asked once a producer that was refused a batch is gone.
    fn make_smaller_batches(&mut self) {
        let Some(smaller) = self.batches.refused(Instant::now()) else { return };
        self.config.set("batch.size", smaller.to_string());
        tracing::warn!(
            batch_size = smaller,
            "the broker rejected a batch of records: making smaller ones for a while, to find the \
             one that it refuses; where only batches are too large for a topic, set -X batch.size \
             below its max.message.bytes"
        );
    }
}

impl Outlet for KafkaSink {
    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        let given = self.config.get("message.max.bytes").and_then(|max| max.trim().parse().ok());
        if bytes <= given.unwrap_or(MESSAGE_MAX_BYTES) {
            return Ok(());
        }
        let code = RDKafkaErrorCode::MessageSizeTooLarge;
        self.metrics.publish_error(topic, &format!("{code:?}"));
        Err(error::client_refusal(code))
    }

    fn produce(&mut self, seq: Seq, record: &Record<'_>) -> Result<(), ProduceError> {
        if self.is_draining() {
            return Err(ProduceError::Full);
        }
        let Ok(opaque) = usize::try_from(seq.as_u64()) else {
            return Err(ProduceError::Broken("production numbers are used up".into()));
        };
        let partition_key = PartitionKey::of(record);
        let admission = self.gate.admission(record.topic, partition_key);
        if admission == Admission::Wait {
            return Err(ProduceError::Full);
        }
        if record.partition.is_some() || !self.waits_for.is_it(record.topic) {
            self.check_topic(record.topic, record.partition)?;
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
            timestamp: record.timestamp_ms.map(|millis| millis.max(1)),
            headers: headers(record),
            delivery_opaque: opaque,
        };
        producer.send(outgoing).map_err(|(error, _)| {
            let fatal = || producer.client().fatal_error();
            let reported = produce_error(&error, fatal, record.topic);
            if matches!(reported, ProduceError::Refused(_)) {
                self.metrics.publish_error(record.topic, &error::code_name(&error));
            }
            reported
        })?;
        crash_points::point!("produced");
        let now = Instant::now();
        self.poll_interval.note_activity(now);
        self.ack_monitor.produced(seq, now);
        self.spans.produced(seq, record);
        if let Some(partition_key) = partition_key
            && (self.gate.reset_if_repartitioned() || admission == Admission::Lead)
        {
            self.gate.queued(seq, record.topic, partition_key);
        }
        Ok(())
    }
}

impl Sink for KafkaSink {
    fn take_reports(&mut self, into: &mut Vec<Report>) {
        self.poll();
        let before = into.len();
        for (topic, published) in self.reports.take(into) {
            self.metrics.published(&topic, published);
        }
        for report in into[before..].iter().filter(|one| one.outcome == Outcome::Delivered) {
            self.gate.delivered(report.seq);
            self.reload.set_healthy();
        }
        let now = Instant::now();
        if into.len() > before {
            self.note_acknowledgement(now);
        }
        self.ack_monitor.reported(&into[before..], now, &self.metrics);
        self.spans.reported(&into[before..]);
        if now.saturating_duration_since(self.gate_since) >= GATE_LIFETIME {
            self.gate_since = now;
            self.gate.forget();
        }
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        let mut conditions = self.reports.take_conditions();
        self.ack_monitor.check(&self.config, &self.counts, &mut conditions);
        conditions.extend(self.fatal.check(self.producer.as_ref(), Instant::now()));
        let changes = self.counts.take_changes().into_iter();
        conditions.extend(changes.map(|Change { topic, before, now }| Condition::Repartitioned {
            topic,
            before,
            now,
        }));
        self.renew(&mut conditions);
        conditions
    }

    fn is_connected(&self) -> Option<bool> {
        // Its first word comes late, and what the cluster is called it knows from the first answer.
        let answered = || {
            let client = self.producer.as_ref()?.client();
            client.fetch_cluster_id(Duration::ZERO).map(|_| true)
        };
        self.reports.is_connected().or_else(answered)
    }

    async fn wait_for_events(&self, eager: bool) {
        loop {
            if eager && self.reports.is_waiting() {
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
    }

    async fn replace_producer(&mut self) -> Result<(), SinkError> {
        // It is waited for, so that nothing of the old producer is sent after the
        // new one's first. An error is that it has gone.
        let _ = drop_on_a_thread(self.producer.take()).await;
        if self.reports.is_refused() {
            self.make_smaller_batches();
        }
        self.ack_monitor.replaced();
        self.spans.replaced();
        self.topics.forget();
        self.make_replacement()
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        // A broker's thread may be looking up a name: the process does not wait
        // for long. What was in flight is not confirmed either way.
        drop(drop_on_a_thread(self.successor.take().map(|successor| successor.producer)));
        let mut ended = drop_on_a_thread(self.producer.take());
        let deadline = Instant::now() + DROP_TIMEOUT;
        while ended.try_recv() == Err(TryRecvError::Empty) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sees whether the producer is of no use any more: not every such error is called back.
struct Fatal {
    checked_at: Instant,
    reported: bool,
}

impl Fatal {
    fn new(now: Instant) -> Self {
        Self { checked_at: now, reported: false }
    }

    fn check(&mut self, producer: Option<&Producer>, now: Instant) -> Option<Condition> {
        if self.reported || now.saturating_duration_since(self.checked_at) < FATAL_CHECK_INTERVAL {
            return None;
        }
        self.checked_at = now;
        let (code, reason) = producer?.client().fatal_error()?;
        // Of a record that was refused: it is reported, and replayed.
        self.reported = code != RDKafkaErrorCode::GaplessGuarantee;
        self.reported.then_some(Condition::Broken(reason))
    }
}

/// Drops a producer on a thread of its own, since that purges it and joins
/// librdkafka's threads; the receiver completes when it is gone.
fn drop_on_a_thread(producer: Option<Producer>) -> oneshot::Receiver<()> {
    let (ended, receiver) = oneshot::channel();
    if let Some(producer) = producer {
        // Where no thread can be had, the closure is dropped here and now.
        let _ = thread::Builder::new().name("producer drop".to_owned()).spawn(move || {
            drop(producer);
            let _ = ended.send(());
        });
    }
    receiver
}

/// Has librdkafka call back what has come for this producer; whether anything had.
fn poll(producer: &Producer, reports: &Reports) -> bool {
    let called_back = || {
        let before = reports.events();
        producer.poll(Duration::ZERO);
        reports.events() != before
    };
    (0..POLLS_MAX).take_while(|_| called_back()).count() > 0
}

impl Context {
    fn new(reports: &Arc<Reports>, counts: &Arc<Counts>, metrics: &Arc<Metrics>) -> Self {
        Self {
            reports: Arc::clone(reports),
            metrics: Arc::clone(metrics),
            partitioner: KeyPartitioner::new(Arc::clone(counts)),
        }
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.reports.event();
        oauth_token::token(config)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.reports.event();
        let message = excerpt(message);
        // Changes of state are reported once, by the relay; this is the detail.
        match level {
            // A fatal error of the producer's is a condition, and reported as such.
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
        self.reports.event();
        self.reports.update_connection(statistics::connection_state(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.reports.event();
        let reason = excerpt(reason);
        match error.rdkafka_error_code() {
            // Not every build of librdkafka says so: see `Reports::update_connection`.
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                if !crash_points::is_armed("all_brokers_down") {
                    self.reports.unreachable(reason);
                }
            }
            Some(RDKafkaErrorCode::Authentication) => {
                self.reports.set_connected(false);
                self.reports.condition(Condition::Unauthenticated(reason));
            }
            Some(RDKafkaErrorCode::Fatal) => self.reports.condition(Condition::Broken(reason)),
            // Every other error is retried by librdkafka: only why a connection failed is kept.
            code => {
                tracing::debug!(target: "librdkafka", %error, "{reason}");
                if code.is_some_and(error::is_connection_error) {
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
        crash_points::point!("callback");
        self.reports.event();
        let (outcome, published) = match result {
            Ok(message) => {
                let len = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
                let bytes = len(message.key()) + len(message.payload());
                (Outcome::Delivered, Some((message.topic(), bytes as u64)))
            }
            Err((error, message)) => {
                let outcome = error::outcome(error, message.topic());
                if error.rdkafka_error_code().is_some_and(error::is_record_error) {
                    self.reports.refused();
                }
                if outcome != Outcome::Purged {
                    self.metrics.publish_error(message.topic(), &error::code_name(error));
                }
                (outcome, None)
            }
        };
        if !crash_points::is_armed("unacknowledged") {
            self.reports.report(Report::new(Seq::new(opaque as u64), outcome), published);
        }
    }
}

fn make_producer(
    config: &ClientConfig,
    reports: &Arc<Reports>,
    counts: &Arc<Counts>,
    metrics: &Arc<Metrics>,
) -> Result<(Producer, FirstBatchGate), SinkError> {
    features::require(config)?;
    let context = Context::new(reports, counts, metrics);
    Ok((config.create_with_context(context)?, FirstBatchGate::new(Arc::clone(counts))))
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
            Some((code, _)) => ProduceError::Broken(error::reason(code, topic)),
            None => ProduceError::Broken(error.to_string()),
        },
        // In this order: what is about the record alone makes it poison. Every other code, also one
        // that this version does not know, replaces the producer and produces the record again, which
        // loses nothing.
        Some(code) if error::is_refusal(code) => ProduceError::Refused(error::client_refusal(code)),
        Some(code) => ProduceError::Broken(error::reason(code, topic)),
        // An error without a code is of the arguments, such as a NUL in the topic's name.
        None => ProduceError::Refused(Refusal {
            ground: Ground::Other,
            may_pass: false,
            reason: error.to_string(),
        }),
    }
}
