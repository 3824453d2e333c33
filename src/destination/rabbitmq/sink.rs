//! The sink itself: it makes batches of messages, and reports what became of them.

use std::sync::Arc;

use super::config::{RabbitConfig, RabbitSource};
use super::link::{Done, RabbitLink, Synced};
use super::message::{Target, too_large};
use crate::destination::parts::Failure;
use crate::destination::parts::link::{Event, Linked, Producer};
use crate::ledger::Seq;
use crate::metrics::Metrics;
use crate::outlet::{Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{Outcome, Peer, Report, SinkError};

/// RabbitMQ.
pub(super) const RABBITMQ: Peer = Peer {
    name: "RabbitMQ",
    label: "rabbitmq",
    unreachable: "see whether RabbitMQ runs and can be reached from here",
    credentials: "user and password in rabbitmq.url, or the certificate in rabbitmq.cert_file",
    has_lanes: false,
};

/// The codes of the publish-error metric for records that no queue takes, and for those that are
/// sent again.
const REFUSED: &str = "refused";
const RETRIED: &str = "nack";

/// A batch of this many messages, or bytes, is sent at once.
const MESSAGES_MAX: usize = 256;
const BYTES_MAX: usize = 64 << 10;

/// The only version of the claim: there is nothing to claim.
const CLAIM: u64 = 0;

/// An exchange of RabbitMQ.
pub(crate) struct RabbitSink {
    target: Target,
    producer: Producer<RabbitLink>,
    open: Option<Synced>,
    /// The size of a payload that the broker accepts, as far as known, in bytes.
    size_max: u64,
}

impl RabbitSink {
    /// A sink that connects with the first call. A broker that cannot be reached is no error here.
    pub(crate) fn new(
        config: &RabbitConfig,
        source: RabbitSource,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SinkError> {
        let target = Target {
            exchange: config.exchange.clone(),
            template: config.routing_key.clone(),
            dead_letters: config.dead_letters.clone(),
        };
        Ok(Self::over(target, Producer::new(source, metrics)?))
    }

    fn over(target: Target, producer: Producer<RabbitLink>) -> Self {
        Self { target, producer, open: None, size_max: u64::MAX }
    }

    /// The connection is of no use any more.
    fn failed(&mut self, failure: &Failure) {
        // A broker that accepts more since then was restarted, or has closed the connection at least.
        self.size_max = match failure {
            Failure::TooLarge { max, .. } => *max,
            _ => u64::MAX,
        };
        self.open = None;
        self.producer.asked();
        if self.producer.in_flight == 0 {
            return self.connect();
        }
        self.producer.metrics.publish_error(&self.target.exchange, failure.code());
        self.producer.break_off(failure.to_string());
    }

    fn refused(&self, topic: &str, refusal: Refusal) -> Refusal {
        self.producer.metrics.publish_error(topic, REFUSED);
        refusal
    }
}

impl Outlet for RabbitSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        let Some(open) = &self.open else {
            self.connect();
            return Err(ProduceError::Full);
        };
        let size = record.value.map_or(0, <[u8]>::len) as u64;
        let built = match too_large(size, self.size_max) {
            Some(refusal) => Err(refusal),
            None => self.target.message((seq, position), record, open.frame_max),
        };
        let message =
            built.map_err(|refusal| ProduceError::Refused(self.refused(record.topic, refusal)))?;
        let batch = self.producer.batch.get_or_insert_default();
        batch.bytes += message.frames.len();
        batch.messages.push(message);
        let is_full = batch.messages.len() >= MESSAGES_MAX || batch.bytes >= BYTES_MAX;
        self.producer.in_flight += 1;
        if is_full {
            self.producer.flush();
        }
        crate::crash_points::point!("produced");
        Ok(())
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        match too_large(bytes, self.size_max) {
            None => Ok(()),
            Some(refusal) => Err(self.refused(topic, refusal)),
        }
    }
}

impl Linked for RabbitSink {
    type Link = RabbitLink;

    const PEER: &'static Peer = &RABBITMQ;

    const IS_FENCED_BY_STATE: bool = false;

    fn producer(&self) -> &Producer<RabbitLink> {
        &self.producer
    }

    fn producer_mut(&mut self) -> &mut Producer<RabbitLink> {
        &mut self.producer
    }

    fn happened(&mut self, event: Event<RabbitLink>) {
        match event {
            Event::Synced(synced) => {
                self.producer.asked();
                self.open = Some(synced);
            }
            Event::Done(Done::Delivered(tally), at) => self.producer.delivered(&tally, at),
            Event::Done(Done::Suspect { seq, topic, refusal }, at) => {
                self.producer.metrics.publish_error(&topic, REFUSED);
                self.producer.in_flight -= 1;
                self.producer.reports.push(Report { seq, outcome: Outcome::Suspect(refusal), at });
            }
            Event::Done(Done::Retried { topic }, _) => {
                self.producer.metrics.publish_error(&topic, RETRIED);
            }
            Event::Failed(failure) => self.failed(&failure),
        }
    }

