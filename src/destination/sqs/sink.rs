//! The sink itself: it makes a message of each record, and hands messages to the worker.

use std::future::ready;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::config::{QueueKind, SqsConfig, SqsSource};
use super::message::{Limits, Message, too_large};
use super::schedule::Outgoing;
use super::worker::{Lane, Worker};
use crate::destination::parts::attempts::{Sent, Taken, order, order_at};
use crate::destination::parts::message_id::Writer;
use crate::destination::parts::worker;
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{BoxFuture, Condition, Origin, Peer, Report, Sink, SinkError};

/// Amazon SQS.
pub(super) const SQS: Peer = Peer {
    name: "Amazon SQS",
    label: "sqs",
    unreachable: "see whether the server of sqs.queue_url, or sqs.endpoint, can be reached from here",
    credentials: "the AWS credentials, sqs.region, and what their policy allows (docs/sqs.md)",
    has_lanes: true,
};

/// So many messages are handed over at once; fewer whenever the relay has nothing more to produce.
const MESSAGES_MAX: usize = 256;

/// A FIFO queue of Amazon SQS.
pub(crate) struct SqsSink {
    dead_letter_topic: String,
    delivery_id: String,
    /// The origin of the session's events.
    writer: Option<Writer>,
    /// What the queues take; `None` before that was read.
    limits: watch::Receiver<Option<[Limits; 2]>>,
    /// Messages that are not handed over yet.
    made: Vec<Outgoing>,
    deliveries: UnboundedSender<Vec<Outgoing>>,
    taken: Taken<Lane>,
}

impl SqsSink {
    /// A sink that connects at once. A server that cannot be reached is no error here.
    pub(crate) fn new(
        config: &SqsConfig,
        source: SqsSource,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        metrics.sink_producers.set(1);
        let taken = Taken::new(metrics);
        let (limits, limits_read) = watch::channel(None);
        let (deliveries, received) = unbounded_channel();
        let worker = Worker::new(source, (received, taken.epochs()), limits, taken.attempts());
        worker::start("walpost-sqs", move || worker.run())?;
        Ok(Self {
            dead_letter_topic: config.dead_letter_topic.clone(),
            delivery_id: config.delivery_id.clone(),
            writer: None,
            limits: limits_read,
            made: Vec::new(),
            deliveries,
            taken,
        })
    }

    fn queue(&self, topic: &str) -> QueueKind {
        if topic == self.dead_letter_topic { QueueKind::DeadLetters } else { QueueKind::Events }
    }

    fn limits(&self, queue: QueueKind) -> Option<Limits> {
        self.limits.borrow().map(|limits| limits[queue as usize])
    }

    /// Hands the messages to the worker; whether it is there.
    fn flush(&mut self) -> bool {
        let made = std::mem::take(&mut self.made);
        made.is_empty() || self.deliveries.send(made).is_ok()
    }
}

impl Outlet for SqsSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        let queue = self.queue(record.topic);
        let (Some(limits), Some(writer)) = (self.limits(queue), &self.writer) else {
            return Err(ProduceError::Full);
        };
        let built = Message::new(record, position, writer, queue);
        let built = built.and_then(|message| match too_large(message.bytes as u64, limits) {
            Some(refusal) => Err(refusal),
            None => Ok(message),
        });
        let message = built.map_err(|refusal| {
            self.taken.refused(record.topic);
            ProduceError::Refused(refusal)
        })?;
        let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        let sent = Sent {
            epoch: self.taken.epoch(),
            seq,
            topic: record.topic.to_owned(),
            bytes: bytes as u64,
            since: std::time::Instant::now(),
        };
        self.made.push(Outgoing::new(sent, message, queue, order_at(record, position)));
        if self.made.len() >= MESSAGES_MAX && !self.flush() {
            return Err(ProduceError::Broken("the thread of the requests has ended".to_owned()));
        }
        crate::crash_points::point!("produced");
        Ok(())
    }

    fn outlives_refusals(&self) -> bool {
        true
    }

    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        Some(order(record).wrapping_add(self.queue(record.topic) as u64))
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        let limits = self.limits(self.queue(topic));
        match limits.and_then(|limits| too_large(bytes, limits)) {
            None => Ok(()),
            Some(refusal) => {
                self.taken.refused(topic);
                Err(refusal)
            }
        }
    }
}

impl Sink for SqsSink {
    fn peer(&self) -> &'static Peer {
        &SQS
    }

    fn begins(&mut self, origin: &Origin<'_>) {
        let Origin { system_identifier, database_oid, slot } = origin;
        let names = serde_json::json!([self.delivery_id, system_identifier, database_oid, slot]);
        self.writer = Some(Writer::without_generation(&names.to_string()));
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        if !self.flush() {
            let reason = "the thread of the requests has ended".to_owned();
            self.taken.note(Condition::Broken(reason));
        }
        self.taken.reports(into);
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        self.taken.conditions()
    }

    fn is_connected(&self) -> Option<bool> {
        self.taken.is_connected()
    }

    fn wait_for_events(&self, eager: bool) -> BoxFuture<'_, ()> {
        Box::pin(self.taken.wait_for_events(eager))
    }

    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>> {
        self.made.clear();
        self.taken.replace();
        Box::pin(ready(Ok(())))
    }
}
