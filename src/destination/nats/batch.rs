//! A batch of messages: they are handed to the worker together, and reported together.

use std::time::Instant;

use super::message::Message;
use super::state_key::Last;
use crate::destination::parts::link::Tally;
use crate::position::EventPosition;
use crate::record::Record;

/// A batch of this many messages, or bytes, is sent at once.
const MESSAGES_MAX: usize = 256;
const BYTES_MAX: usize = 64 << 10;

/// Messages in their order.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(super) messages: Vec<Message>,
    pub(super) bytes: usize,
    pub(super) sent: Sent,
}

/// What is known of a batch whose messages are sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(super) tally: Tally,
    /// The sequence number of its first message in the stream, if that is stored.
    pub(super) first: u64,
    /// The last message.
    pub(super) last: Last,
    /// Whether its message only asks: it expects another end of the stream, and is not stored.
    pub(super) only_asks: bool,
}

impl Batch {
    /// An empty batch behind the stream's message `tail`.
    pub(super) fn new(tail: u64, position: EventPosition, now: Instant) -> Self {
        let last = Last { seq: tail, position };
        let sent = Sent { tally: Tally::new(now), first: tail + 1, last, only_asks: false };
        Self { messages: Vec::new(), bytes: 0, sent }
    }

    /// Adds the message of a record.
    pub(super) fn push(&mut self, message: Message, position: EventPosition, record: &Record<'_>) {
        let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        self.sent.tally.add(message.seq, record.topic, bytes);
        self.bytes += message.bytes;
        self.sent.last = Last { seq: self.sent.last.seq + 1, position };
        self.messages.push(message);
    }

    /// Whether it is sent without waiting for more.
    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }
}
