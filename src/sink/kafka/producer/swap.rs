//! How a running sink takes up properties and certificates that were changed.
//!
//! A producer keeps what it was made with. So another is made with what was read again,
//! beside the first, which goes on until the brokers let the other write: what they
//! reject is logged, and the first stays. Then nothing more is given to the first; once
//! all that it had is acknowledged the other takes its place, and nothing is sent twice.
//! Where the first does not get rid of what it has (its password is refused, say), the
//! relay is notified, and replays.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::Producer as _;

use super::{Fatal, KafkaSink, Producer, drop_on_a_thread, make_producer};
use crate::sink::kafka::config::{batch_bytes, client_config};
use crate::sink::kafka::delivery_reports::{Reports, Signals};
use crate::sink::kafka::first_batch_gate::FirstBatchGate;
use crate::sink::kafka::reload::{Changed, KafkaSource, ReadResult};
use crate::sink::{Condition, Sink as _, SinkError};

/// How long the old producer is given for what it has, since the last acknowledgement.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a new producer is given until it may write, where the old one can be used. It
/// is known by statistics, which come each five seconds.
const MAY_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The producer that is to follow, and what it was made with.
pub(super) struct Successor {
    changed: Changed,
    config: ClientConfig,
    batch_bytes: u32,
    /// Whether it is made for batches of the configured length alone.
    restores: bool,
    pub(super) producer: Producer,
    gate: FirstBatchGate,
    pub(super) reports: Arc<Reports>,
    /// Since when it is, or since when the old one is given nothing more.
    since: Instant,
    /// Whether the brokers let it write.
    may_write: bool,
    /// Whether the relay was notified that it has to replay.
    reported: bool,
}

impl Successor {
    /// Why it can never be used.
    fn fatal(&self) -> Option<String> {
        self.producer.client().fatal_error().map(|(_, reason)| reason)
    }

    /// Why it is not to take the other's place, which can be used.
    fn refusal(&self, now: Instant) -> Option<String> {
        let conditions = self.reports.take_conditions();
        let reason = conditions.into_iter().find_map(|condition| match condition {
            Condition::Unreachable(reason)
            | Condition::Unauthenticated(reason)
            | Condition::Broken(reason) => Some(reason),
            // Of a producer that has published nothing yet, these say nothing.
            Condition::Stalled { .. } | Condition::Flowing | Condition::Repartitioned { .. } => {
                None
            }
        });
        let late = now.saturating_duration_since(self.since) >= MAY_WRITE_TIMEOUT;
        reason.or_else(|| late.then(|| "no broker lets it write".to_owned()))
    }
}

/// Has a running [`KafkaSink`] read its properties and certificates again.
#[derive(Clone)]
pub struct ReloadHandle(Arc<Signals>);

impl ReloadHandle {
    /// Soon, and with a line in the log in any case.
    pub fn reload(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        self.0.stirred.notify_one();
    }
}

impl KafkaSink {
    /// The same that reads its configuration again from `source`: for each new producer,
    /// while Kafka cannot be used, and when [`ReloadHandle::reload`] asks for it.
    #[must_use]
    pub fn reloading_from(mut self, source: KafkaSource) -> Self {
        self.reload.set_source(source);
        self
    }

    /// A handle that requests a reload.
    pub fn reload_handle(&self) -> ReloadHandle {
        ReloadHandle(Arc::clone(&self.signals))
    }

    /// Whether records have to wait for the producer that is to follow.
    pub(super) fn is_draining(&self) -> bool {
        self.successor.as_ref().is_some_and(|successor| successor.may_write)
    }

    /// To be called with each set of conditions that came up.
    pub(super) fn renew(&mut self, conditions: &mut Vec<Condition>) {
        if conditions.iter().any(|condition| {
            matches!(condition, Condition::Unreachable(_) | Condition::Unauthenticated(_))
        }) {
            self.reload.set_unhealthy();
        }
        if self.ack_monitor.is_idle() && self.is_connected() == Some(true) {
            self.reload.set_healthy();
        }
        let now = Instant::now();
        let asked = self.signals.asked.swap(false, Ordering::SeqCst);
        if asked || self.reload.is_due(now) {
            self.reload_properties(asked, now);
        }
        self.restore_batches(now);
        self.check_successor(now);
        if self.ack_monitor.is_idle()
            && let Some(successor) = self.take_proven(now)
        {
            let restores = successor.restores;
            self.put_in_place(successor, now);
            if !restores {
                tracing::info!("the reloaded Kafka properties are in effect");
            }
        }
        let Some(successor) = self.successor.as_mut().filter(|successor| successor.may_write)
        else {
            return;
        };
        let late = now.saturating_duration_since(successor.since) >= DRAIN_TIMEOUT;
        if successor.restores {
            if late || self.reload.is_unhealthy() {
                self.give_up_restoring(now);
            }
            return;
        }
        if (late || self.reload.is_unhealthy()) && !std::mem::replace(&mut successor.reported, true)
        {
            let reason = "the Kafka properties or the files that they name were changed, and the \
                          records in flight are not acknowledged with the old ones";
            conditions.push(Condition::Broken(reason.to_owned()));
        }
    }

