//! Which messages are sent next: at most one of each group, in their order.
//!
//! The messages of a batch fail one by one, and a message behind one that failed would be in the
//! queue before it. So a group has one message in a batch or under way, and its next one waits for
//! the outcome. Groups are independent of each other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::ExponentialBackoff;

use super::config::QueueKind;
use super::message::Message;
use crate::destination::parts::attempts::Sent;
use crate::destination::parts::delays::delays;

/// How many messages a batch can have, and how many bytes walpost puts into one: a message that is
/// larger goes alone. SQS has accepted 1 MiB together since 2025, and 256 KiB before.
const MESSAGES_MAX: usize = 10;
const BYTES_MAX: usize = 256 << 10;

/// Minimum and maximum delay before a message that failed alone is sent again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Messages that failed alone are sent again at moments that are so far apart.
const TICK: Duration = Duration::from_millis(100);

/// A record on its way.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) sent: Sent,
    pub(super) message: Message,
    pub(super) queue: QueueKind,
    /// How many requests with it were rejected; after one it goes without others.
    pub(super) rejections: u32,
    delays: Option<ExponentialBackoff>,
}

impl Delivery {
    pub(super) fn new(sent: Sent, message: Message, queue: QueueKind) -> Self {
        Self { sent, message, queue, rejections: 0, delays: None }
    }
}

/// Messages that are sent in one request.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) queue: QueueKind,
    pub(super) deliveries: Vec<Delivery>,
}

/// A group of a queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group {
    queue: QueueKind,
    name: Arc<str>,
}

impl Group {
    pub(super) fn of(delivery: &Delivery) -> Self {
        Self { queue: delivery.queue, name: delivery.message.group.as_str().into() }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    deliveries: VecDeque<Delivery>,
    state: State,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is in one of the lists of those that can be sent, or are delayed.
    #[default]
    Listed,
    /// One of its messages is under way.
    Sending,
    /// SQS rejects one of its messages for good: nothing passes that.
    Refused,
}

/// The messages that are not sent yet, and the groups that are being sent.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    groups: HashMap<Group, Waiting>,
    ready: [VecDeque<Group>; 2],
    /// By when they can be sent.
    delayed: BTreeMap<(Instant, u64), Group>,
    count: u64,
    /// From when on ticks are counted.
    first_tick: Option<Instant>,
}

impl Schedule {
    /// Adds a message behind those of its group.
    pub(super) fn push(&mut self, delivery: Delivery) {
        let group = Group::of(&delivery);
        if let Some(waiting) = self.groups.get_mut(&group) {
            waiting.deliveries.push_back(delivery);
        } else {
            let deliveries = VecDeque::from([delivery]);
            self.groups.insert(group.clone(), Waiting { deliveries, state: State::Listed });
            self.ready[group.queue as usize].push_back(group);
        }
    }

    /// The next batch, for a queue that is open; `None`: nothing can be sent now.
    pub(super) fn next_batch(
        &mut self,
        now: Instant,
        is_open: impl Fn(QueueKind) -> bool,
    ) -> Option<Batch> {
        while let Some(entry) = self.delayed.first_entry()
            && entry.key().0 <= now
        {
            let group = entry.remove();
            self.ready[group.queue as usize].push_back(group);
        }
        let mut open = QueueKind::ALL.into_iter().filter(|queue| is_open(*queue));
        open.find_map(|queue| self.batch_of(queue))
    }

    fn batch_of(&mut self, queue: QueueKind) -> Option<Batch> {
        let mut batch = Batch { queue, deliveries: Vec::new() };
        let mut bytes = 0;
        while batch.deliveries.len() < MESSAGES_MAX
            && let Some(group) = self.ready[queue as usize].front()
        {
            let waiting = self.groups.get_mut(group);
            let next = waiting.and_then(|waiting| waiting.deliveries.front());
            let next = next.map(|next| (next.message.bytes, next.rejections > 0));
            let Some((size, is_alone)) = next else {
                self.ready[queue as usize].pop_front();
                continue;
            };
            let is_first = batch.deliveries.is_empty();
            if !is_first && (is_alone || bytes + size > BYTES_MAX) {
                break;
            }
            bytes += size;
            let group = self.ready[queue as usize].pop_front();
            if let Some(waiting) = group.and_then(|group| self.groups.get_mut(&group)) {
                waiting.state = State::Sending;
                batch.deliveries.extend(waiting.deliveries.pop_front());
            }
            if is_alone {
                break;
            }
        }
        (!batch.deliveries.is_empty()).then_some(batch)
    }

