//! The loop around the core: it receives, produces, confirms, reconnects and
//! stops as the core says, and decides nothing about delivery itself.
//!
//! Everything runs on one task. The replication session answers keepalives on
//! a task of its own, so that PostgreSQL never waits for Kafka; Kafka's client
//! has its own threads.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::time::{Instant, sleep, sleep_until};

use super::core::{Core, Counters, Halt, Taken};
use super::stop::{Order, StopReceiver};
use crate::ledger::StreamError;
use crate::lsn::Lsn;
use crate::pgoutput::Message;
use crate::sink::{Condition, Outcome, Report, Sink, SinkError};
use crate::source::{Received, Resume, ServerIdentity, Session, SourceConfig, SourceError};

/// Messages taken in a row before reports and signals are looked at.
const BATCH: usize = 256;

/// Longest wait between two attempts at PostgreSQL, and between two replays.
const BACKOFF_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for a slot that another walpost holds: the standby takes over
/// this soon after the other has gone.
const IN_USE_LIMIT: Duration = Duration::from_secs(1);

/// What a relay does beside its configuration of source, record and sink.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// How long stopping may take.
    pub drain_timeout: Duration,
    /// Stop by itself once this is confirmed.
    pub until: Option<Until>,
}

/// A position to stop at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The end of the log as it was at the first connect.
    Current,
    /// This LSN.
    Lsn(Lsn),
}

/// What a relay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// What was received and passed over.
    pub counters: Counters,
    /// Records that the sink acknowledged, repeats included.
    pub delivered: u64,
    /// A: what is confirmed, or may be.
    pub confirmed: Lsn,
    /// Records that were in flight still when the drain timeout ended.
    pub undrained: usize,
}

/// Why a relay ended other than by a clean stop.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A person must act on an event or on the table's columns.
    #[error(transparent)]
    Halt(Box<Halt>),
    /// A person must act on PostgreSQL's side.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The sink cannot be made as configured.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The broker refuses walpost's credentials, and always has.
    #[error(
        "Kafka refuses walpost's credentials: {0}; check security.protocol and the sasl.* and ssl.* properties"
    )]
    Unauthenticated(String),
    /// Told to leave at once.
    #[error("told to stop at once: left with nothing more confirmed")]
    Aborted,
}

/// A relay: built, run once, and gone.
pub struct Relay<S> {
    core: Core,
    sink: S,
    source: SourceConfig,
    settings: RelaySettings,
    stop: StopReceiver,
    identity: Option<ServerIdentity>,
    until: Option<Lsn>,
    /// Set once stopping began.
    deadline: Option<Instant>,
    reports: Vec<Report>,
    delivered: u64,
    sink_down: Option<SinkDown>,
    /// Deliveries counted when the last replay began: none since means that
    /// the next replay has to wait longer.
    delivered_at_replay: Option<u64>,
    replay_delay: Backoff,
    warned: Counters,
}

/// Kafka was found unusable.
struct SinkDown {
    reason: String,
    /// Deliveries counted then: one more means that it is over.
    at: u64,
    told: bool,
}

/// How a session ended, where the relay goes on or is done.
enum Ended {
    Lost(SourceError),
    Replay,
    Done,
}

type Backoff = backon::ExponentialBackoff;

impl<S: Sink> Relay<S> {
    /// A relay from `source` through `core` to `sink`, stopped through `stop`.
    pub fn new(
        core: Core,
        sink: S,
        source: SourceConfig,
        settings: RelaySettings,
        stop: StopReceiver,
    ) -> Self {
        Self {
            core,
            sink,
            source,
            settings,
            stop,
            identity: None,
            until: None,
            deadline: None,
            reports: Vec::new(),
            delivered: 0,
            sink_down: None,
            delivered_at_replay: None,
            replay_delay: backoff(BACKOFF_LIMIT),
            warned: Counters::default(),
        }
    }

    /// Runs until it is told to stop, has reached its end, or a person must act.
    pub async fn run(mut self) -> Result<Summary, RelayError> {
        loop {
            let Some(session) = self.connect().await? else {
                return self.outcome();
            };
            match self.stream(session).await? {
                Ended::Done => return self.outcome(),
                Ended::Lost(error) => {
                    tracing::warn!(%error, confirmed = %self.core.confirmable(), "lost PostgreSQL, connecting again");
                    self.core.session_lost();
                }
                Ended::Replay => {
                    if !self.replace_producer().await? {
                        return self.outcome();
                    }
                }
            }
        }
    }

