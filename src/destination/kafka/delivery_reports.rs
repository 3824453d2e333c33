//! Collects the results of a producer's callbacks for the relay.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::statistics::{ConnectionState, Measured};
use crate::metrics::Published;
use crate::sink::{Condition, Outcome, Report};

/// How long to wait for the reason after the last connection is lost.
const REASON_LIMIT: Duration = Duration::from_secs(2);

/// Values of [`Reports::connected`].
const UNKNOWN: u8 = 0;
const DISCONNECTED: u8 = 1;
const CONNECTED: u8 = 2;

/// Wakes the relay and carries requests to it; shared by all producers of a sink.
#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) stirred: Notify,
    /// Whether a reload of the configuration was requested.
    pub(super) asked: AtomicBool,
}

impl Signals {
    /// Whether a reload was requested since the last call.
    pub(super) fn take_asked(&self) -> bool {
        self.asked.swap(false, Ordering::SeqCst)
    }
}

/// The reports of one producer.
#[derive(Debug)]
pub(super) struct Reports {
    waiting: Mutex<Waiting>,
    /// Whether a broker is connected, as far as known.
    connected: AtomicU8,
    /// Whether the brokers have assigned it a producer ID.
    has_id: AtomicBool,
    /// The number of callbacks.
    events: AtomicU64,
    /// The number of delivered records, and of the batches that they were in.
    delivered: AtomicU64,
    batches: AtomicU64,
    /// What its last statistics say.
    measured: Mutex<Measured>,
    signals: Arc<Signals>,
}

#[derive(Debug, Default)]
struct Waiting {
    reports: Vec<Report>,
    /// Deliveries by topic since they were last taken; the most recent topic is last.
    published: Vec<(String, Published)>,
    conditions: Vec<Condition>,
    /// The last state of a connection to a broker.
    connection: Option<String>,
    /// Since when no broker is connected, while the reason is unknown.
    unreachable: Option<(String, Instant)>,
    /// Why the last connection failed, if no broker was connected since.
    failed: Option<String>,
    /// Whether it was reported that no broker is connected, and none was connected since.
    is_reported: bool,
    /// Whether the broker rejected a batch of this producer because of a record in it.
    refused: bool,
}

impl Waiting {
    /// Records that a broker is connected.
    fn connected(&mut self) {
        (self.failed, self.is_reported) = (None, false);
    }

    /// Records a delivered record. Most records of a topic follow one another.
    fn count(&mut self, topic: &str, published: Published) {
        let known = self.published.iter().rposition(|(name, _)| name == topic);
        let at = known.unwrap_or_else(|| {
            self.published.push((topic.to_owned(), Published::default()));
            self.published.len() - 1
        });
        let (_, counted) = &mut self.published[at];
        counted.events += published.events;
        counted.bytes += published.bytes;
    }
}

