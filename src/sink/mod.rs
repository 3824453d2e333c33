//! Where records go: the seam that the relay produces through, and what stands
//! behind it.
//!
//! A sink takes records without blocking and reports on each exactly once:
//! delivered (durable at the broker), lost (may pass with time) or refused (for
//! good). A record that was not done with when its producer was replaced is never
//! reported on.

mod kafka;

use std::future::Future;
use std::time::Instant;

use crate::ledger::Seq;
use crate::outlet::{Outlet, Refusal};

pub(crate) use kafka::oauth_token;
pub use kafka::{
    Brokers, ConnectionFailure, KafkaConfig, KafkaSink, KafkaSource, MetadataClient,
    PartitionState, ReloadHandle, TlsFailure, TopicError, TopicState, WaitsFor, accepts,
    accepts_connections, asks_for_topics, message_max_bytes, partition_of,
};

/// What the Kafka client library of this build can do: librdkafka's `builtin.features`.
pub fn features() -> String {
    let native = rdkafka::ClientConfig::new().create_native_config();
    native.map(|native| kafka::built_in(&native)).unwrap_or_default()
}

/// What became of one production.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The production.
    pub seq: Seq,
    /// What became of it.
    pub outcome: Outcome,
    /// When that was known.
    pub at: Instant,
}

impl Report {
    /// Production `seq` ended so, now.
    pub fn new(seq: Seq, outcome: Outcome) -> Self {
        Self { seq, outcome, at: Instant::now() }
    }
}

/// How a production ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has it, at `acks=all`.
    Delivered,
    /// It failed for a reason that may pass; the reason.
    Lost(String),
    /// It will never be taken.
    Refused(Refusal),
    /// It went down with its producer, for no reason of its own.
    Purged,
}

/// A change in how the sink stands to its peer, for people to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No broker can be reached; why.
    Unreachable(String),
    /// The broker refuses who walpost says it is; why.
    Unauthenticated(String),
    /// The producer is of no use any more; why.
    Broken(String),
    /// No acknowledgement has come for long.
    Stalled {
        /// What is the matter, in words.
        reason: String,
        /// Who it is the matter of, as far as the brokers tell.
        fault: Fault,
    },
    /// What was stalled flows again.
    Flowing,
    /// A topic has another number of partitions than it had.
    Repartitioned {
        /// The topic.
        topic: String,
        /// How many it had.
        before: u32,
        /// How many it has.
        now: u32,
    },
}

/// Why acknowledgements may not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The brokers do not answer.
    OutOfReach,
    /// They answer, and cannot acknowledge: too few replicas, no leader.
    Brokers,
    /// They show no reason: it may be the producer's own.
    Unknown,
}

/// A destination of records.
pub trait Sink: Outlet {
    /// Appends all reports that have come to `into`. Only what was taken so
    /// makes room where [`Outlet::produce`] said that there is none.
    fn take_reports(&mut self, into: &mut Vec<Report>);

    /// The conditions that came up since the last call.
    fn take_conditions(&mut self) -> Vec<Condition>;

    /// Whether it has a connection to where records go; `None` where that is not known yet.
    fn is_connected(&self) -> Option<bool>;

    /// Completes when a condition or a failure waits; with `eager` also when an
    /// acknowledgement does. Cancel-safe.
    ///
    /// A relay that reads is not woken by acknowledgements: it looks at them as it goes.
    fn stirred(&self, eager: bool) -> impl Future<Output = ()> + Send;

    /// Throws the producer away with all that it holds and makes a new one.
    /// Reports that the old one still gave wait to be taken.
    fn replace_producer(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// The sink cannot be made as configured.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A property that the client library does not know, or not with this value.
    #[error("the Kafka property `{name}` is refused by the client library: {said}{}", meant(*nearest))]
    Property {
        /// The property.
        name: String,
        /// What the library said, without the value.
        said: String,
        /// A known property that is almost the same.
        nearest: Option<&'static str>,
    },
    /// A way to authenticate that is not in this build.
    #[error(
        "SASL mechanism {mechanism} is not available in this build: set sasl.mechanisms to another; \
         the client library was built with {features}"
    )]
    Mechanism {
        /// The mechanism.
        mechanism: String,
        /// librdkafka's `builtin.features`.
        features: String,
    },
    /// Tokens are asked for, and nothing says where they come from.
    #[error(
        "SASL mechanism OAUTHBEARER needs a token: set sasl.oauthbearer.config to file=PATH of a \
         file that holds one{}",
        if *oidc { ", or sasl.oauthbearer.method to oidc" } else { "" }
    )]
    Token {
        /// Whether this build can fetch one from an identity provider.
        oidc: bool,
    },
    /// The client cannot be made for another reason.
    #[error("Kafka's client library refuses the configuration: {0}")]
    Client(rdkafka::error::KafkaError),
}

impl From<rdkafka::error::KafkaError> for SinkError {
    fn from(error: rdkafka::error::KafkaError) -> Self {
        kafka::refusal(error)
    }
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}
