//! Which of the events that wait may be sent: at most one of each key is under way, others pass. Pure.
//!
//! An event that is sent while one of the same key before it may still fail could arrive before that one. So
//! the next event of a key waits for the outcome, and keys do not wait for each other. Keys are numbers
//! ([`super::attempts::order`]): two of the same number share their order, which does no harm.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

/// The events that are not sent yet, and the keys of those that are under way.
#[derive(Debug)]
pub(crate) struct Keyed<T> {
    keys: HashMap<u64, Waiting<T>>,
    /// The keys whose first event may be sent.
    ready: VecDeque<u64>,
    /// The keys whose first event may be sent from that time on.
    delayed: BTreeSet<(Instant, u64)>,
}

/// The events of a key that are not under way.
#[derive(Debug)]
struct Waiting<T> {
    events: VecDeque<T>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The key is ready, or delayed.
    Listed,
    /// One of its events is under way.
    UnderWay,
    /// Nothing of it is sent any more: all of it is produced again.
    Closed,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { events: VecDeque::new(), state: State::Listed }
    }
}

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Self { keys: HashMap::new(), ready: VecDeque::new(), delayed: BTreeSet::new() }
    }
}

impl<T> Keyed<T> {
    /// Adds an event behind those of its key.
    pub(crate) fn push(&mut self, key: u64, event: T) {
        match self.keys.get_mut(&key) {
            Some(Waiting { state: State::Closed, .. }) => {}
            Some(waiting) => waiting.events.push_back(event),
            None => {
                let events = VecDeque::from([event]);
                self.keys.insert(key, Waiting { events, state: State::Listed });
                self.ready.push_back(key);
            }
        }
    }

    /// The event that [`Keyed::next`] takes.
    pub(crate) fn peek(&self, now: Instant) -> Option<&T> {
        let key = self.due(now).or_else(|| self.ready.front().copied())?;
        self.keys.get(&key)?.events.front()
    }

    /// The next event that may be sent. It is under way until [`Keyed::done`], [`Keyed::close`],
    /// [`Keyed::again`] or [`Keyed::again_at`].
    pub(crate) fn next(&mut self, now: Instant) -> Option<T> {
        // What was delayed is older than what became ready meanwhile, and tells whether such events are taken
        // again.
        let key = if self.due(now).is_some() {
            self.delayed.pop_first().map(|(_, key)| key)
        } else {
            self.ready.pop_front()
        };
        let waiting = self.keys.get_mut(&key?)?;
        waiting.state = State::UnderWay;
        waiting.events.pop_front()
    }

    /// The key that was to be sent again first, if that is by now.
    fn due(&self, now: Instant) -> Option<u64> {
        self.delayed.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    /// The event of this key that was under way is delivered, or given up: the next one may be sent.
    pub(crate) fn done(&mut self, key: u64) {
        let Some(waiting) = self.keys.get_mut(&key) else { return };
        if waiting.events.is_empty() {
            self.keys.remove(&key);
        } else if waiting.state == State::UnderWay {
            waiting.state = State::Listed;
            self.ready.push_back(key);
        }
    }

    /// The destination refuses the event that was under way: nothing more of its key is sent until
    /// [`Keyed::give_up`].
    pub(crate) fn close(&mut self, key: u64) {
        if let Some(waiting) = self.keys.get_mut(&key) {
            waiting.state = State::Closed;
            waiting.events.clear();
        }
    }

    /// The event that was under way is sent again, before all others.
    pub(crate) fn again(&mut self, key: u64, event: T) {
        self.put_back(key, event);
        self.ready.push_front(key);
    }

    /// The event that was under way is sent again from that time on.
    pub(crate) fn again_at(&mut self, at: Instant, key: u64, event: T) {
        self.put_back(key, event);
        self.delayed.insert((at, key));
    }

    fn put_back(&mut self, key: u64, event: T) {
        let waiting = self.keys.entry(key).or_default();
        waiting.events.push_front(event);
        waiting.state = State::Listed;
    }

    /// When the next event may be sent of those that may not be sent yet.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.delayed.range((now, u64::MAX)..).next().map(|(at, _)| *at)
    }

    /// How many events are delayed.
    pub(crate) fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// How many keys are known.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Gives up everything that is not under way: it is produced again. What is under way still keeps the
    /// next event of its key back.
    pub(crate) fn give_up(&mut self) {
        self.keys.retain(|_, waiting| {
            waiting.events.clear();
            waiting.state == State::UnderWay
        });
        self.ready.clear();
        self.delayed.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::property;

    /// An event: its key, and its number, which rises.
    type Event = (u64, u64);

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Push { key: u64, count: u8 },
        Send { count: u8 },
        Answer { choice: usize, answer: Answer },
        Wait { seconds: u8 },
        Replace,
    }

    #[derive(Debug, Clone, Copy)]
    enum Answer {
        Deliver,
        Refuse,
        Again,
        Later { seconds: u8 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let answer = prop_oneof![
            5 => Just(Answer::Deliver),
            1 => Just(Answer::Refuse),
            2 => Just(Answer::Again),
            3 => (0..20_u8).prop_map(|seconds| Answer::Later { seconds }),
        ];
        let step = prop_oneof![
            3 => (0..6_u64, 1..5_u8).prop_map(|(key, count)| Step::Push { key, count }),
            3 => (1..5_u8).prop_map(|count| Step::Send { count }),
            5 => (any::<usize>(), answer).prop_map(|(choice, answer)| Step::Answer { choice, answer }),
            2 => (1..20_u8).prop_map(|seconds| Step::Wait { seconds }),
            1 => Just(Step::Replace),
        ];
        prop::collection::vec(step, 1..100)
    }

