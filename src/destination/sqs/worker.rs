//! The thread that sends: several requests at a time, each with messages of different groups.
//!
//! What fails for all messages of a queue stops that queue: one request at a time then finds out whether
//! it is over. What fails for one message delays its group alone.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::ExponentialBackoff;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

use super::client::{Connection, QueueAttributes};
use super::config::{QueueKind, SqsSource};
use super::message::{Limits, Message};
use super::schedule::{Batch, Group, Outgoing, Schedule};
use super::verdict::{Rejection, Verdict};
use crate::destination::parts::Failure;
use crate::destination::parts::attempts::{Attempts, REJECTIONS};
use crate::destination::parts::delays::delays;
use crate::outlet::Refusal;
use crate::sink::Outcome;

/// How many requests of each queue are under way at most: a queue that is slow takes none of the other's.
/// With 20 ms for an answer 16 carry 8,000 messages per second, more than most queues accept.
const fn requests_max(queue: QueueKind) -> usize {
    match queue {
        QueueKind::Events => 16,
        QueueKind::DeadLetters => 4,
    }
}

/// Minimum and maximum delay between two attempts.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// How often the limits of the queues are read again.
const LIMITS_INTERVAL: Duration = Duration::from_secs(60);

/// What fails and recovers by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Whether the queues can be asked about.
    Connection,
    /// Whether a queue accepts messages.
    Queue(QueueKind),
    /// One that has failed alone.
    Group(Group),
}

/// What the queues take, once that was read.
pub(super) type LimitsSender = watch::Sender<Option<[Limits; 2]>>;

pub(super) struct Worker {
    source: SqsSource,
    deliveries: UnboundedReceiver<Vec<Outgoing>>,
    epoch: watch::Receiver<u64>,
    limits: LimitsSender,
    attempts: Arc<Attempts<Lane>>,
    schedule: Schedule,
    /// The groups of which a message has failed alone.
    failing: BTreeSet<Group>,
    /// While there is no connection.
    offline: Option<Outage>,
    /// While a queue rejects all messages, though it can perhaps be asked about: only a message that it
    /// accepts ends that.
    rejecting: [Option<Outage>; 2],
    /// How many requests of each queue are under way.
    under_way: [usize; 2],
    /// And how many may be.
    paces: [Pace; 2],
}

/// How many requests a queue gets at a time: half as many once it rejects one, and one more after as many
/// as that were accepted.
#[derive(Debug)]
struct Pace {
    most: usize,
    at_once: usize,
    accepted: usize,
}

impl Pace {
    fn of(queue: QueueKind) -> Self {
        let most = requests_max(queue);
        Self { most, at_once: most, accepted: 0 }
    }

    fn accepts(&mut self) {
        self.accepted += 1;
        if self.accepted >= self.at_once {
            (self.at_once, self.accepted) = ((self.at_once + 1).min(self.most), 0);
        }
    }

    fn rejects(&mut self) {
        (self.at_once, self.accepted) = ((self.at_once / 2).max(1), 0);
    }
}

/// What fails for all messages.
struct Outage {
    delays: ExponentialBackoff,
    /// When it is tried again.
    until: Instant,
}

impl Outage {
    /// Records a failure; returns whether the next attempt moved.
    fn prolong(outage: &mut Option<Self>) -> bool {
        let now = Instant::now();
        let outage =
            outage.get_or_insert_with(|| Self { delays: delays(RETRY_DELAYS), until: now });
        // Requests that were under way together fail together.
        let is_later = outage.until <= now;
        if is_later {
            outage.until = now + outage.delays.next().unwrap_or(RETRY_DELAYS[1]);
        }
        is_later
    }
}

/// A request that has ended.
type Answered = (Batch, Result<Vec<Verdict>, Rejection>);

/// Why no more requests are made over a connection.
enum Ended {
    /// The client is to be opened anew.
    Reopen,
    /// The sink is gone.
    Gone,
}

impl Worker {
    pub(super) fn new(
        source: SqsSource,
        (deliveries, epoch): (UnboundedReceiver<Vec<Outgoing>>, watch::Receiver<u64>),
        limits: LimitsSender,
        attempts: Arc<Attempts<Lane>>,
    ) -> Self {
        Self {
            source,
            deliveries,
            epoch,
            limits,
            attempts,
            schedule: Schedule::default(),
            failing: BTreeSet::new(),
            offline: None,
            rejecting: [None, None],
            under_way: [0, 0],
            paces: QueueKind::ALL.map(Pace::of),
        }
    }

