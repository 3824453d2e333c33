//! End to end: the walpost binary between a real PostgreSQL and a real Kafka,
//! judged by the oracle on what a real consumer read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod backlog;
mod catch_up;
mod debezium;
mod endpoints;
mod goings_over;
mod hashing;
mod library;
mod majors;
mod membership;
mod messages;
mod neighbours;
mod partitions;
mod poison;
mod put_aside;
mod records;
mod refusals;
mod replay;
mod sessions;
mod shapes;
mod shares;
mod slot;
mod tables;
mod topics;
#[cfg(feature = "traces")]
mod traces;
mod unsendable;
mod values;
mod volume;
