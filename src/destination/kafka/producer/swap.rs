//! How a running sink takes up properties and certificates that were changed, makes batches of the
//! configured length again, and comes to another number of producers.
//!
//! Producers keep what they were made with. So others are made with what was read again,
//! beside the first, which go on until the brokers let the others write: what they
//! reject is logged, and the first stay. Then nothing more is given to the first; once
//! all that they had is acknowledged the others take their place, and nothing is sent twice.
//! Where the first do not get rid of what they have (their password is refused, say), the
//! relay is notified, and replays. For another number of producers it is not: the first stay.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;

use super::pool::{PoolParts, ProducerPool};
use super::pool_reports::PoolReports;
use super::{Fatal, KafkaSink};
use crate::crash_points;
use crate::destination::kafka::config::{
    batch_bytes, client_config, is_linger_free, requests_in_flight,
};
use crate::destination::kafka::delivery_reports::Signals;
use crate::destination::kafka::error;
use crate::destination::kafka::pool_size::{Load, PoolSize};
use crate::destination::kafka::reload::{Changed, KafkaSource, ReadResult};
use crate::sink::{Condition, Reloader, Sink as _, SinkError};

/// How long the old producer is given for what it has, since the last acknowledgement.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The same where all that is to change is the number of producers.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a new producer is given until it may write, where the old one can be used. It
/// is known by statistics, which come each five seconds.
const MAY_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// What producers are made anew for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Other properties, or other files that they name.
    Properties,
    /// Batches of the configured length.
    BatchSize,
    /// Another number of them, or of their requests in flight.
    Size,
}

/// The producers that are to follow, and what they were made with.
pub(super) struct Successor {
    changed: Changed,
    config: ClientConfig,
    batch_bytes: u32,
    purpose: Purpose,
    size: PoolSize,
    pub(super) pool: ProducerPool,
    pub(super) reports: PoolReports,
    /// Since when they are, or since when the old ones are given nothing more.
    since: Instant,
    /// Whether the brokers let them write.
    may_write: bool,
    /// Whether the relay was notified that it has to replay.
    reported: bool,
}

impl Successor {
    /// Why they can never be used.
    fn fatal(&self) -> Option<String> {
        self.pool.fatal_error().map(|(_, reason)| error::fatal_reason(&reason))
    }

    /// Whether the brokers let them write. Those of the same properties may what the old ones may,
    /// once they are connected.
    fn is_allowed(&self) -> bool {
        match self.purpose {
            Purpose::Properties | Purpose::BatchSize => self.reports.have_ids(),
            Purpose::Size => self.pool.is_answered(),
        }
    }

    /// How long the old ones are given for what they have.
    fn drain_timeout(&self) -> Duration {
        if self.purpose == Purpose::Size { RESIZE_TIMEOUT } else { DRAIN_TIMEOUT }
    }

    /// Whether nothing is lost without them.
    fn is_optional(&self) -> bool {
        self.purpose != Purpose::Properties
    }

    /// Why it is not to take the other's place, which can be used.
    fn rejection_reason(&mut self, now: Instant) -> Option<String> {
        let conditions = self.reports.take_conditions();
        let reason = conditions.into_iter().find_map(|condition| match condition {
            Condition::Unreachable(reason)
            | Condition::Unauthenticated(reason)
            | Condition::Broken(reason)
            | Condition::Regressed(reason) => Some(reason),
            // Of a producer that has published nothing yet, these say nothing.
            Condition::Stalled { .. } | Condition::Flowing | Condition::Repartitioned { .. } => {
                None
            }
        });
        let late = now.saturating_duration_since(self.since) >= MAY_WRITE_TIMEOUT;
        reason.or_else(|| late.then(|| "no broker lets it write".to_owned()))
    }
}

/// Has a running sink read its properties and certificates again: soon, and with a line in the log in
/// any case.
pub(super) fn reload(signals: &Arc<Signals>) -> Reloader {
    let signals = Arc::clone(signals);
    Box::new(move || {
        signals.asked.store(true, Ordering::SeqCst);
        signals.stirred.notify_one();
    })
}

impl KafkaSink {
    /// The same that reads its configuration again from `source`: for each new producer,
    /// while Kafka cannot be used, and when [`Sink::reload`] asks for it.
    #[must_use]
    pub fn reloading_from(mut self, source: KafkaSource) -> Self {
        self.reload.set_source(source);
        self
    }