    fn connect(&mut self) {
        if self.open.is_none() && self.producer.may_ask(CLAIM) {
            self.producer.ask(CLAIM, ());
        }
    }

    fn forget_sent(&mut self) {
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::link::Batch;
    use super::*;
    use crate::destination::parts::link::Order;
    use crate::lsn::Lsn;
    use crate::outlet::Ground;
    use crate::record::Headers;
    use crate::sink::{Condition, Sink as _};

    /// A sink whose worker is the test.
    fn sink() -> (RabbitSink, UnboundedReceiver<Order<RabbitLink>>) {
        let (producer, received) = Producer::without_thread(Arc::default());
        let target = Target {
            exchange: "o".to_owned(),
            template: "{topic}".parse().expect("a template"),
            dead_letters: "dead".to_owned(),
        };
        (RabbitSink::over(target, producer), received)
    }

    fn produce(sink: &mut RabbitSink, lsn: u64, value: &[u8]) -> Result<(), ProduceError> {
        let record = Record {
            topic: "t",
            partition: None,
            key: None,
            value: Some(value),
            timestamp_ms: None,
            headers: Headers::new(),
        };
        let position = EventPosition { commit_lsn: Lsn::new(lsn), ordinal: 0 };
        sink.produce(Seq::new(lsn), position, &record)
    }

    fn connect(sink: &mut RabbitSink) {
        sink.producer.happened(Event::Synced(Synced { frame_max: 4096 }));
        sink.take_reports(&mut Vec::new());
    }

    #[test]
    fn nothing_is_published_behind_lost_messages_until_they_are_produced_again() {
        let (mut sink, mut received) = sink();
        assert_eq!(produce(&mut sink, 1, b"v"), Err(ProduceError::Full), "it is not connected");
        assert!(matches!(received.try_recv(), Ok(Order::Connect { .. })));
        connect(&mut sink);
        assert_eq!(produce(&mut sink, 1, b"v"), Ok(()));
        sink.take_reports(&mut Vec::new());
        assert!(matches!(received.try_recv(), Ok(Order::Send { .. })));
        sink.producer.happened(Event::Failed(Failure::Unreachable("gone".to_owned())));
        assert_eq!(sink.take_conditions(), [Condition::Broken("gone".to_owned())]);
        assert_eq!(produce(&mut sink, 2, b"v"), Err(ProduceError::Full));
        assert!(received.try_recv().is_err(), "it would be published behind 1");
        let replaced = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        replaced.block_on(sink.replace_producer()).expect("replaced");
        assert!(matches!(received.try_recv(), Ok(Order::Close)));
        assert_eq!(produce(&mut sink, 1, b"v"), Err(ProduceError::Full));
        assert!(matches!(received.try_recv(), Ok(Order::Connect { .. })));
        connect(&mut sink);
        assert_eq!((produce(&mut sink, 1, b"v"), produce(&mut sink, 2, b"v")), (Ok(()), Ok(())));
        sink.take_reports(&mut Vec::new());
        let Ok(Order::Send { batch: Batch { messages, .. }, .. }) = received.try_recv() else {
            panic!("both")
        };
        assert_eq!(messages.len(), 2);
    }

    #[test]
    fn size_that_the_broker_has_named_is_kept_to() {
        let (mut sink, _received) = sink();
        sink.take_conditions();
        connect(&mut sink);
        assert_eq!(produce(&mut sink, 1, b"12345678"), Ok(()));
        let failure = Failure::TooLarge { max: 7, reason: "message size 8".to_owned() };
        sink.producer.happened(Event::Failed(failure));
        sink.take_conditions();
        let replaced = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        replaced.block_on(sink.replace_producer()).expect("replaced");
        sink.take_conditions();
        connect(&mut sink);
        let refused = produce(&mut sink, 1, b"12345678");
        let Err(ProduceError::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.ground, Ground::Size);
        assert_eq!(sink.admits("t", 8).map_err(|refusal| refusal.ground), Err(Ground::Size));
        assert_eq!(produce(&mut sink, 2, b"1234567"), Ok(()));
        sink.producer.happened(Event::Failed(Failure::Unreachable("restarted".to_owned())));
        sink.take_conditions();
        assert_eq!(sink.admits("t", 8), Ok(()), "it may accept more now");
    }
}
