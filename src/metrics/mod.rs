//! The metrics of a running relay: its parts set them, and the endpoints read them. Decides
//! nothing, and no decision depends on it.
//!
//! Setting a metric costs a store or an addition without a lock, except for rare ones and those set
//! once for many records. [`names`] lists names and meanings.

mod encode;
mod histogram;
pub mod names;
mod state;
mod trail;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use self::encode::Page;
pub use self::histogram::AckTimes;
use self::histogram::Histogram;
pub use self::state::{LastError, Phase, Trouble};
pub use self::trail::{TRAIL, Trail, TrailEvent};
use crate::lsn::Lsn;
use crate::position::EventPosition;
use crate::source::{MinuteMetrics, SlotMetrics, TableSize};

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
    /// The last events.
    pub trail: Trail,
    /// The schema registry.
    pub schemas: SchemaMetrics,
    commit_to_ack: Histogram,
    broker_ack: Histogram,
    topics: Mutex<BTreeMap<String, Published>>,
    publish_errors: Mutex<BTreeMap<(String, String), u64>>,
    poison: Mutex<BTreeMap<(&'static str, &'static str), Poisoned>>,
    reconnects: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    slot: Mutex<Option<SlotMetrics>>,
    outbox: Mutex<BTreeMap<String, OutboxTable>>,
    standbys: Mutex<Option<u64>>,
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

/// The schema registry.
#[derive(Debug, Default)]
pub struct SchemaMetrics {
    /// Schemas that are known.
    pub known: Figure,
    /// Microseconds for which messages waited for schemas.
    pub wait_micros: Figure,
    requests: Mutex<BTreeMap<&'static str, u64>>,
}

impl SchemaMetrics {
    /// Counts a request, by its result.
    pub fn requested(&self, result: &'static str) {
        *lock(&self.requests).entry(result).or_default() += 1;
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

/// An outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    /// Its size on disk, in bytes.
    pub bytes: u64,
    /// When it was seen that rows or partitions had been removed.
    pub removed_at: Option<SystemTime>,
    /// Rows deleted, also by transactions that were undone.
    deleted: u64,
    /// The oids of the partitions.
    parts: BTreeSet<u32>,
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
            trail: Trail::default(),
            schemas: SchemaMetrics::default(),
            commit_to_ack: Histogram::default(),
            broker_ack: Histogram::default(),
            topics: Mutex::default(),
            publish_errors: Mutex::default(),
            poison: Mutex::default(),
            reconnects: Mutex::default(),
            slot: Mutex::default(),
            outbox: Mutex::default(),
            standbys: Mutex::default(),
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

    /// The outbox tables, as last read.
    pub fn outbox(&self) -> BTreeMap<String, OutboxTable> {
        lock(&self.outbox).clone()
    }

    /// Instances that stand by; `None`: not known, or this one does not read.
    pub fn standbys(&self) -> Option<u64> {
        lock(&self.standbys).filter(|_| self.phase().0.reads())
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

    /// Sets what is read once a minute: the outbox tables if they could be read. A table without a size keeps the last one, and one that is not among
    /// them any more has none.
    pub fn minute(&self, MinuteMetrics { tables, standbys }: MinuteMetrics) {
        *lock(&self.standbys) = standbys;
        let Some(tables) = tables else { return };
        let mut known = lock(&self.outbox);
        known.retain(|table, _| tables.iter().any(|one| one.table == *table));
        for TableSize { table, bytes, deleted, parts } in tables {
            let before = known.get(&table);
            let Some(bytes) = bytes.or(before.map(|before| before.bytes)) else { continue };
            let removed = before.filter(|it| deleted > it.deleted || !it.parts.is_subset(&parts));
            let removed = removed.map(|_| SystemTime::now());
            let removed_at = removed.or(before.and_then(|before| before.removed_at));
            known.insert(table, OutboxTable { bytes, removed_at, deleted, parts });
        }
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
    fn table_keeps_its_size_while_it_is_locked_and_shows_removals() {
        let metrics = Metrics::default();
        let table = |table: &str, bytes, deleted, parts: &[u32]| {
            let parts = parts.iter().copied().collect();
            TableSize { table: table.to_owned(), bytes, deleted, parts }
        };
        let read =
            |tables| metrics.minute(MinuteMetrics { tables: Some(tables), standbys: Some(1) });
        let known = || {
            let of = |(name, it): (String, OutboxTable)| (name, it.bytes, it.removed_at.is_some());
            metrics.outbox().into_iter().map(of).collect::<Vec<_>>()
        };
        let c = table("c", None, 0, &[1]);
        read(vec![table("a", Some(1), 5, &[2]), table("b", Some(2), 0, &[3, 4]), c]);
        assert_eq!(known(), [("a".to_owned(), 1, false), ("b".to_owned(), 2, false)]);
        // A partition that is added, and statistics that begin anew, remove nothing.
        read(vec![table("a", None, 0, &[2]), table("b", Some(3), 0, &[3, 4, 5])]);
        assert_eq!(known(), [("a".to_owned(), 1, false), ("b".to_owned(), 3, false)]);
        // Rows are deleted; a partition is dropped, and another one made.
        read(vec![table("a", Some(1), 1, &[2]), table("b", Some(2), 0, &[4, 5, 6])]);
        assert_eq!(known(), [("a".to_owned(), 1, true), ("b".to_owned(), 2, true)]);
        metrics.minute(MinuteMetrics { tables: None, standbys: None });
        read(vec![table("b", Some(2), 0, &[4, 5, 6])]);
        assert_eq!(known(), [("b".to_owned(), 2, true)]);
        read(Vec::new());
        assert_eq!((known(), metrics.standbys()), (Vec::new(), None));
        metrics.enter(Phase::Streaming);
        assert_eq!(metrics.standbys(), Some(1));
    }
}