    /// Works until the sink is gone.
    pub(super) async fn run(mut self) {
        // Whether the queues can be used is known before the first event.
        while let Some(connection) = self.connect().await {
            if matches!(self.serve(&connection).await, Ended::Gone) {
                return;
            }
        }
    }

    /// Opens a connection, however long it takes; `None`: the sink is gone.
    async fn connect(&mut self) -> Option<Connection> {
        loop {
            if let Some(outage) = &self.offline {
                let wait = outage.until.saturating_duration_since(Instant::now());
                let mut epoch = self.epoch.clone();
                let over = async { while epoch.changed().await.is_ok() {} };
                tokio::select! {
                    () = sleep(wait) => {}
                    () = over => return None,
                }
            }
            match self.open().await {
                Ok(connection) => {
                    self.offline = None;
                    self.attempts.works(&Lane::Connection);
                    return Some(connection);
                }
                Err(failure) => {
                    self.attempts.fails(Lane::Connection, failure, []);
                    self.attempts.disconnected();
                    Outage::prolong(&mut self.offline);
                }
            }
        }
    }

    /// Makes a client, and asks about the queues. Both have to be there at first; later each is found to
    /// be missing by its own messages.
    async fn open(&self) -> Result<Connection, Failure> {
        let config = self.source.read().map_err(Failure::Unusable)?;
        if self.limits.borrow().is_some() {
            let connection = Connection::new(config).await?;
            let events = connection.attributes(QueueKind::Events).await?;
            self.note_limits(events.as_ref(), None);
            return Ok(connection);
        }
        let (connection, [events, letters]) = Connection::open(config).await?;
        self.note_limits(events.as_ref(), letters.as_ref());
        Ok(connection)
    }

    /// What is not known now is as before.
    fn note_limits(&self, events: Option<&QueueAttributes>, letters: Option<&QueueAttributes>) {
        let known = *self.limits.borrow();
        let limits = |attributes: Option<&QueueAttributes>, kind: QueueKind| {
            attributes
                .map(|attributes| attributes.limits)
                .or(known.map(|known| known[kind as usize]))
        };
        let events = limits(events, QueueKind::Events);
        let letters = limits(letters, QueueKind::DeadLetters).or(events);
        self.limits.send_replace(events.zip(letters).map(|(one, two)| [one, two]));
    }

