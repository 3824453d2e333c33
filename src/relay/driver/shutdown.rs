//! Shutdown: when it begins, how long draining may take, the final confirmation, and the result of
//! the run.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::session::failed_or_lost;
use super::state_keeper::StateKeeper;
use super::{Ended, Relay};
use crate::metrics::Phase;
use crate::relay::backoff::wait_until;
use crate::relay::run_result::{RelayError, Summary};
use crate::relay::stats::HEARTBEAT;
use crate::relay::stop::Order;
use crate::source::{Announcement, Feed, SlotError, Source, SourceError};
use walpost_core::relay::CommitAt;

/// Minimum time for which a halt is announced, even if less of the drain timeout is left: an
/// announcement takes four seconds if every standby instance is reachable.
const ANNOUNCED_AT_LEAST: Duration = Duration::from_secs(5);

/// Replaces a remedy that would skip undelivered records.
const UNDELIVERED: &str = "records before it were not delivered in time: start walpost again first";

/// The state of shutdown.
#[derive(Default)]
pub(super) struct Shutdown {
    /// Why the relay ends by itself.
    cause: Option<Cause>,
    /// When a stop order was first seen.
    ordered_at: Option<Instant>,
    drain: Drain,
}

#[derive(Clone, Copy)]
enum Cause {
    /// The flush LSN has reached [`RelaySettings::until`].
    UntilReached,
    /// The source failed permanently.
    Failed {
        /// No slot retains the in-flight records: they are drained without a time limit, unless a
        /// stop order comes.
        is_last_copy: bool,
    },
}

/// The progress of draining.
#[derive(Clone, Copy, Default)]
enum Drain {
    /// No time limit: draining has not begun, or the records in flight are the last copy.
    #[default]
    Unlimited,
    /// Draining ends at this time, whatever is still in flight.
    Until(Instant),
    /// PostgreSQL acknowledged the final confirmation.
    Confirmed,
}

impl Shutdown {
    /// When draining ends, once it has begun.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.drain {
            Drain::Until(deadline) => Some(deadline),
            Drain::Unlimited | Drain::Confirmed => None,
        }
    }

    fn is_requested(&self) -> bool {
        self.cause.is_some() || self.ordered_at.is_some()
    }

    fn is_last_copy(&self) -> bool {
        matches!(self.cause, Some(Cause::Failed { is_last_copy: true }))
    }
}

/// The part of the drain timeout that is reserved for the final confirmation: a quarter, at most
/// two seconds.
fn kept_for_confirmation(drain_timeout: Duration) -> Duration {
    (drain_timeout / 4).min(Duration::from_secs(2))
}