    /// A session, however long it takes; `None` when stopping came first.
    async fn connect(&mut self) -> Result<Option<Session>, RelayError> {
        let mut delays = backoff(BACKOFF_LIMIT);
        let mut told: Option<SourceError> = None;
        loop {
            let resume = self.resume();
            let source = self.source.clone();
            let Some(opened) = self.meanwhile(Session::open(&source, &resume)).await? else {
                return Ok(None);
            };
            let error = match opened {
                Ok(session) => {
                    self.connected(&session);
                    return Ok(Some(session));
                }
                Err(error) => error,
            };
            let delay = match &error {
                SourceError::Lost(_) => delays.next(),
                SourceError::Access(_) if self.identity.is_some() => delays.next(),
                SourceError::InUse { .. } => Some(IN_USE_LIMIT),
                _ => return Err(error.into()),
            };
            let delay = delay.unwrap_or(BACKOFF_LIMIT).min(BACKOFF_LIMIT);
            if told.as_ref() == Some(&error) {
                tracing::debug!(%error, ?delay, "PostgreSQL still cannot be used");
            } else if matches!(error, SourceError::InUse { .. }) {
                tracing::info!("{error}");
            } else {
                tracing::warn!(%error, "PostgreSQL cannot be used, trying again until it can");
            }
            told = Some(error);
            if self.meanwhile(sleep(delay)).await?.is_none() {
                return Ok(None);
            }
        }
    }

    fn resume(&self) -> Resume {
        match &self.identity {
            None => Resume::AtSlot,
            Some(identity) => Resume::At {
                identity: identity.clone(),
                confirmed: self.core.confirmable(),
                start: self.core.resume_at(),
            },
        }
    }

    fn connected(&mut self, session: &Session) {
        self.core.connected(session.start(), session.relations());
        if self.identity.is_none() {
            self.until = self.settings.until.map(|until| match until {
                Until::Current => session.flushed(),
                Until::Lsn(lsn) => lsn,
            });
        }
        let identity = session.identity().clone();
        tracing::info!(
            slot = %self.source.slot,
            confirmed = %self.core.confirmable(),
            system_identifier = %identity.system_identifier,
            timeline = identity.timeline,
            "streaming from PostgreSQL"
        );
        self.identity = Some(identity);
    }

