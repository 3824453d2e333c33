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
mod check;
mod config;
mod connection;
mod dead_letters;
mod entry_id;
mod failure;
mod inspect;
mod link;
mod log_sync;
mod published;
mod script;
pub(super) mod settings;
mod sink;
mod state;

use std::sync::Arc;

use super::dead_letters::{LettersAt, OpenLetters, open_letters};
use super::parts::claims::Claims;
use super::parts::settings::reread;
use super::published::Published;
use super::{AssemblyError, Check, Context, Description, Destination, Opened, ReadState, Server};
use crate::config::{Config, ConfigError};
use crate::findings::Findings;
use crate::record::Names;
use crate::sink::BoxFuture;
use crate::state::{StateKey, StateStore};

pub(super) use batch::NAMES;
#[cfg(test)]
pub(super) use batch::tests::SAMPLE;
pub(crate) use config::owner_key;
pub(crate) use config::{RedisConfig, RedisSource};
pub(crate) use connection::{Connection, connect};
use dead_letters::LetterStream;
pub(crate) use entry_id::EntryId;
pub(crate) use inspect::{Inspection, REWRITE, inspect};
pub(crate) use link::{lacks_replicas, ping};
pub(crate) use log_sync::LogSync;
use published::Streams;
use script::{adopt, open, write_state};
use settings::redis_config;
pub(crate) use sink::RedisSink;
use state::{read_redis_state, redis_state};

/// A stream of a Redis server.
pub(super) struct Redis;

impl Destination for Redis {
    fn kind(&self) -> &'static str {
        settings::DECLARED.kind
    }

    fn names(&self) -> Names {
        NAMES
    }

    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError> {
        let Context { config, metrics } = context;
        let redis = redis_config(config)?;
        let (source, claims) = (reread(config, redis_config), Claims::default());
        let store = redis_state(source.clone(), claims.clone(), true);
        let sink = RedisSink::new(&redis, source, claims, Arc::clone(metrics))?;
        Ok(Opened::without_position(sink).keeping(store, settings::state_settings(config)))
    }

    fn server(&self, config: &Config) -> Option<Server> {
        Some(redis_config(config).ok()?.url.server())
    }

    fn description(&self, config: &Config) -> Description {
        let stream = Some(settings::stream_of(config).to_owned());
        Description { stream, ..Description::default() }
    }

    fn place_of_position(&self, config: &Config) -> Option<String> {
        Some(settings::place(config))
    }

    fn store(&self, config: &Config) -> Option<Box<dyn StateStore>> {
        let source = reread(config, redis_config);
        Some(Box::new(redis_state(source, Claims::default(), false)))
    }

    fn kept_state<'a>(
        &'a self,
        config: &Config,
        key: &'a StateKey,
    ) -> Result<Option<ReadState<'a>>, ConfigError> {
        let redis = redis_config(config)?;
        Ok(Some(Box::pin(async move {
            let connection = connect(&redis).await?;
            Ok(read_redis_state(&connection, &redis, key).await?.into())
        })))
    }

    fn published(&self, config: &Config) -> Result<Option<Box<dyn Published>>, ConfigError> {
        Ok(Some(Box::new(Streams::new(redis_config(config)?))))
    }

    fn dead_letters<'a>(
        &'a self,
        config: &'a Config,
        at: &'a LettersAt,
    ) -> Option<OpenLetters<'a>> {
        open_letters(LetterStream::open(config, at))
    }

    fn check<'a>(&'a self, check: Check<'a>, findings: &'a mut Findings) -> BoxFuture<'a, ()> {
        Box::pin(check::check(check.config, (check.offline, check.slot), findings))
    }
}
