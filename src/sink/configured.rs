//! The configured sink.

use crate::ledger::Seq;
use crate::outlet::{Outlet, ProduceError, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
#[cfg(feature = "http")]
use crate::sink::HttpSink;
#[cfg(feature = "redis")]
use crate::sink::RedisSink;
use crate::sink::{
    Condition, KafkaSink, KafkaSource, Peer, ReloadHandle, Report, Sink, SinkError,
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
    /// A stream of Redis.
    #[cfg(feature = "redis")]
    Redis(RedisSink),
}

impl ConfiguredSink {
    /// The same that reads its properties again from `source`.
    #[must_use]
    pub fn reloading_from(self, source: KafkaSource) -> Self {
        match self {
            Self::Idempotent(sink) => Self::Idempotent(sink.reloading_from(source)),
            Self::Transactional(sink) => Self::Transactional(sink.reloading_from(source)),
            #[cfg(feature = "http")]
            other @ Self::Http(_) => other,
            #[cfg(feature = "redis")]
            other @ Self::Redis(_) => other,
        }
    }

    /// A handle that requests a reload; `None`: it reads its configuration with each connection.
    pub fn reload_handle(&self) -> Option<ReloadHandle> {
        match self {
            Self::Idempotent(sink) => Some(sink.reload_handle()),
            Self::Transactional(sink) => Some(sink.reload_handle()),
            #[cfg(feature = "http")]
            Self::Http(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
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
        match self {
            Self::Idempotent(sink) => sink.produce(seq, position, record),
            Self::Transactional(sink) => sink.produce(seq, position, record),
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.produce(seq, position, record),
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.produce(seq, position, record),
        }
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        match self {
            Self::Idempotent(sink) => sink.admits(topic, bytes),
            Self::Transactional(sink) => sink.admits(topic, bytes),
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.admits(topic, bytes),
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.admits(topic, bytes),
        }
    }
}

impl Sink for ConfiguredSink {
    fn peer(&self) -> &'static Peer {
        match self {
            Self::Idempotent(sink) => sink.peer(),
            Self::Transactional(sink) => sink.peer(),
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.peer(),
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.peer(),
        }
    }

    fn is_fenced_by_state(&self) -> bool {
        match self {
            Self::Idempotent(sink) => sink.is_fenced_by_state(),
            Self::Transactional(sink) => sink.is_fenced_by_state(),
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.is_fenced_by_state(),
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.is_fenced_by_state(),
        }
    }

    fn take_reports(&mut self, into: &mut Vec<Report>) {
        match self {
            Self::Idempotent(sink) => sink.take_reports(into),
            Self::Transactional(sink) => sink.take_reports(into),
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.take_reports(into),
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.take_reports(into),
        }
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        match self {
            Self::Idempotent(sink) => sink.take_conditions(),
            Self::Transactional(sink) => sink.take_conditions(),
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.take_conditions(),
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.take_conditions(),
        }
    }

    fn is_connected(&self) -> Option<bool> {
        match self {
            Self::Idempotent(sink) => sink.is_connected(),
            Self::Transactional(sink) => sink.is_connected(),
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.is_connected(),
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.is_connected(),
        }
    }

    async fn wait_for_events(&self, eager: bool) {
        match self {
            Self::Idempotent(sink) => sink.wait_for_events(eager).await,
            Self::Transactional(sink) => sink.wait_for_events(eager).await,
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.wait_for_events(eager).await,
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.wait_for_events(eager).await,
        }
    }

    async fn replace_producer(&mut self) -> Result<(), SinkError> {
        match self {
            Self::Idempotent(sink) => sink.replace_producer().await,
            Self::Transactional(sink) => sink.replace_producer().await,
            #[cfg(feature = "http")]
            Self::Http(sink) => sink.replace_producer().await,
            #[cfg(feature = "redis")]
            Self::Redis(sink) => sink.replace_producer().await,
        }
    }
}
