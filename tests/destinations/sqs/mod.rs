//! ElasticMQ, which has the API of Amazon SQS.

mod configuration;
mod consumer;
mod fixture;
mod front;
mod kills;
mod messages;
mod order;
mod outages;
mod poison;
mod security;
