//! The sink of the configured delivery mode.

use crate::ledger::Seq;
use crate::outlet::{Outlet, ProduceError, Refusal};
use crate::record::Record;
use crate::sink::{
    Condition, KafkaSink, KafkaSource, ReloadHandle, Report, Sink, SinkError, TransactionalSink,
};

/// One of the sinks for Kafka.
#[allow(clippy::large_enum_variant, reason = "there is one")]
pub enum ConfiguredSink {
    /// At least once.
    Idempotent(KafkaSink),
    /// Exactly once.
    Transactional(TransactionalSink),
}

impl ConfiguredSink {
    /// The same that reads its properties again from `source`.
    #[must_use]
    pub fn reloading_from(self, source: KafkaSource) -> Self {
        match self {
            Self::Idempotent(sink) => Self::Idempotent(sink.reloading_from(source)),
            Self::Transactional(sink) => Self::Transactional(sink.reloading_from(source)),
        }
    }

    /// A handle that requests a reload.
    pub fn reload_handle(&self) -> ReloadHandle {
        match self {
            Self::Idempotent(sink) => sink.reload_handle(),
            Self::Transactional(sink) => sink.reload_handle(),
        }
    }
}

impl Outlet for ConfiguredSink {
    fn produce(&mut self, seq: Seq, record: &Record<'_>) -> Result<(), ProduceError> {
        match self {
            Self::Idempotent(sink) => sink.produce(seq, record),
            Self::Transactional(sink) => sink.produce(seq, record),
        }
    }

    fn admits(&self, topic: &str, bytes: u64) -> Result<(), Refusal> {
        match self {
            Self::Idempotent(sink) => sink.admits(topic, bytes),
            Self::Transactional(sink) => sink.admits(topic, bytes),
        }
    }
}

impl Sink for ConfiguredSink {
    fn take_reports(&mut self, into: &mut Vec<Report>) {
        match self {
            Self::Idempotent(sink) => sink.take_reports(into),
            Self::Transactional(sink) => sink.take_reports(into),
        }
    }

    fn take_conditions(&mut self) -> Vec<Condition> {
        match self {
            Self::Idempotent(sink) => sink.take_conditions(),
            Self::Transactional(sink) => sink.take_conditions(),
        }
    }

    fn is_connected(&self) -> Option<bool> {
        match self {
            Self::Idempotent(sink) => sink.is_connected(),
            Self::Transactional(sink) => sink.is_connected(),
        }
    }

    async fn wait_for_events(&self, eager: bool) {
        match self {
            Self::Idempotent(sink) => sink.wait_for_events(eager).await,
            Self::Transactional(sink) => sink.wait_for_events(eager).await,
        }
    }

    async fn replace_producer(&mut self) -> Result<(), SinkError> {
        match self {
            Self::Idempotent(sink) => sink.replace_producer().await,
            Self::Transactional(sink) => sink.replace_producer().await,
        }
    }
}
