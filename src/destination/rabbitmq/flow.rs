//! Which messages of a connection may be sent now: at most one of a key is unconfirmed. Pure.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::message::Message;
use super::refused::{Choice, Refused};
use super::window::Window;
use crate::position::EventPosition;

/// How many messages that the broker has refused are sent again at once: half of them by their routing
/// keys, which have their turns since each may lead to another queue, and half by their age.
const RETRIED_AT_ONCE: usize = 16;

/// If they are many, so many are sent again at once that all are within twice this time: a routing key may
/// lead to several queues.
const RETRIED_WITHIN: Duration = Duration::from_secs(512);

/// What became of a message.
#[derive(Debug)]
pub(super) enum Confirmed {
    /// A queue has it.
    Stored(Message),
    /// No queue takes it, for this reason of the broker's.
    Returned(Message, String),
    /// The broker refuses it for now.
    Refused(Message),
}

/// How many of the messages that were sent again the broker has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    None,
    /// Fewer: one of several queues may have room.
    Some,
    /// As many, or more.
    All,
}

/// The messages that were given to a connection.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The delivery tag of the last message that was sent: the broker counts them from 1.
    tag: u64,
    unconfirmed: BTreeMap<u64, Sent>,
    window: Window,
    /// The keys of which a message is on its way, and what waits for that.
    keys: HashMap<Vec<u8>, Held>,
    ready: VecDeque<Message>,
    /// Those that the broker has refused.
    refused: Refused,
    /// How many [`Flow::retry`] has sent again, and how many were accepted since then.
    tried: usize,
    accepted: usize,
}

#[derive(Debug)]
struct Sent {
    message: Message,
    at: Instant,
    returned: Option<String>,
}

/// What waits behind a message of the same key.
#[derive(Debug)]
enum Held {
    Behind(VecDeque<Message>),
    /// Nothing of the key is sent any more over this connection.
    Closed,
}

