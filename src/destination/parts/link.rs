//! What the sinks have in common that send batches over one connection: the thread that owns the
//! connection, and the producer that gives it orders and takes its events. Neither decides anything
//! about records.
//!
//! A connection that fails is given up with everything in flight, which is then produced again. So
//! each connection has an epoch: orders and events of an earlier one mean nothing.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use super::Failure;
use super::delays::delays;
use super::failure::REFUSED;
use super::worker;
use crate::ledger::Seq;
use crate::metrics::{Metrics, Published};
use crate::outlet::Refusal;
use crate::sink::{Condition, Outcome, Report, SinkError};

/// Minimum and maximum delay between two attempts to connect.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Values of [`Shared::connected`].
const UNKNOWN: u8 = 0;
const DISCONNECTED: u8 = 1;
const CONNECTED: u8 = 2;

/// A connection over which batches are sent.
pub(crate) trait Link: Sized + 'static {
    /// The name of its thread.
    const THREAD: &'static str;
    /// What it is opened with: read with each connection.
    type Source: Send + 'static;
    /// What is sent.
    type Batch: Send + Sync + fmt::Debug;
    /// What is there when the connection begins.
    type Synced: Send + fmt::Debug;
    /// What became of a batch, or of a part of one.
    type Done: Send + fmt::Debug;

    /// Connects under this claim, and reads what is there.
    fn open(
        source: &Self::Source,
        claim: &str,
        report: &(dyn Fn(Condition) + Sync),
    ) -> impl Future<Output = Result<(Self, Self::Synced), Failure>>;

    /// Sends batches until something ends that.
    fn stream(&mut self, session: &mut Session<'_, Self>) -> impl Future<Output = Ended<Self>>;
}

/// An order of the sink.
#[derive(Debug)]
pub(crate) enum Order<L: Link> {
    /// Connect, under this claim. What was ordered before is given up.
    Connect { epoch: u64, claim: String },
    /// Send this, over the connection of this epoch.
    Send { epoch: u64, batch: L::Batch },
    /// Close the connection.
    Close,
}

/// Something that happened to the connection of an epoch.
#[derive(Debug)]
pub(crate) enum Event<L: Link> {
    /// Batches can be sent.
    Synced(L::Synced),
    /// Something became of records, at that time.
    Done(L::Done, Instant),
    /// The connection cannot be used any more.
    Failed(Failure),
}

/// What ends a connection, or the attempt to open one.
pub(crate) enum Ended<L: Link> {
    /// Another order.
    Order(Order<L>),
    /// The sink is gone.
    Gone,
    /// The connection cannot be used any more.
    Failed(Failure),
}

/// Events, and who waits for them.
struct Shared<L: Link> {
    events: Mutex<VecDeque<Happened<L>>>,
    connected: AtomicU8,
    /// The signal for everything but [`Event::Done`].
    stirred: Notify,
    done: Notify,
}

enum Happened<L: Link> {
    To(u64, Event<L>),
    Condition(Condition),
}

impl<L: Link> Default for Shared<L> {
    fn default() -> Self {
        Self {
            events: Mutex::default(),
            connected: AtomicU8::new(UNKNOWN),
            stirred: Notify::new(),
            done: Notify::new(),
        }
    }
}

impl<L: Link> Shared<L> {
    fn events(&self) -> MutexGuard<'_, VecDeque<Happened<L>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, epoch: u64, event: Event<L>) {
        let is_done = matches!(event, Event::Done(..));
        self.events().push_back(Happened::To(epoch, event));
        if is_done { self.done.notify_one() } else { self.stirred.notify_one() }
    }

    fn report(&self, condition: Condition) {
        self.events().push_back(Happened::Condition(condition));
        self.stirred.notify_one();
    }

    fn set_connected(&self, connected: bool) {
        self.connected.store(if connected { CONNECTED } else { DISCONNECTED }, Ordering::Relaxed);
    }
}

/// The sink's side of an open connection.
pub(crate) struct Session<'a, L: Link> {
    epoch: u64,
    orders: &'a mut UnboundedReceiver<Order<L>>,
    shared: &'a Shared<L>,
}

impl<L: Link> Session<'_, L> {
    /// The next batch, or what ends the connection. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<L::Batch, Ended<L>> {
        loop {
            match self.orders.recv().await {
                Some(Order::Send { epoch, batch }) if epoch == self.epoch => return Ok(batch),
                Some(Order::Send { .. }) => {}
                Some(order) => return Err(Ended::Order(order)),
                None => return Err(Ended::Gone),
            }
        }
    }

    /// A state to be logged.
    pub(crate) fn report(&self, condition: Condition) {
        self.shared.report(condition);
    }

    /// Something became of records now.
    pub(crate) fn done(&self, done: L::Done) {
        self.shared.push(self.epoch, Event::Done(done, Instant::now()));
    }
}