    /// The message of a group that was under way is delivered, or given up.
    pub(super) fn done(&mut self, group: Group) {
        let Some(waiting) = self.groups.get_mut(&group) else { return };
        if waiting.deliveries.is_empty() {
            self.groups.remove(&group);
            return;
        }
        waiting.state = State::Listed;
        self.ready[group.queue as usize].push_back(group);
    }

    /// It is rejected for good: nothing more of its group is sent.
    pub(super) fn refused(&mut self, group: &Group) {
        if let Some(waiting) = self.groups.get_mut(group) {
            waiting.state = State::Refused;
            waiting.deliveries.clear();
        }
    }

    /// It is sent again, before the others of its group: at once.
    pub(super) fn again(&mut self, delivery: Delivery) {
        let group = self.put_back(delivery);
        self.ready[group.queue as usize].push_front(group);
    }

    /// Before the others of its group.
    fn put_back(&mut self, delivery: Delivery) -> Group {
        let group = Group::of(&delivery);
        let waiting = self.groups.entry(group.clone()).or_default();
        waiting.state = State::Listed;
        waiting.deliveries.push_front(delivery);
        group
    }

    /// At once and without others: the request was rejected.
    pub(super) fn again_alone(&mut self, delivery: Delivery) {
        self.again(Delivery { rejections: delivery.rejections + 1, ..delivery });
    }

    /// After a delay, which grows. Many that fail at about the same time are sent together again.
    pub(super) fn again_later(&mut self, mut delivery: Delivery, now: Instant) {
        let delays = delivery.delays.get_or_insert_with(|| delays(RETRY_DELAYS));
        let at = self.next_tick(now + delays.next().unwrap_or(RETRY_DELAYS[1]));
        let group = self.put_back(delivery);
        self.count += 1;
        self.delayed.insert((at, self.count), group);
    }

