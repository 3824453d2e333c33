//! Opening the store for a session, and the last writes of a run.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Phase, StateKeeper, StateOpened, StateSettings, Urgency, id, note_position};
use crate::lsn::Lsn;
use crate::position::EventPosition;
use crate::relay::driver::Relay;
use crate::relay::run_result::RelayError;
use crate::relay::stats::HEARTBEAT;
use crate::source::{Feed, SlotError, Source, SourceError};
use crate::state::{
    Decision, Ending, Facts, Layout, State, StateEvent, StateFailure, StateKey, decide, unix_ms,
};
use walpost_core::relay::Core;

/// How long it may take to write how a run ends, beside what else is to be written. Redis needs a second for it.
const ENDING_WITHIN: Duration = Duration::from_secs(2);

/// What was read.
struct Found {
    state: Option<State>,
    cluster: Option<String>,
    /// The last published event, if the store knows it.
    published: Option<EventPosition>,
}

/// What reading the topic has come to.
enum Read {
    Done(Box<Found>),
    /// The session does not begin.
    Ended(StateOpened),
}

impl<P: Source> Relay<P> {
    /// Opens the state topic for a session that holds the slot, unless this process is its writer
    /// already; compares the slot's position with it.
    pub(in crate::relay::driver) async fn open_state(
        &mut self,
        session: &mut P::Feed,
        after_another: bool,
    ) -> Result<StateOpened, RelayError> {
        let Some(mut keeper) = self.state.take() else { return Ok(StateOpened::Ready) };
        keeper.pending = None;
        let is_open = matches!(keeper.phase, Phase::Open | Phase::Writing(_));
        let known = keeper.state.as_ref().map(|state| state.server_started);
        let is_same_server = known == Some(session.server_started());
        // A comparison that the last session has not finished begins again.
        if is_open && keeper.is_compared && is_same_server && !after_another {
            keeper.note_server(session);
            self.state = Some(keeper);
            return Ok(StateOpened::Ready);
        }
        keeper.close();
        let opened = self.open_keeper(&mut keeper, session, after_another).await?;
        if !matches!(opened, StateOpened::Ready) {
            keeper.close();
        }
        self.state = Some(keeper);
        Ok(opened)
    }

