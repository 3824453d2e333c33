//! When the relay writes its position to the store, and up to where it may confirm.
//!
//! The state is durable before the position that it covers is confirmed. While it cannot be
//! written, nothing more is confirmed, and delivery continues within the in-flight limit. What the
//! store may still lose is confirmed later ([`kept`]).
//!
//! In exactly-once mode, writing the position commits the Kafka transaction with the events before
//! it. After any failure, and for each session, the state topic is opened again with a new producer:
//! what is not committed is aborted by that, and produced again.

mod commits;
mod kept;
mod opening;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use self::commits::CommitLimits;
use self::commits::QUIET;
use self::kept::Kept;
use super::BACKOFF_LIMIT;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::relay::backoff::{Backoff, backoff};
use crate::source::{Feed, Horizon, LastTransaction, ReceivedTransactions, SlotError, SourceError};
use crate::state::{
    Bookmark, ConfiguredLayout, Delivered, Ending, State, StateEvent, StateFailure, StateKey,
    StateStore, UnfinishedRows, unix_ms,
};
use walpost_core::relay::Core;

/// Minimum time between two writes while events are delivered.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum time between two writes without events in between, in seconds, and the maximum of it: only the
/// WAL of other tables grew. It grows with the positions that the state keeps ([`State::earlier`]), which
/// so last for 90 minutes in which PostgreSQL saves none of them.
const IDLE_SECONDS: [usize; 2] = [1, 30];
const POSITIONS_PER_SECOND: usize = 4;

/// The position of a relay, and the store of it.
#[derive(Debug, Clone)]
pub struct StateSettings {
    /// `delivery.id`.
    pub delivery_id: String,
    /// The name of the topic or key, for the log.
    pub name: String,
    /// What the store is called in errors.
    pub place: String,
    /// What the configuration contributes to [`State::layout`].
    pub layout: ConfiguredLayout,
    /// Whether a policy lets events be skipped.
    pub skips: bool,
    /// The name of the store, if it may lose writes that it has acknowledged.
    pub lossy_store: Option<&'static str>,
    /// The rows that are published instead of what the slot sends: the topic must have the same.
    pub rows: Option<UnfinishedRows>,
    /// When to commit; used with a core that is [`Core::exactly_once`].
    pub commits: CommitLimits,
}

/// How urgent a write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A write at the time that the limits ask for.
    Normal,
    /// Nothing more is to be read now.
    Idle,
    /// The feed is to be switched.
    Switch,
    /// The relay ends.
    Last,
}

/// The relay's position in the store.
pub(super) struct StateKeeper {
    store: Box<dyn StateStore>,
    settings: StateSettings,
    metrics: Arc<Metrics>,
    phase: Phase,
    key: Option<StateKey>,
    /// What may be confirmed.
    kept: Kept,
    /// A bookmark of this session whose position is not acknowledged yet.
    pending: Option<Bookmark>,
    /// How the run ends, once that is known.
    ending: Option<Ending>,
    /// The newest durable record. Before the store is open: that of this process, if any.
    state: Option<State>,
    delays: Backoff,
    /// Whether the session's server is known to have the history that was published.
    is_compared: bool,
    /// The position in the topic that the WAL of the last session did not reach.
    not_reached: Option<Lsn>,
    /// The last failure that was logged, of a store that is used by the sink too.
    failure: Option<StateFailure>,
    /// How many events are still to come of orders that do not count any more.
    stale: u32,
    written_at: Instant,
    /// When a write that is under way counts as failing.
    overdue_at: Instant,
    /// The record that the topic had at the last opening, and the one that was written or tried last:
    /// any other one is another process's.
    own: [Option<RecordId>; 2],
    /// When the first record of the open Kafka transaction was seen.
    transaction_since: Option<Instant>,
    /// How many records it had when one was last added, and when that was.
    grew: (u64, Instant),
}

