//! RabbitMQ: each event arrives, in order for each key.

mod blame;
mod configuration;
mod consumer;
pub mod fixture;
mod kills;
mod messages;
mod outages;
mod poison;
mod security;
