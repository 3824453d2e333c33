//! End to end: the walpost binary between a real PostgreSQL and a real Kafka,
//! judged by the oracle on what a real consumer read.

mod library;
mod scene;
mod shapes;
