//! The loop over one session: it reads while the core wants input, and confirms.

use std::future::pending;
use std::mem;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::session::failed_or_lost;
use super::state_keeper::{StateKeeper, Urgency};
use super::{Diagnostics, Ended, Relay};
use crate::ledger::StreamError;
use crate::lsn::Lsn;
use crate::pgoutput::Message;
use crate::relay::backoff::wait_until;
use crate::relay::batching_pause::{self, BatchingPause};
use crate::relay::run_result::RelayError;
use crate::relay::schemas::Schemas;
use crate::relay::stats::{HEARTBEAT, Stats};
use crate::relay::trail::Noting;
use crate::source::{Feed, Received, Source, SourceError, SwitchFeed};
use walpost_core::relay::Taken;

/// Maximum messages taken before delivery reports and stop orders are handled.
const BATCH: u32 = 256;

/// How often delivery reports are taken while messages are read: as often as confirmations are
/// sent.
const REPORTS_INTERVAL: Duration = Duration::from_millis(50);

/// How soon a record for which the sink had no room is offered again if no report arrives: the sink
/// gets room shortly after the report.
const RETRY_AFTER: Duration = Duration::from_millis(50);

impl<P: Source> Relay<P> {
    /// Streams until the session ends or the relay must act outside it.
    pub(super) async fn stream(&mut self, mut session: P::Feed) -> Result<Ended, RelayError> {
        let streamed = self.stream_from(&mut session).await;
        self.delivery.is_held = false;
        let ended = match streamed? {
            // Without the transaction's position, there is nothing that an operator could be
            // advised to skip.
            Ended::Failed(SourceError::Unprintable(text))
                if self.core.open_transaction().is_none() =>
            {
                Ended::Lost(SourceError::ServerError(text))
            }
            ended => ended,
        };
        if let Some(last) = &mut self.session.last {
            // The session may have seen another timeline since it was opened.
            last.identity = session.identity().clone();
            last.walsender = session.walsender();
        }
        let ended =
            if matches!(ended, Ended::Done) { self.finish(&mut session).await? } else { ended };
        match &ended {
            Ended::Failed(error) => {
                self.log_failure(error);
                if error.needs_operator() {
                    self.begin_to_fail(error);
                    if matches!(error, SourceError::Changed(_)) {
                        self.write_changed().await?;
                    }
                    // Announced before the slot is released. From here on no signal changes the
                    // result.
                    self.announce(session.announce_halt(error)).await?;
                }
            }
            Ended::Done => session.close().await,
            Ended::Lost(_) | Ended::Replay | Ended::FeedSwitch => {}
        }
        Ok(ended)
    }

