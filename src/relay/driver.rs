//! The loop around the core: it receives, publishes, confirms, reconnects and shuts down as the
//! core decides. Its own decisions concern time: backoff, the drain timeout, and when to replace a
//! producer that makes no progress.
//!
//! Everything runs on one task. The replication session answers keepalives on its own task, so
//! PostgreSQL never waits for Kafka; Kafka's client has its own threads.

mod replacement;
mod session;
mod shutdown;
mod state_keeper;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use self::replacement::ReplayState;
use self::session::{Opened, SessionState};
use self::shutdown::Shutdown;
use self::state_keeper::StateKeeper;
pub use self::state_keeper::{CommitLimits, StateSettings};
use super::backoff::wait_until;
use super::delivery_log::{DeliveryLog, SinkState};
use super::run_result::{RelayError, RelaySettings, Summary, Until};
use super::schemas::Schemas;
use super::stalled_producer::StalledProducer;
use super::stats::{HEARTBEAT, Stats};
use super::stop::StopReceiver;
use super::stuck_stream::StuckStream;
use super::trail::Noted;
use crate::metrics::{Metrics, Phase, unix_micros};
use crate::sink::{Condition, Outcome, Reloader, Report, Sink};
use crate::source::{OpenError, Source, SourceError};
use crate::state::StateStore;
use walpost_core::relay::Core;

/// Maximum delay between two attempts to connect to PostgreSQL, and between two replays.
const BACKOFF_LIMIT: Duration = Duration::from_secs(5);

/// Credentials that brokers reject within this time of the start, before any delivery, are a
/// configuration error. Later they may have been rotated, and delivery is retried.
const STARTUP: Duration = Duration::from_secs(30);

/// A relay: built, then run once.
pub struct Relay<P> {
    core: Core,
    sink: Box<dyn Sink>,
    source: P,
    settings: RelaySettings,
    stop: StopReceiver,
    created: Instant,
    session: SessionState,
    delivery: DeliveryState,
    replay: ReplayState,
    shutdown: Shutdown,
    diagnostics: Diagnostics,
    /// `None`: the relay does not keep its position.
    state: Option<StateKeeper>,
    /// `None`: records need no schema.
    schemas: Option<Schemas>,
}

/// The sink's reports.
struct DeliveryState {
    /// Reused for each batch of delivery reports.
    reports: Vec<Report>,
    /// Records that the sink acknowledged, including repeats.
    delivered: u64,
    /// Whether a message waits for room in the sink.
    is_held: bool,
    stalled: StalledProducer,
}

/// Metrics and log for operators. It decides nothing.
struct Diagnostics {
    stats: Stats,
    delivery_log: DeliveryLog,
    stuck_stream: StuckStream,
    noted: Noted,
    /// The number of refused messages already logged.
    logged_refused_messages: u64,
}

/// Why a session ended.
enum Ended {
    /// Connect again.
    Lost(SourceError),
    /// The relay ends with this error.
    Failed(SourceError),
    /// Replace the producer, then connect again.
    Replay,
    /// Open the other feed instead.
    FeedSwitch,
    /// The relay ends.
    Done,
}

impl<P: Source> Relay<P> {
    /// Creates a relay from `source` through `core` to `sink`, stopped through `stop`.
    pub fn new(
        core: Core,
        sink: Box<dyn Sink>,
        source: P,
        settings: RelaySettings,
        stop: StopReceiver,
    ) -> Self {
        let created = Instant::now();
        let peer = sink.peer();
        Self {
            core,
            sink,
            source,
            settings,
            stop,
            created,
            session: SessionState::default(),
            delivery: DeliveryState {
                reports: Vec::new(),
                delivered: 0,
                is_held: false,
                stalled: StalledProducer::new(created),
            },
            replay: ReplayState::default(),
            shutdown: Shutdown::default(),
            diagnostics: Diagnostics {
                stats: Stats::new(Arc::default()),
                delivery_log: DeliveryLog::of(peer),
                stuck_stream: StuckStream::default(),
                noted: Noted::default(),
                logged_refused_messages: 0,
            },
            state: None,
            schemas: None,
        }
    }

    /// Keeps the relay's position in `store`. Call it after [`Relay::with_metrics`].
    #[must_use]
    pub fn with_state(mut self, store: Box<dyn StateStore>, settings: StateSettings) -> Self {
        self.state = Some(StateKeeper::new(store, settings, self.metrics()));
        self
    }

