//! Replacing the producer, after which everything from the flush LSN on is replayed.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{BACKOFF_LIMIT, Relay};
use crate::lsn::Lsn;
use crate::relay::backoff::{Backoff, backoff, wait_until};
use crate::relay::run_result::RelayError;
use crate::relay::stats::HEARTBEAT;
use crate::source::Source;
use walpost_core::relay::Probing;

/// How long the relay looks for an event to probe with while a suspect waits. Each time that none was
/// accepted it is doubled, since one may stand behind any amount of other tables' WAL; and not more, since
/// the destination may accept the suspect meanwhile. The maximum is that at the end of the WAL.
const PROBE_WAIT: Duration = Duration::from_secs(1);
const PROBE_WAIT_MAX: Duration = Duration::from_secs(16);

/// The delay of a replay once something was found out about a failed record. Each verdict takes several,
/// and there may be many.
const FOUND_DELAY: Duration = Duration::from_millis(10);

/// The cause of a replay if no other is known.
pub(super) const BROKEN: &str = "broken";

/// The replay state: the last replay and the next one.
pub(super) struct ReplayState {
    /// Why the next replay is needed: a label of the reconnect metric.
    pub(super) cause: &'static str,
    delay: Backoff,
    /// The progress at the start of the last replay.
    progress: Option<Progress>,
    /// The LSN up to which everything was received before the last replay.
    received: Lsn,
    probing: Option<Search>,
}

/// The search for an event to probe with.
#[derive(Clone, Copy)]
struct Search {
    of: Probing,
    since: Instant,
    /// The end of the WAL when it began.
    end: Lsn,
}

/// The flush LSN, and how much was found out about failed records. If neither has increased since the
/// last replay, the next one waits longer.
type Progress = (Lsn, u64);

impl Default for ReplayState {
    fn default() -> Self {
        let delay = backoff(BACKOFF_LIMIT);
        Self { cause: BROKEN, delay, progress: None, received: Lsn::ZERO, probing: None }
    }
}

impl ReplayState {
    /// Whether everything was received again up to where the last replay began.
    pub(super) fn is_caught_up(&self, received: Lsn) -> bool {
        received >= self.received
    }

    /// Whether to end the search for an event to probe with: it is `search`ed until everything up to
    /// `received` was read of the WAL, which ended at `flushed` when the session was opened.
    fn ends_probing(
        &mut self,
        search: Option<Probing>,
        (received, flushed): (Lsn, Lsn),
        now: Instant,
    ) -> bool {
        let known = self.probing.filter(|known| Some(known.of) == search);
        self.probing = known.or(search.map(|of| Search { of, since: now, end: flushed }));
        self.probing.is_some_and(|Search { of, since, end }| {
            let wait = PROBE_WAIT.saturating_mul(1 << of.in_vain.min(16));
            let is_at_end = received >= end;
            now - since >= if is_at_end { wait.min(PROBE_WAIT_MAX) } else { wait }
        })
    }

    /// Begins a replay; returns how long to wait before it.
    fn begin(&mut self, progress: Progress, received: Lsn) -> Duration {
        if self.progress.is_none_or(|last| progress > last) {
            self.delay = backoff(BACKOFF_LIMIT);
        }
        let is_found = self.progress.is_some_and(|(_, verdicts)| progress.1 > verdicts);
        self.progress = Some(progress);
        self.received = self.received.max(received);
        if is_found {
            return FOUND_DELAY;
        }
        self.delay.next().unwrap_or(BACKOFF_LIMIT).min(BACKOFF_LIMIT)
    }
}

impl<P: Source> Relay<P> {
    /// Has the suspect tried again if nothing to probe with was found in time.
    pub(super) fn check_probing(&mut self) {
        let mut positions = (self.core.resume_at(), self.session.flushed);
        if self.core.wanted_schema().is_some() {
            // Nothing more is read until it is learned.
            positions.0 = positions.0.max(positions.1);
        }
        if self.replay.ends_probing(self.core.looks_for_probe(), positions, Instant::now()) {
            self.core.end_probing();
        }
    }

    /// Replaces the producer and prepares a replay from the flush LSN; returns false if the relay
    /// stops first.
    pub(super) async fn replay(&mut self) -> Result<bool, RelayError> {
        let cause = std::mem::replace(&mut self.replay.cause, BROKEN);
        self.diagnostics.stats.metrics.reconnected(self.sink.peer().label, cause);
        let from = self.core.durable_upto();
        let delay = self.replay.begin((from, self.core.verdicts()), self.core.resume_at());
        let reason = self.core.wants_replay().unwrap_or("requested");
        let of = (reason, self.core.isolated());
        self.diagnostics.delivery_log.replay(of, from, delay, self.delivery.delivered);
        Ok(self.replace_producer().await? && self.serve_sink_during(sleep(delay)).await?.is_some())
    }

    /// Discards in exactly-once mode what is not committed, which the next session produces again:
    /// an event that is read again cannot be distinguished from one in the open transaction. Returns false
    /// if the relay stops first.
    pub(super) async fn discard_transaction(&mut self) -> Result<bool, RelayError> {
        Ok(!self.core.is_exactly_once() || self.replace_producer().await?)
    }

    /// Replaces the producer; returns false if the relay stops first.
    pub(super) async fn replace_producer(&mut self) -> Result<bool, RelayError> {
        let replaced = {
            let mut replaced = std::pin::pin!(self.sink.replace_producer());
            loop {
                // A finished replacement first: a stop order must not discard it. Closing the old
                // producer can take long, and its reports no longer count, so a stop order or the
                // deadline ends the wait. The heartbeat keeps the liveness check passing.
                tokio::select! {
                    biased;
                    replaced = &mut replaced => break Some(replaced?),
                    () = self.stop.changed() => break None,
                    () = wait_until(self.shutdown.deadline()) => return Ok(false),
                    () = sleep(HEARTBEAT) => self.diagnostics.stats.metrics.iterated(),
                }
            }
        };
        if replaced.is_none() {
            return self.serve_sink().map(|()| false);
        }
        if (self.core.is_exactly_once() || self.sink.is_fenced_by_state())
            && let Some(keeper) = &mut self.state
        {
            keeper.close();
        }
        // The rejection may be among the last reports, after the failure that it caused.
        self.take_reports();
        self.diagnostics.noted.forget();
        self.core.producer_replaced();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_for_a_probe_gets_to_the_end_of_any_backlog_and_ends_soon_there() {
        let seconds = |in_vain: u32, received: u64| {
            let (mut replay, start) = (ReplayState::default(), Instant::now());
            let search = Some(Probing { probes: 0, in_vain });
            let mut ends = |after: u64, flushed: u64| {
                let now = start + Duration::from_secs(after);
                replay.ends_probing(search, (Lsn::new(received), Lsn::new(flushed)), now)
            };
            assert!(!ends(0, 100));
            // A later session has more WAL, which is not what the search began with.
            (1..10_000).find(|after| ends(*after, 500))
        };
        assert_eq!([0, 1, 4, 12].map(|in_vain| seconds(in_vain, 99)), [1, 2, 16, 4096].map(Some));
        assert_eq!([0, 1, 4, 12].map(|in_vain| seconds(in_vain, 100)), [1, 2, 16, 16].map(Some));
    }
}
