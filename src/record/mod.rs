//! From event to Kafka record: topic, key, value, headers, timestamp.
//!
//! What a record looks like is decided here; how it is sent, and what becomes
//! of an event that cannot be one, is decided elsewhere.

mod headers;
mod poison;
mod route;
mod timestamp;
mod topic;
mod types;

pub use headers::{HeaderSet, HeaderSetError};
pub use poison::{Cause, Poison};
pub use route::{RecordConfig, Router, TimestampSource};
pub use topic::{TemplateError, TopicFault, TopicTemplate, check_topic};
pub use types::{Header, Record};
