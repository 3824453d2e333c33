//! Which messages are sent next: batches for a queue, with one message of each group.
//!
//! The messages of a batch fail one by one, and a message behind one that failed would be in the
//! queue before it. So a group has one message in a batch or under way, and its next one waits for
//! the outcome.

use std::time::{Duration, Instant};

use backon::ExponentialBackoff;

use super::config::QueueKind;
use super::message::Message;
use crate::destination::parts::attempts::Sent;
use crate::destination::parts::delays::delays;
use crate::destination::parts::keyed::Keyed;

/// How many messages a batch can have, and how many bytes walpost puts into one: a message that is
/// larger goes alone. SQS has accepted 1 MiB together since 2025, and 256 KiB before.
const MESSAGES_MAX: usize = 10;
const BYTES_MAX: usize = 256 << 10;

/// Minimum and maximum delay before a message that failed alone is sent again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Messages that failed alone are sent again at moments that are so far apart.
const TICK: Duration = Duration::from_millis(100);

/// A record in flight.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) sent: Sent,
    pub(super) message: Message,
    pub(super) group: Group,
    /// How many requests with it were rejected; after one it goes without others.
    pub(super) rejections: u32,
    delays: Option<ExponentialBackoff>,
}

impl Outgoing {
    /// `order` is that of its key.
    pub(super) fn new(sent: Sent, message: Message, queue: QueueKind, order: u64) -> Self {
        Self { sent, message, group: Group { queue, order }, rejections: 0, delays: None }
    }
}

/// Messages that are sent in one request.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) queue: QueueKind,
    pub(super) deliveries: Vec<Outgoing>,
}

/// A group of a queue, by the number of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    queue: QueueKind,
    order: u64,
}

/// The messages that are not sent yet, and the groups that are being sent.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    queues: [Keyed<Outgoing>; 2],
    /// The time from which ticks are counted.
    first_tick: Option<Instant>,
}

impl Schedule {
    /// Adds a message behind those of its group.
    pub(super) fn push(&mut self, delivery: Outgoing) {
        let Group { queue, order } = delivery.group;
        self.queues[queue as usize].push(order, delivery);
    }

    /// The next batch, for a queue that is open; `None`: nothing can be sent now.
    pub(super) fn next_batch(
        &mut self,
        now: Instant,
        is_open: impl Fn(QueueKind) -> bool,
    ) -> Option<Batch> {
        let mut open = QueueKind::ALL.into_iter().filter(|queue| is_open(*queue));
        open.find_map(|queue| self.batch_of(queue, now))
    }

    fn batch_of(&mut self, queue: QueueKind, now: Instant) -> Option<Batch> {
        let waiting = &mut self.queues[queue as usize];
        let mut deliveries = Vec::new();
        let mut bytes = 0;
        while deliveries.len() < MESSAGES_MAX
            && let Some(next) = waiting.peek(now)
        {
            let is_alone = next.rejections > 0;
            let exceeds = bytes + next.message.bytes > BYTES_MAX;
            if !deliveries.is_empty() && (is_alone || exceeds) {
                break;
            }
            bytes += next.message.bytes;
            deliveries.extend(waiting.next(now));
            if is_alone {
                break;
            }
        }
        (!deliveries.is_empty()).then_some(Batch { queue, deliveries })
    }

    /// The message of a group that was under way is delivered, or given up.
    pub(super) fn done(&mut self, Group { queue, order }: Group) {
        self.queues[queue as usize].done(order);
    }

    /// Closes the group of a message that is permanently rejected: nothing more of it is sent.
    pub(super) fn refused(&mut self, Group { queue, order }: Group) {
        self.queues[queue as usize].close(order);
    }

    /// Puts a message back, to be sent immediately and before the others of its group.
    pub(super) fn again(&mut self, delivery: Outgoing) {
        let Group { queue, order } = delivery.group;
        self.queues[queue as usize].again(order, delivery);
    }

    /// Puts a message back, to be sent immediately and alone: its request was rejected.
    pub(super) fn again_alone(&mut self, delivery: Outgoing) {
        self.again(Outgoing { rejections: delivery.rejections + 1, ..delivery });
    }

    /// After a delay, which grows. Many that fail at about the same time are sent together again.
    pub(super) fn again_later(&mut self, mut delivery: Outgoing, now: Instant) {
        let delays = delivery.delays.get_or_insert_with(|| delays(RETRY_DELAYS));
        let at = self.next_tick(now + delays.next().unwrap_or(RETRY_DELAYS[1]));
        let Group { queue, order } = delivery.group;
        self.queues[queue as usize].again_at(at, order, delivery);
    }

    /// The first moment, of those that are a tick apart, that is not before this one.
    fn next_tick(&mut self, at: Instant) -> Instant {
        let first = *self.first_tick.get_or_insert(at);
        let since = at.saturating_duration_since(first);
        let ticks = since.as_millis().div_ceil(TICK.as_millis());
        first + TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// When a delayed message can be sent that cannot be now.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.next_due(now)).min()
    }

    /// Gives up everything that is not under way: it is produced again.
    pub(super) fn give_up(&mut self) {
        self.queues.iter_mut().for_each(Keyed::give_up);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ledger::Seq;

    pub(in crate::destination::sqs) fn delivery(
        number: u64,
        group: impl Into<u64>,
        bytes: usize,
        queue: QueueKind,
    ) -> Outgoing {
        let (topic, since) = ("t".to_owned(), Instant::now());
        let sent = Sent { epoch: 0, seq: Seq::new(number), topic, bytes: 1, since };
        let group = group.into();
        let message = Message {
            group: group.to_string(),
            deduplication_id: number.to_string(),
            body: String::new(),
            attributes: Vec::new(),
            bytes,
        };
        Outgoing::new(sent, message, queue, group)
    }

    fn event(number: u64, group: u8) -> Outgoing {
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
        let due = schedule.next_due(now).expect("the first");
        assert!(next_batch(&mut schedule, now).is_none() && due > now);
        assert_eq!(numbers(next_batch(&mut schedule, due).as_ref()), [1]);
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
        // One that could be sent, if its queue were open, does not hide when one of the other can be.
        let later = now + 10 * RETRY_DELAYS[1];
        schedule.again_later(second.deliveries.into_iter().next().expect("the letter"), now);
        schedule.again_later(first.deliveries.into_iter().next().expect("the event"), later);
        assert!(schedule.next_due(later) > Some(later));
        let rest = [next_batch(&mut schedule, later), next_batch(&mut schedule, later)];
        assert_eq!(rest.each_ref().map(|batch| numbers(batch.as_ref())), [vec![3], vec![2]]);
    }
}
