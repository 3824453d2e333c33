//! The messages that the broker has refused, and which of them is sent again first. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::message::Message;

/// Messages that wait to be sent again.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// By their age.
    messages: BTreeMap<u64, Message>,
    next: u64,
    /// The ages of each routing key.
    by_routing_key: HashMap<Arc<str>, VecDeque<u64>>,
    /// Each of these routing keys once.
    turns: VecDeque<Arc<str>>,
}

impl Refused {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn push(&mut self, message: Message) {
        if let Some(ages) = self.by_routing_key.get_mut(&message.routing_key) {
            ages.push_back(self.next);
        } else {
            self.turns.push_back(Arc::clone(&message.routing_key));
            let ages = VecDeque::from([self.next]);
            self.by_routing_key.insert(Arc::clone(&message.routing_key), ages);
        }
        self.messages.insert(self.next, message);
        self.next += 1;
    }

    /// The oldest one of the routing key whose turn it is, of those that `may` be sent.
    pub(super) fn pop_in_turn(&mut self, may: impl Fn(&str) -> bool) -> Option<Message> {
        for _ in 0..self.turns.len() {
            let routing_key = self.turns.pop_front()?;
            let is_open = may(&routing_key);
            if is_open && let Some(message) = self.pop_of(&routing_key) {
                self.turns.push_back(routing_key);
                return Some(message);
            }
            if is_open {
                self.by_routing_key.remove(&routing_key);
            } else {
                self.turns.push_back(routing_key);
            }
        }
        None
    }

    /// The oldest one of this routing key.
    pub(super) fn pop_of(&mut self, routing_key: &str) -> Option<Message> {
        let age = self.by_routing_key.get_mut(routing_key)?.pop_front()?;
        self.messages.remove(&age)
    }

    /// The oldest one of all, which is the oldest one of its routing key too, if that `may` be sent.
    pub(super) fn pop_oldest(&mut self, may: impl Fn(&str) -> bool) -> Option<Message> {
        let oldest = self.messages.first_entry()?;
        let message = may(&oldest.get().routing_key).then(|| oldest.remove())?;
        if let Some(ages) = self.by_routing_key.get_mut(&message.routing_key) {
            ages.pop_front();
        }
        Some(message)
    }
}