    async fn stream_from(&mut self, session: &mut P::Feed) -> Result<Ended, RelayError> {
        let mut held: Option<Message> = None;
        let mut batching = BatchingPause::new(Instant::now());
        // Messages taken by the select below since the last batch.
        let mut awaited = 0;
        let mut reports = interval(REPORTS_INTERVAL);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Before the held message is offered again: a report may have made room for it.
            self.take_reports();
            self.serve_schemas()?;
            let step = match self.wanted_switch(session) {
                None => self.take_batch(session, &mut held),
                Some(_) => Ok(0),
            };
            // A transaction may wait for a commit to begin.
            self.delivery.is_held = self.core.wanted_schema().is_none()
                && held.as_ref().is_some_and(|held| !matches!(held, Message::Begin(_)));
            self.serve_sink()?;
            if self.check_until(session.is_compared()) {
                self.serve_sink()?;
            }
            let is_read = step.as_ref().is_ok_and(|taken| *taken < BATCH) && held.is_none();
            let urgency = match self.wanted_switch(session) {
                Some(_) => Urgency::Switch,
                None if is_read && self.core.wants_input() => Urgency::Idle,
                None => Urgency::Normal,
            };
            match self.keep_state(session, urgency) {
                Ok(covered) => session.confirm(covered),
                Err(error) => return Ok(failed_or_lost(error)),
            }
            self.measure(session);
            let taken = match step {
                Ok(taken) => taken,
                Err(error) => return Ok(failed_or_lost(error)),
            };
            if self.is_done() {
                return Ok(Ended::Done);
            }
            if self.core.wants_replay().is_some() {
                return Ok(Ended::Replay);
            }
            let switch = self.wanted_switch(session);
            if self.may_switch(switch) {
                match self.serve_sink_during(session.may_switch()).await? {
                    // Stopping may have begun in between: see `wanted_switch`.
                    Some(Ok(true)) if self.shutdown.deadline().is_none() => {
                        return Ok(Ended::FeedSwitch);
                    }
                    None | Some(Ok(_)) => continue,
                    Some(Err(error)) => return Ok(failed_or_lost(error)),
                }
            }
            let reading = held.is_none() && self.core.wants_input() && switch.is_none();
            // Waiting for a schema is no backpressure, and has a metric of its own.
            let is_free = reading || self.core.wanted_schema().is_some();
            self.diagnostics.stats.reading(is_free, Instant::now);
            if let Some(duration) = batching.taken(taken + mem::take(&mut awaited), Instant::now())
                && reading
                && !session.is_backed_up()
            {
                batching_pause::pause(duration, self.settings.owns_thread).await;
            }
            let waiting = self.core.in_flight().0 > 0;
            let retry = held.is_some().then(|| Instant::now() + RETRY_AFTER);
            let keeping = self.state.as_ref().and_then(|keeper| keeper.next_step(&self.core));
            let wake = retry.into_iter().chain(self.shutdown.deadline()).chain(keeping).min();
            // A stop order and failures of the sink come before input, because a busy stream is
            // ready in every iteration. The timers come last; an iteration caused by input does
            // their work too.
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.wait_for_events(!reading) => {}
                () = written(&mut self.state) => {}
                () = learned(&mut self.schemas) => {}
                received = session.next(reading) => {
                    let step = received.and_then(|received| self.take(received, &mut held));
                    if let Err(error) = step {
                        return Ok(failed_or_lost(error));
                    }
                    awaited = 1;
                }
                _ = reports.tick(), if waiting => {}
                _ = heartbeat.tick() => {}
                () = wait_until(wake) => {}
            }
        }
    }

    /// Logs that the server ends each session with an error at the same position.
    pub(super) fn check_stuck_stream(&mut self, error: &SourceError) {
        let (SourceError::ServerError(_), at) = (error, self.core.resume_at()) else { return };
        let Some(times) = self.diagnostics.stuck_stream.failed(at) else { return };
        tracing::error!(
            %error, times, received = %at, transaction = self.core.open_transaction().map(tracing::field::display),
            "PostgreSQL repeatedly ends the stream at the same position; later changes are not delivered"
        );
        self.diagnostics.stats.stuck(Some(format!(
            "PostgreSQL ended the stream behind {at} {times} times in a row: {error}"
        )));
    }

    /// Writes the position, and returns the position to confirm.
    fn keep_state(&mut self, session: &P::Feed, urgency: Urgency) -> Result<Lsn, SourceError> {
        let Some(keeper) = &mut self.state else { return Ok(self.core.flush_lsn()) };
        keeper.note_server(session);
        keeper.step(&mut self.core, &mut self.session.received, urgency)?;
        Ok(keeper.to_confirm(self.core.flush_lsn()))
    }

    /// Whether nothing of this feed is left for the requested switch. The position is in the state
    /// topic first, if that can be written: a catch-up begins where the slot may be advanced to. In
    /// exactly-once mode that is so for each switch, and everything is committed.
    fn may_switch(&self, switch: Option<SwitchFeed>) -> bool {
        let is_drained = || {
            let is_written = self.state.as_ref().is_none_or(|keeper| keeper.is_written(&self.core));
            self.core.in_flight().0 == 0 && self.core.uncommitted().0 == 0 && is_written
        };
        match switch {
            None => false,
            Some(SwitchFeed::Now) if !self.core.is_exactly_once() => true,
            Some(SwitchFeed::Now | SwitchFeed::Drained) => is_drained(),
        }
    }

    /// Whether to switch to another feed. Not while the relay is stopping: the open feed carries
    /// the final confirmation, and the rest of an open transaction.
    /// In exactly-once mode not inside a transaction either, which is read to its end first. Nor to a
    /// catch-up while the position cannot be written or is confirmed later, or while events are passed over
    /// for a suspect: that begins at the slot's position, which would not be where the stream has ended.
    fn wanted_switch(&self, session: &mut P::Feed) -> Option<SwitchFeed> {
        if self.shutdown.deadline().is_some() || self.core.is_within_produced() {
            return None;
        }
        let can_confirm =
            self.state.as_ref().is_none_or(|keeper| keeper.can_write() && !keeper.confirms_late());
        let may_drain = can_confirm && !self.core.is_probing();
        session.wanted_switch().filter(|switch| may_drain || *switch != SwitchFeed::Drained)
    }

    /// Updates the metrics that the session has, among them those of the slot.
    pub(super) fn measure(&mut self, session: &mut P::Feed) {
        self.diagnostics.stats.session_bytes(session.received_bytes());
        self.diagnostics.stats.visibility_waits(session.visibility_waits());
        self.diagnostics.stats.held_up(session.trouble());
        if let Some(minute) = session.minute_metrics() {
            self.diagnostics.stats.metrics.minute(minute);
        }
        if let Some(figures) = session.slot_metrics() {
            if let (Some(horizon), Some(keeper)) = (figures.horizon, &mut self.state) {
                keeper.note_horizon(horizon);
            }
            self.diagnostics.stats.metrics.slot(figures);
        }
    }

    /// Takes messages that are already received, while the core wants input; returns how many.
    fn take_batch(
        &mut self,
        session: &mut P::Feed,
        held: &mut Option<Message>,
    ) -> Result<u32, SourceError> {
        if self.core.wants_input()
            && let Some(message) = held.take()
        {
            self.take(Received::Message(message), held)?;
        }
        for taken in 0..BATCH {
            if held.is_some() || !self.core.wants_input() {
                return Ok(taken);
            }
            let Some(received) = session.try_next() else {
                return Ok(taken);
            };
            self.take(received?, held)?;
        }
        Ok(BATCH)
    }

    fn take(&mut self, received: Received, held: &mut Option<Message>) -> Result<(), SourceError> {
        self.diagnostics.stats.received(&received);
        match received {
            Received::Keepalive(wal_end) => self.core.keepalive(wal_end),
            Received::Message(message) => {
                crate::crash_points::point!("received");
                let broken = |error: StreamError| {
                    SourceError::Lost(format!("PostgreSQL's stream broke its rules: {error}"))
                };
                let Diagnostics { noted, stats: Stats { metrics, .. }, .. } = &mut self.diagnostics;
                let taken = if noted.wanted(metrics) {
                    self.core
                        .receive(&message, &mut Noting { sink: &mut *self.sink, noted, metrics })
                } else {
                    self.core.receive(&message, &mut *self.sink)
                };
                if taken.map_err(broken)? == Taken::NotYet {
                    *held = Some(message);
                } else {
                    self.session.received.message(&message, self.core.flush_lsn());
                }
            }
        }
        Ok(())
    }
}

/// Waits until something is learned of schemas; forever if none are needed.
async fn learned(schemas: &mut Option<Schemas>) {
    match schemas {
        Some(schemas) => schemas.arrived().await,
        None => pending().await,
    }
}

/// Waits for the state topic; forever without one.
async fn written(state: &mut Option<StateKeeper>) {
    match state {
        Some(keeper) => keeper.wait().await,
        None => pending().await,
    }
}
