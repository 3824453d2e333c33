//! The pgoutput plugin's messages, decoded.
//!
//! Bytes come in, a [`Message`] or a [`DecodeError`] goes out. No I/O, and no
//! state: what an earlier message said is remembered by whom it concerns.

mod decode;
#[cfg(test)]
pub(crate) mod encode;
mod message;
mod reader;
mod tuple;

pub use decode::decode;
pub use message::{
    Begin, Column, Commit, Insert, LogicalMessage, Message, Oid, PgTimestamp, Relation, Tuple,
    Value,
};
pub use reader::DecodeError;
