//! The producers that send at the same time: each partition's records with one of them, as
//! [`Placement`] has it.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use tokio::sync::oneshot;

use super::client::{self, Producer, make_producer};
use super::pool_reports::PoolReports;
use crate::destination::kafka::delivery_reports::{Reports, Signals};
use crate::destination::kafka::drop_on_threads::drop_on_threads;
use crate::destination::kafka::features;
use crate::destination::kafka::first_batch_gate::{Counts, PartitionKey};
use crate::destination::kafka::placement::Placement;
use crate::destination::kafka::pool_size::PoolSize;
use crate::metrics::Metrics;
use crate::record::Record;
use crate::sink::SinkError;

/// `linger.ms` of producers to distant brokers. librdkafka (2.12, `rd_kafka_broker_producer_serve`)
/// begins each round one partition further than the last, wherever that one ended. So while requests
/// in flight are scarce, partitions that were just served are served again, with the few records that
/// they got since, and others wait. With a linger they are not ready yet. Measured at a round trip of
/// 5 ms: a backlog for 240 partitions 64,000 rows per second instead of 22,000, and at 5,000 rows per
/// second to 50 partitions a p99 of 22 ms instead of 45.
const FAR_LINGER_MS: &str = "1";

/// The producers, which are made and end together.
pub(super) struct ProducerPool {
    producers: Vec<Producer>,
    pub(super) placement: Placement,
}

/// What a pool is made with, beside the configuration.
#[derive(Clone)]
pub(super) struct PoolParts {
    pub(super) signals: Arc<Signals>,
    pub(super) counts: Arc<Counts>,
    pub(super) metrics: Arc<Metrics>,
    /// Whether `linger.ms` is walpost's to choose.
    pub(super) is_linger_free: bool,
}

impl ProducerPool {
    /// Makes producers that connect in the background, to so many brokers.
    pub(super) fn new(
        config: &ClientConfig,
        size: PoolSize,
        brokers: u32,
        parts: &PoolParts,
    ) -> Result<(Self, PoolReports), SinkError> {
        features::require(config)?;
        let mut config = config.clone();
        config.set("max.in.flight.requests.per.connection", size.in_flight.to_string());
        if size.is_far() && parts.is_linger_free {
            config.set("linger.ms", FAR_LINGER_MS);
        }
        let (mut producers, mut reports) = (Vec::new(), Vec::new());
        for _ in 0..size.producers.max(1) {
            let own = Arc::new(Reports::new(&parts.signals));
            producers.push(make_producer(&config, &own, &parts.counts, &parts.metrics)?);
            reports.push(own);
        }
        let counts = Arc::clone(&parts.counts);
        let placement = Placement::new(counts, size.producers, brokers);
        let pool = Self { producers, placement };
        Ok((pool, PoolReports::new(reports)))
    }

    /// Has librdkafka call back; whether it did.
    pub(super) fn poll(&self, reports: &PoolReports) -> bool {
        let pairs = self.producers.iter().zip(reports.iter());
        pairs.fold(false, |any, (producer, reports)| client::poll(producer, reports) || any)
    }

    /// Queues a record as that production.
    pub(super) fn send(
        &mut self,
        record: &Record<'_>,
        key: Option<PartitionKey>,
        opaque: usize,
    ) -> Result<(), (KafkaError, Option<(RDKafkaErrorCode, String)>)> {
        let place = self.placement.place(record.topic, key, record.partition);
        let producer = &self.producers[place.producer % self.producers.len()];
        let sent = client::send(producer, record, place.partition, opaque);
        sent.map_err(|error| (error, producer.client().fatal_error()))
    }

    /// Why one of them is of no use any more.
    pub(super) fn fatal_error(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.producers.iter().find_map(|producer| producer.client().fatal_error())
    }

    /// Whether brokers have answered each of them.
    pub(super) fn is_answered(&self) -> bool {
        let answered = |one: &Producer| one.client().fetch_cluster_id(Duration::ZERO).is_some();
        self.producers.iter().all(answered)
    }

    /// Purges and ends them; the receiver completes, with an error, when all are gone.
    pub(super) fn end(self) -> oneshot::Receiver<()> {
        drop_on_threads(self.producers)
    }
}