impl Reports {
    pub(super) fn new(signals: &Arc<Signals>) -> Self {
        Self {
            waiting: Mutex::default(),
            connected: AtomicU8::new(UNKNOWN),
            has_id: AtomicBool::new(false),
            events: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            measured: Mutex::default(),
            signals: Arc::clone(signals),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a callback.
    pub(super) fn event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of callbacks.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Records a delivery report. If the record was delivered, it has the topic and the number of
    /// bytes.
    pub(super) fn report(&self, report: Report, published: Option<(&str, u64)>) {
        let failed = report.outcome != Outcome::Delivered;
        if !failed {
            self.set_connected(true);
            self.delivered.fetch_add(1, Ordering::Relaxed);
        }
        let mut waiting = self.lock();
        if !failed {
            waiting.connection = None;
            waiting.unreachable = None;
            waiting.connected();
        }
        waiting.reports.push(report);
        if let Some((topic, bytes)) = published {
            waiting.count(topic, Published { events: 1, bytes });
        }
        drop(waiting);
        if failed {
            self.signals.stirred.notify_one();
        }
    }

    /// How many records were delivered.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Counts a batch of which every record was reported.
    pub(super) fn note_batch(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of delivered batches.
    pub(super) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Records the producer's statistics.
    pub(super) fn update_statistics(&self, (state, measured): (ConnectionState, Measured)) {
        *self.measured.lock().unwrap_or_else(PoisonError::into_inner) = measured;
        self.update_connection(state);
    }

    /// What its last statistics say.
    pub(super) fn with_measured(&self, look: impl FnOnce(&Measured)) {
        look(&self.measured.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records whether the producer is connected, by its statistics.
    ///
    /// librdkafka built by `CMake`, as in releases, never raises `ALL_BROKERS_DOWN`: its
    /// `rd_atomic32_set` returns the new value instead of the previous one
    /// (<https://github.com/confluentinc/librdkafka/issues/5282>). So a failed connection, and no
    /// open one in the next statistics, are treated as that event.
    fn update_connection(&self, state: ConnectionState) {
        self.set_connected(state.is_connected);
        self.has_id.store(state.has_id, Ordering::Relaxed);
        let mut waiting = self.lock();
        if state.is_connected {
            return waiting.connected();
        }
        if waiting.is_reported {
            return;
        }
        if let Some(reason) = waiting.failed.take() {
            waiting.is_reported = true;
            drop(waiting);
            self.condition(Condition::Unreachable(reason));
        }
    }

    /// Whether the brokers have assigned it a producer ID.
    pub(super) fn has_id(&self) -> bool {
        self.has_id.load(Ordering::Relaxed)
    }

    /// Records whether the producer has a connection.
    pub(super) fn set_connected(&self, connected: bool) {
        let value = if connected { CONNECTED } else { DISCONNECTED };
        // Called at each delivery: an unconditional store would invalidate other cores' cache line.
        if self.connected.load(Ordering::Relaxed) != value {
            self.connected.store(value, Ordering::Relaxed);
        }
    }

    /// Whether a broker is connected; `None` while unknown.
    pub(super) fn is_connected(&self) -> Option<bool> {
        match self.connected.load(Ordering::Relaxed) {
            UNKNOWN => None,
            value => Some(value == CONNECTED),
        }
    }

    /// Records that no broker is connected. `count` only counts them; the failure of the last
    /// connection has the reason, and may follow.
    pub(super) fn unreachable(&self, count: String) {
        self.set_connected(false);
        let mut waiting = self.lock();
        waiting.is_reported = true;
        match waiting.connection.take() {
            Some(reason) => {
                drop(waiting);
                self.condition(Condition::Unreachable(reason));
            }
            None => waiting.unreachable = Some((count, Instant::now())),
        }
    }

    /// Records that a connection was lost or could not be opened.
    pub(super) fn connection(&self, reason: String) {
        let mut waiting = self.lock();
        waiting.failed = Some(reason.clone());
        if waiting.unreachable.take().is_some() {
            drop(waiting);
            self.condition(Condition::Unreachable(reason));
        } else {
            waiting.connection = Some(reason);
        }
    }

    /// Reports a condition to the relay.
    pub(super) fn condition(&self, condition: Condition) {
        let mut waiting = self.lock();
        if !waiting.conditions.contains(&condition) && waiting.conditions.len() < 16 {
            waiting.conditions.push(condition);
        }
        drop(waiting);
        self.signals.stirred.notify_one();
    }

    pub(super) fn take_conditions(&self) -> Vec<Condition> {
        let mut waiting = self.lock();
        if let Some((count, _)) =
            waiting.unreachable.take_if(|(_, then)| then.elapsed() >= REASON_LIMIT)
        {
            waiting.conditions.push(Condition::Unreachable(count));
        }
        mem::take(&mut waiting.conditions)
    }

    /// Appends the delivery reports, and returns the deliveries by topic.
    pub(super) fn take(&self, into: &mut Vec<Report>) -> Vec<(String, Published)> {
        let mut waiting = self.lock();
        into.append(&mut waiting.reports);
        mem::take(&mut waiting.published)
    }

    /// Whether there are unread reports.
    pub(super) fn is_waiting(&self) -> bool {
        !self.lock().reports.is_empty()
    }

    /// Records that the broker rejected a batch because of a record in it.
    pub(super) fn refused(&self) {
        self.lock().refused = true;
    }

    /// Whether the broker rejected a batch because of a record in it.
    pub(super) fn is_refused(&self) -> bool {
        self.lock().refused
    }

    /// The reports of the producer that replaces this one. The delivery reports of this one are kept
    /// and come first; its conditions are dropped.
    pub(super) fn followed_by(&self, next: &Self) {
        let mut ours = self.lock();
        let (mut reports, published) =
            (mem::take(&mut ours.reports), mem::take(&mut ours.published));
        drop(ours);
        let mut theirs = next.lock();
        reports.append(&mut theirs.reports);
        theirs.reports = reports;
        for (topic, published) in published {
            theirs.count(&topic, published);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Outcome;

    const AWAY: ConnectionState = ConnectionState { is_connected: false, has_id: false };
    const THERE: ConnectionState = ConnectionState { is_connected: true, has_id: true };

    #[test]
    fn unreachable_brokers_are_reported_once_per_outage_without_librdkafkas_event() {
        let reports = Reports::new(&Arc::default());
        let unreachable = |reason: &str| vec![Condition::Unreachable(reason.to_owned())];
        reports.update_connection(AWAY);
        assert_eq!(reports.take_conditions(), [], "nothing has failed yet");
        reports.connection("refused".to_owned());
        assert_eq!(reports.take_conditions(), [], "another may be connected");
        reports.update_connection(AWAY);
        assert_eq!(reports.take_conditions(), unreachable("refused"));
        assert_eq!(reports.is_connected(), Some(false));
        reports.connection("refused again".to_owned());
        reports.update_connection(AWAY);
        assert_eq!(reports.take_conditions(), [], "it was reported");
        reports.update_connection(THERE);
        reports.connection("one of three".to_owned());
        reports.update_connection(THERE);
        reports.update_connection(AWAY);
        assert_eq!(reports.take_conditions(), [], "that one was over");
        reports.connection("all of them".to_owned());
        reports.update_connection(AWAY);
        assert_eq!(reports.take_conditions(), unreachable("all of them"));
        // A delivery is a connection too.
        reports.report(Report::new(crate::ledger::Seq::new(1), Outcome::Delivered), None);
        reports.connection("once more".to_owned());
        reports.update_connection(AWAY);
        assert_eq!(reports.take_conditions(), unreachable("once more"));
    }

    #[test]
    fn librdkafkas_own_event_is_not_reported_twice() {
        let reports = Reports::new(&Arc::default());
        reports.connection("refused".to_owned());
        reports.unreachable("1/1 brokers are down".to_owned());
        reports.update_connection(AWAY);
        let told = reports.take_conditions();
        assert_eq!(told, [Condition::Unreachable("refused".to_owned())]);
    }
}
