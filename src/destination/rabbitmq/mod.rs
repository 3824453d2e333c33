//! The sink for RabbitMQ: each event is a message to an exchange, and the queues behind it keep it.
//!
//! A message counts as delivered when the broker has confirmed it, and has not returned it: with
//! `mandatory`, what no queue takes is returned, and confirmed too. Quorum queues confirm what a
//! majority has on disk, durable classic queues what is on disk
//! (<https://www.rabbitmq.com/docs/confirms>).
//!
//! At most one message of a key is unconfirmed ([`flow`]). A queue that is full may refuse one
//! message and take the next, so two of a key in flight could change places. What the broker refuses
//! (`basic.nack`) is sent again by the connection itself, in its place; different keys do not wait
//! for each other.
//!
//! Frames are those of AMQP 0-9-1, coded by `amq-protocol`; the connection is walpost's own
//! ([`wire`]). The usual client over the same codec, lapin, hands a returned message to whichever
//! confirmation is completed next. RabbitMQ confirms earlier messages between a return and its own
//! confirmation (seen with 3.10), so a message that no queue took could count as delivered. Here
//! each message has its position in a header, and a returned one names itself.
//!
//! RabbitMQ tells a publisher nothing of what it has: the sink keeps no position of its own. After a
//! failure, a stretch of events is published again, in order.

mod check;
mod config;
mod connection;
mod dead_letters;
mod failure;
mod flow;
mod link;
mod message;
mod refused;
mod routing_key;
pub(super) mod settings;
mod sink;
mod window;
mod wire;

use std::sync::Arc;

use super::dead_letters::{LettersAt, OpenLetters, open_letters};
use super::parts::settings::reread;
use super::{AssemblyError, Check, Context, Destination, Opened, Server};
use crate::config::Config;
use crate::findings::Findings;
use crate::record::Names;
use crate::sink::BoxFuture;

pub(crate) use config::RabbitConfig;
pub(crate) use connection::{Inspection, inspect};
use dead_letters::LettersOfQueue;
pub(super) use message::NAMES;
#[cfg(test)]
pub(super) use message::tests::SAMPLE;
pub(crate) use routing_key::RoutingKeyTemplate;
use settings::rabbit_config;
pub(crate) use sink::RabbitSink;

/// An exchange of RabbitMQ.
pub(super) struct RabbitMq;

impl Destination for RabbitMq {
    fn kind(&self) -> &'static str {
        settings::DECLARED.kind
    }

    fn names(&self) -> Names {
        NAMES
    }

    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError> {
        let Context { config, metrics } = context;
        let rabbitmq = rabbit_config(config)?;
        let source = reread(config, rabbit_config);
        let sink = RabbitSink::new(&rabbitmq, source, Arc::clone(metrics))?;
        Ok(Opened::without_position(sink))
    }

    fn server(&self, config: &Config) -> Option<Server> {
        Some(rabbit_config(config).ok()?.url.server())
    }

    fn dead_letters<'a>(
        &'a self,
        config: &'a Config,
        at: &'a LettersAt,
    ) -> Option<OpenLetters<'a>> {
        open_letters(LettersOfQueue::open(config, at))
    }

    fn check<'a>(&'a self, check: Check<'a>, findings: &'a mut Findings) -> BoxFuture<'a, ()> {
        Box::pin(check::check(check.config, check.offline, findings))
    }
}
