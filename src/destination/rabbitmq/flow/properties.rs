//! Order of each key, and bounds, with a broker that refuses, returns and leaves unanswered what it
//! likes. Messages are so large that few of them fill the window.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::tests::message;
use super::*;
use crate::property;

const BYTES: usize = 1 << 19;

/// How many of them may be unconfirmed, in all and of a routing key.
const ALL: usize = (16 << 20) / BYTES;
const SHARE: usize = ALL / 2;

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The next messages, of this key and those behind it; `None`: without a key.
    Offer {
        key: Option<u8>,
        routing_key: u8,
        count: u8,
    },
    /// The connection takes some of what may be sent.
    Send {
        count: u8,
    },
    /// The broker answers one of those that it answers, or all before it too.
    Answer {
        choice: usize,
        multiple: bool,
        answer: Answer,
    },
    /// The queue of a routing key answers no more, or again.
    Hang {
        routing_key: u8,
        hangs: bool,
    },
    Retry,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Accept,
    Refuse,
    Return,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let answer = prop_oneof![
        6 => Just(Answer::Accept),
        4 => Just(Answer::Refuse),
        1 => Just(Answer::Return),
    ];
    let step = prop_oneof![
        3 => (prop::option::weighted(0.7, 0..12_u8), 0..6_u8, 1..30_u8)
            .prop_map(|(key, routing_key, count)| Step::Offer { key, routing_key, count }),
        3 => (1..50_u8).prop_map(|count| Step::Send { count }),
        6 => (any::<usize>(), any::<bool>(), answer)
            .prop_map(|(choice, multiple, answer)| Step::Answer { choice, multiple, answer }),
        1 => (0..6_u8, any::<bool>())
            .prop_map(|(routing_key, hangs)| Step::Hang { routing_key, hangs }),
        2 => Just(Step::Retry),
    ];
    prop::collection::vec(step, 1..120)
}

/// The flow, and what the broker knows.
#[derive(Debug)]
struct Model {
    flow: Flow,
    now: Instant,
    offered: u64,
    /// The tags that are not answered yet, with their routing keys.
    open: BTreeMap<u64, String>,
    hung: BTreeSet<String>,
    /// Numbers of stored messages, and those of each key in the order in which they were stored.
    stored: BTreeSet<u64>,
    of_key: BTreeMap<u64, Vec<u64>>,
    closed: BTreeSet<u64>,
    lost: BTreeSet<u64>,
}

impl Model {
    fn step(&mut self, step: Step) {
        match step {
            Step::Offer { key, routing_key, count } => {
                for at in 0..count {
                    self.offered += 1;
                    let key = key.map(|key| format!("{}", key + at % 3)).unwrap_or_default();
                    let routing_key = routing_key.to_string().as_str().into();
                    let frames = vec![0; BYTES];
                    self.flow.offer(Message { frames, routing_key, ..message(self.offered, &key) });
                }
            }
            Step::Send { count } => self.send(count.into()),
            Step::Answer { choice, multiple, answer } => self.answer(choice, multiple, answer),
            Step::Hang { routing_key, hangs } => {
                let routing_key = routing_key.to_string();
                if hangs {
                    self.hung.insert(routing_key);
                } else {
                    self.hung.remove(&routing_key);
                }
            }
            Step::Retry => self.retry(),
        }
    }

    fn retry(&mut self) {
        for _ in 0..10 {
            self.now += Duration::from_millis(500);
            self.flow.retry(self.now);
        }
    }

    fn send(&mut self, count: usize) {
        for _ in 0..count {
            if self.flow.send(Instant::now()).is_none() {
                return;
            }
            let (tag, sent) = self.flow.unconfirmed.last_key_value().expect("it is unconfirmed");
            self.open.insert(*tag, sent.message.routing_key.to_string());
        }
    }

    fn answer(&mut self, choice: usize, multiple: bool, answer: Answer) {
        let answered = |(_, routing_key): &(&u64, &String)| !self.hung.contains(*routing_key);
        let tags: Vec<u64> = if multiple {
            self.open.iter().take_while(answered).map(|(tag, _)| *tag).collect()
        } else {
            self.open.iter().filter(answered).map(|(tag, _)| *tag).collect()
        };
        let Some(tag) = tags.get(choice % tags.len().max(1)).copied() else { return };
        if let Answer::Return = answer {
            let position = self.flow.unconfirmed[&tag].message.position;
            assert!(self.flow.returned(position, "NO_ROUTE".to_owned()));
        }
        self.open.retain(|open, _| if multiple { *open > tag } else { *open != tag });
        let is_accepted = !matches!(answer, Answer::Refuse);
        for one in self.flow.confirmed(tag, multiple, is_accepted) {
            match one {
                Confirmed::Stored(message) => {
                    assert!(self.stored.insert(message.seq.as_u64()), "stored twice");
                    self.of_key.entry(message.order).or_default().push(message.seq.as_u64());
                    self.flow.release(&message, self.now);
                }
                Confirmed::Refused(message) => self.flow.put_back(message, self.now),
                Confirmed::Returned(message, _) => {
                    self.closed.insert(message.order);
                    self.lost.insert(message.seq.as_u64());
                    self.flow.close(&message, self.now);
                }
            }
        }
    }

    fn check_bounds(&self) {
        assert!(self.flow.unconfirmed.len() <= ALL);
        let mut of_routing_key = BTreeMap::<&str, usize>::new();
        let mut keys = BTreeSet::new();
        for sent in self.flow.unconfirmed.values() {
            *of_routing_key.entry(&sent.message.routing_key).or_default() += 1;
            assert!(keys.insert(sent.message.order), "two of a key are unconfirmed");
        }
        assert!(of_routing_key.values().all(|count| *count <= SHARE), "{of_routing_key:?}");
    }

    /// The broker accepts everything from here on.
    fn drain(&mut self) {
        self.hung.clear();
        for _ in 0..10_000 {
            self.send(usize::MAX);
            if self.open.is_empty() && !self.flow.is_retrying() {
                return;
            }
            self.retry();
            self.answer(0, false, Answer::Accept);
        }
        panic!("something is never sent");
    }

    fn check_end(&self) {
        assert!(self.flow.window.is_unused());
        assert_eq!(self.flow.waiting.keys(), self.closed.len(), "what is over is forgotten");
        for (key, numbers) in &self.of_key {
            assert!(numbers.is_sorted(), "{key:?}: {numbers:?}");
        }
        // What is behind a message without a queue is produced again.
        if self.closed.is_empty() {
            assert_eq!((self.stored.len() + self.lost.len()) as u64, self.offered);
        }
    }
}

#[test]
fn every_message_is_stored_in_the_order_of_its_key_and_within_bounds() {
    let name = "every_message_is_stored_in_the_order_of_its_key_and_within_bounds";
    property::holds(name, 100, &steps(), |steps| {
        let mut model = Model {
            flow: Flow::default(),
            now: Instant::now(),
            offered: 0,
            open: BTreeMap::new(),
            hung: BTreeSet::new(),
            stored: BTreeSet::new(),
            of_key: BTreeMap::new(),
            closed: BTreeSet::new(),
            lost: BTreeSet::new(),
        };
        for step in steps {
            model.step(step);
            model.check_bounds();
        }
        model.drain();
        model.check_end();
    });
}
