//! The thread that sends: several requests at a time, each with messages of different groups.
//!
//! What fails for all messages stops everything: one request at a time then finds out whether it is
//! over. What fails for one message delays its group alone.

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

use super::client::{Connection, Facts};
use super::config::SqsSource;
use super::message::{Limits, Message};
use super::schedule::{Batch, Delivery, Group, Schedule};
use super::verdict::{Rejection, Verdict};
use crate::outlet::Refusal;
use crate::sink::Outcome;
use crate::sink::attempts::{Attempts, Failure};
use crate::sink::delays::delays;

/// How many requests are under way at most. With 20 ms for an answer they carry 8,000 messages per
/// second, more than most queues accept.
const REQUESTS_MAX: usize = 16;

/// Minimum and maximum delay between two attempts.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// How often the limits of the queues are read again.
const LIMITS_INTERVAL: Duration = Duration::from_secs(60);

/// What fails and recovers by itself: a group, or (`None`) the queues.
pub(super) type Lane = Option<Group>;

/// What the queues take, once that was read.
pub(super) type LimitsSender = watch::Sender<Option<[Limits; 2]>>;

pub(super) struct Worker {
    source: SqsSource,
    deliveries: UnboundedReceiver<Vec<Delivery>>,
    epoch: watch::Receiver<u64>,
    limits: LimitsSender,
    attempts: Arc<Attempts<Lane>>,
    schedule: Schedule,
    /// The groups of which a message has failed alone.
    failing: BTreeSet<Group>,
    outage: Option<Outage>,
}

/// What fails for all messages.
struct Outage {
    delays: ExponentialBackoff,
    /// When it is tried again.
    until: Instant,
    /// Whether messages are rejected, though the queues can be asked about: only a message that is
    /// accepted ends that.
    is_of_sending: bool,
}

/// A request that has ended.
type Answered = (Batch, Result<Vec<Verdict>, Rejection>);

/// Why no more requests are made over a connection.
enum Ended {
    /// It is to be opened anew.
    Reopen,
    /// The sink is gone.
    Gone,
}

