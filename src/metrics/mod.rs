//! The metrics of a running relay: its parts set them, and the endpoints read them. Decides
//! nothing, and no decision depends on it.
//!
//! Setting a metric costs a store or an addition without a lock, except for rare ones and those set
//! once for many records. [`names`] lists names and meanings.

mod encode;
mod histogram;
pub mod names;
mod state;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use self::encode::Page;
pub use self::histogram::AckTimes;
use self::histogram::Histogram;
pub use self::state::{LastError, Phase, Trouble};
use crate::lsn::Lsn;
use crate::position::EventPosition;
use crate::source::{SlotMetrics, TableSize};

/// Maximum number of topics with their own count.
const TOPICS: usize = 1000;

/// The label for all other topics: not a valid topic name.
const OTHER_TOPICS: &str = "(others)";

/// The metrics of one relay.
#[derive(Debug)]
pub struct Metrics {
    started: Instant,
    started_at: SystemTime,
    state: Mutex<state::State>,
    /// When the loop last iterated, in milliseconds since `started`.
    iterated_ms: AtomicU64,
    /// When something was last acknowledged, or nothing was in flight: likewise.
    progressed_ms: AtomicU64,
    /// Whether a broker is connected: 0 for unknown, 1 for no, 2 for yes.
    sink_connected: AtomicU8,
    sink_name: OnceLock<&'static str>,
    /// Producers that send.
    pub sink_producers: Figure,
    /// Transactions received.
    pub transactions: Figure,
    /// Events received.
    pub events_received: Figure,
    /// Outbox events received for the first time.
    pub new_events: Figure,
    /// Bytes received.
    pub received_bytes: Figure,
    /// Members of rows' headers that were dropped.
    pub dropped_headers: Figure,
    /// The end of what was received.
    pub received_lsn: Figure,
    /// The flush LSN.
    pub confirmed_lsn: Figure,
    /// Records in flight.
    pub in_flight_events: Figure,
    /// Bytes in flight.
    pub in_flight_bytes: Figure,
    /// The limit of bytes in flight.
    pub in_flight_limit_bytes: Figure,
    /// The position in the state topic.
    pub state_lsn: Figure,
    /// When the state topic was last written, or read at the start.
    pub state_written: Moment,
    /// Failures of the state topic.
    pub state_failures: Figure,
    /// PostgreSQL transactions of which a part was committed to Kafka.
    pub split_transactions: Figure,
    /// Microseconds for which reading was blocked by backpressure.
    pub backpressure_micros: Figure,
    /// Microseconds for which transactions were held back until other sessions see them.
    pub visibility_wait_micros: Figure,
    /// Acknowledged records, of all topics.
    pub delivered: Figure,
    /// When the oldest unconfirmed transaction committed.
    pub oldest_unconfirmed: Moment,
    /// When something was last received from PostgreSQL.
    pub last_received: Moment,
    /// When the flush LSN last advanced.
    pub last_confirmed: Moment,
    commit_to_ack: Histogram,
    broker_ack: Histogram,
    topics: Mutex<BTreeMap<String, Published>>,
    publish_errors: Mutex<BTreeMap<(String, String), u64>>,
    poison: Mutex<BTreeMap<(&'static str, &'static str), Poisoned>>,
    reconnects: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    slot: Mutex<Option<SlotMetrics>>,
    outbox: Mutex<BTreeMap<String, u64>>,
}

/// A number.
#[derive(Debug, Default)]
pub struct Figure(AtomicU64);

impl Figure {
    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Adds to the value.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A time, in microseconds since 1970; 0 means none.
#[derive(Debug, Default)]
pub struct Moment(AtomicI64);

impl Moment {
    /// Sets the time, in microseconds since 1970.
    pub fn set(&self, micros: i64) {
        self.0.store(micros, Relaxed);
    }

    /// The time in microseconds since 1970; `None` if not set.
    pub fn get(&self) -> Option<i64> {
        Some(self.0.load(Relaxed)).filter(|micros| *micros != 0)
    }

