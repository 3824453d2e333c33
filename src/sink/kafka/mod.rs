//! The Kafka sink: idempotent librdkafka producers, and diagnosis of the brokers.
//!
//! [`producer`] accepts records and replaces its producers. The other files decide how it handles
//! the results (pure), or query the brokers.

mod ack_age;
mod ack_monitor;
mod auxiliary;
mod await_broker;
mod batch_size;
mod config;
mod delivery_reports;
mod diagnostics;
mod drop_on_threads;
mod error;
mod features;
mod first_batch_gate;
mod held_records;
mod metadata;
mod oauth_token;
mod partition_spread;
mod placement;
mod poll_interval;
mod pool_size;
mod producer;
mod reload;
mod round_trip;
#[cfg(feature = "traces")]
mod spans;
#[cfg(not(feature = "traces"))]
#[path = "no_spans.rs"]
mod spans;
mod statistics;
mod topic_lookup;

pub(crate) use auxiliary::{
    Callbacks, begins_transactions, client_config, code_of, consumer_config, is_reconnecting,
    partition_consumer, partitions_of, transactional_producer,
};
pub use config::{
    KafkaConfig, MissingTopics, NewTopics, WaitsFor, accepts, asks_for_topics, message_max_bytes,
};
pub(crate) use config::{key_hash, transaction_timeout};
pub(crate) use drop_on_threads::drop_on_threads;
pub(crate) use error::TopicAt;
pub(super) use features::{built_in, config_error};
pub(crate) use metadata::CORRECT_ADVERTISED;
pub use metadata::{
    Brokers, ConnectionFailure, MetadataClient, NotCreated, PartitionState, TlsFailure, TopicError,
    TopicState, accepts_connections,
};
pub(crate) use oauth_token::{
    PROPERTY as TOKEN_PROPERTY, file as token_file, token as oauth_token,
};
pub use producer::{KafkaSink, ReloadHandle, TransactionalSink, Transactions};
pub use reload::KafkaSource;