/// The thread that owns the connection.
struct Worker<L: Link> {
    source: L::Source,
    orders: UnboundedReceiver<Order<L>>,
    shared: Arc<Shared<L>>,
}

impl<L: Link> Worker<L> {
    /// Works until the sink is gone.
    async fn run(mut self) {
        let mut next = None;
        loop {
            let order = match next.take() {
                Some(order) => order,
                None => match self.orders.recv().await {
                    Some(order) => order,
                    None => return,
                },
            };
            // Records of a connection that has failed are produced again.
            let Order::Connect { epoch, claim } = order else { continue };
            match self.serve(epoch, &claim).await {
                Ended::Order(order) => next = Some(order),
                Ended::Gone => return,
                Ended::Failed(failure) => self.shared.push(epoch, Event::Failed(failure)),
            }
        }
    }

    async fn serve(&mut self, epoch: u64, claim: &str) -> Ended<L> {
        let mut link = match self.connect(epoch, claim).await {
            Ok(link) => link,
            Err(ended) => return ended,
        };
        self.shared.set_connected(true);
        let mut session = Session { epoch, orders: &mut self.orders, shared: &self.shared };
        let ended = link.stream(&mut session).await;
        if let Ended::Failed(_) = &ended {
            self.shared.set_connected(false);
        }
        ended
    }

    /// Connects, however long it takes.
    async fn connect(&mut self, epoch: u64, claim: &str) -> Result<L, Ended<L>> {
        let mut delays = delays(RETRY_DELAYS);
        let mut reported: Option<Failure> = None;
        let report = |condition| self.shared.report(condition);
        loop {
            let failure = tokio::select! {
                biased;
                order = self.orders.recv() => return Err(order.map_or(Ended::Gone, Ended::Order)),
                opened = L::open(&self.source, claim, &report) => match opened {
                    Ok((link, synced)) => {
                        if reported.is_some() {
                            self.shared.report(Condition::Flowing);
                        }
                        self.shared.push(epoch, Event::Synced(synced));
                        return Ok(link);
                    }
                    Err(failure) => failure,
                },
            };
            self.shared.set_connected(false);
            let Some(condition) = failure.condition() else { return Err(Ended::Failed(failure)) };
            // Whether credentials are still refused matters too.
            let is_refused = matches!(condition, Condition::Unauthenticated(_));
            if is_refused || reported.as_ref() != Some(&failure) {
                self.shared.report(condition);
                reported = Some(failure);
            }
            let delay = delays.next().unwrap_or(RETRY_DELAYS[1]);
            tokio::select! {
                biased;
                order = self.orders.recv() => return Err(order.map_or(Ended::Gone, Ended::Order)),
                () = sleep(delay) => {}
            }
        }
    }
}

/// The sink's end of the thread, and what every sink keeps about it.
pub(crate) struct Producer<L: Link> {
    orders: UnboundedSender<Order<L>>,
    shared: Arc<Shared<L>>,
    /// Rises with each connection that is asked for, and with each replaced producer.
    epoch: u64,
    /// The version of the claim for which a connection was asked, if it has not come yet.
    asked: Option<u64>,
    /// The batch that is being made.
    pub(crate) batch: Option<L::Batch>,
    /// Records that are sent, or in the batch.
    pub(crate) in_flight: usize,
    /// Whether records were lost: nothing is sent until they are produced again. A record behind
    /// them would make them count as delivered.
    is_broken: bool,
    pub(crate) reports: Vec<Report>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) metrics: Arc<Metrics>,
}

impl<L: Link> Producer<L> {
    /// One with its thread, which connects when it is asked to.
    pub(crate) fn new(source: L::Source, metrics: Arc<Metrics>) -> Result<Self, SinkError> {
        let (producer, orders) = Self::without_thread(metrics);
        let worker = Worker::<L> { source, orders, shared: Arc::clone(&producer.shared) };
        worker::start(L::THREAD, move || worker.run())?;
        producer.metrics.sink_producers.set(1);
        Ok(producer)
    }

