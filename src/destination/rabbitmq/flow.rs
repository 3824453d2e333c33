//! Which messages of a connection may be sent now: at most one of a key is unconfirmed. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use super::message::Message;
use super::refused::Refused;
use super::window::Window;
use crate::destination::parts::keyed::Keyed;
use crate::position::EventPosition;

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

/// The messages that were given to a connection.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The delivery tag of the last message that was sent: the broker counts them from 1.
    tag: u64,
    unconfirmed: BTreeMap<u64, Sent>,
    window: Window,
    waiting: Keyed<Message>,
    /// Messages that the broker has refused. Their keys wait.
    refused: Refused,
}

#[derive(Debug)]
struct Sent {
    message: Message,
    at: Instant,
    returned: Option<String>,
}

impl Flow {
    /// Takes a message, to be sent in its turn.
    pub(super) fn offer(&mut self, message: Message) {
        self.waiting.push(message.order, message);
    }

    /// The frames of the next message that may be sent. It is unconfirmed from here on.
    pub(super) fn send(&mut self, now: Instant) -> Option<&[u8]> {
        if self.window.is_full() {
            return None;
        }
        let message = loop {
            match self.window.send() {
                Some(message) => break message,
                None => self.window.offer(self.waiting.next(now)?),
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
    pub(super) fn release(&mut self, message: &Message, now: Instant) {
        self.no_longer_refused(message, now);
        self.waiting.done(message.order);
    }

    /// Nothing of the same key is sent any more: everything behind it is produced again.
    pub(super) fn close(&mut self, message: &Message, now: Instant) {
        self.no_longer_refused(message, now);
        self.waiting.close(message.order);
    }

    /// Keeps a message until its time for [`Flow::retry`]. Its key waits.
    pub(super) fn put_back(&mut self, message: Message, now: Instant) {
        self.refused.push(message, now);
    }

    /// Makes refused messages sendable again once their delay is over.
    pub(super) fn retry(&mut self, now: Instant) {
        while let Some(message) = self.refused.next(now) {
            self.window.offer(message);
        }
    }

    fn no_longer_refused(&mut self, message: &Message, now: Instant) {
        for other in self.refused.answered(message, now) {
            self.window.offer(other);
        }
    }

    /// When [`Flow::retry`] has something to do.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.refused.next_due()
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
    use std::time::Duration;

    use super::super::window::MESSAGES_MAX;
    use super::*;
    use crate::ledger::Seq;
    use crate::lsn::Lsn;

    pub(super) fn message(number: u64, key: &str) -> Message {
        Message {
            seq: Seq::new(number),
            position: EventPosition { commit_lsn: Lsn::new(number), ordinal: 0 },
            order: if key.is_empty() { 1_000_000 + number } else { number_of(key) },
            frames: number.to_string().into_bytes(),
            topic: "t".to_owned(),
            routing_key: "r".into(),
            bytes: 1,
            since: Instant::now(),
            is_letter: false,
            is_retried: false,
        }
    }

    pub(super) fn number_of(key: &str) -> u64 {
        key.bytes().map(u64::from).sum()
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
            flow.release(message, Instant::now());
        }
        assert_eq!(became.len(), 3);
        assert_eq!(sent(&mut flow), ["2"]);
        assert_eq!(flow.confirmed(4, false, true).len(), 1);
        assert!(flow.confirmed(4, false, true).is_empty(), "it is confirmed already");
        assert_eq!(flow.confirmed(0, true, true).len(), 1);
        assert_eq!(flow.oldest(), None);
    }

    /// Retries every millisecond for this long, and answers what is sent: with `accepts`, or not at all.
    fn retry(
        flow: &mut Flow,
        now: &mut Instant,
        lasts: Duration,
        accepts: impl Fn(&Message) -> Option<bool>,
    ) -> Vec<String> {
        let (mut all, end) = (Vec::new(), *now + lasts);
        while *now < end {
            *now += Duration::from_millis(1);
            flow.retry(*now);
            let some = sent(flow);
            all.extend(some);
            let open = flow.unconfirmed.iter();
            let answers = open.filter_map(|(tag, sent)| Some((*tag, accepts(&sent.message)?)));
            for (tag, is_accepted) in answers.collect::<Vec<_>>() {
                answer(flow, tag, is_accepted, *now);
            }
        }
        all
    }

    fn answer(flow: &mut Flow, tag: u64, is_accepted: bool, now: Instant) {
        for one in flow.confirmed(tag, false, is_accepted) {
            match one {
                Confirmed::Stored(message) => flow.release(&message, now),
                Confirmed::Refused(message) => flow.put_back(message, now),
                Confirmed::Returned(..) => panic!("none is returned"),
            }
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn refused_message_is_sent_again_and_nothing_of_its_key_passes_it() {
        let (mut flow, mut now) = (flow(&[(1, "a"), (2, "a"), (3, "b")]), Instant::now());
        assert_eq!(sent(&mut flow), ["1", "3"]);
        answer(&mut flow, 1, false, now);
        assert!(sent(&mut flow).is_empty() && flow.is_retrying() && flow.next_retry() > Some(now));
        assert_eq!(retry(&mut flow, &mut now, SECOND, |_| None), ["1"]);
        assert!(flow.is_retrying());
        answer(&mut flow, 3, true, now);
        assert!(!flow.is_retrying());
        assert_eq!(sent(&mut flow), ["2"]);
    }

    #[test]
    fn few_refused_messages_are_sent_again_until_some_are_accepted() {
        let (mut flow, mut now) = (Flow::default(), Instant::now());
        (1..=1000).for_each(|number| flow.put_back(of(number, "full"), now));
        let first = retry(&mut flow, &mut now, 60 * SECOND, |_| Some(false));
        assert!((30..80).contains(&first.len()), "{} in a minute", first.len());
        assert_eq!(first[..3], ["1", "2", "3"], "each has its turn");
        let rest = retry(&mut flow, &mut now, 3 * SECOND, |_| Some(true));
        assert_eq!(rest.len(), 1000, "twice as many with each round trip");
        assert!(!flow.is_retrying() && flow.next_retry().is_none());
    }

    /// Another routing key may lead to a queue that has room.
    #[test]
    fn routing_keys_do_not_wait_for_each_other() {
        let (mut flow, mut now) = (Flow::default(), Instant::now());
        (1..=5000).for_each(|number| flow.put_back(of(number, "full"), now));
        (5001..=5010).for_each(|number| flow.put_back(of(number, "works"), now));
        let accepts = |message: &Message| Some(&*message.routing_key == "works");
        let again = retry(&mut flow, &mut now, SECOND, accepts);
        assert!(again.len() < 40, "{again:?}");
        assert!((5001..=5010).all(|number: u64| again.contains(&number.to_string())), "{again:?}");
    }

    /// Many at a time would be in vain, and one that is accepted makes those of all follow.
    #[test]
    fn few_are_sent_again_whatever_the_number_of_routing_keys() {
        let (mut flow, mut now) = (Flow::default(), Instant::now());
        (1..=2000).for_each(|number| flow.put_back(of(number, &number.to_string()), now));
        let again = retry(&mut flow, &mut now, 100 * SECOND, |_| Some(false));
        assert!((700..900).contains(&again.len()), "{}", again.len());
        let different: std::collections::BTreeSet<_> = again.iter().collect();
        assert_eq!(different.len(), again.len(), "each has its turn");
        assert_eq!(retry(&mut flow, &mut now, SECOND, |_| Some(true)).len(), 2000);
        assert!(!flow.is_retrying());
    }

    #[test]
    fn routing_keys_without_answers_do_not_hold_up_others() {
        let (mut flow, mut now) = (Flow::default(), Instant::now());
        for number in 1..=5000 {
            flow.put_back(of(number, if number % 2 == 0 { "hangs" } else { "hangs too" }), now);
        }
        let accepts = |message: &Message| (&*message.routing_key == "works").then_some(true);
        let again = retry(&mut flow, &mut now, 60 * SECOND, accepts);
        assert_eq!(again.len(), 32, "sixteen of each");
        flow.put_back(of(6000, "works"), now);
        flow.offer(of(6001, "works"));
        assert_eq!(retry(&mut flow, &mut now, SECOND, accepts), ["6001", "6000"]);
        // Those that are answered again are sent again.
        assert_eq!(retry(&mut flow, &mut now, 9 * SECOND, |_| Some(true)).len(), 5000 - 32);
        assert!(!flow.is_retrying());
        // A queue that accepts many, and then answers no more.
        (1..=5000).for_each(|number| flow.put_back(of(number, "hangs"), now));
        let few = |message: &Message| (message.seq <= Seq::new(300)).then_some(true);
        let again = retry(&mut flow, &mut now, 60 * SECOND, few);
        assert!((300 + 16..=300 + MESSAGES_MAX / 8).contains(&again.len()), "{}", again.len());
        flow.put_back(of(6002, "works"), now);
        assert_eq!(retry(&mut flow, &mut now, SECOND, accepts), ["6002"]);
    }

    #[test]
    fn a_routing_key_without_answers_leaves_half_of_the_window_to_the_others() {
        let half = MESSAGES_MAX as u64 / 2;
        let (mut flow, now) = (Flow::default(), Instant::now());
        (1..=2 * half).for_each(|number| flow.offer(of(number, "hangs")));
        assert_eq!(sent(&mut flow).len() as u64, half);
        flow.offer(of(30_000, "works"));
        assert_eq!(sent(&mut flow), ["30000"]);
        // As many follow as it confirms, those first that were refused: the backlog takes all the room.
        answer(&mut flow, 1, false, now);
        assert_eq!(sent(&mut flow), [(half + 1).to_string()]);
        flow.retry(now + SECOND);
        assert!(sent(&mut flow).is_empty(), "the routing key has no room");
        answer(&mut flow, 2, true, now);
        assert_eq!(sent(&mut flow), ["1"]);
        for tag in 3..=2 * half + 3 {
            answer(&mut flow, tag, true, now);
            sent(&mut flow);
        }
        assert!(flow.window.is_unused());
    }

    #[test]
    fn large_messages_leave_half_of_the_window_to_other_routing_keys_too() {
        let (mut flow, mut now) = (Flow::default(), Instant::now());
        let large = |number| Message { frames: vec![0; 1 << 20], ..of(number, "hangs") };
        let count =
            |flow: &mut Flow| std::iter::from_fn(|| flow.send(Instant::now()).map(drop)).count();
        (1..=20).for_each(|number| flow.offer(large(number)));
        assert_eq!(count(&mut flow), 8);
        for number in 21..=40 {
            let routing_key = number.to_string().as_str().into();
            flow.put_back(Message { routing_key, ..large(number) }, now);
        }
        for _ in 0..1000 {
            now += Duration::from_millis(5);
            flow.retry(now);
        }
        assert_eq!(count(&mut flow), 8, "what is sent again has half of it");
        assert!(flow.is_retrying() && flow.next_retry().is_none());
    }

    fn of(number: u64, routing_key: &str) -> Message {
        Message { routing_key: routing_key.into(), ..message(number, "") }
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
                    flow.close(&message, Instant::now());
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
