//! A batch of messages: they are handed to the worker together, and reported together.

use std::time::Instant;

use super::message::Message;
use super::state_key::Last;
use crate::ledger::Seq;
use crate::metrics::Published;
use crate::position::EventPosition;
use crate::record::Record;

/// A batch of this many messages, or bytes, is sent at once.
const MESSAGES_MAX: usize = 256;
const BYTES_MAX: usize = 64 << 10;

/// Messages in their order.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) messages: Vec<Message>,
    pub(super) bytes: usize,
    pub(super) sent: Sent,
}

/// What is known of a batch whose messages are sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) seqs: Vec<Seq>,
    /// The sequence number of its first message in the stream.
    pub(super) first: u64,
    /// Its last message.
    pub(super) last: Last,
    /// How much goes to each topic.
    pub(super) published: Vec<(String, Published)>,
    /// When its first message was produced.
    pub(super) since: Instant,
}

impl Batch {
    /// An empty batch behind the stream's message `tail`.
    pub(super) fn new(tail: u64, position: EventPosition, now: Instant) -> Self {
        let sent = Sent {
            seqs: Vec::new(),
            first: tail + 1,
            last: Last { seq: tail, position },
            published: Vec::new(),
            since: now,
        };
        Self { messages: Vec::new(), bytes: 0, sent }
    }

    /// Adds the message of a record.
    pub(super) fn push(&mut self, message: Message, position: EventPosition, record: &Record<'_>) {
        let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        self.sent.count(record.topic, bytes as u64);
        self.bytes += message.bytes;
        self.sent.seqs.push(message.seq);
        self.sent.last = Last { seq: self.sent.last.seq + 1, position };
        self.messages.push(message);
    }

    /// Whether it is sent without waiting for more.
    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }
}

impl Sent {
    /// Most records of a topic follow one another.
    fn count(&mut self, topic: &str, bytes: u64) {
        let known = self.published.iter().rposition(|(name, _)| name == topic);
        let at = known.unwrap_or_else(|| {
            self.published.push((topic.to_owned(), Published::default()));
            self.published.len() - 1
        });
        let (_, counted) = &mut self.published[at];
        counted.events += 1;
        counted.bytes += bytes;
    }
}
