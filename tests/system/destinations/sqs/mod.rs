//! ElasticMQ, which has the API of Amazon SQS.

mod blame;
mod configuration;
mod consumer;
pub mod fixture;
mod front;
mod messages;
mod order;
mod outages;
mod poison;
mod security;

pub use fixture::SqsFixture as Fixture;
