//! What publishes events outside the stream: those that are in the tables and that no slot sends,
//! and those that are to be published once more.
//!
//! | files | what they do |
//! |---|---|
//! | `replay`, `replay_sql`, `replayed_table` | insert rows again, so that the slot sends them |
//! | `recover`, `publication` | publish rows that no slot sends, before the slot is read |
//! | `ahead` | finds out which rows the slot will send |
//! | `comparison` | finds out which of the others are published |
//! | `published_ids` | the ids of published events, by their positions |
//! | `error` | errors |

mod ahead;
mod comparison;
mod error;
mod publication;
mod published_ids;
mod recover;
mod replay;
mod replay_sql;
mod replayed_table;

pub(crate) use comparison::{Compared, Listed};
pub(crate) use error::{RecoveryError, RowReplayError};
pub(crate) use published_ids::ids_at;
pub(crate) use recover::{
    Purpose, Recovery, RowWish, Since, announce, published, require_readable,
};
pub(crate) use replay::{Found, Inserted, Replay, publisher_warnings};
pub(crate) use replay_sql::{Filter, Manner, Selection};
