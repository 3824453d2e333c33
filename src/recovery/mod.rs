//! What publishes events again.

mod error;
mod replay;
mod replay_sql;
mod replayed_table;

pub(crate) use error::RowReplayError;
pub(crate) use replay::{Found, Inserted, Replay, publisher_warnings};
pub(crate) use replay_sql::{Filter, Manner, Selection};