    async fn open_keeper(
        &mut self,
        keeper: &mut StateKeeper,
        session: &mut P::Feed,
        after_another: bool,
    ) -> Result<StateOpened, RelayError> {
        let key = StateKey {
            delivery_id: keeper.settings.delivery_id.clone(),
            system_identifier: session.identity().system_identifier.clone(),
            database_oid: session.database_oid(),
            slot: self.source.slot().to_owned(),
        };
        keeper.key = Some(key);
        let found = match self.read_state(keeper, session).await? {
            Read::Done(found) => *found,
            Read::Ended(opened) => return Ok(opened),
        };
        let Found { state, cluster, published } = found;
        let slot = self.source.slot().to_owned();
        let Some(mut state) = state else {
            let is_first = self.session.last.is_none();
            let system = &session.identity().system_identifier;
            return Ok(StateOpened::Failed(keeper.settings.no_state(slot, system, is_first)));
        };
        // Later on the session itself compares with what this process has received; but in
        // exactly-once mode the position of another one may be confirmed too.
        let is_others = self.session.last.is_none()
            || after_another
            || !keeper.is_compared
            || self.core.is_exactly_once() && state.acked_upto > keeper.written_upto();
        let layout = keeper.settings.layout.with(session.publication_fingerprint());
        let facts = Facts {
            server_started: session.server_started(),
            timeline: session.timeline(),
            fork: session.end_of_timeline(state.timeline),
            flushed: session.flushed(),
            is_standby: session.is_standby(),
            slot: session.start(),
            cluster: cluster.as_deref(),
            layout: &layout,
            published,
            rows: keeper.settings.rows.as_ref(),
            is_own: !is_others,
            awaited: keeper.not_reached,
        };
        match decide(&state, &facts) {
            Decision::Wait(needed) => {
                keeper.not_reached = Some(needed);
                let why = keeper.settings.not_reached(needed, facts.is_standby);
                return Ok(StateOpened::Lost(SourceError::Lost(why)));
            }
            Decision::Refuse(refusal) => {
                let settings = &keeper.settings;
                let at = (settings.place.clone(), settings.lossy_store);
                let error = refusal.into_error(at, slot, &state, &facts);
                return Ok(StateOpened::Failed(SourceError::Slot(error)));
            }
            Decision::Continue(reason) => {
                tracing::debug!(?reason, "nothing is to be compared with the position");
            }
            Decision::Compare(history) => session.compare_with(history),
        }
        state.learn(session.start());
        let acked = state.acked_upto;
        self.core.skip(state.skipped.iter().copied());
        if self.core.is_exactly_once() && !self.core.resume_from(state.checkpoint()) {
            let why = "it begins behind events that were not published";
            return Ok(StateOpened::Lost(SourceError::Lost(why.to_owned())));
        }
        self.log_agreement(&keeper.settings, acked);
        let is_of_rows = keeper.settings.rows.is_some();
        let is_begun = state.begun.as_ref().is_some_and(|known| known.is_same(&layout));
        let is_begun = is_of_rows || is_begun && state.ending.is_none();
        let former = state.layout.clone();
        let is_same_layout = state.layout.as_ref().is_some_and(|known| known.is_same(&layout));
        let is_same_timeline = state.timeline == session.timeline();
        keeper.opened_at(&state, session.start());
        // Otherwise rows may not have been published while they were written.
        let delivered = state.delivered.filter(|_| is_same_layout);
        let is_restarted = state.server_started != session.server_started();
        let kept = if is_restarted { session.start() } else { Lsn::new(u64::MAX) };
        let delivered = delivered.map(|delivered| delivered.of_restarted(kept, u64::MAX));
        keeper.state = Some(State {
            generation: state.generation + 1,
            ending: state.ending.filter(|_| is_of_rows),
            skips: state.skips || keeper.settings.skips,
            cluster,
            delivered,
            begun: if is_of_rows { state.begun } else { Some(layout.clone()) },
            layout: Some(layout),
            ..state
        });
        keeper.note_server(session);
        keeper.phase = Phase::Open;
        keeper.metrics.set_state_trouble(None);
        note_position(&keeper.metrics, keeper.written_upto());
        // What is published from here on has ordinals of this layout, and is of this timeline.
        let is_written = is_same_layout && (is_same_timeline || !keeper.is_compared);
        if !is_written && keeper.settings.lossy_store.is_some() {
            let layout = keeper.state.as_ref().and_then(|state| state.layout.clone());
            return self.write_begun(keeper, session, layout).await;
        }
        if !is_begun {
            // Whatever was published last is of the former layout still.
            return self.write_begun(keeper, session, former).await;
        }
        Ok(StateOpened::Ready)
    }

    fn log_agreement(&self, settings: &StateSettings, acked: Lsn) {
        let topic = &settings.name;
        // Replays that repeat every few seconds are logged once.
        if self.diagnostics.delivery_log.is_repeating() {
            tracing::debug!(%acked, "the slot's position still agrees");
        } else if settings.lossy_store.is_some() {
            tracing::info!(key = topic, %acked, "the slot's position agrees with the state key");
        } else {
            tracing::info!(topic, %acked, "the slot's position agrees with the state topic");
        }
    }

    /// Writes the state, and waits until that is durable: the store may know of events before the
    /// position advances, and how the last run ended says nothing of this one.
    async fn write_begun(
        &mut self,
        keeper: &mut StateKeeper,
        session: &mut P::Feed,
        layout: Option<Layout>,
    ) -> Result<StateOpened, RelayError> {
        let own = keeper.state.as_ref().and_then(|state| state.layout.clone());
        if let Some(state) = keeper.state.clone() {
            keeper.write(State { layout, at_ms: unix_ms(), ..state });
        }
        while matches!(keeper.phase, Phase::Writing(_)) {
            let waited = async {
                tokio::select! {
                    biased;
                    ended = session.next(false) => ended.map(drop),
                    () = keeper.wait() => Ok(()),
                }
            };
            match self.serve_sink_during(waited).await? {
                None => return Ok(StateOpened::Stopped),
                Some(Err(error)) => return Ok(StateOpened::Lost(error)),
                Some(Ok(())) => {}
            }
            if let Err(error) = keeper.apply_events(&mut self.core) {
                return Ok(StateOpened::Lost(error));
            }
        }
        if matches!(keeper.phase, Phase::Open) {
            if let Some(state) = &mut keeper.state {
                state.layout = own;
            }
            return Ok(StateOpened::Ready);
        }
        let why = format!("{} could not be written", keeper.settings.place);
        Ok(StateOpened::Lost(SourceError::Lost(why)))
    }

