//! Redis Streams: whatever fails, each event is in the stream once.

mod configuration;
mod consumer;
mod durability;
mod entries;
pub mod fixture;
mod kills;
mod outages;
mod ownership;
mod poison;
mod security;
