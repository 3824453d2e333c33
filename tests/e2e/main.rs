//! End to end: the walpost binary between a real PostgreSQL and a real Kafka,
//! judged by the oracle on what a real consumer read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod brokers;
mod death;
mod outage;
mod poison;
mod refusals;
mod scene;
mod server;
mod shapes;
mod slot;
mod writer;