    /// Opens the topic, however long that takes, while the session lasts.
    async fn read_state(
        &mut self,
        keeper: &mut StateKeeper,
        session: &mut P::Feed,
    ) -> Result<Read, RelayError> {
        loop {
            keeper.begin_to_open();
            let event = loop {
                self.measure(session);
                // Without its session this instance must not fence the one that has the slot now.
                let waited = async {
                    tokio::select! {
                        biased;
                        ended = session.next(false) => ended.map(drop),
                        () = keeper.wait() => Ok(()),
                        () = sleep(HEARTBEAT) => Ok(()),
                    }
                };
                match self.serve_sink_during(waited).await? {
                    None => return Ok(Read::Ended(StateOpened::Stopped)),
                    Some(Err(error)) => return Ok(Read::Ended(StateOpened::Lost(error))),
                    Some(Ok(())) => {}
                }
                if let Some(event) = keeper.take_event() {
                    // Otherwise the next event would be taken for the one of this order.
                    keeper.phase = Phase::Closed(Instant::now());
                    break event;
                }
            };
            match event {
                StateEvent::Opened { state, cluster, published, .. } => {
                    let found = Found { state, cluster, published };
                    return Ok(Read::Done(Box::new(found)));
                }
                StateEvent::Missing | StateEvent::Failed(StateFailure::Unauthorized(_))
                    if self.session.last.is_none() =>
                {
                    let error = unusable(&keeper.settings, &event);
                    return Ok(Read::Ended(StateOpened::Failed(error)));
                }
                StateEvent::Failed(StateFailure::Unauthenticated(reason)) if self.is_starting() => {
                    let peer = self.sink.peer();
                    return Err(RelayError::Unauthenticated { peer, reason });
                }
                StateEvent::Failed(StateFailure::Diverged(reason)) => {
                    let error = SourceError::Slot(SlotError::Destination(reason));
                    return Ok(Read::Ended(StateOpened::Failed(error)));
                }
                StateEvent::Failed(StateFailure::Unreadable(reason)) => {
                    return Ok(Read::Ended(StateOpened::Failed(SourceError::Setup(reason))));
                }
                other => keeper.apply(other, &mut self.core)?,
            }
            if let Phase::Closed(at) = keeper.phase {
                let waited = async {
                    tokio::select! {
                        biased;
                        ended = session.next(false) => ended.map(drop),
                        () = sleep(at - Instant::now()) => Ok(()),
                    }
                };
                match self.serve_sink_during(waited).await? {
                    None => return Ok(Read::Ended(StateOpened::Stopped)),
                    Some(Err(error)) => return Ok(Read::Ended(StateOpened::Lost(error))),
                    Some(Ok(())) => {}
                }
            }
        }
    }

    /// Writes that the publication was changed, and the position of what is in flight, before the slot is
    /// released: the next start may find the same publication again. A store is not opened again for it, since
    /// that may fence another instance. An abort ends it early.
    pub(in crate::relay::driver) async fn write_changed(&mut self) -> Result<(), RelayError> {
        let deadline = Instant::now() + ENDING_WITHIN;
        if let Some(keeper) = &mut self.state {
            keeper.ending = Some(Ending::Changed);
        }
        loop {
            match self.serve_sink() {
                Ok(()) => {}
                Err(RelayError::Aborted) => return Ok(()),
                Err(other) => return Err(other),
            }
            let is_interrupted = self.core.is_within_produced();
            let Some(keeper) = self.state.as_mut().filter(|one| one.can_write()) else { break };
            let stepped = keeper.step(&mut self.core, &mut self.session.received, Urgency::Last);
            let is_left = keeper.is_at_work(&self.core) || self.core.in_flight().0 > 0;
            if stepped.is_err() || !is_left || is_interrupted || Instant::now() >= deadline {
                break;
            }
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.wait_for_events(true) => {}
                () = keeper.wait() => {}
                () = sleep_until(deadline) => {}
                () = sleep(HEARTBEAT) => {}
            }
        }
        let state = self.state.as_ref().and_then(|keeper| keeper.state.as_ref());
        if state.is_some_and(|state| state.ending != Some(Ending::Changed)) {
            tracing::warn!(
                "that the publication was changed could not be written beside the position: if it is put back \
                 exactly as it was, the next start does not stop at it, and what was committed meanwhile is lacking"
            );
        }
        Ok(())
    }

    /// Writes that the run is stopped in order: the publication was read for the last confirmation. Waits at
    /// most until `deadline`, and not long: without it an operator has to accept a changed publication.
    pub(in crate::relay::driver) async fn write_stopped(&mut self, deadline: Instant) {
        let deadline = deadline.min(Instant::now() + ENDING_WITHIN);
        let Some(keeper) = self.state.as_mut().filter(|one| one.is_compared) else { return };
        keeper.ending = Some(Ending::Stopped);
        let received = &mut self.session.received;
        while keeper.can_write()
            && keeper.step(&mut self.core, received, Urgency::Last).is_ok()
            && keeper.is_at_work(&self.core)
        {
            tokio::select! {
                biased;
                () = self.stop.aborted() => return,
                () = keeper.wait() => {}
                () = sleep_until(deadline) => return,
            }
        }
    }

    /// Writes the position at the end of the run; waits at most until `deadline`. Returns the
    /// position to confirm.
    pub(in crate::relay::driver) async fn write_last_state(
        &mut self,
        deadline: Instant,
    ) -> Result<Lsn, RelayError> {
        let Some(mut keeper) = self.state.take() else { return Ok(self.core.flush_lsn()) };
        let received = &mut self.session.received;
        while keeper.may_write(&self.core)
            && keeper.step(&mut self.core, received, Urgency::Last).is_ok()
            && keeper.is_at_work(&self.core)
        {
            tokio::select! {
                biased;
                () = self.stop.aborted() => return Err(RelayError::Aborted),
                () = keeper.wait() => {}
                () = sleep_until(deadline) => {
                    if keeper.settings.lossy_store.is_some() {
                        // The next start adds nothing twice.
                        tracing::warn!("the position could not be written to the state key in time");
                    } else {
                        tracing::warn!(
                            "the position could not be written to the state topic in time: the next \
                             start may repeat records"
                        );
                    }
                    break;
                }
            }
        }
        let confirmed = keeper.to_confirm(self.core.flush_lsn());
        self.state = Some(keeper);
        Ok(confirmed)
    }
}

