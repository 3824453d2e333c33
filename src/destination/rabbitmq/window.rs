//! How much may be unconfirmed at a time: in all, and of each routing key. Pure.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::message::Message;

/// How many messages, and bytes of them, are sent before the first of them is confirmed. A routing key
/// has half of that: it may lead to another queue than the others, and a queue that answers no more must
/// not hold up the others.
pub(super) const MESSAGES_MAX: usize = 4096;
const BYTES_MAX: usize = 16 << 20;

/// Some messages.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Load {
    pub(super) messages: usize,
    bytes: usize,
}

impl Load {
    pub(super) fn add(&mut self, message: &Message) {
        self.messages += 1;
        self.bytes += message.frames.len();
    }

    pub(super) fn remove(&mut self, message: &Message) {
        self.messages -= 1;
        self.bytes -= message.frames.len();
    }

    /// Whether they are this part of the window, or more.
    pub(super) fn is(self, part: Part) -> bool {
        self.messages >= MESSAGES_MAX / part as usize || self.bytes >= BYTES_MAX / part as usize
    }
}

/// A part of the window.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Whole = 1,
    Half = 2,
    Eighth = 8,
}

/// The messages that may be sent, or are unconfirmed.
#[derive(Debug, Default)]
pub(super) struct Window {
    unconfirmed: Load,
    by_routing_key: HashMap<Arc<str>, Share>,
    /// Messages that their routing key has room for, to be sent in this order.
    next: VecDeque<Message>,
}

/// The messages of a routing key.
#[derive(Debug, Default)]
struct Share {
    /// What is unconfirmed, or next.
    load: Load,
    /// What waits until that is less than half of the window.
    waiting: VecDeque<Message>,
    /// Messages of the key that the broker has refused before: later ones may fill the window for
    /// hours.
    first: VecDeque<Message>,
}

impl Share {
    /// The next one, if it may be sent.
    fn admit(&mut self) -> Option<Message> {
        if self.load.is(Part::Half) {
            return None;
        }
        let message = self.first.pop_front().or_else(|| self.waiting.pop_front())?;
        self.load.add(&message);
        Some(message)
    }
}

impl Window {
    /// Whether nothing more may be sent now.
    pub(super) fn is_full(&self) -> bool {
        self.unconfirmed.is(Part::Whole)
    }

    /// Takes a message, to be sent as soon as there is room for its routing key.
    pub(super) fn offer(&mut self, message: Message) {
        let share = self.by_routing_key.entry(Arc::clone(&message.routing_key)).or_default();
        let queue = if message.is_retried { &mut share.first } else { &mut share.waiting };
        queue.push_back(message);
        self.next.extend(share.admit());
    }

    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.unconfirmed.messages == 0 && self.by_routing_key.is_empty() && self.next.is_empty()
    }

    /// The message to send next, which is unconfirmed from here on.
    pub(super) fn send(&mut self) -> Option<Message> {
        let message = self.next.pop_front()?;
        self.unconfirmed.add(&message);
        Some(message)
    }

    /// Removes a confirmed message: others of its routing key may be sent.
    pub(super) fn confirmed(&mut self, message: &Message) {
        self.unconfirmed.remove(message);
        let Some(share) = self.by_routing_key.get_mut(&message.routing_key) else { return };
        share.load.remove(message);
        self.next.extend(std::iter::from_fn(|| share.admit()));
        if share.load.messages == 0 {
            self.by_routing_key.remove(&message.routing_key);
        }
    }
}
