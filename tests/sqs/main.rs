//! End to end: the walpost binary between a real PostgreSQL and ElasticMQ, which has the API of Amazon
//! SQS, verified by the oracle on what a consumer of the queue read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod configuration;
mod consumer;
mod fixture;
mod front;
mod kills;
mod messages;
mod order;
mod outages;
mod poison;
mod security;
