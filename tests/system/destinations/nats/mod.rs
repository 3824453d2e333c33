//! NATS JetStream: whatever fails, each event is in the stream once.

mod blame;
mod configuration;
mod consumer;
mod durability;
pub mod fixture;
mod kills;
mod messages;
mod outages;
mod ownership;
mod poison;
mod security;
