//! The loop around the core: it receives, produces, confirms, reconnects and
//! stops as the core says, and decides nothing about delivery itself.
//!
//! Everything runs on one task. The replication session answers keepalives on
//! a task of its own, so that PostgreSQL never waits for Kafka; Kafka's client
//! has its own threads.

mod end;
mod stream;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use super::backoff::{Backoff, backoff, wait_until};
use super::core::{Core, Counters};
use super::event_log::{EventLog, SinkState};
use super::run_result::{RelayError, RelaySettings, Summary, Until};
use super::stalled_producer::StalledProducer;
use super::standby::Standby;
use super::stats::{HEARTBEAT, Stats};
use super::stop::{Order, StopReceiver};
use super::stuck_stream::StuckStream;
use crate::lsn::Lsn;
use crate::metrics::{Metrics, Phase, unix_micros};
use crate::sink::{Condition, Outcome, Report, Sink};
use crate::source::{
    Feed, OpenError, PublicationFingerprint, ReceivedTransactions, Resume, ServerIdentity, Source,
    SourceError,
};

/// Longest wait between two attempts at PostgreSQL, and between two replays.
const BACKOFF_LIMIT: Duration = Duration::from_secs(5);

/// A session that lasted this long was a good one: the next is opened at once.
const GOOD_SESSION: Duration = Duration::from_secs(10);

/// For how long a broker that refuses the credentials may never have taken them.
const BEGINNING: Duration = Duration::from_secs(30);

/// Why a producer is replaced, where nothing else is known.
const BROKEN: &str = "broken";

/// Instead of a way out that would lead past what is not delivered.
const UNDELIVERED: &str = "records before it were not delivered in time: start walpost again first";

/// Longest wait for a slot that another walpost holds: the standby takes over
/// this soon after the other has gone.
const IN_USE_LIMIT: Duration = Duration::from_secs(1);

/// A relay: built, run once, and gone.
pub struct Relay<P, S> {
    core: Core,
    sink: S,
    source: P,
    settings: RelaySettings,
    stop: StopReceiver,
    known: Option<Known>,
    received: ReceivedTransactions,
    until: Option<Lsn>,
    /// Nothing more is to begin, for a reason of the relay's own.
    leaving: bool,
    /// What is in flight is in no slot: it is delivered however long that takes, unless a person
    /// stops it.
    is_last_copy: bool,
    /// The last confirmation was seen to arrive.
    finished: bool,
    /// Set once stopping began.
    deadline: Option<Instant>,
    /// When the first signal was seen.
    told_to_stop: Option<Instant>,
    /// When it was made.
    began: Instant,
    reconnect_delay: Backoff,
    reports: Vec<Report>,
    delivered: u64,
    event_log: EventLog,
    stall: StalledProducer,
    stuck: StuckStream,
    /// A and the verdicts when the last replay began: where neither has risen since, the
    /// next replay has to wait longer.
    reached_at_replay: Option<(Lsn, u64)>,
    replay_delay: Backoff,
    warned: Counters,
    stats: Stats,
    /// Up to where was received before the last replay.
    replayed_to: Lsn,
    /// What the next replay is for, in a word.
    replay_cause: &'static str,
}

/// What positions belong to: the last session's server and publication.
struct Known {
    identity: ServerIdentity,
    mark: PublicationFingerprint,
    walsender: Option<i32>,
}

/// How a session ended, where the relay goes on or is done.
enum Ended {
    Lost(SourceError),
    /// It is of no use to connect again.
    Failed(SourceError),
    Replay,
    /// Another feed is to take its place.
    Over,
    Done,
}

/// What became of connecting.
enum Opened<F> {
    Session(Box<F>),
    /// Stopping came first.
    Stopped,
    /// It is of no use to try again.
    Never(OpenError),
}

