//! The pgoutput plugin's messages, decoded. No I/O.

mod message;

pub use message::{
    Begin, Column, Commit, Insert, LogicalMessage, Message, Oid, PgTimestamp, Relation, Tuple,
    Value,
};
