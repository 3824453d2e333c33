//! The sink of exactly-once delivery: one transactional producer, which the state topic's thread
//! opens and commits ([`Transactions`]).
//!
//! No first-batch gate: a failed delivery makes the transaction fail as a whole. Several requests may
//! be in flight for the same reason. There is one producer, since a transaction belongs to one.

use std::sync::Arc;
use std::time::Instant;

use rdkafka::config::ClientConfig;
use tokio::time::sleep;

use super::client::{self, produce_error};
use super::pool::PoolParts;
use super::transactions::{Live, Readiness, Transactions};
use super::{Fatal, admits, check_topic, make_smaller_batches, note_topics, topic_lane};
use crate::crash_points;
use crate::destination::kafka::ack_monitor::AckMonitor;
use crate::destination::kafka::batch_size::BatchSize;
use crate::destination::kafka::config::{batch_bytes, key_hash, transactional_config};
use crate::destination::kafka::delivery_reports::Signals;
use crate::destination::kafka::error::{self, TopicAt};
use crate::destination::kafka::features;
use crate::destination::kafka::first_batch_gate::{Change, Counts};
use crate::destination::kafka::poll_interval::PollInterval;
use crate::destination::kafka::reload::{Changed, ReadResult, Reload};
use crate::destination::kafka::spans::Spans;
use crate::destination::kafka::topic_lookup::TopicLookup;
use crate::destination::kafka::{KafkaConfig, KafkaSource, MissingTopics};
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{BoxFuture, Condition, KAFKA, Peer, Reloader, Report, Sink, SinkError};

/// A transactional producer behind the [`Sink`] trait.
pub struct TransactionalSink {
    transactions: Transactions,
    live: Option<Arc<Live>>,
    /// Whether the properties of the current producer are known to be accepted.
    is_applied: bool,
    /// Properties that the next producer is to be opened with.
    trying: Option<Changed>,
    /// Whether the producer was replaced while it was in use: what it has in its transaction is lost.
    is_replaced: bool,
    /// What the last producer reported before it was discarded: a rejection must not be lost.
    left: Vec<Report>,
    config: ClientConfig,
    batches: BatchSize,
    counts: Arc<Counts>,
    topics: TopicLookup,
    missing_topics: MissingTopics,
    ack_monitor: AckMonitor,
    signals: Arc<Signals>,
    poll_interval: PollInterval,
    reload: Reload,
    fatal: Fatal,
    metrics: Arc<Metrics>,
    spans: Spans,
}

impl TransactionalSink {
    /// A sink that takes records once its [`TransactionalSink::transactions`] are open.
    pub fn new(config: &KafkaConfig, metrics: Arc<Metrics>) -> Result<Self, SinkError> {
        let (batch_bytes, reload) = (batch_bytes(&config.properties), Reload::new(config));
        let missing_topics = config.missing_topics.clone();
        let key_hash = key_hash(&config.properties);
        let config = transactional_config(config);
        features::require(&config)?;
        let (signals, counts) = (Arc::<Signals>::default(), Arc::new(Counts::of_keys(key_hash)));
        let parts = PoolParts {
            signals: Arc::clone(&signals),
            counts: Arc::clone(&counts),
            metrics: Arc::clone(&metrics),
            is_linger_free: false,
        };
        metrics.sink_producers.set(1);
        Ok(Self {
            transactions: Transactions::new(parts),
            live: None,
            is_applied: false,
            trying: None,
            is_replaced: false,
            left: Vec::new(),
            config,
            batches: BatchSize::new(batch_bytes),
            counts,
            topics: TopicLookup::default(),
            missing_topics,
            ack_monitor: AckMonitor::new(Instant::now()),
            signals,
            poll_interval: PollInterval::default(),
            reload,
            fatal: Fatal::new(Instant::now()),
            metrics,
            spans: Spans::default(),
        })
    }

    /// What opens and commits its transactions.
    pub fn transactions(&self) -> Transactions {
        self.transactions.clone()
    }

    /// Reads its properties again from `source` when [`Sink::reload`] asks for it, and while
    /// Kafka cannot be used. Changed ones replace the producer.
    #[must_use]
    pub fn reloading_from(mut self, source: KafkaSource) -> Self {
        self.reload.set_source(source);
        self
    }

    fn poll(&self) {
        if let Some(live) = &self.live
            && let Ok(producer) = live.producer()
            && client::poll(producer, &live.reports)
        {
            self.poll_interval.note_activity(Instant::now());
        }
    }

    /// The current producer: another thread opens it.
    fn refresh(&mut self) {
        let current = self.transactions.current();
        let same = match (&self.live, &current) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.is_replaced |= self.live.as_ref().is_some_and(|live| live.is_in_transaction());
            self.forget();
            self.live = current;
            self.is_applied = false;
            self.fatal = Fatal::new(Instant::now());
        }
    }

    /// Makes the properties with which the current producer was opened the ones in force.
    fn apply_opened(&mut self) {
        let Some(live) = self.live.as_ref().filter(|live| !self.is_applied && live.is_open())
        else {
            return;
        };
        self.is_applied = true;
        if self.reload.opened(&live.kafka) {
            self.trying = None;
            self.config = transactional_config(&live.kafka);
            self.batches = BatchSize::new(batch_bytes(&live.kafka.properties));
            tracing::info!("the reloaded Kafka properties are in effect");
        }
    }

    /// Nothing of a discarded producer counts.
    fn forget(&mut self) {
        if self.live.take().is_some_and(|live| live.reports.is_refused()) {
            make_smaller_batches(&mut self.batches, &mut self.config);
        }
        self.ack_monitor.replaced();
        self.spans.replaced();
        self.topics.forget();
    }

    /// Asks for a producer with the changed properties. Its opening falls back to the current ones if
    /// the brokers do not accept it.
    fn check_reload(&mut self, conditions: &mut Vec<Condition>) {
        let now = Instant::now();
        self.reload.note_conditions(conditions);
        self.apply_opened();
        if let Some(reason) = self.transactions.take_rejected()
            && let Some(changed) = self.trying.take()
        {
            self.reload.reject(&changed, &reason);
        }
        let asked = self.signals.take_asked();
        if !asked && !self.reload.is_due(now) {
            return;
        }
        if let ReadResult::Changed(changed) = self.reload.read(asked, now) {
            let config = transactional_config(&changed.config);
            if let Err(error) = features::require(&config) {
                return self.reload.reject(&changed, &error.to_string());
            }
            self.reload.trying(&changed);
            self.trying = Some(changed);
            tracing::info!("reloaded the Kafka properties and their files: changed");
            conditions.push(Condition::Broken("the Kafka properties were changed".to_owned()));
        }
    }
}