impl<P: Source> Relay<P> {
    /// Whether nothing is left to deliver or to wait for.
    pub(super) fn is_done(&self) -> bool {
        let deadline = self.shutdown.deadline();
        self.core.is_drained() || deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Begins to drain if the relay ends by itself or a stop order came.
    pub(super) fn check_shutdown(&mut self) -> Result<(), RelayError> {
        let order = self.stop.order();
        match order {
            Order::Run => {}
            Order::Drain => {
                self.shutdown.ordered_at.get_or_insert_with(Instant::now);
            }
            Order::Abort => return Err(RelayError::Aborted),
        }
        if !self.shutdown.is_requested() {
            return Ok(());
        }
        self.core.drain();
        let is_unlimited = self.shutdown.is_last_copy()
            && order == Order::Run
            && self.core.wants_replay().is_none();
        if !is_unlimited && matches!(self.shutdown.drain, Drain::Unlimited) {
            let timeout = self.settings.drain_timeout;
            let within = timeout.saturating_sub(kept_for_confirmation(timeout));
            self.shutdown.drain = Drain::Until(Instant::now() + within);
            let (records, bytes) = self.core.in_flight();
            self.diagnostics.stats.metrics.enter(Phase::Stopping);
            tracing::info!(records, bytes, "stopping: draining in-flight records");
        }
        Ok(())
    }

    /// Requests the shutdown once `until` can be confirmed. Called only while there is a session to
    /// confirm it through: once that `is_compared`. Returns true if it was reached just now.
    pub(super) fn check_until(&mut self, is_compared: bool) -> bool {
        let reached = self.session.until.filter(|_| is_compared).is_some_and(|until| {
            self.core.flush_lsn() >= until
                && self.state.as_ref().is_none_or(|keeper| keeper.may_confirm(until))
        });
        let is_new = reached && self.shutdown.cause.is_none();
        if is_new {
            self.shutdown.cause = Some(Cause::UntilReached);
        }
        is_new
    }

    /// Logs why the relay ends, before anything that takes time or that a signal can cut short.
    pub(super) fn log_failure(&self, error: &SourceError) {
        let (records, _) = self.core.in_flight();
        if records > 0 || error.needs_operator() {
            tracing::error!(%error, in_flight = records, "cannot continue; draining in-flight records");
        }
    }

    /// Reads nothing more: the relay ends with `error` once the in-flight records are delivered.
    pub(super) fn begin_to_fail(&mut self, error: &SourceError) {
        self.core.session_lost();
        let is_last_copy = matches!(error, SourceError::Slot(error) if !error.keeps_slot());
        self.shutdown.cause = Some(Cause::Failed { is_last_copy });
        self.diagnostics.stats.metrics.enter(Phase::Stopping);
    }

    /// Waits for `announcement`, which tells standby instances that this one halts, while the
    /// in-flight records are delivered. After a stop order it waits for the rest of the drain
    /// timeout, but at least as long as a reachable standby instance needs; an abort ends it.
    pub(super) async fn announce(
        &mut self,
        announcement: impl Future<Output = ()>,
    ) -> Result<(), RelayError> {
        let at_least = Instant::now() + ANNOUNCED_AT_LEAST;
        let mut announcement = std::pin::pin!(announcement);
        loop {
            match self.serve_sink() {
                Ok(()) => {}
                // The relay ends with the error that is announced.
                Err(RelayError::Aborted) => return Ok(()),
                Err(other) => return Err(other),
            }
            let drain_timeout = self.settings.drain_timeout;
            let until =
                self.shutdown.ordered_at.map(|ordered| at_least.max(ordered + drain_timeout));
            if until.is_some_and(|until| Instant::now() >= until) {
                tracing::warn!("stopping before every standby instance has seen this halt");
                return Ok(());
            }
            // As in `serve_sink_during`: the announcement delays neither a stop order nor failures of
            // the sink; the timers only cause the next iteration.
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.wait_for_events(true) => {}
                () = &mut announcement => return Ok(()),
                () = wait_until(until) => {}
                () = sleep(HEARTBEAT) => {}
            }
        }
    }

    /// Delivers the in-flight records, which a lost slot would not send again, during and after
    /// `announcement`, and ends with `error`. An abort ends that early, and has no other effect.
    pub(super) async fn fail(
        mut self,
        error: SourceError,
        announcement: Option<Announcement>,
    ) -> Result<Summary, RelayError> {
        let open = self.core.open_transaction();
        self.begin_to_fail(&error);
        if let Some(announcement) = announcement {
            if matches!(error, SourceError::Changed(_)) {
                self.write_changed().await?;
            }
            self.announce(announcement).await?;
        }
        match self.serve_sink_during(std::future::pending::<()>()).await {
            Ok(_) | Err(RelayError::Aborted) => {}
            Err(other) => return Err(other),
        }
        self.commit_at_failure().await?;
        if !error.is_unsendable() {
            return Err(self.with_undelivered(error).into());
        }
        let delivered = self.core.is_drained() && self.core.undelivered() == 0;
        let remedy = if delivered {
            let (slot, received) = (self.source.slot(), self.core.resume_at());
            SourceError::how_to_skip_unsendable(slot, open, received)
        } else {
            UNDELIVERED.to_owned()
        };
        Err(SourceError::Undecodable(format!("{error}. {remedy}")).into())
    }