    /// One whose orders the caller takes.
    pub(crate) fn without_thread(metrics: Arc<Metrics>) -> (Self, UnboundedReceiver<Order<L>>) {
        let (orders, received) = unbounded_channel();
        let producer = Self {
            orders,
            shared: Arc::default(),
            epoch: 0,
            asked: None,
            batch: None,
            in_flight: 0,
            is_broken: false,
            reports: Vec::new(),
            conditions: Vec::new(),
            metrics,
        };
        (producer, received)
    }

    /// Whether to ask for a connection under the claim of this version.
    pub(crate) fn may_ask(&self, version: u64) -> bool {
        !self.is_broken && self.asked != Some(version)
    }

    /// Asks for a connection.
    pub(crate) fn ask(&mut self, version: u64, claim: String) {
        self.epoch += 1;
        self.asked = Some(version);
        self.order(Order::Connect { epoch: self.epoch, claim });
    }

    /// The version for which a connection was asked that has now come, or failed.
    pub(crate) fn asked(&mut self) -> Option<u64> {
        self.asked.take()
    }

    fn order(&mut self, order: Order<L>) {
        if self.orders.send(order).is_err() {
            let reason = format!("the thread {} has ended", L::THREAD);
            self.conditions.push(Condition::Broken(reason));
        }
    }

    /// Sends the batch that is being made.
    pub(crate) fn flush(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.order(Order::Send { epoch: self.epoch, batch });
        }
    }

    /// Counts a record that is refused.
    pub(crate) fn refused(&self, topic: &str, refusal: Refusal) -> Refusal {
        self.metrics.publish_error(topic, REFUSED);
        refusal
    }

    /// The next event of the current connection.
    pub(crate) fn next_event(&mut self) -> Option<Event<L>> {
        loop {
            let happened = self.shared.events().pop_front()?;
            match happened {
                Happened::To(epoch, event) if epoch == self.epoch => return Some(event),
                // Of a connection that was given up.
                Happened::To(..) => {}
                Happened::Condition(condition) => self.conditions.push(condition),
            }
        }
    }

    /// All records of a batch are delivered.
    pub(crate) fn delivered(&mut self, tally: &Tally, at: Instant) {
        let reports = tally.seqs.iter();
        let reports = reports.map(|seq| Report { seq: *seq, outcome: Outcome::Delivered, at });
        self.reports.extend(reports);
        self.in_flight -= tally.seqs.len();
        for (topic, published) in &tally.published {
            self.metrics.published(topic, *published);
        }
        let after = at.saturating_duration_since(tally.since);
        for _ in &tally.seqs {
            self.metrics.broker_ack(after);
        }
    }

    /// What is in flight is to be produced again.
    pub(crate) fn break_off(&mut self, reason: String) {
        self.is_broken = true;
        self.conditions.push(Condition::Broken(reason));
    }

    /// Gives up the connection and everything in flight.
    pub(crate) fn replace(&mut self) {
        self.epoch += 1;
        (self.asked, self.batch) = (None, None);
        (self.in_flight, self.is_broken) = (0, false);
        self.order(Order::Close);
    }

    pub(crate) fn is_connected(&self) -> Option<bool> {
        match self.shared.connected.load(Ordering::Relaxed) {
            UNKNOWN => None,
            connected => Some(connected == CONNECTED),
        }
    }

    pub(crate) async fn wait_for_events(&self, eager: bool) {
        if eager && !self.reports.is_empty() {
            return;
        }
        tokio::select! {
            () = self.shared.stirred.notified() => {}
            () = self.shared.done.notified(), if eager => {}
        }
    }

    /// Adds an event, as the thread does for the current connection.
    #[cfg(test)]
    pub(crate) fn happened(&self, event: Event<L>) {
        self.shared.push(self.epoch, event);
    }
}

/// The records of a batch, which are reported together.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) seqs: Vec<Seq>,
    /// How much goes to each topic.
    published: Vec<(String, Published)>,
    /// When its first record was produced.
    since: Instant,
}

impl Tally {
    pub(crate) fn new(now: Instant) -> Self {
        Self { seqs: Vec::new(), published: Vec::new(), since: now }
    }

    /// Adds a record with that many bytes of key and value.
    pub(crate) fn add(&mut self, seq: Seq, topic: &str, bytes: usize) {
        // Most records of a topic follow one another.
        let known = self.published.iter().rposition(|(name, _)| name == topic);
        let at = known.unwrap_or_else(|| {
            self.published.push((topic.to_owned(), Published::default()));
            self.published.len() - 1
        });
        let (_, counted) = &mut self.published[at];
        counted.events += 1;
        counted.bytes += bytes as u64;
        self.seqs.push(seq);
    }
}
