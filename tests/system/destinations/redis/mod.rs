//! Redis Streams: whatever fails, each event is in the stream once.

mod configuration;
mod consumer;
mod durability;
mod entries;
pub mod fixture;
mod outages;
mod ownership;
mod poison;
mod security;

pub use fixture::RedisFixture as Fixture;
