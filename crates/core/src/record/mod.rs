//! Builds a Kafka record from an event: topic, key, value, headers, timestamp.
//!
//! Only the format is defined here. Sending, and the handling of undeliverable events, are
//! elsewhere.

pub mod dead_letter;
pub mod debezium;
mod headers;
mod java_regex;
mod key;
mod names;
mod placement;
mod poison;
mod policy;
mod regex_router;
mod route;
mod router;
mod schema;
mod template;
mod timestamp;
mod topic;
mod topics_allowed;
mod types;
mod unrouted;
mod value;

pub use headers::{Dropped, HeaderSet, HeaderSetError};
pub use headers::{ID_HEADER, POSITION_HEADER};
pub use key::KeyTemplate;
pub use names::{NameConflict, Names, Spelling};
pub use placement::{Placement, PlacementError, Target};
pub use poison::{Cause, Poison};
pub use policy::{Policies, Policy};
pub use regex_router::{Rewrite, RewriteError};
pub use route::{RecordConfig, TimestampSource};
pub use router::{Profile, Router};
pub use schema::{Known, SchemaChoice, SchemaKind, SchemaRef, SubjectTemplate, ValueEncoding};
pub use template::TemplateError;
pub use topic::{TopicFault, TopicTemplate, check_topic};
pub use topics_allowed::TopicsAllowed;
pub use types::{Header, Headers, Record};
pub use unrouted::Unrouted;
pub use value::ValueFormat;
pub use value::{CONTENT_TYPE, media_type};
