//! The sink itself: it makes batches of messages, and reports what became of them.

use std::sync::Arc;

use super::config::{RabbitConfig, RabbitSource};
use super::link::{Done, RabbitLink, Synced};
use super::message::{Target, too_large};
use crate::destination::parts::Failure;
use crate::destination::parts::claims::Claims;
use crate::destination::parts::link::{Event, Producer};
use crate::destination::parts::linked::{Linked, Publisher};
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

/// The code of the publish-error metric for records that are sent again.
const RETRIED: &str = "nack";

/// A batch of this many messages, or bytes, is sent at once.
const MESSAGES_MAX: usize = 256;
const BYTES_MAX: usize = 64 << 10;

/// An exchange of RabbitMQ.
pub(crate) struct RabbitSink {
    target: Target,
    publisher: Publisher<RabbitLink, (), Synced>,
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
        let publisher = Publisher::new(Claims::unclaimed(), producer);
        Self { target, publisher, size_max: u64::MAX }
    }

    /// The connection is of no use any more.
    fn failed(&mut self, failure: &Failure) {
        // A broker that accepts more since then was restarted, or has closed the connection at least.
        self.size_max = match failure {
            Failure::TooLarge { max, .. } => *max,
            _ => u64::MAX,
        };
        self.publisher.failed(failure, &self.target.exchange);
    }
}

impl Outlet for RabbitSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        self.publisher.connect();
        let Some(open) = self.publisher.open() else { return Err(ProduceError::Full) };
        let size = record.value.map_or(0, <[u8]>::len) as u64;
        let built = match too_large(size, self.size_max) {
            Some(refusal) => Err(refusal),
            None => self.target.message((seq, position), record, open.frame_max),
        };
        let refused = |refusal| self.publisher.producer.refused(record.topic, refusal);
        let message = built.map_err(|refusal| ProduceError::Refused(refused(refusal)))?;
        self.publisher.add(|_, batch| {
            let batch = batch.get_or_insert_default();
            batch.bytes += message.frames.len();
            batch.messages.push(message);
            batch.messages.len() >= MESSAGES_MAX || batch.bytes >= BYTES_MAX
        })
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        match too_large(bytes, self.size_max) {
            None => Ok(()),
            Some(refusal) => Err(self.publisher.producer.refused(topic, refusal)),
        }
    }
}

impl Linked for RabbitSink {
    type Link = RabbitLink;
    type Last = ();
    type Open = Synced;

    const PEER: &'static Peer = &RABBITMQ;

    const IS_FENCED_BY_STATE: bool = false;

    fn publisher(&self) -> &Publisher<RabbitLink, (), Synced> {
        &self.publisher
    }

    fn publisher_mut(&mut self) -> &mut Publisher<RabbitLink, (), Synced> {
        &mut self.publisher
    }

    fn happened(&mut self, event: Event<RabbitLink>) {
        let producer = &mut self.publisher.producer;
        match event {
            Event::Synced(synced) => self.publisher.begin((), synced),
            Event::Done(Done::Delivered(tally), at) => producer.delivered(&tally, at),
            Event::Done(Done::Suspect { seq, topic, refusal }, at) => {
                let outcome = Outcome::Suspect(producer.refused(&topic, refusal));
                producer.in_flight -= 1;
                producer.reports.push(Report { seq, outcome, at });
            }
            Event::Done(Done::Retried { topic }, _) => {
                producer.metrics.publish_error(&topic, RETRIED);
            }
            Event::Failed(failure) => self.failed(&failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::link::Batch;
    use super::*;
    use crate::destination::parts::link::Order;
    use crate::destination::parts::linked::tests::{Tried, at, cases, record};
    use crate::outlet::Ground;
    use crate::sink::Sink as _;

    impl Tried for RabbitSink {
        const KEEPS_LAST: bool = false;

        fn made() -> (Self, UnboundedReceiver<Order<RabbitLink>>) {
            let (producer, received) = Producer::without_thread(Arc::default());
            let target = Target {
                exchange: "o".to_owned(),
                template: "{topic}".parse().expect("a template"),
                dead_letters: "dead".to_owned(),
            };
            (Self::over(target, producer), received)
        }

        fn synced(_last: Option<u64>) -> Synced {
            Synced { frame_max: 4096 }
        }

        fn seqs(batch: Batch) -> Vec<Seq> {
            batch.messages.iter().map(|message| message.seq).collect()
        }
    }

    cases! {
        RabbitSink:
        nothing_is_sent_behind_lost_records_until_they_are_produced_again
    }

    fn produce(sink: &mut RabbitSink, lsn: u64, value: &[u8]) -> Result<(), ProduceError> {
        sink.produce(Seq::new(lsn), at(lsn), &Record { value: Some(value), ..record("t") })
    }

    #[test]
    fn size_that_the_broker_has_named_is_kept_to() {
        let (mut sink, _received) = RabbitSink::opened();
        assert_eq!(produce(&mut sink, 1, b"12345678"), Ok(()));
        let failure = Failure::TooLarge { max: 7, reason: "message size 8".to_owned() };
        sink.happens(Event::Failed(failure));
        sink.replaced();
        sink.take_conditions();
        sink.happens(Event::Synced(RabbitSink::synced(None)));
        let refused = produce(&mut sink, 1, b"12345678");
        let Err(ProduceError::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.ground, Ground::Size);
        assert_eq!(sink.admits("t", 8).map_err(|refusal| refusal.ground), Err(Ground::Size));
        assert_eq!(produce(&mut sink, 2, b"1234567"), Ok(()));
        sink.publisher
            .producer
            .happened(Event::Failed(Failure::Unreachable("restarted".to_owned())));
        sink.take_conditions();
        assert_eq!(sink.admits("t", 8), Ok(()), "it may accept more now");
    }
}