    fn seconds(&self) -> f64 {
        seconds(self.get().unwrap_or_default())
    }
}

/// The volume published to a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// Records.
    pub events: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// Undeliverable events of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poisoned {
    /// How many.
    pub count: u64,
    /// The position of the last one.
    pub last: EventPosition,
    /// When that was.
    pub at: SystemTime,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            started_at: SystemTime::now(),
            state: Mutex::default(),
            iterated_ms: AtomicU64::new(0),
            progressed_ms: AtomicU64::new(0),
            sink_connected: AtomicU8::new(0),
            sink_name: OnceLock::new(),
            sink_producers: Figure::default(),
            transactions: Figure::default(),
            events_received: Figure::default(),
            new_events: Figure::default(),
            received_bytes: Figure::default(),
            dropped_headers: Figure::default(),
            received_lsn: Figure::default(),
            confirmed_lsn: Figure::default(),
            in_flight_events: Figure::default(),
            in_flight_bytes: Figure::default(),
            in_flight_limit_bytes: Figure::default(),
            state_lsn: Figure::default(),
            state_written: Moment::default(),
            state_failures: Figure::default(),
            split_transactions: Figure::default(),
            backpressure_micros: Figure::default(),
            visibility_wait_micros: Figure::default(),
            delivered: Figure::default(),
            oldest_unconfirmed: Moment::default(),
            last_received: Moment::default(),
            last_confirmed: Moment::default(),
            commit_to_ack: Histogram::default(),
            broker_ack: Histogram::default(),
            topics: Mutex::default(),
            publish_errors: Mutex::default(),
            poison: Mutex::default(),
            reconnects: Mutex::default(),
            slot: Mutex::default(),
            outbox: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Records an iteration of the relay's loop.
    pub fn iterated(&self) {
        self.iterated_ms.store(self.elapsed_ms(), Relaxed);
    }

    /// Records that something was acknowledged, or that nothing is in flight.
    pub fn progressed(&self) {
        self.progressed_ms.store(self.elapsed_ms(), Relaxed);
    }

    /// The time since the last acknowledgement, while records are in flight.
    pub fn since_progress(&self) -> Duration {
        let progressed = Duration::from_millis(self.progressed_ms.load(Relaxed));
        self.started.elapsed().saturating_sub(progressed)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The time since the last iteration of the loop.
    pub fn since_last_iteration(&self) -> Duration {
        let iterated = Duration::from_millis(self.iterated_ms.load(Relaxed));
        self.started.elapsed().saturating_sub(iterated)
    }

    /// The time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// When it was started.
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// Sets what the destination is called, once.
    pub fn set_sink_name(&self, name: &'static str) {
        let _ = self.sink_name.set(name);
    }

    /// What the destination is called.
    pub fn sink_name(&self) -> &'static str {
        self.sink_name.get().copied().unwrap_or("Kafka")
    }

    /// Sets whether a broker is connected; `None` if unknown.
    pub fn sink_connected(&self, connected: Option<bool>) {
        let value = connected.map_or(0, |connected| 1 + u8::from(connected));
        self.sink_connected.store(value, Relaxed);
    }

    /// Whether a broker is connected; `None` if unknown.
    pub fn is_sink_connected(&self) -> Option<bool> {
        self.sink_connected.load(Relaxed).checked_sub(1).map(|connected| connected == 1)
    }

    /// Records the delay between an event's commit and its acknowledgement.
    pub fn commit_to_ack(&self, after: Duration) {
        self.commit_to_ack.observe(after);
    }

    /// Records the delay between a record's production and its acknowledgement.
    pub fn broker_ack(&self, after: Duration) {
        self.broker_ack.observe(after);
    }

    /// Counts records published to a topic.
    pub fn published(&self, topic: &str, published: Published) {
        let mut topics = lock(&self.topics);
        let name =
            if topics.len() < TOPICS || topics.contains_key(topic) { topic } else { OTHER_TOPICS };
        if !topics.contains_key(name) {
            topics.insert(name.to_owned(), Published::default());
        }
        if let Some(counted) = topics.get_mut(name) {
            counted.events += published.events;
            counted.bytes += published.bytes;
        }
    }

