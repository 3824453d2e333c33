//! The sink for NATS JetStream: each event is a message of one stream, and is there once.
//!
//! A message counts as delivered when the stream has acknowledged it, not when the server has taken
//! it. Messages follow each other without waiting for acknowledgements. Each names the sequence
//! number that the stream must end at (`Nats-Expected-Last-Sequence`), so behind one that was not
//! stored no later one is: retried and delayed messages cannot change the order
//! (<https://github.com/nats-io/nats-server/issues/2384>). Each also names the id of the message
//! before it (`Nats-Expected-Last-Msg-Id`): if somebody else publishes, the sequence number alone
//! would fit again for the second message behind the one that was refused.
//!
//! The chain is that of the whole stream, which only walpost may write to, and not one for each
//! subject: events of one transaction go to several subjects, and behind a gap in one of them the
//! others would be stored. The whole stream has a second use: its last message is the last event
//! that was published. Its id has the event's position, so on each connection the sink knows what is
//! there, and does not publish an event at or before that position again, however long ago it was.
//! The server's own deduplication by message id, which forgets after the stream's duplicate window,
//! only makes messages harmless that an earlier connection still had under way.
//!
//! A server acknowledges as fast with 64 messages in flight as with 4096 (measured on the same
//! machine, 250 bytes each: 12,000 messages per second one at a time, 51,000 with 64, 55,000 with
//! 4096). More are sent for the sake of servers that are far away: see [`link`].
//!
//! What walpost knows of the stream and its position are in a key-value bucket beside it: see
//! [`state_key`].

mod api;
mod batch;
mod check;
mod config;
mod connection;
mod dead_letters;
mod failure;
mod inspect;
mod letters_key;
mod link;
mod message;
mod published;
pub(super) mod settings;
mod sink;
mod state;
mod state_key;
mod subject;
mod url;

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

pub(crate) use api::{StreamConfig, StreamInfo};
pub(crate) use config::bucket;
pub(crate) use config::{NatsConfig, NatsSource};
pub(crate) use connection::{Connection, connect};
use dead_letters::LettersOfStream;
pub(crate) use inspect::{Inspection, inspect};
pub(super) use message::NAMES;
#[cfg(test)]
pub(super) use message::tests::SAMPLE;
use published::StreamReader;
use settings::nats_config;
pub(crate) use sink::NatsSink;
use state::{nats_state, read_nats_state};
pub(crate) use state_key::{
    Entry, KEY, Last, adopt, last_event, open, read, unfit, usable_stream, write_state,
};
pub(crate) use subject::SubjectTemplate;
pub(crate) use subject::{check as check_subject, covers};
pub(crate) use url::NatsUrl;

/// A stream of NATS JetStream.
pub(super) struct Nats;

impl Destination for Nats {
    fn kind(&self) -> &'static str {
        settings::DECLARED.kind
    }

    fn names(&self) -> Names {
        NAMES
    }

    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError> {
        let Context { config, metrics } = context;
        let nats = nats_config(config)?;
        let (source, claims) = (reread(config, nats_config), Claims::default());
        let store = nats_state(source.clone(), claims.clone(), true);
        let sink = NatsSink::new(&nats, source, claims, Arc::clone(metrics))?;
        Ok(Opened::without_position(sink).keeping(store, settings::state_settings(config)))
    }

    fn server(&self, config: &Config) -> Option<Server> {
        // A key of a credentials file signs, and is not sent.
        Some(nats_config(config).ok()?.url.server())
    }

    fn description(&self, config: &Config) -> Description {
        let stream = Some(settings::stream_of(config).to_owned());
        Description { stream, ..Description::default() }
    }

    fn place_of_position(&self, config: &Config) -> Option<String> {
        Some(settings::place(config))
    }

    fn store(&self, config: &Config) -> Option<Box<dyn StateStore>> {
        let source = reread(config, nats_config);
        Some(Box::new(nats_state(source, Claims::default(), false)))
    }

    fn kept_state<'a>(
        &'a self,
        config: &Config,
        key: &'a StateKey,
    ) -> Result<Option<ReadState<'a>>, ConfigError> {
        let nats = nats_config(config)?;
        Ok(Some(Box::pin(async move {
            let connection = connect(&nats).await?;
            Ok(read_nats_state(&connection, &nats, key).await?.into())
        })))
    }

    fn published(&self, config: &Config) -> Result<Option<Box<dyn Published>>, ConfigError> {
        Ok(Some(Box::new(StreamReader::new(nats_config(config)?))))
    }

    fn dead_letters<'a>(
        &'a self,
        config: &'a Config,
        at: &'a LettersAt,
    ) -> Option<OpenLetters<'a>> {
        open_letters(LettersOfStream::open(config, at))
    }

    fn check<'a>(&'a self, check: Check<'a>, findings: &'a mut Findings) -> BoxFuture<'a, ()> {
        Box::pin(check::check(check.config, (check.offline, check.slot), findings))
    }
}