impl<P: Source, S: Sink> Relay<P, S> {
    /// A relay from `source` through `core` to `sink`, stopped through `stop`.
    pub fn new(
        core: Core,
        sink: S,
        source: P,
        settings: RelaySettings,
        stop: StopReceiver,
    ) -> Self {
        Self {
            core,
            sink,
            source,
            settings,
            stop,
            known: None,
            received: ReceivedTransactions::default(),
            until: None,
            leaving: false,
            is_last_copy: false,
            finished: false,
            deadline: None,
            told_to_stop: None,
            began: Instant::now(),
            reconnect_delay: backoff(BACKOFF_LIMIT),
            reports: Vec::new(),
            delivered: 0,
            event_log: EventLog::default(),
            stall: StalledProducer::new(Instant::now()),
            stuck: StuckStream::default(),
            reached_at_replay: None,
            replay_delay: backoff(BACKOFF_LIMIT),
            warned: Counters::default(),
            stats: Stats::new(Arc::default()),
            replayed_to: Lsn::ZERO,
            replay_cause: BROKEN,
        }
    }

    /// Where it delivers to.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// Its figures show in `metrics`.
    #[must_use]
    pub fn observed_by(mut self, metrics: Arc<Metrics>) -> Self {
        metrics.in_flight_limit_bytes.set(self.core.budget_bytes());
        self.stats = Stats::new(metrics);
        self
    }