    /// Counts a failed record by topic and error code.
    pub fn publish_error(&self, topic: &str, code: &str) {
        let mut errors = lock(&self.publish_errors);
        let mut pair = (topic.to_owned(), code.to_owned());
        if errors.len() >= TOPICS && !errors.contains_key(&pair) {
            OTHER_TOPICS.clone_into(&mut pair.0);
        }
        *errors.entry(pair).or_default() += 1;
    }

    /// Counts a poison event, by cause and action.
    pub fn poisoned(&self, cause: &'static str, action: &'static str, last: EventPosition) {
        let mut poison = lock(&self.poison);
        let count = poison.get(&(cause, action)).map_or(0, |known| known.count) + 1;
        poison.insert((cause, action), Poisoned { count, last, at: SystemTime::now() });
    }

    /// The poison events, by cause and action.
    pub fn poison(&self) -> BTreeMap<(&'static str, &'static str), Poisoned> {
        lock(&self.poison).clone()
    }

    /// How many acknowledged records each topic has.
    pub fn records_by_topic(&self) -> BTreeMap<String, u64> {
        lock(&self.topics).iter().map(|(topic, it)| (topic.clone(), it.events)).collect()
    }

    /// The delays between commit and acknowledgement until now.
    pub fn ack_times(&self) -> AckTimes {
        self.commit_to_ack.counts()
    }

    /// The sizes of the outbox tables, in bytes.
    pub fn outbox(&self) -> BTreeMap<String, u64> {
        lock(&self.outbox).clone()
    }

    /// Counts a reconnect to a peer, by reason.
    pub fn reconnected(&self, peer: &'static str, reason: &'static str) {
        *lock(&self.reconnects).entry((peer, reason)).or_default() += 1;
    }

    /// Sets the slot's metrics.
    pub fn slot(&self, figures: SlotMetrics) {
        *lock(&self.slot) = Some(figures);
    }

    /// The slot's last known metrics.
    pub fn slot_metrics(&self) -> Option<SlotMetrics> {
        lock(&self.slot).clone()
    }

    /// Sets the sizes of the outbox tables. One without a size keeps the last one, and one that is not
    /// among them any more has none.
    pub fn outbox_sizes(&self, sizes: Vec<TableSize>) {
        let mut known = lock(&self.outbox);
        known.retain(|table, _| sizes.iter().any(|size| size.table == *table));
        known.extend(sizes.into_iter().filter_map(|size| Some((size.table, size.bytes?))));
    }

    /// How long ago the oldest unconfirmed transaction committed, in seconds; 0 if there is none.
    pub fn lag_seconds(&self, now: SystemTime) -> f64 {
        let oldest = self.oldest_unconfirmed.get();
        oldest.map_or(0.0, |oldest| (unix_seconds(now) - seconds(oldest)).max(0.0))
    }

    /// The flush LSN.
    pub fn confirmed(&self) -> Lsn {
        Lsn::new(self.confirmed_lsn.get())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Microseconds since 1970.
pub fn unix_micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Seconds since 1970.
pub fn unix_seconds(time: SystemTime) -> f64 {
    seconds(unix_micros(time))
}

#[allow(clippy::cast_precision_loss, reason = "to the microsecond until the year 2255")]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_table_is_kept_while_it_is_locked_and_goes_with_the_table() {
        let metrics = Metrics::default();
        let size = |table: &str, bytes| TableSize { table: table.to_owned(), bytes };
        let known = || lock(&metrics.outbox).clone().into_iter().collect::<Vec<_>>();
        metrics.outbox_sizes(vec![size("a", Some(1)), size("b", Some(2)), size("c", None)]);
        assert_eq!(known(), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        metrics.outbox_sizes(vec![size("a", None), size("c", Some(3))]);
        assert_eq!(known(), [("a".to_owned(), 1), ("c".to_owned(), 3)]);
        metrics.outbox_sizes(Vec::new());
        assert_eq!(known(), []);
    }
}
