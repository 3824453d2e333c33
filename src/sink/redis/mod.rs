//! The sink for Redis Streams: each event is an entry of one stream, and is there once.
//!
//! An entry's id is the event's position behind a generation, so entries stand in commit order. A
//! script adds them, and stops at the first error ([`script`]). It adds nothing unless two things
//! hold: the connection is that of the walpost that holds the slot, and the last event that was
//! handled is the one before its first. Both are kept in a key beside the stream, the state key,
//! and change together with the stream. So the state key tells exactly which events are there: an
//! event at or before its last one is not added again, however long ago that was.
//!
//! While nothing fails, batches follow each other on one connection without waiting for replies. If
//! one fails, those behind it are refused, since the event before them is missing. Then everything
//! from the flush LSN on is produced again, on a new connection that first reads the last event.
//!
//! Redis may lose what it has acknowledged, state key and stream together. So the sink remembers the
//! last id that was acknowledged to this process, and neither adds entries nor writes the position
//! behind a lost one: see `docs/redis.md`.

mod batch;
mod claims;
mod config;
mod connection;
mod entry_id;
mod failure;
mod inspect;
mod link;
mod script;
mod streams;
mod synced;
mod url;

pub(crate) use batch::NAMES;
#[cfg(test)]
pub(super) use batch::tests::read_back;
pub(crate) use claims::{Claims, nonce};
pub(crate) use config::owner_key;
pub use config::{RedisConfig, RedisSource};
pub(crate) use connection::{Connection, connect};
pub(crate) use entry_id::EntryId;
pub(crate) use failure::Failure;
pub(crate) use inspect::{REWRITE, ServerFacts, inspect};
pub(crate) use link::{lacks_replicas, ping};
pub(crate) use script::{Opened, adopt, open, write_state};
pub use streams::RedisSink;
pub(crate) use synced::Synced;
pub use url::RedisUrl;
