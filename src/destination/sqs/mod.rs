//! The sink for FIFO queues of Amazon SQS: each event is a message of the group of its key.
//!
//! A queue keeps the order within a message group. The messages of a batch succeed and fail one by
//! one, so a group has at most one message in a batch, and at most one under way; several batches of
//! other groups are under way at the same time: see [`schedule`]. What may succeed later is sent
//! again by the worker itself, which keeps the order. What SQS rejects for good is reported, and
//! nothing more of its group is sent before the producer is replaced.
//!
//! A message has a deduplication id with the position of its event, so that SQS drops what is sent
//! again within five minutes. A replay within them, or a request whose answer was lost, adds nothing
//! (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/FIFO-queues-exactly-once-processing.html>).

mod check;
mod client;
mod config;
mod dead_letters;
mod message;
mod schedule;
pub(super) mod settings;
mod sink;
mod url;
mod verdict;
mod worker;

use std::sync::Arc;

use super::dead_letters::{LettersAt, OpenLetters, open_letters};
use super::parts::settings::reread;
use super::{AssemblyError, Check, Context, Destination, Opened, Server};
use crate::config::Config;
use crate::findings::Findings;
use crate::record::Names;
use crate::sink::BoxFuture;

pub(crate) use client::{Connection, QueueAttributes};
pub(crate) use config::QueueKind;
pub(crate) use config::SqsConfig;
use dead_letters::LettersOfQueue;
pub(super) use message::NAMES;
#[cfg(test)]
pub(super) use message::tests::SAMPLE;
use settings::sqs_config;
pub(crate) use sink::SqsSink;
pub(crate) use url::{Endpoint, QueueUrl};

/// A FIFO queue of Amazon SQS.
pub(super) struct Sqs;

impl Destination for Sqs {
    fn kind(&self) -> &'static str {
        settings::DECLARED.kind
    }

    fn names(&self) -> Names {
        NAMES
    }

    fn open(&self, context: &Context<'_>) -> Result<Opened, AssemblyError> {
        let Context { config, metrics } = context;
        let sqs = sqs_config(config)?;
        let source = reread(config, sqs_config);
        let sink = SqsSink::new(&sqs, source, Arc::clone(metrics))?;
        Ok(Opened::without_position(sink))
    }

    fn server(&self, config: &Config) -> Option<Server> {
        let found = sqs_config(config).ok()?;
        let (address, hosts) = (found.queue.to_string(), vec![found.endpoint.host().to_owned()]);
        // Requests are signed.
        Some(Server { address, hosts, is_exposed: false })
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
