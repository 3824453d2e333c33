//! The test bed: real PostgreSQL, real Kafka, the walpost binary and an oracle.
//!
//! Tests, benches and the demo use it. It installs the servers once into a cache, starts them on
//! free ports of 127.0.0.1, and ensures that they and their files are gone when the process that
//! started them is gone, however it ended. An error of the bed is a failed test, so the short forms
//! panic with one line; each has a `try_` form that returns the error.
//!
//! It uses only walpost's external interfaces: it sees what an operator sees.
#![forbid(unsafe_code)]

mod ca;
mod cache;
mod cleanup;
mod consumer;
pub mod corpus;
pub mod debezium;
mod delay_proxy;
mod destination;
mod disk;
mod elasticmq;
mod endpoints;
mod error;
mod eventually;
mod exactly_once;
pub mod fixture;
pub mod foreign;
pub mod golden;
mod http;
mod http_receiver;
mod jars;
mod kafka;
mod kfake;
mod nats;
mod nginx;
pub mod oracle;
mod os_account;
mod outage;
pub mod page;
mod patroni;
pub mod pg_recvlogical;
mod port;
mod postgres;
mod process;
mod prometheus;
mod proxy;
mod rabbit_queues;
mod rabbitmq;
mod redis;
mod schema_registry;
mod server;
mod sink_fixture;
mod walpost;
pub mod writer;

use std::path::Path;

pub use self::redis::{Entry, Redis, RedisBuilder};
pub use self::schema_registry::SchemaRegistry;
pub use ca::{CertificateAuthority, KeyPair};
pub use cache::directory as cache_directory;
pub use consumer::{Consumed, Follower, Tail, Topics, read_all};
pub use debezium::Debezium;
pub use delay_proxy::{DelayProxy, RoundTripProbe};
pub use destination::{Destination, ReadPosition};
pub use elasticmq::{ElasticMq, QueuedMessage};
pub use endpoints::Endpoints;
pub use error::BedError;
pub use eventually::{Outcome, eventually, unchanged, under_load, within, within_blocking};
pub use exactly_once::{ExactlyOnce, assert_aborts};
pub use http_receiver::HttpReceiver;
pub use kafka::{Admin, Cluster, Kafka, KafkaBuilder, Partition};
pub use kfake::Kfake;
pub use nats::{Nats, NatsBuilder, StoredMessage};
pub use nginx::Nginx;
pub use outage::{Outage, long_outage};
pub use patroni::{Patroni, PatroniBuilder};
pub use port::Port;
pub use postgres::{
    DataSnapshot, Major, PausedReceiver, Postgres, PostgresBuilder, STANDBY_SLOT, Stop,
};
pub use process::Process;
pub use prometheus::{Prometheus, Sample};
pub use proxy::{Direction, Disturbance, Proxy};
pub use rabbit_queues::RabbitQueues;
pub use rabbitmq::{RabbitMessage, RabbitMq, RabbitMqBuilder};
pub use sink_fixture::{SinkFixture, url_variable};
pub use walpost::{Walpost, WalpostBuilder};

/// The directory of the repository: pages and examples are tested where they are.
pub fn repository() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("the bed is in tests/bed")
}
