//! The transactional producer of exactly-once delivery. The sink produces with it; the thread of the
//! state topic opens it and commits, since those calls block.
//!
//! Facts relied on:
//! - `init_transactions` ends the open transaction of every other producer with the same
//!   `transactional.id`, and fences that producer
//!   ([KIP-98](https://cwiki.apache.org/confluence/display/KAFKA/KIP-98+-+Exactly+Once+Delivery+and+Transactional+Messaging)).
//! - librdkafka sends `EndTxn` again after a lost response, and its version has no epoch bump
//!   ([confluentinc/librdkafka#5423](https://github.com/confluentinc/librdkafka/issues/5423)). A late
//!   one could then end the *next* transaction. So a producer whose commit took as long as a retry
//!   takes (`RETRY_BACKOFF_MS`) is not used again: the next one has another epoch.
//! - A failed transaction is not aborted by this producer
//!   ([confluentinc/librdkafka#4849](https://github.com/confluentinc/librdkafka/issues/4849)): the
//!   next producer's `init_transactions` does that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, Producer as _};
use rdkafka::util::Timeout;

use super::client::{Context, OWN_RECORD, Producer, make_producer};
use super::pool::PoolParts;
use crate::crash_points;
use crate::destination::kafka::KafkaConfig;
use crate::destination::kafka::await_broker::await_broker;
use crate::destination::kafka::config::{batch_bytes, transactional_config};
use crate::destination::kafka::delivery_reports::Reports;
use crate::destination::kafka::drop_on_threads::drop_on_threads;

/// A commit that took longer may have been repeated: librdkafka varies its backoff by a fifth.
const UNREPEATED_COMMIT: Duration = Duration::from_millis(700);

/// How long the thread of the state topic sleeps before it looks again for the acknowledgement of its
/// record. Not a timeout of `poll`, which spins where less than a millisecond of it is left.
const POLL_INTERVAL: Duration = Duration::from_micros(300);

/// How long brokers are given to write the markers of a committed transaction, before the next one
/// begins. The first request of a transaction that comes earlier is rejected
/// (`CONCURRENT_TRANSACTIONS`), and librdkafka repeats it after 20 ms.
const MARKERS: Duration = Duration::from_millis(4);

/// The transactions of a [`TransactionalSink`](super::TransactionalSink): opened and committed by
/// another thread, one call at a time.
#[derive(Clone)]
pub struct Transactions(Arc<Shared>);

struct Shared {
    parts: PoolParts,
    current: Mutex<Option<Arc<Live>>>,
    /// The maximum size of the next producer's batches, if it is not the configured one.
    batch_size: Mutex<Option<u32>>,
    /// Why the properties that were read last are not used, until the sink takes it.
    rejected: Mutex<Option<String>>,
}

/// An open producer.
pub(super) struct Live {
    /// The properties that it was opened with.
    pub(super) kafka: KafkaConfig,
    /// `None` only while it is dropped.
    producer: Option<Producer>,
    pub(super) reports: Arc<Reports>,
    phase: Mutex<Phase>,
    /// Whether the brokers have accepted it.
    is_open: AtomicBool,
}

/// What a producer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The producer is being initialised, or commits: nothing may be produced.
    Busy,
    /// No transaction is open.
    Ready,
    /// A transaction is open.
    InTransaction,
    /// The producer must not be used again.
    Spent,
}

/// Whether a record may be produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// A record may be produced in the open transaction.
    Ready,
    /// Not yet.
    Busy,
    /// Never.
    Spent,
}

impl Transactions {
    pub(super) fn new(parts: PoolParts) -> Self {
        let (current, batch_size) = (Mutex::new(None), Mutex::new(None));
        Self(Arc::new(Shared { parts, current, batch_size, rejected: Mutex::new(None) }))
    }

    /// Limits the batches of the next producers; `None`: as configured.
    pub(super) fn limit_batches(&self, batch_size: Option<u32>) {
        *lock(&self.0.batch_size) = batch_size;
    }

    /// Records why no producer can be opened with the properties that were read last.
    pub fn reject(&self, reason: String) {
        *lock(&self.0.rejected) = Some(reason);
        self.0.parts.signals.stirred.notify_one();
    }

    pub(super) fn take_rejected(&self) -> Option<String> {
        lock(&self.0.rejected).take()
    }

    pub(super) fn current(&self) -> Option<Arc<Live>> {
        lock(&self.0.current).clone()
    }

