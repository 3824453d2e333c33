//! An HTTP server, which records the requests that it has accepted.

mod blame;
mod configuration;
mod consumer;
pub mod fixture;
mod outages;
mod poison;
mod receiver;
mod requests;
mod security;

pub use fixture::HttpFixture as Fixture;