    /// Its figures.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.stats.metrics)
    }

    /// Runs until it is told to stop, has reached its end, or a person must act.
    ///
    /// Give it a runtime of one thread and of its own: in a dense stream it rests
    /// by putting its thread to sleep, some milliseconds at a time.
    pub async fn run(mut self) -> Result<Summary, RelayError> {
        loop {
            let session = match self.connect().await? {
                Opened::Session(session) => session,
                Opened::Stopped => return self.outcome(),
                Opened::Never(OpenError { error, announcement }) => {
                    self.tell_of_the_end(&error);
                    return self.leave(error, announcement).await;
                }
            };
            let began = Instant::now();
            match self.stream(*session).await? {
                Ended::Done => return self.outcome(),
                Ended::Failed(error) => return self.leave(error, None).await,
                Ended::Lost(error) => {
                    self.stats.lost(&error);
                    tracing::warn!(%error, confirmed = %self.core.confirmable(), "lost the connection to PostgreSQL; reconnecting");
                    self.see_whether_stuck(&error);
                    self.core.session_lost();
                    if !self.pause_after(began).await? {
                        return self.outcome();
                    }
                }
                Ended::Over => {
                    crate::crash_points::point!("over");
                    self.core.session_lost();
                }
                Ended::Replay => {
                    self.stats.metrics.enter(Phase::Replaying);
                    if !self.replace_producer().await? {
                        return self.outcome();
                    }
                }
            }
        }
    }

    /// Waits before the next session where the last one, begun at `began`, broke
    /// at once; false when stopping came first.
    async fn pause_after(&mut self, began: Instant) -> Result<bool, RelayError> {
        if began.elapsed() >= GOOD_SESSION {
            self.reconnect_delay = backoff(BACKOFF_LIMIT);
            return Ok(true);
        }
        let delay = self.reconnect_delay.next().unwrap_or(BACKOFF_LIMIT).min(BACKOFF_LIMIT);
        Ok(self.meanwhile(sleep(delay)).await?.is_some())
    }

    /// A session, however long it takes.
    async fn connect(&mut self) -> Result<Opened<P::Feed>, RelayError> {
        let mut delays = backoff(BACKOFF_LIMIT);
        let mut told: Option<SourceError> = None;
        let mut standby = Standby::new(self.known.as_ref().map(|known| known.mark.clone()));
        loop {
            let resume = self.resume(&standby);
            let source = self.source.clone();
            let opened = match self.meanwhile(source.open(&resume)).await {
                Ok(Some(opened)) => opened,
                stopped @ (Ok(None) | Err(RelayError::Aborted)) => {
                    let unjudged = self.source.unjudged().map(Opened::Never);
                    return unjudged.map_or(stopped.map(|_| Opened::Stopped), Ok);
                }
                Err(error) => return Err(error),
            };
            let error = match opened {
                Ok(session) => {
                    let passed = session.start() > self.core.confirmable();
                    if passed && self.known.is_some() && !self.give_way(session.start()).await? {
                        return Ok(Opened::Stopped);
                    }
                    self.connected(&session);
                    return Ok(Opened::Session(Box::new(session)));
                }
                Err(error) => error,
            };
            let OpenError { error, announcement } = error;
            if let SourceError::InUse { holder: Some(holder), .. } = &error {
                standby.saw(holder);
            }
            let limit = match &error {
                // One that waits has to see in time that the active one halts.
                SourceError::Lost(_) | SourceError::ServerError(_)
                    if standby.waited().is_some() =>
                {
                    IN_USE_LIMIT
                }
                SourceError::Lost(_) | SourceError::ServerError(_) => BACKOFF_LIMIT,
                SourceError::Access(_) if self.known.is_some() => BACKOFF_LIMIT,
                SourceError::InUse { .. } => IN_USE_LIMIT,
                _ => return Ok(Opened::Never(OpenError { error, announcement })),
            };
            let delay = delays.next().unwrap_or(limit).min(limit);
            self.stats.refused(&error);
            if told.as_ref() == Some(&error) {
                tracing::debug!(%error, ?delay, "PostgreSQL still cannot be used");
            } else if matches!(error, SourceError::InUse { .. }) {
                tracing::info!("{error}");
            } else {
                tracing::warn!(%error, "cannot connect to PostgreSQL; retrying");
            }
            told = Some(error);
            if self.meanwhile(sleep(delay)).await?.is_none() {
                return Ok(Opened::Stopped);
            }
        }
    }

    fn resume(&self, standby: &Standby) -> Resume {
        match &self.known {
            None => Resume::AtSlot { waited: standby.waited() },
            Some(known) => Resume::At {
                identity: known.identity.clone(),
                fingerprint: standby.fingerprint().cloned().unwrap_or_default(),
                walsender: known.walsender,
                confirmed: self.core.confirmable(),
                start: self.core.resume_at(),
                after_another: standby.is_after_another(),
                by_others: standby.by_walposts(),
                seen: standby.confirmed(),
                received: self.received.clone(),
            },
        }
    }

    /// Another relay held the slot in between and has delivered up to `start`:
    /// what this one has in flight is of the past. False when stopping came first.
    async fn give_way(&mut self, start: Lsn) -> Result<bool, RelayError> {
        let ours = self.core.confirmable();
        tracing::info!(%ours, %start, "another walpost advanced the slot; resuming from there");
        self.new_producer().await
    }

    fn connected(&mut self, session: &P::Feed) {
        self.core.connected(session.start(), session.tables());
        if self.known.is_none() {
            self.until = self.settings.until.map(|until| match until {
                Until::Current => session.flushed(),
                Until::Lsn(lsn) => lsn,
            });
        }
        self.stats.session_began(session);
        self.stuck.opened(session.flushed());
        let identity = session.identity().clone();
        let (mark, walsender) = (session.mark().clone(), session.walsender());
        self.known = Some(Known { identity: identity.clone(), mark, walsender });
        if self.event_log.is_told() {
            // What is tried every few seconds is no news.
            tracing::debug!(confirmed = %self.core.confirmable(), "streaming from PostgreSQL");
            return;
        }
        if let Some(bytes) = session.backlog_bytes() {
            tracing::info!(
                slot = self.source.slot(),
                confirmed = %self.core.confirmable(),
                bytes,
                "starting a catch-up read"
            );
            return;
        }
        tracing::info!(
            slot = self.source.slot(),
            confirmed = %self.core.confirmable(),
            system_identifier = %identity.system_identifier,
            timeline = identity.timeline,
            "streaming from PostgreSQL"
        );
    }

    /// Credits what has been reported.
    fn take_reports(&mut self) {
        self.sink.take_reports(&mut self.reports);
        if self.reports.is_empty() {
            return;
        }
        let (now, wall) = (std::time::Instant::now(), unix_micros(SystemTime::now()));
        for report in self.reports.drain(..) {
            match report.outcome {
                Outcome::Delivered => {
                    self.delivered += 1;
                    if let Some(committed) = self.core.commit_time(report.seq) {
                        let ago = now.saturating_duration_since(report.at);
                        self.stats.acknowledged(committed, wall, ago);
                    }
                    self.core.delivered(report.seq);
                    crate::crash_points::point!("acknowledged");
                }
                Outcome::Lost(reason) => {
                    self.replay_cause = "lost";
                    self.core.lost(report.seq, &reason);
                }
                Outcome::Refused(refusal) => {
                    self.replay_cause = "refused";
                    self.core.refused(report.seq, &refusal);
                }
                Outcome::Purged => self.core.purged(report.seq),
            }
        }
        self.stats.delivered(self.delivered);
    }

    /// Credits reports, tells of changes, and sees whether to begin stopping.
    fn settle(&mut self) -> Result<(), RelayError> {
        self.take_reports();
        self.tell_of_the_sink()?;
        self.tell_of_refused_messages();
        self.event_log.diverted(self.core.take_diverted(), &self.stats.metrics);
        if let Some(dropped) = self.core.take_dropped_headers() {
            let count = self.core.counters().dropped_headers;
            self.event_log.dropped_headers(&dropped, count, Instant::now());
        }
        self.stats.turned(&self.core);
        if self.stuck.received(self.core.resume_at()) {
            self.stats.metrics.source_trouble(None);
        }
        if self.stop.order() == Order::Abort {
            return Err(RelayError::Aborted);
        }
        if self.stop.order() == Order::Drain {
            self.told_to_stop.get_or_insert_with(Instant::now);
        }
        let told = self.leaving || self.stop.order() == Order::Drain;
        if told {
            self.core.drain();
        }
        // A halt has all the time that it takes to deliver what is before it.
        let has_time = self.is_last_copy
            && self.stop.order() == Order::Run
            && self.core.wants_replay().is_none();
        if told && !has_time && self.deadline.is_none() {
            // A quarter of the time, at most two seconds, is kept for the last confirmation.
            let kept = (self.settings.drain_timeout / 4).min(Duration::from_secs(2));
            self.deadline = Some(Instant::now() + self.settings.drain_timeout.saturating_sub(kept));
            let (records, bytes) = self.core.in_flight();
            self.stats.metrics.enter(Phase::Stopping);
            tracing::info!(records, bytes, "stopping: draining in-flight records");
        }
        Ok(())
    }

    /// Leaves once `until` can be confirmed: only where there is a session to
    /// confirm it by. True where it is reached just now.
    fn see_whether_reached(&mut self) -> bool {
        let reached = self.until.is_some_and(|until| self.core.confirmable() >= until);
        let now = reached && !self.leaving;
        self.leaving |= reached;
        now
    }

    fn tell_of_the_sink(&mut self) -> Result<(), RelayError> {
        // Whether a refused password is that of a wrong configuration, rather than
        // one that was changed under way.
        let beginning = self.delivered == 0 && self.began.elapsed() < BEGINNING;
        for condition in self.sink.take_conditions() {
            match condition {
                Condition::Unauthenticated(reason) if beginning => {
                    return Err(RelayError::Unauthenticated(reason));
                }
                Condition::Broken(reason) => {
                    self.replay_cause = BROKEN;
                    self.core.producer_broken(&reason);
                }
                other => {
                    self.stall.heard(&other);
                    self.event_log.heard(other, self.delivered);
                }
            }
        }
        let connected = self.sink.is_connected();
        self.stats.metrics.sink_connected(connected);
        let metrics = &self.stats.metrics;
        self.event_log.tell(SinkState {
            delivered: self.delivered,
            in_flight: self.core.in_flight().0,
            failed: self.core.suspects() || self.core.halted().is_some(),
            open: || {
                connected == Some(true)
                    && metrics.phase().0.reads()
                    && self.core.resume_at() >= self.replayed_to
            },
            now: Instant::now(),
        });
        self.stats.metrics.sink_trouble(self.event_log.trouble());
        let (oldest, confirmed) = (self.core.oldest_in_flight(), self.core.confirmable());
        let replays = self.core.wants_replay().is_some();
        if !replays && self.stall.is_out_of_patience(oldest, confirmed, Instant::now()) {
            self.replay_cause = "stalled";
            self.core
                .producer_broken("no acknowledgement came for long, though the brokers answer");
        }
        Ok(())
    }

    fn tell_of_refused_messages(&mut self) {
        let counters = self.core.counters();
        if counters.refused_messages > self.warned.refused_messages {
            tracing::warn!(
                count = counters.refused_messages,
                "rejected non-transactional logical messages: they have no \
                 position that survives a replay; emit them with pg_catalog.pg_logical_emit_message(true, …)"
            );
            self.warned = counters;
        }
    }

    /// Throws the producer away and begins again at A; false when stopping
    /// came first.
    async fn replace_producer(&mut self) -> Result<bool, RelayError> {
        let cause = std::mem::replace(&mut self.replay_cause, BROKEN);
        self.stats.metrics.reconnected("kafka", cause);
        let reason = self.core.wants_replay().unwrap_or("asked for");
        let from = self.core.confirmable();
        let reached = (from, self.core.verdicts());
        if self.reached_at_replay.is_none_or(|then| reached > then) {
            self.replay_delay = backoff(BACKOFF_LIMIT);
        }
        let delay = self.replay_delay.next().unwrap_or(BACKOFF_LIMIT).min(BACKOFF_LIMIT);
        self.event_log.replay(reason, from, delay, self.delivered);
        self.reached_at_replay = Some(reached);
        self.replayed_to = self.replayed_to.max(self.core.resume_at());
        Ok(self.new_producer().await? && self.meanwhile(sleep(delay)).await?.is_some())
    }

    /// Puts a new producer in the place of the old one; false when stopping came first.
    async fn new_producer(&mut self) -> Result<bool, RelayError> {
        let replaced = {
            let mut replaced = std::pin::pin!(self.sink.replace_producer());
            loop {
                tokio::select! {
                    biased;
                    replaced = &mut replaced => break Some(replaced?),
                    // The old one may take its time, and nothing of it counts any more.
                    () = self.stop.changed() => break None,
                    () = wait_until(self.deadline) => return Ok(false),
                    () = sleep(HEARTBEAT) => self.stats.metrics.turned(),
                }
            }
        };
        if replaced.is_none() {
            return self.settle().map(|()| false);
        }
        // The refusal may be among the last reports, behind the failure that it caused.
        self.take_reports();
        self.core.producer_replaced();
        Ok(true)
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
                () = self.sink.stirred(true) => {}
                output = &mut future => return Ok(Some(output)),
                () = wait_until(self.deadline) => {}
                () = sleep(HEARTBEAT) => {}
            }
        }
    }
}

fn failed_or_lost(error: SourceError) -> Ended {
    match error {
        SourceError::Lost(_)
        | SourceError::ServerError(_)
        | SourceError::Access(_)
        | SourceError::InUse { .. } => Ended::Lost(error),
        SourceError::Setup(_)
        | SourceError::Changed(_)
        | SourceError::Slot(_)
        | SourceError::Undecodable(_)
        | SourceError::Encoding(_)
        | SourceError::Unprintable(_) => Ended::Failed(error),
    }
}
