//! When the relay writes its position to the state topic, and up to where it may confirm.
//!
//! The state is durable before the position that it covers is confirmed. While it cannot be
//! written, nothing more is confirmed, and delivery continues within the in-flight limit.
//!
//! In exactly-once mode, writing the position commits the Kafka transaction with the events before
//! it. After any failure, and for each session, the state topic is opened again with a new producer:
//! what is not committed is aborted by that, and produced again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{BACKOFF_LIMIT, Relay};
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::position::Checkpoint;
use crate::relay::backoff::{Backoff, backoff};
use crate::relay::core::{CommitAt, Core};
use crate::relay::run_result::RelayError;
use crate::sink::Sink;
use crate::source::{AckedPosition, Feed, ReceivedTransactions, SlotError, Source, SourceError};
use crate::state::{State, StateEvent, StateFailure, StateKey, StateStore, unix_ms};

/// Minimum time between two writes while events are delivered.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum time between two writes without events in between: only the WAL of other tables grew.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Records of a Kafka transaction, and per second of its age, up to which it is committed as soon as
/// there is nothing to read. With more, once nothing came for [`QUIET`]. Committing at each empty
/// socket halved the rate of a dense stream.
const SPARSE_RECORDS: u64 = 50;
const SPARSE_PER_SECOND: u64 = 4000;
const QUIET: Duration = Duration::from_millis(3);

/// The state topic of a relay.
#[derive(Debug, Clone)]
pub struct StateSettings {
    /// `delivery.id`.
    pub delivery_id: String,
    /// The topic's name, for messages.
    pub topic: String,
    /// What the configuration contributes to [`State::layout`].
    pub layout: String,
    /// Whether the relay ends if the topic is missing or may not be used.
    pub required: bool,
    /// When to commit; used with a core that is [`Core::exactly_once`].
    pub commits: CommitLimits,
}

/// When a Kafka transaction is committed: also whenever the source has nothing more to read.
#[derive(Debug, Clone, Copy)]
pub struct CommitLimits {
    /// The time from its first record, after which it is committed between two PostgreSQL
    /// transactions.
    pub interval: Duration,
    /// Bytes of records from which on it is committed at once.
    pub bytes: u64,
    /// The time from its first record after which it is committed at once: less than
    /// `transaction.timeout.ms`.
    pub timeout: Duration,
}

/// How urgent a write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// As the limits say.
    Normal,
    /// Nothing more is to be read now.
    Idle,
    /// The feed is to be switched.
    Switch,
    /// The relay ends.
    Last,
}

/// The relay's position in the state topic.
pub(super) struct StateKeeper {
    store: Box<dyn StateStore>,
    settings: StateSettings,
    metrics: Arc<Metrics>,
    phase: Phase,
    key: Option<StateKey>,
    /// The newest durable record. Before the store is open: that of this process, if any.
    state: Option<State>,
    delays: Backoff,
    written_at: Instant,
    /// When the first record of the open Kafka transaction was seen.
    transaction_since: Option<Instant>,
    /// How many records it had when one was last added, and when that was.
    grew: (u64, Instant),
}

enum Phase {
    /// To be opened at this time.
    Closed(Instant),
    Opening,
    Open,
    /// This state is being written.
    Writing(Box<State>),
}

/// The result of opening.
pub(super) enum StateOpened {
    /// The session can begin.
    Ready,
    /// The relay stops.
    Stopped,
    /// The relay ends with this error.
    Failed(SourceError),
}

impl StateKeeper {
    pub(super) fn new(
        store: Box<dyn StateStore>,
        settings: StateSettings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let now = Instant::now();
        Self {
            store,
            settings,
            metrics,
            phase: Phase::Closed(now),
            key: None,
            state: None,
            delays: backoff(BACKOFF_LIMIT),
            written_at: now,
            transaction_since: None,
            grew: (0, now),
        }
    }

