//! End to end: the walpost binary between a real PostgreSQL and a real NATS, verified by the oracle
//! on what a real consumer read. Whatever fails, each event is in the stream once.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod configuration;
mod consumer;
mod durability;
mod fixture;
mod kills;
mod messages;
mod outages;
mod ownership;
mod poison;
mod security;
