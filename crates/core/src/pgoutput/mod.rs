//! Decodes the pgoutput plugin's messages.
//!
//! Bytes in, a [`Message`] or a [`DecodeError`] out. No I/O, and no state: users of the messages
//! keep what they need of earlier ones.

mod decode;
#[cfg(any(test, feature = "test-support"))]
#[allow(clippy::missing_panics_doc, reason = "for tests")]
pub mod encode;
mod message;
mod reader;
mod tuple;

pub use decode::decode;
pub use message::{
    Begin, Column, Commit, Insert, LogicalMessage, Message, Oid, PgTimestamp, Relation, Tuple,
    TypeName, Value,
};
pub use reader::DecodeError;
