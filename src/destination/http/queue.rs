//! The events that the lanes share: each takes the next one whose key is free.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use backon::ExponentialBackoff;
use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::patience::{Limits, Patience, Tried};
use super::request::Outgoing;
use crate::destination::parts::keyed::Keyed;
use crate::position::EventPosition;

/// An event on its way to a lane.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) position: EventPosition,
    /// Events with the same number keep their order.
    pub(super) order: u64,
    pub(super) delivery: Outgoing,
    /// The delays before further attempts, once one has failed.
    pub(super) delays: Option<ExponentialBackoff>,
}

impl Queued {
    fn epoch(&self) -> u64 {
        self.delivery.sent.epoch
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// The number of the current producer. Events of an earlier one that are under way are produced again.
    epoch: u64,
    waiting: Keyed<Queued>,
    tried: Tried,
}

/// What becomes of an event that is to be sent again.
#[expect(clippy::large_enum_variant, reason = "one for each failed request")]
pub(super) enum Again {
    /// Others are sent meanwhile.
    Later,
    /// Too many keys fail for that.
    TooMany(Queued),
    /// The current producer produces the event again.
    GivenUp,
}

/// The events that are not delivered yet.
#[derive(Debug)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// The signal for one more event that may be sent, now or later.
    stirred: Notify,
    /// How many keys may fail while others are sent: if more do, it is hardly for their events.
    failing_max: usize,
}

impl Queue {
    /// An empty queue for this number of lanes.
    pub(super) fn new(lanes: u16) -> Self {
        let (inner, stirred) = (Mutex::default(), Notify::new());
        Self { inner, stirred, failing_max: usize::from(lanes / 2).max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event behind those of its key.
    pub(super) fn push(&self, queued: Queued) {
        self.lock().waiting.push(queued.order, queued);
        self.stirred.notify_one();
    }

    /// Gives up what the former producers have sent.
    pub(super) fn replace(&self, epoch: u64) {
        let mut inner = self.lock();
        inner.epoch = epoch;
        inner.waiting.give_up();
    }

    /// The next event that may be sent, once there is one. It is under way from here on.
    pub(super) async fn next(&self) -> Queued {
        loop {
            let mut stirred = pin!(self.stirred.notified());
            // Before the look into the queue: an event that is pushed behind that is for this lane.
            stirred.as_mut().enable();
            let due = {
                let (mut inner, now) = (self.lock(), Instant::now());
                if let Some(queued) = inner.waiting.next(now) {
                    return queued;
                }
                inner.waiting.next_due(now)
            };
            match due {
                None => stirred.await,
                Some(due) => tokio::select! {
                    () = stirred => {}
                    () = sleep_until(due.into()) => {}
                },
            }
        }
    }

    /// The event is delivered.
    pub(super) fn delivered(&self, position: EventPosition, order: u64) {
        let mut inner = self.lock();
        inner.tried.succeeds(position);
        inner.waiting.done(order);
    }

    /// The event is produced again, by another producer.
    pub(super) fn given_up(&self, order: u64) {
        self.lock().waiting.done(order);
    }

    /// Records an answer to the event; returns whether the event is a suspect now.
    pub(super) fn fails(&self, queued: &Queued, patience: Patience, limits: Limits) -> bool {
        self.lock().tried.fails(queued.position, patience, limits, Instant::now())
    }

    /// The endpoint cannot be reached: that events were answered before says nothing about them.
    pub(super) fn is_away(&self) {
        self.lock().tried = Tried::default();
    }

    /// Nothing behind the suspect passes it: that is produced again.
    pub(super) fn close(&self, queued: &Queued) {
        let mut inner = self.lock();
        if queued.epoch() == inner.epoch {
            inner.waiting.close(queued.order);
        } else {
            inner.waiting.done(queued.order);
        }
    }

    /// Sends the event again at that time.
    pub(super) fn again_at(&self, at: Instant, queued: Queued) -> Again {
        let inner = self.lock();
        if inner.waiting.delayed() >= self.failing_max {
            return Again::TooMany(queued);
        }
        self.put_back(inner, at, queued)
    }

    /// Sends the event again from now on, after those that have waited longer.
    pub(super) fn again_now(&self, queued: Queued) -> Again {
        self.put_back(self.lock(), Instant::now(), queued)
    }

    fn put_back(&self, mut inner: MutexGuard<'_, Inner>, at: Instant, queued: Queued) -> Again {
        if queued.epoch() != inner.epoch {
            inner.waiting.done(queued.order);
            return Again::GivenUp;
        }
        inner.waiting.again_at(at, queued.order, queued);
        drop(inner);
        self.stirred.notify_one();
        Again::Later
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use hyper::header::HeaderValue;

    use super::*;
    use crate::destination::parts::attempts::Sent;
    use crate::ledger::Seq;
    use crate::lsn::Lsn;

    fn queued(epoch: u64, number: u64, order: u64) -> Queued {
        let (topic, since) = ("t".to_owned(), Instant::now());
        let sent = Sent { epoch, seq: Seq::new(number), topic, bytes: 1, since };
        let (id, headers, body) = (HeaderValue::from(number), Vec::new(), Bytes::new());
        let position = EventPosition { commit_lsn: Lsn::new(number), ordinal: 0 };
        Queued { position, order, delivery: Outgoing { sent, id, headers, body }, delays: None }
    }

    async fn next(queue: &Queue) -> u64 {
        queue.next().await.delivery.sent.seq.as_u64()
    }

    #[tokio::test]
    async fn too_many_failing_keys_take_turns() {
        let (queue, later) = (Queue::new(2), Instant::now() + Duration::from_secs(60));
        (1..=3).for_each(|number| queue.push(queued(0, number, number)));
        let [one, two] = [queue.next().await, queue.next().await];
        assert!(matches!(queue.again_at(Instant::now(), one), Again::Later));
        let Again::TooMany(two) = queue.again_at(later, two) else { panic!("one key fails") };
        assert!(matches!(queue.again_now(two), Again::Later));
        assert_eq!([next(&queue).await, next(&queue).await, next(&queue).await], [1, 2, 3]);
    }

    /// Whatever becomes of an event of a former producer, its key is free for the current one, and not before.
    #[tokio::test]
    async fn former_producer_keeps_its_keys_back_and_changes_nothing() {
        let queue = Queue::new(8);
        for order in 0..4 {
            queue.push(queued(0, order, order));
            queue.push(queued(0, order + 10, order));
        }
        let mut former =
            [queue.next().await, queue.next().await, queue.next().await, queue.next().await];
        queue.replace(1);
        (0..4).for_each(|order| queue.push(queued(1, order + 20, order)));
        assert!(queue.lock().waiting.peek(Instant::now()).is_none());
        former.rotate_left(1);
        let [one, two, three, four] = former;
        queue.close(&one);
        assert!(matches!(queue.again_at(Instant::now(), two), Again::GivenUp));
        queue.given_up(three.order);
        queue.delivered(four.position, four.order);
        for expected in [21, 22, 23, 20] {
            assert_eq!(next(&queue).await, expected);
        }
    }
}