    /// Commits in exactly-once mode what was delivered. If the slot was lost no other copy exists:
    /// then also a part of a transaction.
    async fn commit_at_failure(&mut self) -> Result<(), RelayError> {
        if !self.core.is_exactly_once() {
            return Ok(());
        }
        if self.shutdown.is_last_copy() {
            self.core.request_commit(CommitAt::Now);
        }
        let deadline = Instant::now() + self.settings.drain_timeout;
        match self.write_last_state(deadline).await {
            Ok(_) | Err(RelayError::Aborted) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Adds to the error of a lost slot how many records no slot retains now.
    fn with_undelivered(&self, error: SourceError) -> SourceError {
        // Without its commit, no record of a Kafka transaction is delivered.
        let records = self.core.undelivered().max(self.core.uncommitted().0);
        let from = self.core.durable_upto();
        match error {
            SourceError::Slot(error) if records > 0 && !error.keeps_slot() => {
                let error = Box::new(error);
                SourceError::Slot(SlotError::Undelivered { error, records, from })
            }
            other => other,
        }
    }

    /// Sends the final confirmation; returns how the session ended.
    pub(super) async fn finish(&mut self, session: &mut P::Feed) -> Result<Ended, RelayError> {
        let deadline = self.shutdown.deadline().unwrap_or_else(Instant::now);
        let kept = kept_for_confirmation(self.settings.drain_timeout);
        let confirmed = self.write_last_state(deadline + kept / 2).await?;
        // Not `kept` after what the state topic took: the drain timeout covers both.
        let within = (deadline + kept).saturating_duration_since(Instant::now());
        // A confirmation that has arrived counts, even if an abort comes at the same time.
        let finished = tokio::select! {
            biased;
            finished = session.finish(confirmed, within) => finished,
            () = self.stop.aborted() => return Err(RelayError::Aborted),
        };
        match finished {
            Ok(()) => {
                let until = self.session.until;
                if confirmed == self.core.flush_lsn()
                    || until.is_some_and(|until| confirmed >= until)
                {
                    self.shutdown.drain = Drain::Confirmed;
                }
                tracing::info!(%confirmed, "confirmed to PostgreSQL");
                self.write_stopped(deadline + kept).await;
            }
            Err(error) => match failed_or_lost(error) {
                Ended::Lost(error) => tracing::warn!(%error, "the next start may repeat records"),
                failed => return Ok(failed),
            },
        }
        Ok(Ended::Done)
    }

    /// The result of a run that did not end by [`Relay::fail`].
    pub(super) fn outcome(self) -> Result<Summary, RelayError> {
        if self.state.as_ref().is_some_and(StateKeeper::lacks_ending) {
            tracing::info!(
                "that walpost is stopped could not be written beside the position: a change of the \
                 publication before the next start takes `walpost adopt --apply`"
            );
        }
        if let Some(halt) = self.core.halted() {
            let remedy = if self.core.is_drained() && self.core.uncommitted_before() == 0 {
                halt.remedy(self.source.slot(), self.state.is_some())
            } else {
                UNDELIVERED.to_owned()
            };
            return Err(RelayError::Halt { halt: Box::new(halt.clone()), remedy });
        }
        // A stop before that is not a success: scripts continue after a success.
        if self.settings.until.is_some() && self.session.until.is_none() {
            return Err(RelayError::NeverConnected);
        }
        let is_reached =
            self.shutdown.cause.is_some() && matches!(self.shutdown.drain, Drain::Confirmed);
        let confirmed = self.core.durable_upto();
        match self.session.until.filter(|_| !is_reached) {
            Some(until) if confirmed >= until => return Err(RelayError::Unconfirmed(until)),
            Some(until) => return Err(RelayError::Unreached { until, confirmed }),
            None => {}
        }
        Ok(Summary {
            counters: self.core.counters(),
            delivered: self.delivery.delivered,
            confirmed: self.confirmed_at_most(),
            undrained: self.core.undelivered(),
        })
    }
}
