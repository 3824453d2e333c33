//! The configured sink.

use crate::ledger::Seq;
use crate::outlet::{Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
#[cfg(feature = "http")]
use crate::sink::HttpSink;
#[cfg(feature = "nats")]
use crate::sink::NatsSink;
#[cfg(feature = "rabbitmq")]
use crate::sink::RabbitSink;
#[cfg(feature = "redis")]
use crate::sink::RedisSink;
#[cfg(feature = "sqs")]
use crate::sink::SqsSink;
use crate::sink::{
    Condition, KafkaSink, KafkaSource, Origin, Peer, ReloadHandle, Report, Sink, SinkError,
    TransactionalSink,
};

/// One of the sinks.
#[allow(clippy::large_enum_variant, reason = "there is one")]
pub enum ConfiguredSink {
    /// At least once.
    Idempotent(KafkaSink),
    /// Exactly once.
    Transactional(TransactionalSink),
    /// An HTTP endpoint.
    #[cfg(feature = "http")]
    Http(HttpSink),
    /// A stream of NATS.
    #[cfg(feature = "nats")]
    Nats(NatsSink),
    /// An exchange of RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    RabbitMq(RabbitSink),
    /// A stream of Redis.
    #[cfg(feature = "redis")]
    Redis(RedisSink),
    /// A queue of Amazon SQS.
    #[cfg(feature = "sqs")]
    Sqs(SqsSink),
}

/// The same expression for each of the sinks.
macro_rules! each {
    ($configured:expr, $sink:ident => $do:expr) => {
        match $configured {
            Self::Idempotent($sink) => $do,
            Self::Transactional($sink) => $do,
            #[cfg(feature = "http")]
            Self::Http($sink) => $do,
            #[cfg(feature = "nats")]
            Self::Nats($sink) => $do,
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq($sink) => $do,
            #[cfg(feature = "redis")]
            Self::Redis($sink) => $do,
            #[cfg(feature = "sqs")]
            Self::Sqs($sink) => $do,
        }
    };
}

impl ConfiguredSink {
    /// The same that reads its properties again from `source`.
    #[must_use]
    pub fn reloading_from(self, source: KafkaSource) -> Self {
        match self {
            Self::Idempotent(sink) => Self::Idempotent(sink.reloading_from(source)),
            Self::Transactional(sink) => Self::Transactional(sink.reloading_from(source)),
            #[cfg(any(
                feature = "http",
                feature = "nats",
                feature = "rabbitmq",
                feature = "redis",
                feature = "sqs"
            ))]
            other => other,
        }
    }

    /// A handle that requests a reload; `None`: it reads its configuration with each connection.
    pub fn reload_handle(&self) -> Option<ReloadHandle> {
        match self {
            Self::Idempotent(sink) => Some(sink.reload_handle()),
            Self::Transactional(sink) => Some(sink.reload_handle()),
            #[cfg(any(
                feature = "http",
                feature = "nats",
                feature = "rabbitmq",
                feature = "redis",
                feature = "sqs"
            ))]
            _ => None,
        }
    }
}

impl Outlet for ConfiguredSink {
    fn produce(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        each!(self, sink => sink.produce(seq, position, record))
    }

    fn lane(&self, record: &Record<'_>) -> Option<u64> {
        each!(self, sink => sink.lane(record))
    }

    fn has_place_for_each_topic(&self) -> bool {
        each!(self, sink => sink.has_place_for_each_topic())
    }

    fn outlives_refusals(&self) -> bool {
        each!(self, sink => sink.outlives_refusals())
    }

    fn asks(&self) -> bool {
        each!(self, sink => sink.asks())
    }

    fn probe(
        &mut self,
        seq: Seq,
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        each!(self, sink => sink.probe(seq, position, record))
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        each!(self, sink => sink.admits(topic, bytes))
    }
}

impl Sink for ConfiguredSink {
    fn peer(&self) -> &'static Peer {
        each!(self, sink => sink.peer())
    }

    fn begins(&mut self, origin: &Origin<'_>) {
        each!(self, sink => sink.begins(origin));
    }

    fn is_fenced_by_state(&self) -> bool {
        each!(self, sink => sink.is_fenced_by_state())
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        each!(self, sink => sink.take_reports(into));
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        each!(self, sink => sink.take_conditions())
    }

    fn is_connected(&self) -> Option<bool> {
        each!(self, sink => sink.is_connected())
    }

    async fn wait_for_events(&self, eager: bool) {
        each!(self, sink => sink.wait_for_events(eager).await);
    }

    async fn replace_producer(&mut self) -> Result<(), SinkError> {
        each!(self, sink => sink.replace_producer().await)
    }
}