    /// Everything that committed before this LSN may be confirmed.
    pub(super) fn covered(&self) -> Lsn {
        self.state.as_ref().map(|state| state.acked_upto).unwrap_or_default()
    }

    /// Waits for an event. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        self.store.wait().await;
    }

    /// Applies events, and writes what is durable. An error ends the session.
    pub(super) fn step(
        &mut self,
        core: &mut Core,
        received: &mut ReceivedTransactions,
        urgency: Urgency,
    ) -> Result<(), SourceError> {
        while let Some(event) = self.store.take_event() {
            self.apply(event, core)?;
        }
        match &self.phase {
            // In exactly-once mode it is opened with the next session.
            Phase::Closed(_) if core.is_exactly_once() => {}
            Phase::Closed(at) if *at <= Instant::now() => self.begin_to_open(),
            Phase::Open if core.is_exactly_once() => self.commit(core, received, urgency),
            Phase::Open => self.write_acknowledged(core.flush_lsn(), received, urgency),
            Phase::Closed(_) | Phase::Opening | Phase::Writing(_) => {}
        }
        Ok(())
    }

    /// When [`StateKeeper::step`] has something to do.
    pub(super) fn next_step(&self, core: &Core) -> Option<Instant> {
        match &self.phase {
            Phase::Closed(_) if core.is_exactly_once() => None,
            Phase::Closed(at) => Some(*at),
            Phase::Open if core.uncommitted().0 > 0 => {
                let now = Instant::now();
                let due =
                    self.transaction_since.map(|since| since + self.settings.commits.interval);
                let quiet = Some(self.grew.1 + QUIET).filter(|quiet| *quiet > now);
                // Acknowledgements end the wait for a commit that is requested.
                due.into_iter().chain(quiet).filter(|at| *at > now).min()
            }
            Phase::Open if core.flush_lsn() > self.covered() => Some(
                self.written_at
                    + if core.is_exactly_once() { IDLE_INTERVAL } else { BUSY_INTERVAL },
            ),
            Phase::Open | Phase::Opening | Phase::Writing(_) => None,
        }
    }

    /// Whether something is being written, or is to be written in this session.
    fn is_at_work(&self, core: &Core) -> bool {
        matches!(self.phase, Phase::Writing(_))
            || !core.is_exactly_once() && self.covered() < core.flush_lsn()
    }

    /// The open Kafka transaction is discarded: the next session opens the topic again.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed(Instant::now());
        self.transaction_since = None;
    }

    fn begin_to_open(&mut self) {
        if let Some(key) = &self.key {
            self.store.open(key);
            self.phase = Phase::Opening;
        }
    }

    fn apply(&mut self, event: StateEvent, core: &mut Core) -> Result<(), SourceError> {
        match event {
            StateEvent::Written => self.written(core),
            // Of a session that is lost.
            StateEvent::Opened { .. } if core.is_exactly_once() => {}
            StateEvent::Opened { state, .. } => {
                let theirs = state.as_ref().map(|state| state.generation);
                let ours = self.state.as_ref().map(|state| state.generation);
                if theirs > ours {
                    self.phase = Phase::Closed(Instant::now());
                    return Err(self.taken_over());
                }
                tracing::info!(topic = self.settings.topic, "the state topic can be written again");
                // What was being written may be durable or not: it is written again.
                (self.phase, self.state) = (Phase::Open, state);
                self.metrics.state_trouble(None);
            }
            StateEvent::Failed(failure) => self.failed(&failure, core),
            StateEvent::Missing => {
                let reason = "it does not exist any more".to_owned();
                self.failed(&StateFailure::Unavailable(reason), core);
            }
        }
        Ok(())
    }

    fn written(&mut self, core: &mut Core) {
        match std::mem::replace(&mut self.phase, Phase::Open) {
            Phase::Writing(state) => {
                self.metrics.state_lsn.set(state.acked_upto.as_u64());
                core.committed(state.checkpoint());
                self.state = Some(*state);
                self.delays = backoff(BACKOFF_LIMIT);
                self.transaction_since = None;
            }
            // Of a session that is lost.
            other => self.phase = other,
        }
    }

    fn failed(&mut self, failure: &StateFailure, core: &mut Core) {
        let delay = self.delays.next().unwrap_or(BACKOFF_LIMIT).min(BACKOFF_LIMIT);
        let topic = &self.settings.topic;
        if core.is_exactly_once() {
            tracing::warn!(topic, error = %failure, "cannot commit the Kafka transaction; aborting it");
        } else {
            tracing::warn!(
                topic, error = %failure,
                "the state topic cannot be used: nothing is confirmed to PostgreSQL until it can"
            );
        }
        self.metrics.state_failures.add(1);
        self.metrics.state_trouble(Some(format!(
            "the position cannot be written to the state topic: {failure}"
        )));
        self.phase = Phase::Closed(Instant::now() + delay);
        if core.is_exactly_once() {
            core.request_producer_replacement(&failure.to_string());
        }
    }

    fn taken_over(&self) -> SourceError {
        SourceError::Lost(format!(
            "another walpost has written its position to state topic {}",
            self.settings.topic
        ))
    }

    fn write_acknowledged(
        &mut self,
        flush_lsn: Lsn,
        received: &mut ReceivedTransactions,
        urgency: Urgency,
    ) {
        let Some(before) = self.state.as_ref().filter(|state| state.acked_upto < flush_lsn) else {
            return;
        };
        let last = received.durable(flush_lsn).or(before.last);
        let interval = if last == before.last { IDLE_INTERVAL } else { BUSY_INTERVAL };
        if urgency != Urgency::Last && self.written_at.elapsed() < interval {
            return;
        }
        let state = State { acked_upto: flush_lsn, last, at_ms: unix_ms(), ..before.clone() };
        self.write(state);
    }

    fn write(&mut self, state: State) {
        self.store.write(&state);
        self.written_at = Instant::now();
        self.phase = Phase::Writing(Box::new(state));
    }

    /// Commits the open Kafka transaction, if it is time and everything in it is acknowledged.
    fn commit(&mut self, core: &mut Core, received: &mut ReceivedTransactions, urgency: Urgency) {
        if let Some(at) = self.due(core, urgency) {
            core.request_commit(at);
        }
        let (Some(checkpoint), Some(before)) = (core.checkpoint(), &self.state) else { return };
        if core.is_split_by(&checkpoint) {
            self.metrics.split_transactions.add(1);
        }
        let last = received.durable(checkpoint.upto).or(before.last);
        let Checkpoint { upto: acked_upto, partial } = checkpoint;
        self.write(State { acked_upto, partial, last, at_ms: unix_ms(), ..before.clone() });
    }

    /// Whether to stop reading for a commit.
    fn due(&mut self, core: &Core, urgency: Urgency) -> Option<CommitAt> {
        let (records, bytes) = core.uncommitted();
        if records == 0 {
            let grew = core.flush_lsn() > self.covered();
            let is_due = urgency == Urgency::Last || self.written_at.elapsed() >= IDLE_INTERVAL;
            return (grew && is_due).then_some(CommitAt::Boundary);
        }
        let (limits, now) = (self.settings.commits, Instant::now());
        let age = now - *self.transaction_since.get_or_insert(now);
        if records != self.grew.0 {
            self.grew = (records, now);
        }
        if bytes >= limits.bytes || age >= limits.timeout {
            return Some(CommitAt::Now);
        }
        let is_due = match urgency {
            Urgency::Last | Urgency::Switch => true,
            Urgency::Idle => age >= limits.interval || self.is_pause(records, age, now),
            Urgency::Normal => age >= limits.interval,
        };
        is_due.then_some(CommitAt::Boundary)
    }

    /// Whether a source that has nothing to read now pauses: in a dense stream it often has nothing
    /// for a moment, and each commit makes it wait.
    fn is_pause(&self, records: u64, age: Duration, now: Instant) -> bool {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let sparse = SPARSE_RECORDS + millis.saturating_mul(SPARSE_PER_SECOND / 1000);
        records <= sparse || now - self.grew.1 >= QUIET
    }

    /// The position in `state` is that of this slot.
    fn verify<F: Feed>(
        &self,
        state: &State,
        cluster: Option<&String>,
        slot: &str,
        session: &F,
    ) -> Result<(), SlotError> {
        let topic = self.settings.topic.clone();
        let timeline = session.identity().timeline;
        if state.timeline > timeline {
            let known = format!("timeline {} of the server", state.timeline);
            return Err(SlotError::OtherState {
                topic,
                known,
                found: format!("timeline {timeline}"),
            });
        }
        if let (Some(known), Some(found)) = (&state.cluster, cluster)
            && known != found
        {
            let known = format!("Kafka cluster {known}");
            return Err(SlotError::OtherState { topic, known, found: found.clone() });
        }
        let (found, acked) = (session.start(), state.acked_upto);
        if found > acked {
            return Err(SlotError::AheadOfState { slot: slot.to_owned(), found, acked, topic });
        }
        if session.flushed() < acked {
            let database = format!("oid {}", session.database_oid());
            let (flushed, published) = (session.flushed(), acked);
            return Err(SlotError::WalBehind { flushed, database, published });
        }
        Ok(())
    }
}

