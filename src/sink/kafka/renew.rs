//! How a running sink takes up properties and certificates that were changed.
//!
//! A producer keeps what it was made with. So another is made with what was read again,
//! which shows too whether it can be used at all. Nothing more is then given to the old
//! one; once all that it had is acknowledged the other takes its place, and nothing is
//! sent twice. Where the old one does not get rid of what it has (its password is
//! refused, say), the relay is told, and replays.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::ThreadedProducer;

use super::{Context, KafkaSink, Reports, end, make_producer};
use crate::sink::config::{KafkaConfig, batch_bytes, client_config};
use crate::sink::leads::{KeyPartitioner, Leads};
use crate::sink::renewal::KafkaSource;
use crate::sink::{Condition, SinkError};

/// How long the old producer is given for what it has.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The producer that is to follow, and what it was made with.
pub(super) struct Successor {
    config: ClientConfig,
    batch_bytes: u32,
    pub(super) producer: ThreadedProducer<Context, KeyPartitioner>,
    leads: Leads,
    since: Instant,
    /// Whether the relay was told that it has to replay.
    told: bool,
}

/// Has a running [`KafkaSink`] read its properties and certificates again.
#[derive(Clone)]
pub struct RenewHandle(Arc<Reports>);

impl RenewHandle {
    /// Soon, and with a line in the log in any case.
    pub fn renew(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        self.0.stirred.notify_one();
    }
}

impl KafkaSink {
    /// The same that reads its configuration again from `source`: for each new producer,
    /// while Kafka cannot be used, and when [`RenewHandle::renew`] asks for it.
    #[must_use]
    pub fn renewed_by(mut self, source: KafkaSource) -> Self {
        self.renewal.set_source(source);
        self
    }

    /// By which it is told to read again.
    pub fn renew_handle(&self) -> RenewHandle {
        RenewHandle(Arc::clone(&self.reports))
    }

    /// Whether records have to wait for the producer that is to follow.
    pub(super) fn is_leaving(&self) -> bool {
        self.successor.is_some()
    }

    /// To be called with each set of conditions that came up.
    pub(super) fn renew(&mut self, conditions: &mut Vec<Condition>) {
        if conditions.iter().any(|condition| {
            matches!(condition, Condition::Unreachable(_) | Condition::Unauthenticated(_))
        }) {
            self.renewal.trouble();
        }
        let now = Instant::now();
        let asked = self.reports.asked.swap(false, Ordering::SeqCst);
        if asked || self.renewal.is_due(now) {
            self.read_again(asked, now);
        }
        let Some(successor) = &mut self.successor else { return };
        if self.watch.is_idle() {
            self.hand_over();
            tracing::info!("the Kafka properties that were read again are in force");
            return;
        }
        let late = now.saturating_duration_since(successor.since) >= DRAIN_LIMIT;
        if (late || self.renewal.is_in_trouble()) && !std::mem::replace(&mut successor.told, true) {
            let reason = "the Kafka properties or the files that they name were changed, and the \
                          records in flight are not acknowledged with the old ones";
            conditions.push(Condition::Broken(reason.to_owned()));
        }
    }

    /// For a producer that is to be made in any case: with what holds now.
    pub(super) fn make_anew(&mut self) -> Result<(), SinkError> {
        self.read_again(false, Instant::now());
        if self.hand_over() {
            return Ok(());
        }
        let (producer, leads) =
            make_producer(&self.config, &self.reports, &self.counts, &self.metrics)?;
        (self.producer, self.leads) = (Some(producer), leads);
        Ok(())
    }

    fn read_again(&mut self, asked: bool, now: Instant) {
        let Some(fresh) = self.renewal.look(asked, now) else { return };
        match self.make_successor(&fresh.config, now) {
            Ok(successor) => {
                self.renewal.took(&fresh);
                if let Some(older) = self.successor.replace(successor) {
                    drop(end(Some(older.producer)));
                }
                tracing::info!(
                    "read the Kafka properties and the files that they name again: they were changed"
                );
            }
            Err(error) => self.renewal.cannot_take(&fresh, &error.to_string()),
        }
    }

    fn make_successor(&self, config: &KafkaConfig, now: Instant) -> Result<Successor, SinkError> {
        let mut batch_bytes = batch_bytes(&config.properties);
        let mut config = client_config(config);
        if self.smaller_batches {
            batch_bytes = batch_bytes.min(self.batch_bytes);
            config.set("batch.size", batch_bytes.to_string());
        }
        let (producer, leads) = make_producer(&config, &self.reports, &self.counts, &self.metrics)?;
        Ok(Successor { config, batch_bytes, producer, leads, since: now, told: false })
    }

    /// Puts the producer that is to follow in the place of the old one, which has nothing
    /// in flight that counts; false where there is none.
    fn hand_over(&mut self) -> bool {
        let Some(successor) = self.successor.take() else { return false };
        drop(end(self.producer.replace(successor.producer)));
        (self.config, self.batch_bytes) = (successor.config, successor.batch_bytes);
        self.leads = successor.leads;
        self.watch.replaced();
        self.partitions.forget();
        let mut waiting = self.reports.lock();
        (waiting.connection, waiting.unreachable) = (None, None);
        true
    }
}