    async fn serve(&mut self, connection: &Connection) -> Ended {
        let mut attributes = pin!(attributes_later(connection));
        let mut requests: FuturesUnordered<BoxFuture<'_, Answered>> = FuturesUnordered::new();
        let mut reopens = false;
        loop {
            self.note_epoch();
            while !reopens && let Some(batch) = self.next_batch() {
                self.under_way[batch.queue as usize] += 1;
                requests.push(Box::pin(send(connection, batch)));
            }
            if reopens && requests.is_empty() {
                return Ended::Reopen;
            }
            let wake = self.wake();
            let due = async {
                match wake {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(answered) = requests.next(), if !requests.is_empty() => {
                    reopens |= self.answered(answered);
                }
                changed = self.epoch.changed() => {
                    if changed.is_err() {
                        return Ended::Gone;
                    }
                    self.give_up();
                }
                more = self.deliveries.recv() => match more {
                    None => return Ended::Gone,
                    Some(more) => self.push(more),
                },
                [events, letters] = &mut attributes => {
                    self.note_limits(events.as_ref(), letters.as_ref());
                    attributes.set(attributes_later(connection));
                }
                () = due => {}
            }
        }
    }

    /// What may be sent now.
    fn next_batch(&mut self) -> Option<Batch> {
        let (now, under_way) = (Instant::now(), self.under_way);
        let (rejecting, paces) = (&self.rejecting, &self.paces);
        self.schedule.next_batch(now, |queue| match &rejecting[queue as usize] {
            None => under_way[queue as usize] < paces[queue as usize].at_once,
            Some(outage) => under_way[queue as usize] == 0 && outage.until <= now,
        })
    }

    /// When something can be sent that cannot be now.
    fn wake(&self) -> Option<Instant> {
        let now = Instant::now();
        let outages = self.rejecting.iter().flatten().map(|outage| outage.until);
        outages.chain(self.schedule.next_due(now)).filter(|at| *at > now).min()
    }

    fn note_epoch(&mut self) {
        if self.epoch.has_changed().unwrap_or_default() {
            self.epoch.borrow_and_update();
            self.give_up();
        }
    }

    /// The producer was replaced: what is not under way is produced again.
    fn give_up(&mut self) {
        self.schedule.give_up();
        for group in std::mem::take(&mut self.failing) {
            self.attempts.gives_up(&Lane::Group(group));
        }
        // Whether messages are still rejected is reported with the next one.
        for queue in QueueKind::ALL {
            self.attempts.gives_up(&Lane::Queue(queue));
        }
    }

    fn push(&mut self, deliveries: Vec<Outgoing>) {
        // The epoch is raised before records of it are sent.
        self.note_epoch();
        let epoch = *self.epoch.borrow();
        for delivery in deliveries {
            if delivery.sent.epoch == epoch {
                self.schedule.push(delivery);
            }
        }
    }

    /// Applies the outcome of a request; whether the connection is to be opened anew.
    fn answered(&mut self, (batch, answer): Answered) -> bool {
        self.note_epoch();
        self.under_way[batch.queue as usize] -= 1;
        match answer {
            Ok(verdicts) => {
                self.accepts(batch.queue);
                for (delivery, verdict) in batch.deliveries.into_iter().zip(verdicts) {
                    self.apply(delivery, verdict);
                }
                false
            }
            Err(Rejection::Suspect(refusal)) => {
                self.rejected(batch, &refusal);
                false
            }
            Err(Rejection::Failure { failure, reopens }) => {
                let reopens = reopens && self.may_reopen_for(batch.queue, &failure);
                self.rejects(batch.queue, failure, &batch.deliveries);
                for delivery in batch.deliveries {
                    self.again(delivery, Schedule::again);
                }
                reopens
            }
        }
    }

    /// Events wait while a connection is opened, and for what is under way before that. So a queue of dead
    /// letters that is missing, or slow, is no reason while there are others.
    fn may_reopen_for(&self, queue: QueueKind, failure: &Failure) -> bool {
        match (queue, failure) {
            (QueueKind::Events, _) | (_, Failure::Unauthenticated(_)) => true,
            (QueueKind::DeadLetters, Failure::Unreachable(_)) => self.under_way == [0, 0],
            (QueueKind::DeadLetters, _) => false,
        }
    }

    /// One of the messages is rejected: each is sent alone, to see which. Another machine of a proxy may take
    /// it, if that balances requests.
    fn rejected(&mut self, batch: Batch, refusal: &Refusal) {
        self.accepts(batch.queue);
        let is_single = batch.deliveries.len() == 1;
        for delivery in batch.deliveries {
            if is_single && delivery.rejections + 1 >= REJECTIONS {
                self.apply(delivery, Verdict::Suspect(refusal.clone()));
            } else {
                self.again(delivery, Schedule::again_alone);
            }
        }
    }

    fn apply(&mut self, delivery: Outgoing, verdict: Verdict) {
        let group = delivery.group;
        let is_current = delivery.sent.epoch == *self.epoch.borrow();
        match verdict {
            Verdict::Later(failure) => {
                if is_current {
                    self.failing.insert(group);
                    self.attempts.fails(
                        Lane::Group(group),
                        failure,
                        [delivery.sent.topic.as_str()],
                    );
                }
                self.again(delivery, |schedule, one| schedule.again_later(one, Instant::now()));
            }
            Verdict::Delivered => {
                self.recovers(group);
                self.schedule.done(group);
                self.attempts.done(delivery.sent, Outcome::Delivered);
            }
            Verdict::Suspect(refusal) => {
                self.recovers(group);
                if is_current {
                    self.schedule.refused(group);
                } else {
                    self.schedule.done(group);
                }
                self.attempts.done(delivery.sent, Outcome::Suspect(refusal));
            }
        }
    }

    /// Sends a message again, unless it is produced again.
    fn again(&mut self, delivery: Outgoing, again: impl FnOnce(&mut Schedule, Outgoing)) {
        if delivery.sent.epoch == *self.epoch.borrow() {
            again(&mut self.schedule, delivery);
        } else {
            self.schedule.done(delivery.group);
        }
    }

    fn recovers(&mut self, group: Group) {
        if self.failing.remove(&group) {
            self.attempts.works(&Lane::Group(group));
        }
    }

    /// A queue answers for each message: it does not reject all.
    fn accepts(&mut self, queue: QueueKind) {
        self.rejecting[queue as usize] = None;
        self.paces[queue as usize].accepts();
        self.attempts.works(&Lane::Queue(queue));
    }

    /// A queue rejects these messages, and would reject all.
    fn rejects(&mut self, queue: QueueKind, failure: Failure, deliveries: &[Outgoing]) {
        let epoch = *self.epoch.borrow();
        let current = deliveries.iter().filter(|one| one.sent.epoch == epoch);
        let mut topics = current.map(|one| one.sent.topic.as_str()).peekable();
        // Those that were given up are no reason to expect another answer.
        if topics.peek().is_some() {
            self.attempts.fails(Lane::Queue(queue), failure, topics);
        }
        if Outage::prolong(&mut self.rejecting[queue as usize]) {
            self.paces[queue as usize].rejects();
        }
    }
}

/// What the queues are, after a while, as far as they can be asked about.
async fn attributes_later(connection: &Connection) -> [Option<QueueAttributes>; 2] {
    sleep(LIMITS_INTERVAL).await;
    let mut attributes = [None, None];
    for kind in QueueKind::ALL {
        match connection.attributes(kind).await {
            Ok(found) => attributes[kind as usize] = found,
            Err(failure) => tracing::debug!(?failure, "cannot ask about a queue"),
        }
    }
    attributes
}

async fn send(connection: &Connection, batch: Batch) -> Answered {
    let messages: Vec<&Message> = batch.deliveries.iter().map(|one| &one.message).collect();
    let answer = connection.send(batch.queue, &messages).await;
    (batch, answer)
}

#[cfg(test)]
mod tests {
    use super::super::schedule::tests::delivery;
    use super::*;