    /// Streams until the session ends or the relay has to act beyond it.
    async fn stream(&mut self, mut session: Session) -> Result<Ended, RelayError> {
        let mut held: Option<Message> = None;
        loop {
            // Before what is held is offered again: reports are what it waits for.
            self.take_reports();
            let step = self.take_batch(&mut session, &mut held);
            self.settle()?;
            session.confirm(self.core.confirmable());
            if let Err(error) = step {
                return fatal_or_lost(error);
            }
            if self.is_done() {
                self.finish(session).await;
                return Ok(Ended::Done);
            }
            if self.core.wants_replay().is_some() {
                return Ok(Ended::Replay);
            }
            let reading = held.is_none() && self.core.wants_input();
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.stirred() => {}
                received = session.next(reading) => {
                    let step = received.and_then(|received| self.take(received, &mut held));
                    if let Err(error) = step {
                        return fatal_or_lost(error);
                    }
                }
                () = wait_until(self.deadline) => {}
            }
        }
    }

    /// Takes what has come already, as far as the core wants it.
    fn take_batch(
        &mut self,
        session: &mut Session,
        held: &mut Option<Message>,
    ) -> Result<(), SourceError> {
        if let Some(message) = held.take() {
            self.take(Received::Message(message), held)?;
        }
        for _ in 0..BATCH {
            if held.is_some() || !self.core.wants_input() {
                break;
            }
            let Some(received) = session.try_next() else {
                break;
            };
            self.take(received?, held)?;
        }
        Ok(())
    }

    fn take(&mut self, received: Received, held: &mut Option<Message>) -> Result<(), SourceError> {
        match received {
            Received::Keepalive(wal_end) => self.core.keepalive(wal_end),
            Received::Message(message) => {
                let broken = |error: StreamError| {
                    SourceError::Lost(format!("PostgreSQL's stream broke its rules: {error}"))
                };
                if self.core.receive(&message, &mut self.sink).map_err(broken)? == Taken::NotYet {
                    *held = Some(message);
                }
            }
        }
        Ok(())
    }

    /// Credits what has been reported.
    fn take_reports(&mut self) {
        self.sink.take_reports(&mut self.reports);
        for report in self.reports.drain(..) {
            match report.outcome {
                Outcome::Delivered => {
                    self.delivered += 1;
                    self.core.delivered(report.seq);
                }
                Outcome::Lost(reason) => self.core.lost(report.seq, &reason),
                Outcome::Refused(reason) => self.core.refused(report.seq, &reason),
            }
        }
    }

    /// Credits reports, tells of changes, and sees whether to begin stopping.
    fn settle(&mut self) -> Result<(), RelayError> {
        self.take_reports();
        self.tell_of_the_sink()?;
        self.tell_of_refused_messages();
        if self.stop.order() == Order::Abort {
            return Err(RelayError::Aborted);
        }
        let reached = self.until.is_some_and(|until| self.core.confirmable() >= until);
        if self.stop.order() == Order::Drain || reached {
            self.core.drain();
        }
        let stopping = self.stop.order() == Order::Drain || reached || self.core.halted().is_some();
        if stopping && self.deadline.is_none() {
            // A quarter of the time, at most two seconds, is kept for the last confirmation.
            let kept = (self.settings.drain_timeout / 4).min(Duration::from_secs(2));
            self.deadline = Some(Instant::now() + self.settings.drain_timeout.saturating_sub(kept));
            let (records, bytes) = self.core.in_flight();
            tracing::info!(records, bytes, "stopping: delivering what is in flight");
        }
        Ok(())
    }

    fn tell_of_the_sink(&mut self) -> Result<(), RelayError> {
        for condition in self.sink.take_conditions() {
            match condition {
                Condition::Unauthenticated(reason) if self.delivered == 0 => {
                    return Err(RelayError::Unauthenticated(reason));
                }
                Condition::Broken(reason) => self.core.producer_broken(&reason),
                Condition::Unreachable(reason) | Condition::Unauthenticated(reason) => {
                    self.sink_down.get_or_insert(SinkDown {
                        reason,
                        at: self.delivered,
                        told: false,
                    });
                }
            }
        }
        let (records, _) = self.core.in_flight();
        let matters = records > 0 || self.delivered == 0;
        match &mut self.sink_down {
            Some(down) if self.delivered > down.at => {
                if down.told {
                    tracing::info!("Kafka takes records again");
                }
                self.sink_down = None;
            }
            // A connection that closes while nothing is to be sent is no news.
            Some(down) if matters && !down.told => {
                down.told = true;
                tracing::warn!(
                    reason = %down.reason,
                    "Kafka cannot be used, trying again until it can; PostgreSQL keeps what is not delivered"
                );
            }
            _ => {}
        }
        Ok(())
    }

    fn tell_of_refused_messages(&mut self) {
        let counters = self.core.counters();
        if counters.refused_messages > self.warned.refused_messages {
            tracing::warn!(
                count = counters.refused_messages,
                "refused logical messages that were emitted outside a transaction: they have no \
                 position that survives a replay; emit them with pg_logical_emit_message(true, …)"
            );
            self.warned = counters;
        }
    }

    fn is_done(&self) -> bool {
        self.core.is_drained() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Ends the session with the last confirmation.
    async fn finish(&mut self, session: Session) {
        let confirmed = self.core.confirmable();
        let within = (self.settings.drain_timeout / 4).min(Duration::from_secs(2));
        match session.finish(confirmed, within).await {
            Ok(()) => tracing::info!(%confirmed, "confirmed to PostgreSQL"),
            Err(error) => tracing::warn!(%error, "the next start may repeat records"),
        }
    }

    /// Throws the producer away and begins again at A; false when stopping
    /// came first.
    async fn replace_producer(&mut self) -> Result<bool, RelayError> {
        let reason = self.core.wants_replay().unwrap_or("asked for").to_owned();
        if self.delivered_at_replay.is_none_or(|then| self.delivered > then) {
            self.replay_delay = backoff(BACKOFF_LIMIT);
        }
        let delay = self.replay_delay.next().unwrap_or(BACKOFF_LIMIT);
        let from = self.core.confirmable();
        tracing::warn!(%reason, %from, ?delay, "a record was not delivered: beginning again after the last confirmed one, with a new producer");
        self.delivered_at_replay = Some(self.delivered);
        self.sink.replace_producer().await?;
        // The refusal may be among the last reports, behind the failure that it caused.
        self.take_reports();
        self.core.producer_replaced();
        Ok(self.meanwhile(sleep(delay)).await?.is_some())
    }

    /// Waits for `future` while reports are credited and orders obeyed; `None`
    /// when the relay is done first.
    async fn meanwhile<F: Future>(&mut self, future: F) -> Result<Option<F::Output>, RelayError> {
        let mut future = std::pin::pin!(future);
        loop {
            self.settle()?;
            if self.is_done() {
                return Ok(None);
            }
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.stirred() => {}
                output = &mut future => return Ok(Some(output)),
                () = wait_until(self.deadline) => {}
            }
        }
    }

    fn outcome(self) -> Result<Summary, RelayError> {
        if let Some(halt) = self.core.halted() {
            return Err(RelayError::Halt(Box::new(halt.clone())));
        }
        Ok(Summary {
            counters: self.core.counters(),
            delivered: self.delivered,
            confirmed: self.core.confirmable(),
            undrained: self.core.in_flight().0,
        })
    }
}

fn fatal_or_lost(error: SourceError) -> Result<Ended, RelayError> {
    match error {
        SourceError::Lost(_) | SourceError::Access(_) | SourceError::InUse { .. } => {
            Ok(Ended::Lost(error))
        }
        fatal => Err(fatal.into()),
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn backoff(limit: Duration) -> Backoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(limit)
        .with_jitter()
        .without_max_times()
        .build()
}
