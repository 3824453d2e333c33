//! The messages that the broker has refused, and when each is sent again. Pure.
//!
//! A routing key may lead to a queue that has no room while others have. So each has its own backoff while
//! its messages are refused, and one that is accepted makes others follow. Not all are sent again
//! at once: if one of the queues that take a message is full, the others get it once more each time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::ExponentialBackoff;

use super::message::Message;
use super::window::{Load, Part};
use crate::destination::parts::delays::delays;

/// Minimum and maximum delay before the next message of a routing key is sent again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Minimum and maximum time between two of them, of all routing keys: it is doubled by each that is refused
/// again.
const PACES: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(125)];

/// How many of a routing key are sent again in their time before one of them is answered: its queue may answer
/// no more.
const UNANSWERED_MAX: usize = 16;

/// How many follow one that is accepted: twice as many with each round trip.
const FOLLOW: usize = 2;

/// Messages that were refused, and are not stored yet.
#[derive(Debug)]
pub(super) struct Refused {
    by_routing_key: HashMap<Arc<str>, Waiting>,
    /// When the next message of each is sent.
    due: BTreeSet<(Instant, Arc<str>)>,
    /// When the last one was sent again in its time.
    last: Option<Instant>,
    pace: Duration,
    /// Messages that are sent again without an answer so far. They must not hold up the others.
    again: Load,
}

/// The messages of a routing key.
#[derive(Debug)]
struct Waiting {
    messages: VecDeque<Message>,
    /// Messages that are sent again without an answer so far.
    again: Load,
    delays: ExponentialBackoff,
    due: Option<Instant>,
}

impl Default for Refused {
    fn default() -> Self {
        Self {
            by_routing_key: HashMap::new(),
            due: BTreeSet::new(),
            last: None,
            pace: PACES[0],
            again: Load::default(),
        }
    }
}

impl Refused {
    pub(super) fn is_empty(&self) -> bool {
        self.by_routing_key.is_empty()
    }

    /// The broker refuses this message, perhaps again. It waits behind the others of its routing key.
    pub(super) fn push(&mut self, mut message: Message, now: Instant) {
        let routing_key = Arc::clone(&message.routing_key);
        let waiting = self.by_routing_key.entry(Arc::clone(&routing_key)).or_insert_with(|| {
            let (messages, delays) = (VecDeque::new(), delays(RETRY_DELAYS));
            Waiting { messages, again: Load::default(), delays, due: None }
        });
        if std::mem::replace(&mut message.is_retried, true) {
            waiting.again.remove(&message);
            self.again.remove(&message);
            self.pace = (self.pace * 2).min(PACES[1]);
        }
        waiting.messages.push_back(message);
        self.schedule(&routing_key, now);
    }

    /// When the next message is sent again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let (at, _) = self.due.first().filter(|_| !self.again.is(Part::Half))?;
        Some(self.last.map_or(*at, |last| (last + self.pace).max(*at)))
    }

    /// A message that is to be sent again by now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Message> {
        self.next_due().filter(|due| *due <= now)?;
        self.last = Some(now);
        self.next_in_turn(now)
    }

    /// The first message of the routing key that is due first.
    fn next_in_turn(&mut self, now: Instant) -> Option<Message> {
        let (_, routing_key) = self.due.pop_first()?;
        let waiting = self.by_routing_key.get_mut(&routing_key)?;
        waiting.due = None;
        let message = waiting.messages.pop_front()?;
        waiting.again.add(&message);
        self.again.add(&message);
        // Whether or not this one is answered.
        self.schedule(&routing_key, now);
        Some(message)
    }

    /// The broker has accepted, or returned, a message. If it was refused before, others may be accepted too:
    /// those that are to be sent again at once, of its routing key first.
    pub(super) fn answered(&mut self, message: &Message, now: Instant) -> Vec<Message> {
        let mut follow = Vec::new();
        if !message.is_retried {
            return follow;
        }
        self.again.remove(message);
        self.pace = PACES[0];
        let routing_key = &message.routing_key;
        if let Some(waiting) = self.by_routing_key.get_mut(routing_key) {
            waiting.again.remove(message);
            waiting.delays = delays(RETRY_DELAYS);
            while follow.len() < FOLLOW
                && !self.again.is(Part::Half)
                && !waiting.again.is(Part::Eighth)
                && let Some(next) = waiting.messages.pop_front()
            {
                waiting.again.add(&next);
                self.again.add(&next);
                follow.push(next);
            }
            if let Some(at) = waiting.due.take_if(|_| waiting.messages.is_empty()) {
                self.due.remove(&(at, Arc::clone(routing_key)));
            }
            if waiting.messages.is_empty() && waiting.again.messages == 0 {
                self.by_routing_key.remove(routing_key);
            } else {
                self.schedule(routing_key, now);
            }
        }
        while follow.len() < FOLLOW
            && !self.again.is(Part::Half)
            && let Some(next) = self.next_in_turn(now)
        {
            follow.push(next);
        }
        follow
    }

    /// The next message of the routing key has its time, unless it has one already.
    fn schedule(&mut self, routing_key: &Arc<str>, now: Instant) {
        let Some(waiting) = self.by_routing_key.get_mut(routing_key) else { return };
        let is_answering = waiting.again.messages < UNANSWERED_MAX;
        if waiting.due.is_some() || waiting.messages.is_empty() || !is_answering {
            return;
        }
        let at = now + waiting.delays.next().unwrap_or(RETRY_DELAYS[1]);
        waiting.due = Some(at);
        self.due.insert((at, Arc::clone(routing_key)));
    }
}
