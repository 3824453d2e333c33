//! From event to Kafka record: topic, key, value, headers, timestamp.

mod types;

pub use types::{Header, Record};