    /// Those of a slow queue of dead letters take no request from the events, and the other way round.
    #[test]
    fn each_queue_has_requests_of_its_own() {
        let (_sender, deliveries) = tokio::sync::mpsc::unbounded_channel();
        let (epoch, limits) = (watch::Sender::new(0), watch::Sender::new(None));
        let source = SqsSource::new(|| Err("none is made".to_owned()));
        let receivers = (deliveries, epoch.subscribe());
        let mut worker = Worker::new(source, receivers, limits, Arc::default());
        for number in 0..600 {
            let queue = QueueKind::ALL[usize::from(number < 200)];
            worker.schedule.push(delivery(number, number, 1, queue));
        }
        let fill = |worker: &mut Worker| {
            while let Some(batch) = worker.next_batch() {
                worker.under_way[batch.queue as usize] += 1;
            }
            worker.under_way
        };
        assert_eq!(fill(&mut worker), [16, 4]);
        worker.under_way[QueueKind::Events as usize] = 0;
        assert_eq!(fill(&mut worker), [16, 4]);
        // Nor does a new connection for a late answer, which would wait for all that is under way.
        let late = Failure::Unreachable("no answer".to_owned());
        assert!(worker.may_reopen_for(QueueKind::Events, &late));
        assert!(!worker.may_reopen_for(QueueKind::DeadLetters, &late));
        worker.under_way = [0, 0];
        assert!(worker.may_reopen_for(QueueKind::DeadLetters, &late));
    }

    #[test]
    fn a_queue_that_rejects_requests_gets_fewer_at_a_time_and_more_as_it_accepts_them() {
        let mut pace = Pace::of(QueueKind::Events);
        for expected in [8, 4, 2, 1, 1] {
            pace.rejects();
            assert_eq!(pace.at_once, expected);
        }
        for (accepted, expected) in [(1, 2), (1, 2), (1, 3), (3, 4), (1000, 16)] {
            (0..accepted).for_each(|_| pace.accepts());
            assert_eq!(pace.at_once, expected);
        }
    }
}
