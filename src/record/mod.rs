//! From event to Kafka record: topic, key, value, headers, timestamp.
//!
//! What a record looks like is decided here; how it is sent, and what becomes
//! of an event that cannot be one, is decided elsewhere.

mod allowed;
pub mod dead_letter;
pub mod debezium;
mod expression;
mod headers;
mod key;
mod place;
mod poison;
mod rewrite;
mod route;
mod router;
mod template;
mod timestamp;
mod topic;
mod types;
mod value;

pub use allowed::TopicsAllowed;
pub use headers::{Dropped, HeaderSet, HeaderSetError};
pub use key::KeyTemplate;
pub use place::{Placement, PlacementError, Target};
pub use poison::{Cause, Poison};
pub use rewrite::{Rewrite, RewriteError};
pub use route::{RecordConfig, TimestampSource};
pub use router::{Profile, Router};
pub use template::TemplateError;
pub use topic::{TopicFault, TopicTemplate, check_topic};
pub use types::{Header, Headers, Record};
pub use value::ValueFormat;