impl StateKeeper {
    /// What may be confirmed behind this record, for a slot that begins at `start`.
    fn opened_at(&mut self, state: &State, start: Lsn) {
        let (acked, may_lose, now) = (state.acked_upto, self.store.may_lose(), Instant::now());
        let is_own = self.own.contains(&Some(id(state)));
        self.kept.opened(acked, start, is_own, may_lose, now);
        self.own = [Some(id(state)), None];
    }

    /// Whether only the ending is to be written, alone: a write would commit the rest of an open Kafka
    /// transaction, and what is acknowledged is written with it otherwise.
    pub(super) fn may_write_ending(&self, core: &Core) -> bool {
        let is_behind = self.written_upto() < core.flush_lsn() && self.may_write(core);
        let is_written = self.state.as_ref().is_none_or(|state| state.ending == self.ending);
        let is_due = self.ending.is_some() && !is_written && self.settings.rows.is_none();
        is_due && matches!(self.phase, Phase::Open) && core.uncommitted().0 == 0 && !is_behind
    }

    /// Whether the position of a run that ends lacks how it does.
    pub(in crate::relay::driver) fn lacks_ending(&self) -> bool {
        let is_of_rows = self.settings.rows.is_some();
        !is_of_rows && self.state.as_ref().is_some_and(|state| state.ending.is_none())
    }

    pub(super) fn write_ending(&mut self) {
        if let Some(state) = self.state.clone() {
            self.write(State { at_ms: unix_ms(), ..state });
        }
    }
}

/// The error of a set-up without a usable state topic.
fn unusable(settings: &StateSettings, event: &StateEvent) -> SourceError {
    let reason = match event {
        StateEvent::Failed(failure) => failure.to_string(),
        _ => "it does not exist. `walpost adopt --apply` creates it and writes the slot's position"
            .into(),
    };
    let without = "; with delivery.state_topic = \"off\" walpost runs without, and does not notice rows that \
                   a slot skips which is created again or advanced meanwhile";
    let without = if settings.lossy_store.is_some() { "" } else { without };
    SourceError::Setup(format!("{} cannot be used: {reason}{without}", settings.place))
}

impl StateSettings {
    /// The error without a position: before the first session one of the set-up.
    fn no_state(&self, slot: String, system_identifier: &str, is_first: bool) -> SourceError {
        let error = SlotError::NoState {
            slot,
            place: self.place.clone(),
            system_identifier: system_identifier.to_owned(),
            delivery_id: self.delivery_id.clone(),
        };
        if is_first { SourceError::Setup(error.to_string()) } else { SourceError::Slot(error) }
    }

    /// Why another session is needed.
    fn not_reached(&self, needed: Lsn, is_standby: bool) -> String {
        let place = &self.place;
        if is_standby {
            format!("this standby has not replayed up to {needed}, the position in {place}")
        } else {
            format!("the position in {place} is beyond the end of WAL at the connect")
        }
    }
}
