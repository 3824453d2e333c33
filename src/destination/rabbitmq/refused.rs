//! The messages that the broker has refused, and which of them is sent again first. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::message::Message;
use super::window::{Load, Part};

/// Which message is sent again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Choice<'a> {
    /// The oldest one of the routing key whose turn it is.
    InTurn,
    Oldest,
    /// The oldest one of this routing key.
    Of(&'a str),
}

/// Messages that were refused, and are not stored yet.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Those that wait, by their age.
    waiting: BTreeMap<u64, Message>,
    next: u64,
    /// The ages of each routing key.
    ages: HashMap<Arc<str>, VecDeque<u64>>,
    /// Each of these routing keys once.
    turns: VecDeque<Arc<str>>,
    /// Those that are sent again, and are not answered.
    again: Load,
    /// Of each routing key.
    again_of: HashMap<Arc<str>, Load>,
}

impl Refused {
    /// How many wait to be sent again.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.again.messages == 0
    }

    /// The broker refuses this message, perhaps again.
    pub(super) fn push(&mut self, mut message: Message) {
        self.answered(&message);
        message.is_retried = true;
        if let Some(ages) = self.ages.get_mut(&message.routing_key) {
            ages.push_back(self.next);
        } else {
            self.turns.push_back(Arc::clone(&message.routing_key));
            self.ages.insert(Arc::clone(&message.routing_key), VecDeque::from([self.next]));
        }
        self.waiting.insert(self.next, message);
        self.next += 1;
    }

    /// The message to send again; without one of that choice it is of another routing key. `None`: enough
    /// of them are not answered yet. That may stay so, and must not hold up the others.
    pub(super) fn send(&mut self, choice: Choice<'_>) -> Option<Message> {
        if self.again.is(Part::Half) {
            return None;
        }
        let chosen = match choice {
            Choice::Of(routing_key) if self.may_send(routing_key) => self.pop_of(routing_key),
            Choice::Oldest => self.pop_oldest(),
            Choice::Of(_) | Choice::InTurn => None,
        };
        let message = chosen.or_else(|| self.pop_in_turn())?;
        self.again.add(&message);
        self.again_of.entry(Arc::clone(&message.routing_key)).or_default().add(&message);
        Some(message)
    }

    /// The broker has answered a message; whether it was sent again.
    pub(super) fn answered(&mut self, message: &Message) -> bool {
        if message.is_retried {
            self.again.remove(message);
            if let Some(load) = self.again_of.get_mut(&message.routing_key) {
                load.remove(message);
                if load.messages == 0 {
                    self.again_of.remove(&message.routing_key);
                }
            }
        }
        message.is_retried
    }

    fn may_send(&self, routing_key: &str) -> bool {
        self.again_of.get(routing_key).is_none_or(|load| !load.is(Part::Eighth))
    }

    fn pop_in_turn(&mut self) -> Option<Message> {
        for _ in 0..self.turns.len() {
            let routing_key = self.turns.pop_front()?;
            let may_send = self.may_send(&routing_key);
            if may_send && let Some(message) = self.pop_of(&routing_key) {
                self.turns.push_back(routing_key);
                return Some(message);
            }
            if may_send {
                self.ages.remove(&routing_key);
            } else {
                self.turns.push_back(routing_key);
            }
        }
        None
    }

    fn pop_of(&mut self, routing_key: &str) -> Option<Message> {
        let age = self.ages.get_mut(routing_key)?.pop_front()?;
        self.waiting.remove(&age)
    }

    /// The oldest one of all, which is the oldest one of its routing key too.
    fn pop_oldest(&mut self) -> Option<Message> {
        let (_, oldest) = self.waiting.first_key_value()?;
        let routing_key =
            self.may_send(&oldest.routing_key).then(|| Arc::clone(&oldest.routing_key))?;
        self.pop_of(&routing_key)
    }
}