    /// The first moment, of those that are a tick apart, that is not before this one.
    fn next_tick(&mut self, at: Instant) -> Instant {
        let first = *self.first_tick.get_or_insert(at);
        let since = at.saturating_duration_since(first);
        let ticks = since.as_millis().div_ceil(TICK.as_millis());
        first + TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// When a delayed message can be sent.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    /// Gives up everything that is not under way: it is produced again. What is under way still keeps
    /// the next message of its group back.
    pub(super) fn give_up(&mut self) {
        self.groups.retain(|_, waiting| {
            waiting.deliveries.clear();
            waiting.state == State::Sending
        });
        self.ready = Default::default();
        self.delayed.clear();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::Seq;

    pub(in crate::destination::sqs) fn delivery(
        number: u64,
        group: impl Into<u64>,
        bytes: usize,
        queue: QueueKind,
    ) -> Delivery {
        let (topic, since) = ("t".to_owned(), Instant::now());
        let sent = Sent { epoch: 0, seq: Seq::new(number), topic, bytes: 1, since };
        let message = Message {
            group: group.into().to_string(),
            deduplication_id: number.to_string(),
            body: String::new(),
            attributes: Vec::new(),
            bytes,
        };
        Delivery::new(sent, message, queue)
    }

    fn event(number: u64, group: u8) -> Delivery {
        delivery(number, group, 1, QueueKind::Events)
    }

    fn next_batch(schedule: &mut Schedule, now: Instant) -> Option<Batch> {
        schedule.next_batch(now, |_| true)
    }

    fn numbers(batch: Option<&Batch>) -> Vec<u64> {
        let deliveries = batch.map(|batch| batch.deliveries.as_slice()).unwrap_or_default();
        deliveries.iter().map(|delivery| delivery.sent.seq.as_u64()).collect()
    }

    #[test]
    fn group_has_one_message_under_way() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for (number, group) in [(1, 1), (2, 1), (3, 2), (4, 1), (5, 3)] {
            schedule.push(event(number, group));
        }
        let first = next_batch(&mut schedule, now);
        assert_eq!(numbers(first.as_ref()), [1, 3, 5]);
        assert!(next_batch(&mut schedule, now).is_none());
        schedule.done(Group::of(&event(0, 1)));
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), [2]);
        assert!(next_batch(&mut schedule, now).is_none());
    }

    #[test]
    fn batch_is_limited_in_messages_and_bytes() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for number in 0..12 {
            schedule.push(event(number, u8::try_from(number).expect("small")));
        }
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()).len(), 10);
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), [10, 11]);
        let sizes = [BYTES_MAX - 1, 1, 1, 2 * BYTES_MAX, 1];
        for (number, size) in (20..).zip(sizes) {
            schedule.push(delivery(
                number,
                u8::try_from(number).expect("small"),
                size,
                QueueKind::Events,
            ));
        }
        for expected in [&[20, 21][..], &[22], &[23], &[24]] {
            assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), expected);
        }
    }

    #[test]
    fn failed_message_is_sent_before_those_behind_it() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for (number, group) in [(1, 1), (2, 1), (3, 2)] {
            schedule.push(event(number, group));
        }
        let batch = next_batch(&mut schedule, now).expect("a batch");
        let mut deliveries = batch.deliveries.into_iter();
        schedule.again_later(deliveries.next().expect("the first"), now);
        schedule.again_alone(deliveries.next().expect("the second"));
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), [3]);
        let due = schedule.next_due().expect("the first");
        assert!(next_batch(&mut schedule, now).is_none() && due > now);
        assert_eq!(numbers(next_batch(&mut schedule, due).as_ref()), [1]);
    }

    #[test]
    fn nothing_passes_a_refused_message_until_all_is_produced_again() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        schedule.push(event(1, 1));
        schedule.push(event(2, 1));
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), [1]);
        schedule.refused(&Group::of(&event(1, 1)));
        schedule.push(event(3, 1));
        assert!(next_batch(&mut schedule, now).is_none());
        schedule.give_up();
        schedule.push(event(4, 1));
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), [4]);
    }

    #[test]
    fn message_of_a_replaced_producer_keeps_its_group_back() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        schedule.push(event(1, 1));
        schedule.push(event(2, 2));
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), [1, 2]);
        schedule.again_later(event(2, 2), now);
        schedule.give_up();
        schedule.push(event(3, 1));
        schedule.push(event(4, 2));
        let due = now + RETRY_DELAYS[1];
        assert_eq!(numbers(next_batch(&mut schedule, due).as_ref()), [4]);
        schedule.done(Group::of(&event(1, 1)));
        assert_eq!(numbers(next_batch(&mut schedule, due).as_ref()), [3]);
    }

    #[test]
    fn dead_letters_are_not_in_a_batch_with_events() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        schedule.push(event(1, 1));
        schedule.push(delivery(2, 1_u64, 1, QueueKind::DeadLetters));
        let first = next_batch(&mut schedule, now).expect("events");
        assert_eq!((first.queue, numbers(Some(&first))), (QueueKind::Events, vec![1]));
        schedule.push(event(3, 2));
        let open = |queue| queue == QueueKind::DeadLetters;
        let second = schedule.next_batch(now, open).expect("dead letters");
        assert_eq!((second.queue, numbers(Some(&second))), (QueueKind::DeadLetters, vec![2]));
        assert!(schedule.next_batch(now, open).is_none());
        assert_eq!(numbers(next_batch(&mut schedule, now).as_ref()), [3]);
    }

    proptest! {
        /// Whatever fails, each group's messages are delivered in order, one at a time.
        #[test]
        fn groups_are_delivered_in_order(
            groups in prop::collection::vec(0..6_u8, 1..60),
            outcomes in prop::collection::vec(0..5_u8, 200),
        ) {
            let (mut schedule, mut now) = (Schedule::default(), Instant::now());
            let mut outcomes = outcomes.into_iter();
            let mut delivered: Vec<(u8, u64)> = Vec::new();
            for (number, group) in (0..).zip(&groups) {
                schedule.push(event(number, *group));
            }
            let mut under_way: VecDeque<Batch> = VecDeque::new();
            loop {
                while under_way.len() < 3 && let Some(batch) = next_batch(&mut schedule, now) {
                    prop_assert!(batch.deliveries.len() <= MESSAGES_MAX);
                    under_way.push_back(batch);
                }
                let all = under_way.iter().flat_map(|batch| &batch.deliveries);
                let mut names: Vec<_> = all.map(|one| one.message.group.clone()).collect();
                let count = names.len();
                names.sort();
                names.dedup();
                prop_assert_eq!(names.len(), count, "two of a group are under way");
                let Some(batch) = under_way.pop_front() else {
                    let Some(due) = schedule.next_due() else { break };
                    now = due;
                    continue;
                };
                for one in batch.deliveries {
                    match outcomes.next().unwrap_or_default() {
                        0 | 1 => {
                            let group = one.message.group.parse().expect("a number");
                            delivered.push((group, one.sent.seq.as_u64()));
                            schedule.done(Group::of(&one));
                        }
                        2 => schedule.again(one),
                        3 => schedule.again_alone(one),
                        _ => schedule.again_later(one, now),
                    }
                }
            }
            prop_assert_eq!(delivered.len(), groups.len());
            let is_ordered = delivered.iter().enumerate().all(|(at, (group, number))| {
                delivered[..at].iter().all(|(other, before)| other != group || before < number)
            });
            prop_assert!(is_ordered, "{:?}", delivered);
            prop_assert!(schedule.groups.is_empty(), "nothing is kept of what is delivered");
        }
    }
}