    /// While the old producer cannot be used either, the other goes on trying beside it.
    fn check_successor(&mut self, now: Instant) {
        let unhealthy = self.reload.is_unhealthy();
        let Some(successor) = self.successor.as_mut().filter(|successor| !successor.may_write)
        else {
            return;
        };
        let (fatal, refusal) = (successor.fatal(), successor.refusal(now));
        if fatal.is_none() && successor.reports.has_id() {
            (successor.may_write, successor.since) = (true, now);
        } else if successor.restores && (unhealthy || fatal.is_some() || refusal.is_some()) {
            self.give_up_restoring(now);
        } else if successor.restores {
            // It is asked again.
        } else if fatal.is_none() && unhealthy {
            successor.since = now;
        } else if let Some(reason) = fatal.or(refusal)
            && let Some(refused) = self.successor.take()
        {
            self.reload.reject(&refused.changed, &reason);
            drop(drop_on_a_thread(Some(refused.producer)));
        }
    }

    /// Makes a producer whose batches are of the configured length, once they were shorter for
    /// long enough: it takes the other's place as one with other properties would.
    fn restore_batches(&mut self, now: Instant) {
        if self.successor.is_some() || self.reload.is_unhealthy() || !self.batches.is_due(now) {
            return;
        }
        match self.make_successor(self.reload.in_force(), true, now) {
            Ok(successor) => self.successor = Some(successor),
            Err(_) => self.batches.postpone(now),
        }
    }

    /// The batches stay as short as they are for now.
    fn give_up_restoring(&mut self, now: Instant) {
        drop(drop_on_a_thread(self.successor.take().map(|successor| successor.producer)));
        self.batches.postpone(now);
    }

    /// For a producer that is to be made in any case: with what holds now.
    pub(super) fn make_replacement(&mut self) -> Result<(), SinkError> {
        let now = Instant::now();
        self.reload_properties(false, now);
        if let Some(successor) = self.take_proven(now) {
            self.put_in_place(successor, now);
            return Ok(());
        }
        if self.successor.as_ref().is_some_and(|successor| successor.restores) {
            // This one does it.
            drop(drop_on_a_thread(self.successor.take().map(|successor| successor.producer)));
        }
        if self.batches.is_due(now) {
            self.config.set("batch.size", self.batches.configured().to_string());
            self.are_restored(now);
        }
        let may_be_fixed = self.reload.reread_files();
        let reports = Arc::new(Reports::new(&self.signals));
        match make_producer(&self.config, &reports, &self.counts, &self.metrics) {
            Ok((producer, gate)) => (self.producer, self.gate) = (Some(producer), gate),
            // A file that is being written, say: it is tried again.
            Err(error) if may_be_fixed => {
                self.reload.set_unhealthy();
                reports.condition(Condition::Broken(error.to_string()));
            }
            Err(error) => return Err(error),
        }
        self.use_reports(reports);
        Ok(())
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
        let is_due = proven.restores && self.batches.is_due(now);
        if is_due || proven.batch_bytes <= self.batches.at_most(proven.batch_bytes) {
            return Some(proven);
        }
        drop(drop_on_a_thread(Some(proven.producer)));
        if proven.restores {
            // A batch was refused since.
            return None;
        }
        let again = self.make_successor(proven.changed.clone(), false, now);
        again.inspect_err(|error| self.reload.reject(&proven.changed, &error.to_string())).ok()
    }

    fn reload_properties(&mut self, asked: bool, now: Instant) {
        let changed = match self.reload.read(asked, now) {
            ReadResult::Nothing => return,
            ReadResult::InForce => {
                drop(drop_on_a_thread(self.successor.take().map(|successor| successor.producer)));
                return;
            }
            ReadResult::Changed(changed) => changed,
        };
        match self.make_successor(changed.clone(), false, now) {
            Ok(successor) => {
                self.reload.trying(&changed);
                drop(drop_on_a_thread(
                    self.successor.replace(successor).map(|older| older.producer),
                ));
                tracing::info!("reloaded the Kafka properties and their files: changed");
            }
            Err(error) => self.reload.reject(&changed, &error.to_string()),
        }
    }

    fn make_successor(
        &self,
        changed: Changed,
        restores: bool,
        now: Instant,
    ) -> Result<Successor, SinkError> {
        let mut batch_bytes = batch_bytes(&changed.config.properties);
        let mut config = client_config(&changed.config);
        if self.batches.are_smaller() && !restores {
            batch_bytes = self.batches.at_most(batch_bytes);
            config.set("batch.size", batch_bytes.to_string());
        }
        let reports = Arc::new(Reports::new(&self.signals));
        let (producer, gate) = make_producer(&config, &reports, &self.counts, &self.metrics)?;
        let (may_write, reported) = (false, false);
        let since = now;
        Ok(Successor {
            changed,
            config,
            batch_bytes,
            restores,
            producer,
            gate,
            reports,
            since,
            may_write,
            reported,
        })
    }

    /// Puts a producer in the place of the old one, which has nothing in flight that counts.
    fn put_in_place(&mut self, successor: Successor, now: Instant) {
        drop(drop_on_a_thread(self.producer.replace(successor.producer)));
        self.config = successor.config;
        self.batches.configure(batch_bytes(&successor.changed.config.properties));
        if successor.restores {
            self.are_restored(now);
        }
        self.gate = successor.gate;
        self.reload.applied(&successor.changed);
        self.use_reports(successor.reports);
        self.ack_monitor.replaced();
        self.topics.forget();
    }

    /// Batches are of the configured length from now on.
    fn are_restored(&mut self, now: Instant) {
        self.batches.restored(now);
        tracing::info!(
            batch_size = self.batches.configured(),
            "restored the configured batch size"
        );
    }

    /// The producer says there what it says; what the one before said of records counts.
    fn use_reports(&mut self, reports: Arc<Reports>) {
        self.reports.followed_by(&reports);
        self.reports = reports;
        self.fatal = Fatal::new(Instant::now());
    }
}
