//! End to end: the walpost binary between a real PostgreSQL and a real server of each destination
//! beside Kafka, verified by the oracle on what a consumer read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod blame;
mod checks;
mod consumers;
mod dead_letters;
mod http;
mod kills;
mod maxima;
mod names;
mod nats;
mod outages;
mod poison;
mod position;
mod promise;
mod prune;
mod rabbitmq;
mod recover;
mod redis;
mod restored;
mod security;
mod settings;
mod sqs;
mod tls_front;
