//! The sink for an HTTP endpoint, a webhook: each event is the body of one POST request.
//!
//! HTTP has no order between requests. So events are spread over lanes by their key, and a lane has
//! one request in flight: the next one is sent after an answer of 2xx. What may succeed later is
//! sent again by the lane itself, which keeps the order. What the endpoint rejects for good is
//! reported, and the lane sends nothing more before the producer is replaced: nothing passes it.
//!
//! Signatures are those of Standard Webhooks
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).

mod config;
mod connection;
mod lane;
mod names;
mod patience;
mod request;
mod signature;
mod sink;
mod url;
mod verdict;

pub use config::{HttpConfig, HttpSource};
pub(crate) use connection::connect;
pub(crate) use names::NAMES;
#[cfg(test)]
pub(super) use request::tests::read_back;
pub use signature::Signers;
pub use sink::HttpSink;
pub use url::HttpUrl;