impl Outlet for TransactionalSink {
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
        let Ok(opaque) = usize::try_from(seq.as_u64()) else {
            return Err(ProduceError::Broken("production numbers are used up".into()));
        };
        let Some(live) = self.live.clone() else { return Err(ProduceError::Full) };
        if record.partition.is_some() || self.missing_topics.are_looked_up(record.topic) {
            check_topic(
                &mut self.topics,
                (&self.config, &self.missing_topics),
                record.topic,
                record.partition,
            )?;
        }
        let producer = live.producer().map_err(|error| ProduceError::Broken(error.to_string()))?;
        match live.begin() {
            Ok(Readiness::Ready) => {}
            Ok(Readiness::Busy) => return Err(ProduceError::Full),
            Ok(Readiness::Spent) => return Err(ProduceError::Broken(SPENT.to_owned())),
            Err(error) => return Err(ProduceError::Broken(error.to_string())),
        }
        client::send(producer, record, record.partition, opaque).map_err(|error| {
            let fatal = rdkafka::producer::Producer::client(producer).fatal_error();
            let reported =
                produce_error(&error, fatal.as_ref(), TopicAt::new(record.topic, &self.config));
            if matches!(reported, ProduceError::Refused(_) | ProduceError::Suspect(_)) {
                self.metrics.publish_error(record.topic, &error::code_name(&error));
            }
            reported
        })?;
        crash_points::point!("produced");
        let now = Instant::now();
        self.poll_interval.note_activity(now);
        self.ack_monitor.produced(seq, now);
        self.spans.produced(seq, record);
        Ok(())
    }
}

/// Why a producer is replaced after a slow commit.
const SPENT: &str = "a commit took so long that its request may have been repeated";

impl Sink for TransactionalSink {
    fn peer(&self) -> &'static Peer {
        &KAFKA
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        into.append(&mut self.left);
        self.refresh();
        self.poll();
        let Some(live) = &self.live else { return };
        let before = into.len();
        for (topic, published) in live.reports.take(into) {
            self.metrics.published(&topic, published);
        }
        self.ack_monitor.reported(&into[before..], Instant::now(), &self.metrics);
        self.spans.reported(&into[before..]);
        if into.len() > before {
            self.reload.set_healthy();
        }
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        let mut conditions =
            self.live.as_ref().map(|live| live.reports.take_conditions()).unwrap_or_default();
        if self.is_replaced {
            let reason = "its producer was replaced while it was in use";
            conditions.push(Condition::Broken(reason.to_owned()));
        }
        if self.live.as_ref().is_some_and(|live| live.is_spent()) {
            conditions.push(Condition::Broken(SPENT.to_owned()));
        }
        let live = self.live.as_ref();
        conditions.extend(self.fatal.check(|| live?.fatal_error(), Instant::now()));
        self.ack_monitor.check(&self.config, &self.counts, &mut conditions);
        note_topics(&mut self.topics, &self.config, &mut conditions);
        let changes = self.counts.take_changes().into_iter();
        // Between two records.
        self.counts.apply();
        conditions.extend(changes.map(|Change { topic, before, now }| Condition::Repartitioned {
            topic,
            before,
            now,
        }));
        self.check_reload(&mut conditions);
        conditions
    }

    fn is_connected(&self) -> Option<bool> {
        self.live.as_ref()?.reports.is_connected()
    }

    fn wait_for_events(&self, eager: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                if eager && self.live.as_ref().is_some_and(|live| live.reports.is_waiting()) {
                    return;
                }
                tokio::select! {
                    // As in the other sink: a condition that waits comes before a poll.
                    biased;
                    () = self.signals.stirred.notified() => return,
                    () = sleep(self.poll_interval.until_next_poll(Instant::now(), eager)) => self.poll(),
                }
            }
        })
    }

    /// Only discards the producer, with its transaction: the next opening makes another.
    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async move {
            self.poll();
            if let Some(live) = &self.live {
                live.reports.take(&mut self.left);
            }
            self.transactions.discard();
            self.forget();
            self.is_replaced = false;
            if self.batches.is_due(Instant::now()) {
                self.config.set("batch.size", self.batches.configured().to_string());
                self.batches.restored(Instant::now());
            }
            let smaller = self.batches.are_smaller();
            let limit = smaller.then(|| self.batches.at_most(self.batches.configured()));
            self.transactions.limit_batches(limit);
            Ok(())
        })
    }

    fn reload(&self) -> Option<Reloader> {
        Some(super::swap::reload(&self.signals))
    }
}