    /// The events that wait, and what the destination knows.
    struct Model {
        keyed: Keyed<Event>,
        now: Instant,
        pushed: u64,
        /// The items that are to be delivered, with those in flight, by key.
        expected: BTreeMap<u64, Vec<u64>>,
        /// Whether each that is under way was pushed since the last replacement.
        under_way: Vec<(Event, bool)>,
        closed: Vec<u64>,
    }

    impl Model {
        fn new() -> Self {
            let (keyed, expected) = (Keyed::default(), BTreeMap::new());
            let (under_way, closed) = (Vec::new(), Vec::new());
            Self { keyed, now: Instant::now(), pushed: 0, expected, under_way, closed }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Push { key, count } => {
                    for _ in 0..count {
                        self.pushed += 1;
                        self.keyed.push(key, (key, self.pushed));
                        if !self.closed.contains(&key) {
                            self.expected.entry(key).or_default().push(self.pushed);
                        }
                    }
                }
                Step::Send { count } => {
                    for _ in 0..count {
                        self.send();
                    }
                }
                Step::Answer { choice, answer } => self.answer(choice, answer),
                Step::Wait { seconds } => self.now += Duration::from_secs(seconds.into()),
                Step::Replace => {
                    self.keyed.give_up();
                    self.closed.clear();
                    self.expected.clear();
                    self.under_way.iter_mut().for_each(|(_, is_current)| *is_current = false);
                }
            }
        }

        fn send(&mut self) -> bool {
            let peeked = self.keyed.peek(self.now).copied();
            let Some(event) = self.keyed.next(self.now) else {
                assert_eq!(peeked, None);
                return false;
            };
            assert_eq!(peeked, Some(event));
            assert!(self.under_way.iter().all(|((key, _), _)| *key != event.0), "two of a key");
            let first = self.expected.get(&event.0).and_then(|numbers| numbers.first());
            assert_eq!(first, Some(&event.1), "out of order");
            self.under_way.push((event, true));
            true
        }

        fn answer(&mut self, choice: usize, answer: Answer) {
            if self.under_way.is_empty() {
                return;
            }
            let choice = choice % self.under_way.len();
            let (event, is_current) = self.under_way.swap_remove(choice);
            let key = event.0;
            match answer {
                _ if !is_current => self.keyed.done(key),
                Answer::Deliver => {
                    self.expected.entry(key).or_default().remove(0);
                    self.keyed.done(key);
                }
                Answer::Refuse => {
                    self.expected.remove(&key);
                    self.closed.push(key);
                    self.keyed.close(key);
                }
                Answer::Again => self.keyed.again(key, event),
                Answer::Later { seconds } => {
                    let at = self.now + Duration::from_secs(seconds.into());
                    self.keyed.again_at(at, key, event);
                }
            }
        }

        /// The destination takes everything from here on.
        fn drain(&mut self) {
            for _ in 0..10_000 {
                self.now = self.keyed.next_due(self.now).unwrap_or(self.now);
                while self.send() {}
                if self.under_way.is_empty() {
                    break;
                }
                self.answer(0, Answer::Deliver);
            }
            assert!(self.expected.values().all(Vec::is_empty), "{:?}", self.expected);
            assert_eq!(self.keyed.keys(), self.closed.len(), "what is over is forgotten");
        }
    }

    #[test]
    fn every_event_is_sent_in_the_order_of_its_key_and_alone_of_it() {
        let name = "every_event_is_sent_in_the_order_of_its_key_and_alone_of_it";
        property::holds(name, 200, &steps(), |steps| {
            let mut model = Model::new();
            for step in steps {
                model.step(step);
            }
            model.drain();
        });
    }

    #[test]
    fn failing_key_holds_up_no_other() {
        let (mut keyed, now) = (Keyed::default(), Instant::now());
        for number in 0..6 {
            keyed.push(number % 2, number);
        }
        assert_eq!([keyed.next(now), keyed.next(now), keyed.next(now)], [Some(0), Some(1), None]);
        let later = now + Duration::from_secs(1);
        keyed.again_at(later, 0, 0);
        keyed.done(1);
        assert_eq!([keyed.next(now), keyed.next(now)], [Some(3), None]);
        assert_eq!((keyed.delayed(), keyed.next_due(now)), (1, Some(later)));
        keyed.again_at(later + Duration::from_secs(1), 1, 3);
        keyed.push(2, 6);
        // Those that have waited, the one that has waited longer first.
        let much_later = later + Duration::from_secs(2);
        let all = std::iter::from_fn(|| keyed.next(much_later));
        assert_eq!(all.collect::<Vec<_>>(), [0, 3, 6]);
    }

    #[test]
    fn event_of_a_replaced_producer_keeps_its_key_back() {
        let (mut keyed, now) = (Keyed::default(), Instant::now());
        keyed.push(1, 1);
        assert_eq!(keyed.next(now), Some(1));
        keyed.give_up();
        keyed.push(1, 2);
        assert_eq!(keyed.next(now), None);
        keyed.done(1);
        assert_eq!(keyed.next(now), Some(2));
    }
}
