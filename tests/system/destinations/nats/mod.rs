//! NATS JetStream: whatever fails, each event is in the stream once.

mod blame;
mod configuration;
mod consumer;
mod durability;
pub mod fixture;
mod messages;
mod outages;
mod ownership;
mod poison;
mod security;

pub use fixture::NatsFixture as Fixture;