    /// Whether records have to wait for the producer that is to follow.
    pub(super) fn is_draining(&self) -> bool {
        self.successor.as_ref().is_some_and(|successor| successor.may_write)
    }

    /// To be called with each set of conditions that came up.
    pub(super) fn poll_reload(&mut self, conditions: &mut Vec<Condition>) {
        self.reload.note_conditions(conditions);
        if self.ack_monitor.is_idle() && self.is_connected() == Some(true) {
            self.reload.set_healthy();
        }
        let now = Instant::now();
        let asked = self.signals.take_asked();
        if asked || self.reload.is_due(now) {
            self.reload_properties(asked, now);
        }
        self.restore_batches(now);
        self.resize(now);
        self.check_successor(now);
        self.swap_if_drained(now);
        let unhealthy = self.reload.is_unhealthy();
        let Some(successor) = self.successor.as_mut().filter(|successor| successor.may_write)
        else {
            return;
        };
        let waited = now.saturating_duration_since(successor.since);
        let is_stuck = unhealthy || waited >= successor.drain_timeout();
        if successor.is_optional() {
            if is_stuck {
                self.give_up_optional(now);
            }
        } else if is_stuck && !std::mem::replace(&mut successor.reported, true) {
            let reason = "the Kafka properties or the files that they name were changed, and the \
                          records in flight are not acknowledged with the old ones";
            conditions.push(Condition::Broken(reason.to_owned()));
        }
    }

    /// Puts producers in place that the brokers let write, once nothing is in flight, and says so.
    /// After a rejected batch there is a replay, with other producers.
    pub(super) fn swap_if_drained(&mut self, now: Instant) {
        if !self.ack_monitor.is_idle() || self.reports.is_refused() {
            return;
        }
        let Some(successor) = self.take_proven(now) else { return };
        let (purpose, size) = (successor.purpose, successor.size);
        self.put_in_place(successor, now);
        // A record that had no room is offered again at once.
        self.signals.stirred.notify_one();
        match purpose {
            Purpose::Properties => {
                tracing::info!("the reloaded Kafka properties are in effect");
            }
            Purpose::Size => log_size(size),
            Purpose::BatchSize => {}
        }
    }

    /// While the old producer cannot be used either, the other goes on trying beside it.
    fn check_successor(&mut self, now: Instant) {
        let unhealthy = self.reload.is_unhealthy();
        let Some(successor) = self.successor.as_mut().filter(|successor| !successor.may_write)
        else {
            return;
        };
        let (fatal, rejection) = (successor.fatal(), successor.rejection_reason(now));
        if fatal.is_none() && successor.is_allowed() {
            (successor.may_write, successor.since) = (true, now);
        } else if successor.is_optional() && (unhealthy || fatal.is_some() || rejection.is_some()) {
            self.give_up_optional(now);
        } else if successor.is_optional() {
            // It is asked again.
        } else if fatal.is_none() && unhealthy {
            successor.since = now;
        } else if let Some(reason) = fatal.or(rejection)
            && let Some(refused) = self.successor.take()
        {
            self.reload.reject(&refused.changed, &reason);
            drop(refused.pool.end());
        }
    }

    /// Makes a producer whose batches are of the configured length, once they were shorter for
    /// long enough: it takes the other's place as one with other properties would.
    fn restore_batches(&mut self, now: Instant) {
        if self.successor.is_some() || self.reload.is_unhealthy() || !self.batches.is_due(now) {
            return;
        }
        match self.make_successor(self.reload.in_force(), Purpose::BatchSize, now) {
            Ok(successor) => self.successor = Some(successor),
            Err(_) => self.batches.postpone(now),
        }
    }

