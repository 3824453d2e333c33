//! Events go to an exchange of RabbitMQ: each arrives, in order for each key.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod configuration;
mod consumer;
mod fixture;
mod kills;
mod messages;
mod outages;
mod poison;
mod security;