impl<P: Source, S: Sink> Relay<P, S> {
    /// Opens the state topic for a session that holds the slot, unless this process is its writer
    /// already; compares the slot's position with it.
    pub(super) async fn open_state(
        &mut self,
        session: &mut P::Feed,
        after_another: bool,
    ) -> Result<StateOpened, RelayError> {
        let Some(mut keeper) = self.state.take() else { return Ok(StateOpened::Ready) };
        if matches!(keeper.phase, Phase::Open | Phase::Writing(_)) && !after_another {
            self.state = Some(keeper);
            return Ok(StateOpened::Ready);
        }
        if self.core.is_exactly_once() {
            keeper.close();
        }
        let opened = self.open_keeper(&mut keeper, session).await;
        match opened {
            Ok(Some(opened)) => {
                self.state = Some(keeper);
                Ok(opened)
            }
            // The topic is not to be used.
            Ok(None) => Ok(StateOpened::Ready),
            Err(error) => Err(error),
        }
    }

    /// `None`: without the state topic.
    async fn open_keeper(
        &mut self,
        keeper: &mut StateKeeper,
        session: &mut P::Feed,
    ) -> Result<Option<StateOpened>, RelayError> {
        let key = StateKey {
            delivery_id: keeper.settings.delivery_id.clone(),
            system_identifier: session.identity().system_identifier.clone(),
            database_oid: session.database_oid(),
            slot: self.source.slot().to_owned(),
        };
        keeper.key = Some(key);
        let (state, cluster) = loop {
            keeper.begin_to_open();
            let event = loop {
                if self.settle_during(keeper.wait()).await?.is_none() {
                    return Ok(Some(StateOpened::Stopped));
                }
                match keeper.store.take_event() {
                    // Of a session that is lost: what was written is read now.
                    Some(StateEvent::Written) | None => {}
                    Some(event) => break event,
                }
            };
            match event {
                StateEvent::Opened { state, cluster } => break (state, cluster),
                StateEvent::Missing | StateEvent::Failed(StateFailure::Unauthorized(_))
                    if self.session.last.is_none() =>
                {
                    return Ok(unusable(&keeper.settings, &event));
                }
                StateEvent::Failed(StateFailure::Unreadable(reason)) => {
                    return Ok(Some(StateOpened::Failed(SourceError::Setup(reason))));
                }
                other => keeper.apply(other, &mut self.core)?,
            }
            if let Phase::Closed(at) = keeper.phase
                && self.settle_during(sleep(at - Instant::now())).await?.is_none()
            {
                return Ok(Some(StateOpened::Stopped));
            }
        };
        let slot = self.source.slot().to_owned();
        let Some(state) = state else {
            return Ok(Some(StateOpened::Failed(SourceError::Slot(SlotError::NoState {
                slot,
                topic: keeper.settings.topic.clone(),
                system_identifier: session.identity().system_identifier.clone(),
                delivery_id: keeper.settings.delivery_id.clone(),
            }))));
        };
        if let Err(error) = keeper.verify(&state, cluster.as_ref(), &slot, session) {
            return Ok(Some(StateOpened::Failed(SourceError::Slot(error))));
        }
        let layout = layout(&keeper.settings, session);
        if let Some(partial) = state.partial
            && state.layout != layout
        {
            return Ok(Some(StateOpened::Failed(SourceError::Slot(SlotError::PartlyPublished {
                topic: keeper.settings.topic.clone(),
                commit_lsn: partial.commit_lsn,
                events: partial.ordinal,
            }))));
        }
        if self.core.is_exactly_once() {
            self.core.resume_from(state.checkpoint());
        }
        // Later on the session itself compares with what this process has received; but in
        // exactly-once mode the position of another one may be confirmed too.
        let is_others = self.session.last.is_none()
            || self.core.is_exactly_once() && state.acked_upto > keeper.covered();
        if is_others && state.layout == layout {
            session.compare_with(AckedPosition { upto: state.acked_upto, last: state.last });
        }
        tracing::info!(
            topic = keeper.settings.topic, acked = %state.acked_upto,
            "the slot's position agrees with the state topic"
        );
        keeper.state = Some(State {
            generation: state.generation + 1,
            timeline: session.identity().timeline,
            cluster,
            layout,
            ..state
        });
        keeper.phase = Phase::Open;
        keeper.metrics.state_trouble(None);
        keeper.metrics.state_lsn.set(keeper.covered().as_u64());
        Ok(Some(StateOpened::Ready))
    }