impl Worker {
    pub(super) fn new(
        source: SqsSource,
        (deliveries, epoch): (UnboundedReceiver<Vec<Delivery>>, watch::Receiver<u64>),
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
            outage: None,
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
            if let Some(outage) = &self.outage {
                let wait = outage.until.saturating_duration_since(Instant::now());
                let mut epoch = self.epoch.clone();
                let over = async { while epoch.changed().await.is_ok() {} };
                tokio::select! {
                    () = sleep(wait) => {}
                    () = over => return None,
                }
            }
            let opened = match self.source.read() {
                Ok(config) => Connection::open(config).await,
                Err(reason) => Err(Failure::Unusable(reason)),
            };
            match opened {
                Ok((connection, facts)) => {
                    self.note_limits(&facts);
                    if self.outage.as_ref().is_none_or(|outage| !outage.is_of_sending) {
                        self.works();
                    }
                    return Some(connection);
                }
                Err(failure) => self.fails(failure, &[]),
            }
        }
    }

    fn note_limits(&self, facts: &[Option<Facts>; 2]) {
        let events = facts[0].as_ref().map(|facts| facts.limits);
        let letters = facts[1].as_ref().map(|facts| facts.limits).or(events);
        self.limits.send_replace(events.zip(letters).map(|(one, two)| [one, two]));
    }

    async fn serve(&mut self, connection: &Connection) -> Ended {
        let mut facts = pin!(facts_later(connection));
        let mut requests: FuturesUnordered<BoxFuture<'_, Answered>> = FuturesUnordered::new();
        let mut reopens = false;
        loop {
            self.note_epoch();
            while !reopens && self.may_send(requests.len()) {
                let Some(batch) = self.schedule.next_batch(Instant::now()) else { break };
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
                found = &mut facts => {
                    // What is known from before is still used if nothing is found.
                    match found {
                        Ok(found) => self.note_limits(&found),
                        Err(failure) => tracing::debug!(?failure, "cannot ask about the queues"),
                    }
                    facts.set(facts_later(connection));
                }
                () = due => {}
            }
        }
    }

    /// Whether another request may be made beside so many.
    fn may_send(&self, under_way: usize) -> bool {
        match &self.outage {
            None => under_way < REQUESTS_MAX,
            Some(outage) => under_way == 0 && outage.until <= Instant::now(),
        }
    }

    /// When something can be sent that cannot be now.
    fn wake(&self) -> Option<Instant> {
        let outage = self.outage.as_ref().map(|outage| outage.until);
        let now = Instant::now();
        [outage, self.schedule.next_due()].into_iter().flatten().filter(|at| *at > now).min()
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
            self.attempts.gives_up(&Some(group));
        }
    }

    fn push(&mut self, deliveries: Vec<Delivery>) {
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
        match answer {
            Ok(verdicts) => {
                self.works();
                for (delivery, verdict) in batch.deliveries.into_iter().zip(verdicts) {
                    self.settle(delivery, verdict);
                }
                false
            }
            Err(Rejection::Content(refusal)) => {
                self.rejected(batch, &refusal);
                false
            }
            Err(Rejection::Failure { failure, reopens }) => {
                let topics = batch.deliveries.iter().map(|one| one.sent.topic.as_str());
                self.fails(failure, &topics.collect::<Vec<_>>());
                if let Some(outage) = &mut self.outage {
                    outage.is_of_sending = true;
                }
                for delivery in batch.deliveries {
                    self.again(delivery, Schedule::again);
                }
                reopens
            }
        }
    }

    /// One of the messages is rejected: each is sent alone, to see which.
    fn rejected(&mut self, batch: Batch, refusal: &Refusal) {
        self.works();
        let is_single = batch.deliveries.len() == 1;
        for delivery in batch.deliveries {
            if is_single {
                self.settle(delivery, Verdict::Refused(refusal.clone()));
            } else {
                self.again(delivery, Schedule::again_alone);
            }
        }
    }

    fn settle(&mut self, delivery: Delivery, verdict: Verdict) {
        let group = Group::of(&delivery);
        let is_current = delivery.sent.epoch == *self.epoch.borrow();
        match verdict {
            Verdict::Later(failure) => {
                if is_current {
                    self.failing.insert(group.clone());
                    self.attempts.fails(Some(group), failure, [delivery.sent.topic.as_str()]);
                }
                self.again(delivery, |schedule, one| schedule.again_later(one, Instant::now()));
            }
            Verdict::Delivered => {
                self.recovers(&group);
                self.schedule.done(group);
                self.attempts.done(delivery.sent, Outcome::Delivered);
            }
            Verdict::Refused(refusal) => {
                self.recovers(&group);
                if is_current {
                    self.schedule.refused(&group);
                } else {
                    self.schedule.done(group);
                }
                self.attempts.done(delivery.sent, Outcome::Refused(refusal));
            }
        }
    }

    /// Sends a message again, unless it is produced again.
    fn again(&mut self, delivery: Delivery, again: impl FnOnce(&mut Schedule, Delivery)) {
        if delivery.sent.epoch == *self.epoch.borrow() {
            again(&mut self.schedule, delivery);
        } else {
            self.schedule.done(Group::of(&delivery));
        }
    }

    fn recovers(&mut self, group: &Group) {
        if self.failing.remove(group) {
            self.attempts.works(&Some(group.clone()));
        }
    }

    /// The queues answer.
    fn works(&mut self) {
        self.outage = None;
        self.attempts.works(&None);
    }

    /// Something fails for all messages, as seen by those of these topics.
    fn fails(&mut self, failure: Failure, topics: &[&str]) {
        self.attempts.fails(None, failure, topics.iter().copied());
        let now = Instant::now();
        let outage = self.outage.get_or_insert_with(|| Outage {
            delays: delays(RETRY_DELAYS),
            until: now,
            is_of_sending: false,
        });
        // Requests that were under way together fail together.
        if outage.until <= now {
            outage.until = now + outage.delays.next().unwrap_or(RETRY_DELAYS[1]);
        }
    }
}

/// What the queues are, after a while.
async fn facts_later(connection: &Connection) -> Result<[Option<Facts>; 2], Failure> {
    sleep(LIMITS_INTERVAL).await;
    connection.facts().await
}

async fn send(connection: &Connection, batch: Batch) -> Answered {
    let messages: Vec<&Message> = batch.deliveries.iter().map(|one| &one.message).collect();
    let answer = connection.send(batch.queue, &messages).await;
    (batch, answer)
}
