//! How a run ends: with the reason said first, what is in flight delivered, and the outcome.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Relay, UNDELIVERED};
use crate::metrics::Phase;
use crate::relay::backoff::wait_until;
use crate::relay::run_result::{RelayError, Summary};
use crate::relay::stats::HEARTBEAT;
use crate::sink::Sink;
use crate::source::{Announcement, SlotError, Source, SourceError};

/// How long a halt is announced at least, whatever is left of the time for a stop: the announcement
/// itself lasts four seconds where everybody has seen it.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

impl<P: Source, S: Sink> Relay<P, S> {
    /// Says why the relay ends, before anything that takes time, or that a signal can cut short.
    pub(super) fn tell_of_the_end(&self, error: &SourceError) {
        let (records, _) = self.core.in_flight();
        if records > 0 || error.is_for_a_person() {
            tracing::error!(%error, in_flight = records, "cannot continue; draining in-flight records");
        }
    }

    /// Of a slot that is of no use any more, with what is in no slot now.
    fn with_the_undelivered(&self, error: SourceError) -> SourceError {
        let (records, from) = (self.core.undelivered(), self.core.confirmable());
        match error {
            SourceError::Slot(error) if records > 0 => {
                let error = Box::new(error);
                SourceError::Slot(SlotError::Undelivered { error, records, from })
            }
            other => other,
        }
    }

    /// Nothing more is read: what is in flight is delivered, and then it ends with `error`.
    pub(super) fn begin_to_leave(&mut self, error: &SourceError) {
        self.core.session_lost();
        self.leaving = true;
        self.is_last_copy = matches!(error, SourceError::Slot(_));
        self.stats.metrics.enter(Phase::Stopping);
    }

    /// Waits for `announcement`, by which waiting instances see that this one halts, while what is
    /// in flight is delivered. Who was told to stop waits for what is left of the time for a stop,
    /// or for as long as an instance needs that is near; a second signal ends it.
    pub(super) async fn announce(
        &mut self,
        announcement: impl Future<Output = ()>,
    ) -> Result<(), RelayError> {
        let at_least = Instant::now() + SEEN_WITHIN;
        let mut announcement = std::pin::pin!(announcement);
        loop {
            match self.settle() {
                Ok(()) => {}
                // How it ends is known already.
                Err(RelayError::Aborted) => return Ok(()),
                Err(other) => return Err(other),
            }
            let until =
                self.told_to_stop.map(|told| at_least.max(told + self.settings.drain_timeout));
            if until.is_some_and(|until| Instant::now() >= until) {
                tracing::warn!("stopping before every standby instance has seen this halt");
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.stirred(true) => {}
                () = &mut announcement => return Ok(()),
                () = wait_until(until) => {}
                () = sleep(HEARTBEAT) => {}
            }
        }
    }

    /// Delivers what is in flight, which a lost slot would not hand out again, during and after
    /// `announcement`, and ends with `error`. A second signal cuts that short, and changes nothing
    /// else.
    pub(super) async fn leave(
        mut self,
        error: SourceError,
        announcement: Option<Announcement>,
    ) -> Result<Summary, RelayError> {
        let open = self.core.open_transaction();
        self.begin_to_leave(&error);
        if let Some(announcement) = announcement {
            self.announce(announcement).await?;
        }
        match self.meanwhile(std::future::pending::<()>()).await {
            Ok(_) | Err(RelayError::Aborted) => {}
            Err(other) => return Err(other),
        }
        if !error.is_unsendable() {
            return Err(self.with_the_undelivered(error).into());
        }
        let delivered = self.core.is_drained() && self.core.undelivered() == 0;
        let way_out = if delivered {
            let (slot, received) = (self.source.slot(), self.core.resume_at());
            SourceError::way_out_of_unsendable(slot, open, received)
        } else {
            UNDELIVERED.to_owned()
        };
        Err(SourceError::Undecodable(format!("{error}. {way_out}")).into())
    }

    pub(super) fn outcome(self) -> Result<Summary, RelayError> {
        if let Some(halt) = self.core.halted() {
            let way_out = if self.core.is_drained() {
                halt.way_out(self.source.slot())
            } else {
                UNDELIVERED.to_owned()
            };
            return Err(RelayError::Halt { halt: Box::new(halt.clone()), way_out });
        }
        // Told to stop before that is no success either: scripts go on after one.
        if self.settings.until.is_some() && self.until.is_none() {
            return Err(RelayError::Unbegun);
        }
        let reached = self.leaving && self.finished;
        let confirmed = self.core.confirmable();
        match self.until.filter(|_| !reached) {
            Some(until) if confirmed >= until => return Err(RelayError::Unconfirmed(until)),
            Some(until) => return Err(RelayError::Unreached { until, confirmed }),
            None => {}
        }
        Ok(Summary {
            counters: self.core.counters(),
            delivered: self.delivered,
            confirmed,
            undrained: self.core.undelivered(),
        })
    }
}