    /// Discards the producer and the open transaction.
    pub fn discard(&self) {
        drop(lock(&self.0.current).take());
    }

    /// Replaces the producer by one with these properties and this `transactional.id`, which fences
    /// all others with it, and also writes to `topic`. Blocks.
    pub fn open(
        &self,
        kafka: &KafkaConfig,
        (id, topic): (&str, &str),
        timeout: Duration,
    ) -> Result<(), KafkaError> {
        self.discard();
        let PoolParts { signals, counts, metrics, .. } = &self.0.parts;
        let mut config = transactional_config(kafka);
        if let Some(bytes) = *lock(&self.0.batch_size) {
            config.set("batch.size", bytes.min(batch_bytes(&kafka.properties)).to_string());
        }
        config.set("transactional.id", id);
        let reports = Arc::new(Reports::new(signals));
        let producer = make_producer(&config, &reports, counts, metrics)?;
        let phase = Mutex::new(Phase::Busy);
        let kafka = kafka.clone();
        let live = Arc::new(Live {
            kafka,
            producer: Some(producer),
            reports,
            phase,
            is_open: AtomicBool::default(),
        });
        // The sink polls it from now on, which a token request waits for.
        *lock(&self.0.current) = Some(Arc::clone(&live));
        await_broker(live.producer()?.client(), topic, timeout);
        live.producer()?.init_transactions(timeout)?;
        live.is_open.store(true, Ordering::SeqCst);
        live.enter(Phase::Ready);
        Ok(())
    }

    /// Whether the producer must not be used any more: its last commit took too long.
    pub fn is_spent(&self) -> bool {
        self.current().is_none_or(|live| live.is_spent())
    }

    /// The cluster's id, if the brokers report one.
    pub fn cluster_id(&self, timeout: Duration) -> Option<String> {
        self.current()?.producer().ok()?.client().fetch_cluster_id(timeout)
    }

    /// Commits the open transaction, if there is one, with this record in it. Every other record must
    /// be acknowledged. Blocks, however long it takes.
    pub fn commit(&self, topic: &str, key: &str, value: &str) -> Result<(), KafkaError> {
        let live = self.current().ok_or(KafkaError::Canceled)?;
        live.begin()?;
        live.enter(Phase::Busy);
        let producer = live.producer()?;
        let context: &Context = producer.client().context();
        context.take_own_record();
        let record = BaseRecord::with_opaque_to(topic, OWN_RECORD);
        let record = record.partition(0).key(key).payload(value);
        producer.send(record).map_err(|(error, _)| error)?;
        loop {
            producer.poll(Duration::ZERO);
            if let Some(outcome) = context.take_own_record() {
                outcome?;
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        crash_points::point!("state_acknowledged");
        // Everything is acknowledged: this is the time of EndTxn alone.
        let begun = Instant::now();
        producer.commit_transaction(Timeout::Never)?;
        crash_points::point!("committed");
        let is_spent = begun.elapsed() > UNREPEATED_COMMIT;
        // Consumers can read what is committed; only the next transaction waits.
        thread::sleep(MARKERS);
        live.enter(if is_spent { Phase::Spent } else { Phase::Ready });
        Ok(())
    }
}

impl Live {
    pub(super) fn producer(&self) -> Result<&Producer, KafkaError> {
        self.producer.as_ref().ok_or(KafkaError::Canceled)
    }

    fn enter(&self, phase: Phase) {
        *lock(&self.phase) = phase;
    }

    /// Begins a transaction, unless one is open. Does not block.
    pub(super) fn begin(&self) -> Result<Readiness, KafkaError> {
        let mut phase = lock(&self.phase);
        match *phase {
            Phase::Busy => return Ok(Readiness::Busy),
            Phase::Spent => return Ok(Readiness::Spent),
            Phase::InTransaction => {}
            Phase::Ready => {
                self.producer()?.begin_transaction()?;
                *phase = Phase::InTransaction;
            }
        }
        Ok(Readiness::Ready)
    }

    /// Whether the brokers have accepted it.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Why it has failed for good, if it has.
    pub(super) fn fatal_error(&self) -> Option<(Code, String)> {
        self.producer().ok()?.client().fatal_error()
    }

    /// Whether it has a transaction that is not being committed.
    pub(super) fn is_in_transaction(&self) -> bool {
        *lock(&self.phase) == Phase::InTransaction
    }

    pub(super) fn is_spent(&self) -> bool {
        *lock(&self.phase) == Phase::Spent
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(drop_on_threads(self.producer.take()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
