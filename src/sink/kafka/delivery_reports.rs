//! What a producer's callbacks leave for the relay.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::statistics::{ConnectionState, Measured};
use crate::metrics::Published;
use crate::sink::{Condition, Outcome, Report};

/// How long after the last connection broke its reason is awaited.
const REASON_LIMIT: Duration = Duration::from_secs(2);

/// Values of [`Reports::connected`].
const UNKNOWN: u8 = 0;
const DISCONNECTED: u8 = 1;
const CONNECTED: u8 = 2;

/// By which the relay is woken, and what it is asked for; of all producers of a sink.
#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) stirred: Notify,
    /// Whether somebody asks for the configuration to be read again.
    pub(super) asked: AtomicBool,
}

/// What one producer says.
#[derive(Debug)]
pub(super) struct Reports {
    waiting: Mutex<Waiting>,
    /// Whether a broker is connected, as far as that was said.
    connected: AtomicU8,
    /// Whether the brokers have given it the producer id that it writes with.
    has_id: AtomicBool,
    /// How often it called back.
    events: AtomicU64,
    /// How many records were delivered, and in how many batches.
    delivered: AtomicU64,
    batches: AtomicU64,
    /// What its last statistics say.
    measured: Mutex<Measured>,
    signals: Arc<Signals>,
}

#[derive(Debug, Default)]
struct Waiting {
    reports: Vec<Report>,
    /// What was delivered by topic since it was last taken, the last topic last.
    published: Vec<(String, Published)>,
    conditions: Vec<Condition>,
    /// What last became of a connection to a broker.
    connection: Option<String>,
    /// No broker is connected, since then, and why is not known yet.
    unreachable: Option<(String, Instant)>,
    /// Why the last connection failed, since when no broker was seen to be connected.
    failed: Option<String>,
    /// Whether it was reported that no broker is connected, and none has been since.
    is_reported: bool,
    /// Whether the broker refused a batch of this producer's for a record in it.
    refused: bool,
}

impl Waiting {
    /// A broker is connected.
    fn connected(&mut self) {
        (self.failed, self.is_reported) = (None, false);
    }

    /// A record was delivered. Records of a topic come one after the other.
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

    /// It called back.
    pub(super) fn event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has called back.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Something became of a record; where it was delivered, to which topic and with how
    /// many bytes.
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

    /// All of a batch was reported.
    pub(super) fn note_batch(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// How many batches were delivered.
    pub(super) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// The producer's statistics.
    pub(super) fn update_statistics(&self, (state, measured): (ConnectionState, Measured)) {
        *self.measured.lock().unwrap_or_else(PoisonError::into_inner) = measured;
        self.update_connection(state);
    }

    /// What its last statistics say.
    pub(super) fn with_measured(&self, look: impl FnOnce(&Measured)) {
        look(&self.measured.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// How the producer stands to the brokers, by its statistics.
    ///
    /// librdkafka built by `CMake`, as releases have it, never raises `ALL_BROKERS_DOWN`: its
    /// `rd_atomic32_set` gives the new value there and not the one before
    /// (<https://github.com/confluentinc/librdkafka/issues/5282>). So a connection that failed, and
    /// none that stands at the next statistics, mean the same.
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

    /// Whether the brokers have given it the producer id that it writes with.
    pub(super) fn has_id(&self) -> bool {
        self.has_id.load(Ordering::Relaxed)
    }

    /// What the producer knows of its connections.
    pub(super) fn set_connected(&self, connected: bool) {
        let value = if connected { CONNECTED } else { DISCONNECTED };
        // Told at each delivery: a store would take the line from other cores each time.
        if self.connected.load(Ordering::Relaxed) != value {
            self.connected.store(value, Ordering::Relaxed);
        }
    }

    /// Whether a broker is connected; `None` where nothing is known of it yet.
    pub(super) fn is_connected(&self) -> Option<bool> {
        match self.connected.load(Ordering::Relaxed) {
            UNKNOWN => None,
            value => Some(value == CONNECTED),
        }
    }

    /// No broker is connected. `count` only counts them: what became of the last
    /// connection says why, and may still be to come.
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

    /// A connection broke or could not be made.
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

    /// This is to be known by the relay.
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

    /// Appends what became of records, and gives what was delivered by topic.
    pub(super) fn take(&self, into: &mut Vec<Report>) -> Vec<(String, Published)> {
        let mut waiting = self.lock();
        into.append(&mut waiting.reports);
        mem::take(&mut waiting.published)
    }

    /// Whether reports wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.lock().reports.is_empty()
    }

    /// The broker refused a batch for a record in it.
    pub(super) fn refused(&self) {
        self.lock().refused = true;
    }

    /// Whether the broker refused a batch for a record in it.
    pub(super) fn is_refused(&self) -> bool {
        self.lock().refused
    }

    /// Those of the producer that comes after this one, which has gone: what it said of
    /// records counts, and is said first; what it said of itself does not.
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
    fn brokers_out_of_reach_are_told_once_an_outage_without_librdkafkas_word() {
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
        assert_eq!(reports.take_conditions(), [], "it is known");
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
    fn what_librdkafka_says_itself_is_not_told_twice() {
        let reports = Reports::new(&Arc::default());
        reports.connection("refused".to_owned());
        reports.unreachable("1/1 brokers are down".to_owned());
        reports.update_connection(AWAY);
        let told = reports.take_conditions();
        assert_eq!(told, [Condition::Unreachable("refused".to_owned())]);
    }
}