    /// Writes the position at the end of the run; waits at most until `deadline`. Returns the
    /// position that may be confirmed.
    pub(super) async fn write_last_state(&mut self, deadline: Instant) -> Result<Lsn, RelayError> {
        let Some(mut keeper) = self.state.take() else { return Ok(self.core.flush_lsn()) };
        let received = &mut self.session.received;
        while keeper.step(&mut self.core, received, Urgency::Last).is_ok()
            && keeper.is_at_work(&self.core)
        {
            tokio::select! {
                biased;
                () = self.stop.aborted() => return Err(RelayError::Aborted),
                () = keeper.wait() => {}
                () = tokio::time::sleep_until(deadline) => {
                    tracing::warn!(
                        "the position could not be written to the state topic in time: the next \
                         start may repeat records"
                    );
                    break;
                }
            }
        }
        let confirmed = self.core.flush_lsn().min(keeper.covered());
        self.state = Some(keeper);
        Ok(confirmed)
    }
}

/// Without the state topic: an error if it is required.
fn unusable(settings: &StateSettings, event: &StateEvent) -> Option<StateOpened> {
    let topic = &settings.topic;
    let reason = match event {
        StateEvent::Failed(failure) => failure.to_string(),
        _ => "it does not exist: `walpost adopt --apply` creates it".to_owned(),
    };
    if settings.required {
        let reason = format!("state topic {topic} cannot be used: {reason}");
        return Some(StateOpened::Failed(SourceError::Setup(reason)));
    }
    tracing::warn!(
        topic,
        reason,
        "the state topic cannot be used: a slot that is created again or advanced while walpost is \
         not running will not be detected"
    );
    None
}

/// What decides which transactions have events.
fn layout<F: Feed>(settings: &StateSettings, session: &F) -> String {
    session.publication_fingerprint().digest(&settings.layout)
}
