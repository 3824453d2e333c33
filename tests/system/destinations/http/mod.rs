//! An HTTP server, which records the requests that it has accepted.

mod blame;
mod configuration;
mod consumer;
pub mod fixture;
mod kills;
mod outages;
mod poison;
mod receiver;
mod requests;
mod security;