impl Flow {
    /// Takes a message, to be sent in its turn.
    pub(super) fn offer(&mut self, message: Message) {
        let Some(key) = message.key.clone() else { return self.ready.push_back(message) };
        match self.keys.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Held::Behind(VecDeque::new()));
                self.ready.push_back(message);
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Held::Behind(waiting) => waiting.push_back(message),
                // It is produced again.
                Held::Closed => {}
            },
        }
    }

    /// The frames of the next message that may be sent. It is unconfirmed from here on.
    pub(super) fn send(&mut self, now: Instant) -> Option<&[u8]> {
        if self.window.is_full() {
            return None;
        }
        let message = loop {
            match self.window.send() {
                Some(message) => break message,
                None => self.window.offer(self.ready.pop_front()?),
            }
        };
        self.tag += 1;
        let sent = Sent { message, at: now, returned: None };
        Some(&self.unconfirmed.entry(self.tag).or_insert(sent).message.frames)
    }

    /// The broker returns the message of this position: no queue takes it. Its confirmation follows.
    /// Whether there is such a message.
    pub(super) fn returned(&mut self, position: EventPosition, reason: String) -> bool {
        let mut sent = self.unconfirmed.values_mut();
        let found = sent.find(|sent| sent.message.position == position);
        found.map(|sent| sent.returned = Some(reason)).is_some()
    }

    /// The broker confirms, or refuses, this message, and with `multiple` all before it too.
    pub(super) fn confirmed(&mut self, tag: u64, multiple: bool, accepted: bool) -> Vec<Confirmed> {
        let found = if multiple {
            // 0 means all that were sent.
            let behind = if tag == 0 { self.tag } else { tag }.saturating_add(1);
            let rest = self.unconfirmed.split_off(&behind);
            std::mem::replace(&mut self.unconfirmed, rest).into_values().collect()
        } else {
            self.unconfirmed.remove(&tag).into_iter().collect::<Vec<_>>()
        };
        let became = found.into_iter().map(|Sent { message, returned, .. }| {
            self.window.confirmed(&message);
            match (returned, accepted) {
                (Some(reason), _) => Confirmed::Returned(message, reason),
                (None, true) => Confirmed::Stored(message),
                (None, false) => Confirmed::Refused(message),
            }
        });
        became.collect()
    }

    /// Lets the next message of the same key be sent.
    pub(super) fn release(&mut self, message: &Message) {
        self.no_longer_refused(message);
        let Some(key) = &message.key else { return };
        if let Some(Held::Behind(waiting)) = self.keys.get_mut(key) {
            match waiting.pop_front() {
                Some(next) => self.ready.push_back(next),
                None => {
                    self.keys.remove(key);
                }
            }
        }
    }

    /// Nothing of the same key is sent any more: everything behind it is produced again.
    pub(super) fn close(&mut self, message: &Message) {
        self.no_longer_refused(message);
        if let Some(held) = message.key.as_ref().and_then(|key| self.keys.get_mut(key)) {
            *held = Held::Closed;
        }
    }

    /// Keeps a message until [`Flow::retry`]. Its key waits.
    pub(super) fn put_back(&mut self, message: Message) {
        self.refused.push(message);
    }

    /// Some of those that were put back may be sent again. Not all: if one of the queues that take a
    /// message is full, the others get it once more each time. `waited`: since the last time.
    pub(super) fn retry(&mut self, waited: Duration) {
        let waiting = self.refused.waiting();
        let part = waiting * waited.as_millis() as usize / RETRIED_WITHIN.as_millis() as usize;
        let next = |number| {
            self.refused.send(if number % 2 == 0 { Choice::InTurn } else { Choice::Oldest })
        };
        let some: Vec<_> = (0..RETRIED_AT_ONCE.max(part)).map_while(next).collect();
        (self.tried, self.accepted) = (some.len(), 0);
        self.send_first(some);
    }

    /// What the broker has accepted since the last retry. Each of them makes others follow.
    pub(super) fn accepted(&self) -> Accepted {
        match self.accepted {
            0 => Accepted::None,
            accepted if accepted < self.tried => Accepted::Some,
            _ => Accepted::All,
        }
    }

    /// The broker has accepted, or returned, a message. If it was refused before, others of its routing
    /// key may be accepted too: twice as many with each round trip.
    fn no_longer_refused(&mut self, message: &Message) {
        if self.refused.answered(message) {
            self.accepted += 1;
            let next = |_| self.refused.send(Choice::Of(&message.routing_key));
            let some: Vec<_> = (0..2).map_while(next).collect();
            self.send_first(some);
        }
    }

    /// These may be sent, before everything else.
    fn send_first(&mut self, messages: Vec<Message>) {
        for message in messages.into_iter().rev() {
            self.ready.push_front(message);
        }
    }

    /// Whether messages wait for [`Flow::retry`].
    pub(super) fn has_refused(&self) -> bool {
        self.refused.waiting() > 0
    }

    /// Whether messages that the broker has refused are not stored yet.
    pub(super) fn is_retrying(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The messages that were sent and that the broker has not confirmed yet.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = &Message> {
        self.unconfirmed.values().map(|sent| &sent.message)
    }

    /// When the oldest message was sent that the broker has not confirmed yet.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.unconfirmed.first_key_value().map(|(_, sent)| sent.at)
    }
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::super::window::MESSAGES_MAX;
    use super::*;
    use crate::ledger::Seq;
    use crate::lsn::Lsn;

    pub(super) fn message(number: u64, key: &str) -> Message {
        Message {
            seq: Seq::new(number),
            position: EventPosition { commit_lsn: Lsn::new(number), ordinal: 0 },
            key: (!key.is_empty()).then(|| key.as_bytes().to_vec()),
            frames: number.to_string().into_bytes(),
            topic: "t".to_owned(),
            routing_key: "r".into(),
            bytes: 1,
            since: Instant::now(),
            is_letter: false,
            is_retried: false,
        }
    }

    fn flow(messages: &[(u64, &str)]) -> Flow {
        let mut flow = Flow::default();
        for (number, key) in messages {
            flow.offer(message(*number, key));
        }
        flow
    }

    fn sent(flow: &mut Flow) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(frames) = flow.send(Instant::now()) {
            all.push(String::from_utf8(frames.to_vec()).expect("a number"));
        }
        all
    }

    #[test]
    fn one_message_of_a_key_is_unconfirmed_and_keys_do_not_wait_for_each_other() {
        let mut flow = flow(&[(1, "a"), (2, "a"), (3, "b"), (4, ""), (5, ""), (6, "a")]);
        assert_eq!(sent(&mut flow), ["1", "3", "4", "5"]);
        // Confirmations may come in any order, and several at once.
        let became = flow.confirmed(3, true, true);
        for one in &became {
            let Confirmed::Stored(message) = one else { panic!("{one:?}") };
            flow.release(message);
        }
        assert_eq!(became.len(), 3);
        assert_eq!(sent(&mut flow), ["2"]);
        assert_eq!(flow.confirmed(4, false, true).len(), 1);
        assert!(flow.confirmed(4, false, true).is_empty(), "it is confirmed already");
        assert_eq!(flow.confirmed(0, true, true).len(), 1);
        assert_eq!(flow.oldest(), None);
    }

    #[test]
    fn refused_message_is_sent_again_and_nothing_of_its_key_passes_it() {
        let mut flow = flow(&[(1, "a"), (2, "a"), (3, "b")]);
        assert_eq!(sent(&mut flow), ["1", "3"]);
        let Some(Confirmed::Refused(one)) = flow.confirmed(1, false, false).pop() else {
            panic!("1 is refused")
        };
        flow.put_back(one);
        assert!(sent(&mut flow).is_empty() && flow.is_retrying());
        flow.retry(Duration::from_secs(2));
        assert_eq!(sent(&mut flow), ["1"]);
        assert!(flow.is_retrying());
        let Some(Confirmed::Stored(one)) = flow.confirmed(3, false, true).pop() else {
            panic!("1 is stored")
        };
        flow.release(&one);
        assert!(!flow.is_retrying());
        assert_eq!(sent(&mut flow), ["2"]);
    }

    #[test]
    fn few_refused_messages_are_sent_again_until_some_are_accepted() {
        let all: Vec<_> = (1..=100).map(|number| (number, "")).collect();
        let mut flow = flow(&all);
        assert_eq!(sent(&mut flow).len(), 100);
        let answer = |flow: &mut Flow, accepted| {
            for one in flow.confirmed(0, true, accepted) {
                match one {
                    Confirmed::Stored(message) => flow.release(&message),
                    Confirmed::Refused(message) => flow.put_back(message),
                    Confirmed::Returned(..) => panic!("none is returned"),
                }
            }
        };
        answer(&mut flow, false);
        for first in ["1", "17", "33"] {
            flow.retry(Duration::from_secs(2));
            let again = sent(&mut flow);
            assert_eq!((again.len(), again[0].as_str()), (16, first), "each has its turn");
            answer(&mut flow, false);
        }
        assert_eq!(flow.accepted(), Accepted::None);
        flow.retry(Duration::from_secs(2));
        for expected in [16, 32, 52, 0] {
            assert_eq!(sent(&mut flow).len(), expected);
            answer(&mut flow, true);
            assert_eq!(flow.accepted(), Accepted::All);
        }
        assert!(!flow.is_retrying());
    }

    /// Another routing key may lead to a queue that has room; so may the same one.
    #[test]
    fn routing_keys_do_not_wait_for_each_other_nor_for_the_number_of_the_others() {
        let mut flow = Flow::default();
        (1..=9_000).for_each(|number| flow.put_back(of(number, "many")));
        flow.put_back(of(9_001, "few"));
        flow.put_back(of(9_002, "few"));
        flow.retry(Duration::from_secs(2));
        let again = sent(&mut flow);
        assert_eq!(again.len(), 9_002 / 256);
        assert_eq!(again[..6], ["1", "2", "9001", "3", "4", "5"]);
        let became = flow.confirmed(3, false, true);
        let Some(Confirmed::Stored(accepted)) = became.first() else { panic!("{became:?}") };
        (9_003..=9_005).for_each(|number| flow.put_back(of(number, "few")));
        flow.release(accepted);
        assert_eq!(sent(&mut flow), ["9003", "9004"], "others of its own");
        assert_eq!(flow.accepted(), Accepted::Some);
        // A routing key for each message.
        let mut flow = Flow::default();
        (1..=16).for_each(|number| flow.put_back(of(number, "many")));
        (17..=5_000).for_each(|number| flow.put_back(of(number, &number.to_string())));
        flow.retry(Duration::from_millis(50));
        let again = sent(&mut flow);
        let older = again.iter().filter(|number| number.parse::<u64>().expect("a number") <= 16);
        assert_eq!((again.len(), older.count()), (RETRIED_AT_ONCE, 9), "{again:?}");
    }

    fn of(number: u64, routing_key: &str) -> Message {
        Message { routing_key: routing_key.into(), ..message(number, "") }
    }

    /// As from a quorum queue that was full, and has no majority now, with many routing keys.
    #[test]
    fn refused_messages_have_their_turns_though_others_are_not_answered() {
        let mut flow = Flow::default();
        let keys = 4 * RETRIED_AT_ONCE as u64;
        for number in 1..=8_000 {
            flow.put_back(of(number, &(number % keys).to_string()));
        }
        let (mut all, most) = (0, MESSAGES_MAX / 2);
        for round in 0..1_000 {
            flow.retry(Duration::from_millis(50));
            let again = sent(&mut flow).len();
            assert!(again == RETRIED_AT_ONCE || all == most, "{again} of round {round}");
            all += again;
        }
        assert_eq!(all, most);
        assert!(flow.has_refused());
        // Those that follow one that is accepted are not more.
        for tag in 1..=8 {
            for one in flow.confirmed(tag, false, true) {
                let Confirmed::Stored(accepted) = one else { panic!("{one:?}") };
                flow.release(&accepted);
            }
        }
        assert_eq!(sent(&mut flow).len(), 8);
        flow.offer(message(9_000, ""));
        assert_eq!(sent(&mut flow), ["9000"], "new ones are not held up");
    }

    #[test]
    fn a_routing_key_without_answers_leaves_half_of_the_window_to_the_others() {
        let half = MESSAGES_MAX as u64 / 2;
        let mut flow = Flow::default();
        (1..=2 * half).for_each(|number| flow.offer(of(number, "hangs")));
        (10_000..10_010).for_each(|number| flow.put_back(of(number, "hangs")));
        (20_000..20_100).for_each(|number| flow.put_back(of(number, "works")));
        assert_eq!(sent(&mut flow).len() as u64, half);
        // Refused ones too, the oldest of which are some of those.
        for _ in 0..7 {
            flow.retry(Duration::from_millis(50));
        }
        let again = sent(&mut flow);
        assert_eq!(again.len(), 100, "{again:?}");
        flow.offer(of(30_000, "works"));
        assert_eq!(sent(&mut flow), ["30000"]);
        // As many follow as it confirms, those first that were refused.
        assert_eq!(flow.confirmed(11, true, true).len(), 11);
        assert_eq!(sent(&mut flow)[9..], ["10009".to_owned(), (half + 1).to_string()]);
        assert_eq!(flow.confirmed(0, true, true).len() as u64, half + 101);
        assert_eq!(sent(&mut flow).len() as u64, half - 1);
        assert_eq!(flow.confirmed(0, true, true).len() as u64, half - 1);
        assert!(flow.window.is_unused());
    }

    #[test]
    fn refused_messages_of_a_routing_key_without_answers_do_not_hold_up_those_of_others() {
        let mut flow = Flow::default();
        (1..=5_000).for_each(|number| flow.put_back(of(number, "hangs")));
        for round in 0..1_000 {
            flow.put_back(of(10_000 + round, "works"));
            flow.retry(Duration::from_millis(50));
            let again = sent(&mut flow);
            let works = (10_000 + round).to_string();
            assert!(again.contains(&works), "round {round}: {again:?}");
            let tag =
                flow.unconfirmed.iter().find(|(_, sent)| &*sent.message.routing_key == "works");
            let tag = *tag.expect("it is sent").0;
            let Some(Confirmed::Stored(accepted)) = flow.confirmed(tag, false, true).pop() else {
                panic!("it is stored")
            };
            flow.release(&accepted);
        }
        assert_eq!(flow.unconfirmed.len(), MESSAGES_MAX / 8);
    }

    /// A backlog of the same routing key takes all the room that there is.
    #[test]
    fn refused_message_does_not_wait_for_the_backlog_behind_it() {
        let mut flow = Flow::default();
        (1..=10 * MESSAGES_MAX as u64).for_each(|number| flow.offer(of(number, "r")));
        assert!(!sent(&mut flow).is_empty());
        let Some(Confirmed::Refused(first)) = flow.confirmed(1, false, false).pop() else {
            panic!("it is refused")
        };
        flow.put_back(first);
        assert_eq!(sent(&mut flow).len(), 1);
        flow.retry(Duration::from_millis(50));
        assert!(sent(&mut flow).is_empty(), "the routing key has no room");
        assert_eq!(flow.confirmed(2, false, true).len(), 1);
        assert_eq!(sent(&mut flow), ["1"]);
    }

    #[test]
    fn large_messages_leave_half_of_the_window_to_other_routing_keys_too() {
        let mut flow = Flow::default();
        let large = |number| Message { frames: vec![0; 1 << 20], ..of(number, "hangs") };
        let count =
            |flow: &mut Flow| std::iter::from_fn(|| flow.send(Instant::now()).map(drop)).count();
        (1..=20).for_each(|number| flow.offer(large(number)));
        assert_eq!(count(&mut flow), 8);
        for number in 21..=40 {
            let routing_key = number.to_string().as_str().into();
            flow.put_back(Message { routing_key, ..large(number) });
        }
        flow.retry(Duration::from_millis(50));
        assert_eq!(count(&mut flow), 8, "what is sent again has half of it");
        assert!(flow.has_refused());
    }

    #[test]
    fn returned_message_is_told_from_those_confirmed_with_it_and_closes_its_key() {
        let mut flow = flow(&[(1, "a"), (2, "b"), (3, "c"), (4, "b")]);
        assert_eq!(sent(&mut flow), ["1", "2", "3"]);
        let two = EventPosition { commit_lsn: Lsn::new(2), ordinal: 0 };
        assert!(flow.returned(two, "NO_ROUTE".to_owned()));
        assert!(!flow.returned(EventPosition { ordinal: 7, ..two }, String::new()));
        let mut stored = Vec::new();
        for one in flow.confirmed(3, true, true) {
            match one {
                Confirmed::Returned(message, reason) => {
                    assert_eq!((message.seq, reason.as_str()), (Seq::new(2), "NO_ROUTE"));
                    flow.close(&message);
                }
                Confirmed::Stored(message) => stored.push(message.seq),
                Confirmed::Refused(_) => panic!("none is refused"),
            }
        }
        assert_eq!(stored, [Seq::new(1), Seq::new(3)]);
        flow.offer(message(5, "b"));
        assert!(sent(&mut flow).is_empty(), "4 and 5 would pass 2");
    }

    /// Also if later ones are confirmed meanwhile.
    #[test]
    fn message_that_is_not_confirmed_stays_the_oldest() {
        let mut flow = flow(&[(1, "a"), (2, "b"), (3, "c")]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..3 {
            assert!(flow.send(at(second)).is_some());
        }
        for (tag, oldest) in [(2, Some(0)), (1, Some(2)), (3, None)] {
            assert_eq!(flow.confirmed(tag, false, true).len(), 1);
            assert_eq!(flow.oldest(), oldest.map(at));
        }
    }

    #[test]
    fn window_bounds_what_is_unconfirmed() {
        let mut flow = Flow::default();
        let routing_keys = ["one", "two", "three"].into_iter().cycle();
        for (number, routing_key) in (1..=MESSAGES_MAX as u64 + 5).zip(routing_keys) {
            flow.offer(of(number, routing_key));
        }
        assert_eq!(sent(&mut flow).len(), MESSAGES_MAX);
        assert_eq!(flow.confirmed(3, true, true).len(), 3);
        assert_eq!(sent(&mut flow).len(), 3);
    }
}