/// Tells records of the state topic apart: generation and time.
type RecordId = (u64, u64);

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
    /// Another session is needed.
    Lost(SourceError),
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
            kept: Kept::default(),
            pending: None,
            ending: None,
            state: None,
            delays: backoff(BACKOFF_LIMIT),
            is_compared: true,
            not_reached: None,
            failure: None,
            stale: 0,
            written_at: now,
            overdue_at: now,
            own: [None; 2],
            transaction_since: None,
            grew: (0, now),
        }
    }

    /// Whether the last session's server is known to have the history that was published.
    pub(super) fn is_compared(&self) -> bool {
        self.is_compared
    }

    /// Everything that committed before this LSN is acknowledged, and the store has that.
    fn written_upto(&self) -> Lsn {
        self.state.as_ref().map(|state| state.acked_upto).unwrap_or_default()
    }

    /// Takes a bookmark, if it is time for one.
    pub(super) fn note_horizon(&mut self, horizon: Horizon) {
        let Some(state) = &mut self.state else { return };
        let at_ms = unix_ms();
        let Horizon { xmin: below, xmax, lsn, at_ms: server_ms } = horizon;
        // This session sends what they commit.
        let delivered = state.delivered.get_or_insert_with(|| Delivered::new(xmax, server_ms));
        // Those of a history that this server has lost.
        delivered.bookmarks.retain(|bookmark| bookmark.below <= xmax);
        if self.pending.is_none() && delivered.is_due(at_ms) && below > delivered.from {
            self.pending = Some(Bookmark { below, lsn, at_ms });
        }
    }

    /// The session's server, once its history is known to be the one that was published: after a
    /// restart, once it was compared.
    pub(super) fn note_server<F: Feed>(&mut self, session: &F) {
        self.is_compared = session.is_compared();
        if !self.is_compared {
            return;
        }
        let (timeline, started) = (session.timeline(), session.server_started());
        // What is being written becomes the state.
        let written = match &mut self.phase {
            Phase::Writing(state) => Some(&mut **state),
            Phase::Closed(_) | Phase::Opening | Phase::Open => None,
        };
        for state in self.state.iter_mut().chain(written) {
            (state.timeline, state.server_started) = (timeline, started);
        }
    }

    /// Whether the position may be written. At a destination that takes no event twice, those of another
    /// history count as delivered. In exactly-once mode only what is published moves the position.
    fn may_write(&self, core: &Core) -> bool {
        self.is_compared || core.is_exactly_once()
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
        self.apply_events(core)?;
        self.note_skipped(core);
        match &self.phase {
            // In exactly-once mode it is opened with the next session.
            Phase::Closed(_) if core.is_exactly_once() => {}
            Phase::Closed(at) if *at <= Instant::now() => self.begin_to_open(),
            Phase::Open if self.may_write_ending(core) => self.write_ending(),
            Phase::Open if !self.may_write(core) => {}
            Phase::Open if core.is_exactly_once() => self.commit(core, received, urgency),
            Phase::Open => {
                self.write_acknowledged(core.flush_lsn(), received, urgency);
                self.show_what_is_kept();
            }
            Phase::Writing(_) => self.note_overdue(),
            Phase::Closed(_) | Phase::Opening => {}
        }
        Ok(())
    }

    /// Adds the rows of skipped events, before a position behind them is written.
    fn note_skipped(&mut self, core: &Core) {
        let Some(state) = &mut self.state else { return };
        for (position, row) in core.skipped_rows() {
            if state.skipped_rows.get(position) != Some(row) {
                state.skipped_rows.insert(*position, row.clone());
            }
        }
    }

    /// Counts a write that takes long as a failure, again and again. librdkafka repeats the end of a
    /// transaction without an end, and says nothing.
    fn note_overdue(&mut self) {
        let (now, limit) = (Instant::now(), self.settings.commits.transaction_timeout());
        if now < self.overdue_at {
            return;
        }
        self.overdue_at = now + limit;
        self.metrics.state_failures.add(1);
        let trouble = if self.settings.lossy_store.is_some() {
            let trouble = format!("the position was not written within {limit:?}");
            warn_of_key(&self.settings.name, &trouble);
            trouble
        } else {
            let trouble =
                format!("no broker has ended the transaction of the position within {limit:?}");
            tracing::warn!(
                topic = self.settings.name,
                error = trouble,
                "the state topic cannot be used: nothing is confirmed to PostgreSQL until it can"
            );
            trouble
        };
        self.metrics.set_state_trouble(Some(trouble));
    }

    /// Applies the store's events in exactly-once mode while nothing is streamed. A failed commit
    /// must be noticed then too, since no record of its transaction is reported any more.
    pub(super) fn note_failures(&mut self, core: &mut Core) {
        while core.is_exactly_once()
            && let Some(event) = self.take_event()
        {
            if let Err(error) = self.apply(event, core) {
                tracing::debug!(%error, "the state topic");
            }
        }
    }

    /// When [`StateKeeper::step`] has something to do that no event announces. What is due already and
    /// was not done waits for one: an acknowledgement ends the wait for a commit that is requested.
    pub(super) fn next_step(&self, core: &Core) -> Option<Instant> {
        let now = Instant::now();
        let kept = self.kept.next().filter(|at| *at > now);
        self.next_write(core).into_iter().chain(kept).min()
    }

    fn next_write(&self, core: &Core) -> Option<Instant> {
        let after = |interval| Some(self.written_at + interval);
        let due = match &self.phase {
            Phase::Closed(at) => return (!core.is_exactly_once()).then_some(*at),
            Phase::Open if core.uncommitted().0 > 0 => {
                let interval = self.settings.commits.interval;
                [self.transaction_since.map(|since| since + interval), Some(self.grew.1 + QUIET)]
            }
            Phase::Open if core.flush_lsn() > self.written_upto() => {
                [after(BUSY_INTERVAL), after(self.idle_interval())]
            }
            Phase::Open | Phase::Opening | Phase::Writing(_) => return None,
        };
        let now = Instant::now();
        due.into_iter().flatten().filter(|at| *at > now).min()
    }

    fn idle_interval(&self) -> Duration {
        let positions = self.state.as_ref().map_or(0, |state| state.earlier.len());
        let [min, max] = IDLE_SECONDS;
        Duration::from_secs((positions / POSITIONS_PER_SECOND).clamp(min, max) as u64)
    }

    /// Whether something is being written, or is to be written in this session.
    fn is_at_work(&self, core: &Core) -> bool {
        matches!(self.phase, Phase::Writing(_))
            || !core.is_exactly_once() && self.written_upto() < core.flush_lsn()
            || self.may_write_ending(core)
    }

    /// Whether the topic can be written, as far as known.
    pub(super) fn can_write(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Writing(_))
    }

    /// Whether everything that is acknowledged may be confirmed, or cannot be written now.
    pub(super) fn is_written(&self, core: &Core) -> bool {
        !self.can_write() || self.covered() >= core.flush_lsn()
    }

    /// The next event, if there is one. Each order ends in one event, in their order.
    fn take_event(&mut self) -> Option<StateEvent> {
        loop {
            let event = self.store.take_event()?;
            if let Some(left) = self.stale.checked_sub(1) {
                self.stale = left;
                continue;
            }
            if let StateEvent::Opened { transaction_timeout: Some(timeout), .. } = &event {
                self.settings.commits.timeout = *timeout / 3;
            }
            return Some(event);
        }
    }

    /// The topic is to be opened again, whatever is being done: in exactly-once mode the open Kafka
    /// transaction is discarded.
    pub(super) fn close(&mut self) {
        if matches!(self.phase, Phase::Opening | Phase::Writing(_)) {
            self.stale += 1;
        }
        self.phase = Phase::Closed(Instant::now());
        self.transaction_since = None;
    }

    fn begin_to_open(&mut self) {
        if let Some(key) = &self.key {
            self.store.open(key);
            self.phase = Phase::Opening;
        }
    }

    /// Applies the events that have come. An error ends the session.
    fn apply_events(&mut self, core: &mut Core) -> Result<(), SourceError> {
        while let Some(event) = self.take_event() {
            self.apply(event, core)?;
        }
        Ok(())
    }

    fn apply(&mut self, event: StateEvent, core: &mut Core) -> Result<(), SourceError> {
        match event {
            StateEvent::Written => self.written(core),
            StateEvent::Opened { state, .. } => {
                // An operator may have written it too, or made the topic anew: it is read as at the
                // start of a session then.
                let is_own =
                    state.as_ref().is_some_and(|state| self.own.contains(&Some(id(state))));
                if !is_own {
                    self.phase = Phase::Closed(Instant::now());
                    return Err(self.taken_over());
                }
                self.own[0] = state.as_ref().map(id);
                let name = &self.settings.name;
                if self.settings.lossy_store.is_some() {
                    tracing::info!(key = name, "the state key can be written again");
                } else {
                    tracing::info!(topic = name, "the state topic can be written again");
                }
                if let Some(state) = &state {
                    let (upto, now) = (state.acked_upto, Instant::now());
                    self.kept.reopened(upto, self.store.may_lose(), now);
                }
                // What was being written may be durable or not: it is written again.
                (self.phase, self.state) = (Phase::Open, state);
                self.metrics.set_state_trouble(None);
            }
            StateEvent::Failed(failure) => {
                self.failed(&failure, core);
                if let StateFailure::Diverged(reason) = failure {
                    return Err(SourceError::Slot(SlotError::Destination(reason)));
                }
            }
            StateEvent::Missing => {
                let reason = "it does not exist any more".to_owned();
                self.failed(&StateFailure::Unavailable(reason), core);
            }
        }
        Ok(())
    }

    fn written(&mut self, core: &mut Core) {
        if let Phase::Writing(state) = std::mem::replace(&mut self.phase, Phase::Open) {
            note_position(&self.metrics, state.acked_upto);
            core.committed(state.checkpoint());
            self.own[0] = Some(id(&state));
            let times = (self.written_at, Instant::now());
            self.kept.written(state.acked_upto, times, self.store.may_lose());
            self.state = Some(*state);
            self.metrics.set_state_trouble(None);
            self.delays = backoff(BACKOFF_LIMIT);
            self.failure = None;
            self.transaction_since = None;
        }
    }

    fn failed(&mut self, failure: &StateFailure, core: &mut Core) {
        let delay = self.delays.next().unwrap_or(BACKOFF_LIMIT).min(BACKOFF_LIMIT);
        let topic = &self.settings.name;
        if core.is_exactly_once() {
            tracing::warn!(topic, error = %failure, "cannot commit the Kafka transaction; aborting it");
        } else if self.settings.lossy_store.is_some() {
            // The sink uses the same server: an outage of hours is logged once.
            let is_new = self.failure.as_ref() != Some(failure);
            if is_new {
                warn_of_key(topic, &failure.to_string());
            }
            self.failure = Some(failure.clone());
        } else {
            tracing::warn!(
                topic, error = %failure,
                "the state topic cannot be used: nothing is confirmed to PostgreSQL until it can"
            );
        }
        self.metrics.state_failures.add(1);
        self.metrics.set_state_trouble(Some(format!(
            "the position cannot be written to {}: {failure}",
            self.settings.place
        )));
        self.phase = Phase::Closed(Instant::now() + delay);
        if core.is_exactly_once() {
            core.request_producer_replacement(&failure.to_string());
        }
    }

    fn taken_over(&self) -> SourceError {
        SourceError::Lost(format!(
            "the position in {} is not the one that this walpost has written",
            self.settings.place
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
        let last = self.last(received.durable(flush_lsn), before);
        let interval = if last == before.last { self.idle_interval() } else { BUSY_INTERVAL };
        let is_urgent = matches!(urgency, Urgency::Last | Urgency::Switch);
        if !is_urgent && self.written_at.elapsed() < interval {
            return;
        }
        self.write(State { at_ms: unix_ms(), ..before.moved(flush_lsn, last) });
    }

    fn write(&mut self, mut state: State) {
        let acked = state.acked_upto;
        if let Some(delivered) = &mut state.delivered
            && let Some(bookmark) = self.pending.take_if(|pending| pending.lsn <= acked)
        {
            delivered.add(bookmark);
        }
        // The rows of a command say nothing of how the last run has ended.
        if self.settings.rows.is_none() {
            state.ending = self.ending;
        }
        self.store.write(&state);
        self.written_at = Instant::now();
        self.overdue_at = self.written_at + self.settings.commits.transaction_timeout();
        self.own[1] = Some(id(&state));
        self.phase = Phase::Writing(Box::new(state));
    }

    /// The last transaction to write: those of rows are none of the server's.
    fn last(&self, durable: Option<LastTransaction>, before: &State) -> Option<LastTransaction> {
        // With another layout the last one may not be sent again, and an earlier one is.
        let durable = durable.filter(|_| self.settings.rows.is_none());
        durable.into_iter().chain(before.last).max_by_key(|one| one.commit_lsn)
    }
}

fn warn_of_key(key: &str, error: &str) {
    tracing::warn!(
        key,
        error,
        "the state key cannot be used: nothing is confirmed to PostgreSQL until it can"
    );
}

fn id(state: &State) -> RecordId {
    (state.generation, state.at_ms)
}

/// The state topic has this position.
fn note_position(metrics: &Metrics, position: Lsn) {
    metrics.state_lsn.set(position.as_u64());
    metrics.state_written.set(i64::try_from(unix_ms()).unwrap_or_default().saturating_mul(1000));
}