    /// Makes as many producers as the measured load asks for, where those are not as many as there
    /// are: they take the others' place as those with other properties would.
    fn resize(&mut self, now: Instant) {
        // What is measured before the first record decides there: see `is_sized`.
        if self.first_seq.is_some() {
            self.take_round_trip();
        }
        if !self.sizing.is_due(now) || self.successor.is_some() || self.reload.is_unhealthy() {
            return;
        }
        let Some(pool) = &self.pool else { return };
        if pool.placement.is_of_several() {
            for (topic, count) in self.reports.partitions() {
                self.counts.note_known(&topic, count);
            }
        }
        if crash_points::is_armed("several_producers") {
            // As many as at the start.
            return;
        }
        let mut load = self.reports.load(pool.placement.partitions(), self.ack_monitor.ack_time());
        // New producers have no statistics yet.
        self.brokers = if load.brokers > 0 { load.brokers } else { self.brokers };
        load.brokers = self.brokers;
        let was_doubted = self.sizing.is_doubted();
        let wanted = self.sizing.wanted(load, now);
        if self.sizing.is_doubted() && !was_doubted {
            // With the next record.
            self.round_trip.begin_again();
        }
        let Some(size) = wanted else { return };
        match self.make_successor_of(
            self.reload.in_force(),
            Purpose::Size,
            (size, load.brokers),
            now,
        ) {
            Ok(successor) => self.successor = Some(successor),
            Err(_) => self.sizing.failed(now),
        }
    }

    /// Whether the round trip was measured since the last call.
    fn take_round_trip(&mut self) -> bool {
        let Some(round_trip) = self.round_trip.take() else { return false };
        tracing::debug!(?round_trip, "measured the round trip to the brokers");
        self.sizing.note_round_trip(round_trip);
        true
    }

    /// Whether the first record may be sent: with producers of the size that the round trip asks for,
    /// if that is known soon.
    pub(super) fn is_sized(&mut self, now: Instant) -> bool {
        if crash_points::is_armed("several_producers") {
            return true;
        }
        if !self.take_round_trip() {
            return !self.round_trip.is_awaited(now);
        }
        if let Some(size) = self.sizing.wanted(Load::default(), now)
            && let Ok((pool, reports)) = ProducerPool::new(&self.config, size, 1, &self.parts())
        {
            // They have nothing to send yet.
            drop(self.pool.replace(pool).map(ProducerPool::end));
            self.sizing.applied(size, now);
            self.use_reports(reports);
            log_size(size);
        }
        true
    }

    /// Batches stay as short as they are for now, and the producers as many.
    fn give_up_optional(&mut self, now: Instant) {
        let Some(successor) = self.successor.take() else { return };
        match successor.purpose {
            Purpose::Size => self.sizing.failed(now),
            Purpose::BatchSize | Purpose::Properties => self.batches.postpone(now),
        }
        drop(successor.pool.end());
    }

