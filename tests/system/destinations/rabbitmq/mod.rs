//! RabbitMQ: each event arrives, in order for each key.

mod blame;
mod configuration;
mod consumer;
pub mod fixture;
mod messages;
mod outages;
mod poison;
mod security;

pub use fixture::RabbitFixture as Fixture;