    /// Learns from these what records need of a schema registry.
    #[must_use]
    pub fn with_schemas(mut self, schemas: Schemas) -> Self {
        self.schemas = Some(schemas);
        self
    }

    /// What has the sink read its configuration again; `None`: it does so with each connection.
    pub fn reload(&self) -> Option<Reloader> {
        self.sink.reload()
    }

    /// Sets the relay's metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Arc<Metrics>) -> Self {
        metrics.in_flight_limit_bytes.set(self.core.budget_bytes());
        metrics.set_sink_name(self.sink.peer().name);
        self.diagnostics.stats = Stats::new(metrics);
        self
    }

    /// Lets the relay end once it has confirmed this position.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.settings.until = Some(until);
        self
    }

    /// Lets the relay block its thread for its pauses: see [`crate::Walpost::on_own_thread`].
    #[must_use]
    pub fn on_own_thread(mut self) -> Self {
        self.settings.owns_thread = true;
        self
    }

    /// The relay's metrics.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.diagnostics.stats.metrics)
    }

    /// Runs until it is stopped, has reached [`RelaySettings::until`], or needs an operator: see
    /// [`crate::Walpost::run`].
    pub async fn run(mut self) -> Result<Summary, RelayError> {
        loop {
            let session = match self.connect().await? {
                Opened::Session(session) => session,
                Opened::Stopped => return self.outcome(),
                Opened::Failed(OpenError { error, announcement }) => {
                    self.log_failure(&error);
                    return self.fail(error, announcement).await;
                }
            };
            let opened = Instant::now();
            let ended = self.stream(*session).await?;
            self.diagnostics.stats.held_up(None);
            match ended {
                Ended::Done => return self.outcome(),
                Ended::Failed(error) => return self.fail(error, None).await,
                Ended::Lost(error) => {
                    self.diagnostics.stats.lost(&error);
                    tracing::warn!(%error, confirmed = %self.core.durable_upto(), "lost the connection to PostgreSQL; reconnecting");
                    self.check_stuck_stream(&error);
                    self.core.session_lost();
                    if !self.discard_transaction().await? || !self.pause_after(opened).await? {
                        return self.outcome();
                    }
                }
                Ended::FeedSwitch => {
                    crate::crash_points::point!("over");
                    self.core.session_lost();
                }
                Ended::Replay => {
                    self.diagnostics.stats.metrics.enter(Phase::Replaying);
                    if !self.replay().await? {
                        return self.outcome();
                    }
                }
            }
        }
    }

    /// Applies the delivery reports that have arrived.
    fn take_reports(&mut self) {
        let DeliveryState { reports, delivered, .. } = &mut self.delivery;
        self.sink.take_reports(reports);
        if reports.is_empty() {
            return;
        }
        let Diagnostics { noted, stats, .. } = &mut self.diagnostics;
        noted.reported(reports, |seq| self.core.commit_time(seq), &stats.metrics);
        let (now, wall) = (std::time::Instant::now(), unix_micros(SystemTime::now()));
        for report in reports.drain(..) {
            match report.outcome {
                Outcome::Delivered => {
                    *delivered += 1;
                    if let Some(committed) = self.core.commit_time(report.seq) {
                        let ago = now.saturating_duration_since(report.at);
                        self.diagnostics.stats.acknowledged(committed, wall, ago);
                    }
                    self.core.delivered(report.seq);
                    crate::crash_points::point!("acknowledged");
                }
                Outcome::Lost(reason) => {
                    self.replay.cause = "lost";
                    self.core.lost(report.seq, &reason);
                }
                Outcome::Refused(refusal) => {
                    self.replay.cause = "refused";
                    self.diagnostics.delivery_log.answers();
                    self.core.refused(report.seq, &refusal);
                }
                Outcome::Suspect(refusal) => {
                    self.replay.cause = "refused";
                    self.diagnostics.delivery_log.answers();
                    self.core.suspected(report.seq, &refusal);
                }
                Outcome::Purged => self.core.purged(report.seq),
            }
        }
        self.diagnostics.stats.delivered(*delivered);
    }

    /// Applies delivery reports, the sink's conditions and a stop order, and logs what changed.
    fn serve_sink(&mut self) -> Result<(), RelayError> {
        self.take_reports();
        self.serve_schemas()?;
        if let Some(keeper) = &mut self.state {
            keeper.note_failures(&mut self.core);
        }
        self.check_probing();
        self.check_sink()?;
        self.log_refused_messages();
        let Diagnostics { stats, delivery_log, stuck_stream, .. } = &mut self.diagnostics;
        delivery_log.diverted(self.core.take_diverted(), &stats.metrics);
        delivery_log.skipped(self.core.take_skipped());
        if let Some(dropped) = self.core.take_dropped_headers() {
            let count = self.core.counters().dropped_headers;
            delivery_log.dropped_headers(&dropped, count, Instant::now());
        }
        stats.update(&self.core, self.delivery.is_held);
        if stuck_stream.received(self.core.resume_at()) {
            stats.stuck(None);
        }
        self.check_shutdown()
    }

    /// Whether brokers that reject the credentials may never have accepted them.
    fn is_starting(&self) -> bool {
        self.delivery.delivered == 0 && self.created.elapsed() < STARTUP
    }

    /// Hands the core what was learned of schemas, and asks for what it wants.
    fn serve_schemas(&mut self) -> Result<(), RelayError> {
        let is_starting = self.is_starting();
        let Some(schemas) = &mut self.schemas else { return Ok(()) };
        schemas.serve(&mut self.core, is_starting).map_err(RelayError::Registry)
    }

    fn check_sink(&mut self) -> Result<(), RelayError> {
        let is_starting = self.is_starting();
        let DeliveryState { delivered, is_held, stalled, .. } = &mut self.delivery;
        let Diagnostics { stats: Stats { metrics, .. }, delivery_log, .. } = &mut self.diagnostics;
        for condition in self.sink.take_conditions() {
            match condition {
                Condition::Unauthenticated(reason) if is_starting => {
                    let peer = self.sink.peer();
                    return Err(RelayError::Unauthenticated { peer, reason });
                }
                Condition::Regressed(reason) => {
                    return Err(RelayError::Regressed { peer: self.sink.peer(), reason });
                }
                Condition::Broken(reason) => {
                    self.replay.cause = replacement::BROKEN;
                    self.core.request_producer_replacement(&reason);
                }
                other @ (Condition::Unreachable(_)
                | Condition::Unauthenticated(_)
                | Condition::Stalled { .. }
                | Condition::Flowing
                | Condition::Repartitioned { .. }) => {
                    stalled.on_condition(&other);
                    delivery_log.on_condition(other, *delivered);
                }
            }
        }
        let connected = self.sink.is_connected();
        metrics.sink_connected(connected);
        delivery_log.update(SinkState {
            delivered: *delivered,
            // A sink without a connection may take nothing.
            in_flight: self.core.in_flight().0 + usize::from(*is_held),
            failed: self.core.is_isolating() || self.core.halted().is_some(),
            open: || {
                connected == Some(true)
                    && metrics.phase().0.reads()
                    && self.replay.is_caught_up(self.core.resume_at())
            },
            now: Instant::now(),
        });
        metrics.set_sink_trouble(delivery_log.trouble());
        let (oldest, confirmed) = (self.core.oldest_in_flight(), self.core.flush_lsn());
        let needs_replay = self.core.wants_replay().is_some();
        if !needs_replay && stalled.is_timed_out(oldest, confirmed, Instant::now()) {
            self.replay.cause = "stalled";
            self.core.request_producer_replacement(
                "no acknowledgement came for long, though the brokers answer",
            );
        }
        Ok(())
    }

    fn log_refused_messages(&mut self) {
        let count = self.core.counters().refused_messages;
        if count > self.diagnostics.logged_refused_messages {
            tracing::warn!(
                count,
                "rejected non-transactional logical messages: they have no \
                 position that survives a replay; emit them with pg_catalog.pg_logical_emit_message(true, …)"
            );
            self.diagnostics.logged_refused_messages = count;
        }
    }

    /// Waits for `future` and serves the sink meanwhile; `None` if the relay is done first.
    async fn serve_sink_during<F: Future>(
        &mut self,
        future: F,
    ) -> Result<Option<F::Output>, RelayError> {
        let mut future = std::pin::pin!(future);
        loop {
            self.serve_sink()?;
            if self.is_done() {
                return Ok(None);
            }
            // A stop order first, then failures of the sink, because `future` may be ready in every
            // iteration. The deadline and the heartbeat only cause the next iteration.
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.wait_for_events(true) => {}
                output = &mut future => return Ok(Some(output)),
                () = wait_until(self.shutdown.deadline()) => {}
                () = sleep(HEARTBEAT) => {}
            }
        }
    }
}