    /// Creates the replacement of the producers with the settings that apply now.
    pub(super) fn make_replacement(&mut self) -> Result<(), SinkError> {
        let now = Instant::now();
        self.sizing.replay(now);
        if self.sizing.asks_for_round_trip() {
            self.round_trip.begin_again();
        }
        self.reload_properties(false, now);
        if self.successor.as_ref().is_some_and(|successor| successor.purpose == Purpose::Size) {
            self.end_successor();
        }
        if let Some(successor) = self.take_proven(now) {
            self.put_in_place(successor, now);
            return Ok(());
        }
        if self.successor.as_ref().is_some_and(Successor::is_optional) {
            // This one does it.
            self.end_successor();
        }
        if self.batches.is_due(now) {
            self.config.set("batch.size", self.batches.configured().to_string());
            self.are_restored(now);
        }
        let may_be_fixed = self.reload.reread_files();
        match ProducerPool::new(&self.config, self.sizing.size(), 1, &self.parts()) {
            Ok((pool, reports)) => {
                self.pool = Some(pool);
                self.use_reports(reports);
            }
            // A file that is being written, say: it is tried again.
            Err(error) if may_be_fixed => {
                self.reload.set_unhealthy();
                self.use_reports(PoolReports::of_none(&self.signals, error.to_string()));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Drops the producers that were to follow.
    fn end_successor(&mut self) {
        if let Some(successor) = self.successor.take() {
            self.discard(successor);
        }
    }

    fn discard(&mut self, successor: Successor) {
        if successor.purpose == Purpose::Size {
            self.sizing.given_up();
        }
        drop(successor.pool.end());
    }

    /// Something was acknowledged: the old producer gets rid of what it has.
    pub(super) fn note_acknowledgement(&mut self, now: Instant) {
        if let Some(successor) = self.successor.as_mut().filter(|successor| successor.may_write) {
            successor.since = now;
        }
    }

    /// The successor that brokers let write. One that was made before batches had to be
    /// smaller is made again.
    fn take_proven(&mut self, now: Instant) -> Option<Successor> {
        let proven = self.successor.take_if(|successor| successor.may_write)?;
        let is_due = proven.purpose == Purpose::BatchSize && self.batches.is_due(now);
        if is_due || proven.batch_bytes <= self.batches.at_most(proven.batch_bytes) {
            return Some(proven);
        }
        let (purpose, changed) = (proven.purpose, proven.changed.clone());
        self.discard(proven);
        if purpose != Purpose::Properties {
            // A batch was refused since.
            return None;
        }
        let again = self.make_successor(changed.clone(), Purpose::Properties, now);
        again.inspect_err(|error| self.reload.reject(&changed, &error.to_string())).ok()
    }

    fn reload_properties(&mut self, asked: bool, now: Instant) {
        let changed = match self.reload.read(asked, now) {
            ReadResult::Nothing => return,
            ReadResult::InForce => {
                self.end_successor();
                return;
            }
            ReadResult::Changed(changed) => changed,
        };
        match self.make_successor(changed.clone(), Purpose::Properties, now) {
            Ok(successor) => {
                self.reload.trying(&changed);
                if let Some(older) = self.successor.replace(successor) {
                    self.discard(older);
                }
                tracing::info!("reloaded the Kafka properties and their files: changed");
            }
            Err(error) => self.reload.reject(&changed, &error.to_string()),
        }
    }

    fn make_successor(
        &self,
        changed: Changed,
        purpose: Purpose,
        now: Instant,
    ) -> Result<Successor, SinkError> {
        let mut size = self.sizing.size();
        size.in_flight = requests_in_flight(&changed.config.properties).unwrap_or(size.in_flight);
        let brokers = self.reports.brokers().max(self.brokers);
        self.make_successor_of(changed, purpose, (size, brokers), now)
    }

    /// One of that size, to so many brokers.
    fn make_successor_of(
        &self,
        changed: Changed,
        purpose: Purpose,
        (size, brokers): (PoolSize, u32),
        now: Instant,
    ) -> Result<Successor, SinkError> {
        let mut batch_bytes = batch_bytes(&changed.config.properties);
        let mut config = client_config(&changed.config);
        if self.batches.are_smaller() && purpose != Purpose::BatchSize {
            batch_bytes = self.batches.at_most(batch_bytes);
            config.set("batch.size", batch_bytes.to_string());
        }
        let is_linger_free = is_linger_free(&changed.config.properties);
        let parts = PoolParts { is_linger_free, ..self.parts() };
        let (pool, reports) = ProducerPool::new(&config, size, brokers, &parts)?;
        let (may_write, reported, since) = (false, false, now);
        Ok(Successor {
            changed,
            config,
            batch_bytes,
            purpose,
            size,
            pool,
            reports,
            since,
            may_write,
            reported,
        })
    }

    /// Puts producers in the place of the old ones, which have nothing in flight that counts.
    fn put_in_place(&mut self, successor: Successor, now: Instant) {
        drop(self.pool.replace(successor.pool).map(ProducerPool::end));
        self.config = successor.config;
        self.batches.configure(batch_bytes(&successor.changed.config.properties));
        if successor.purpose == Purpose::BatchSize {
            self.are_restored(now);
        }
        self.is_linger_free = is_linger_free(&successor.changed.config.properties);
        self.sizing.configure(requests_in_flight(&successor.changed.config.properties));
        self.sizing.applied(successor.size, now);
        self.reload.applied(&successor.changed);
        self.use_reports(successor.reports);
        self.ack_monitor.replaced();
        if successor.purpose != Purpose::Size {
            self.topics.forget();
        }
    }

    /// Batches are of the configured length from now on.
    fn are_restored(&mut self, now: Instant) {
        self.batches.restored(now);
        tracing::info!(
            batch_size = self.batches.configured(),
            "restored the configured batch size"
        );
    }

    /// The producers say there what they say; what those before said of records counts.
    fn use_reports(&mut self, reports: PoolReports) {
        self.reports.followed_by(&reports);
        self.reports = reports;
        self.metrics.sink_producers.set(self.reports.producers());
        self.fatal = Fatal::new(Instant::now());
    }
}

fn log_size(size: PoolSize) {
    tracing::info!(
        producers = size.producers,
        in_flight = size.in_flight,
        "changed the number of producers and of their requests in flight"
    );
}
