//! The loop while a session stands: it takes what comes as far as the core wants it, and
//! confirms.

use std::mem;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Ended, Relay, failed_or_lost};
use crate::ledger::StreamError;
use crate::pgoutput::Message;
use crate::relay::backoff::wait_until;
use crate::relay::batching_pause::BatchingPause;
use crate::relay::core::Taken;
use crate::relay::run_result::RelayError;
use crate::relay::stats::HEARTBEAT;
use crate::sink::Sink;
use crate::source::{Feed, Received, Source, SourceError, SwitchFeed};

/// Messages taken in a row before reports and signals are looked at.
const BATCH: u32 = 256;

/// How often acknowledgements are looked at while messages are taken: as often
/// as confirmations are sent.
const REPORTS_INTERVAL: Duration = Duration::from_millis(50);

/// How soon a record that the sink had no room for is offered again where no
/// report comes: room is made a little after the report.
const RETRY_AFTER: Duration = Duration::from_millis(50);

impl<P: Source, S: Sink> Relay<P, S> {
    /// Streams until the session ends or the relay has to act beyond it.
    pub(super) async fn stream(&mut self, mut session: P::Feed) -> Result<Ended, RelayError> {
        let ended = match self.stream_from(&mut session).await? {
            // It is not known what to pass over.
            Ended::Failed(SourceError::Unprintable(text))
                if self.core.open_transaction().is_none() =>
            {
                Ended::Lost(SourceError::ServerError(text))
            }
            ended => ended,
        };
        if let Some(known) = &mut self.known {
            // What is known of the server's history since.
            known.identity = session.identity().clone();
            known.walsender = session.walsender();
        }
        let ended =
            if matches!(ended, Ended::Done) { self.finish(&mut session).await? } else { ended };
        match &ended {
            Ended::Failed(error) => {
                self.tell_of_the_end(error);
                if error.is_for_a_person() {
                    self.begin_to_leave(error);
                    // Before the slot is let go of. No signal changes how it ends from here on.
                    self.announce(session.halting(error)).await?;
                }
            }
            Ended::Done => session.close().await,
            Ended::Lost(_) | Ended::Replay | Ended::Over => {}
        }
        Ok(ended)
    }

    async fn stream_from(&mut self, session: &mut P::Feed) -> Result<Ended, RelayError> {
        let mut held: Option<Message> = None;
        let mut pace = BatchingPause::new(Instant::now());
        // Messages that came while they were waited for.
        let mut awaited = 0;
        let mut look = interval(REPORTS_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Before what is held is offered again: reports are what it waits for.
            self.take_reports();
            let step = match self.turn(session) {
                None => self.take_batch(session, &mut held),
                Some(_) => Ok(0),
            };
            self.settle()?;
            if self.see_whether_reached() {
                self.settle()?;
            }
            session.confirm(self.core.confirmable());
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
            let turn = self.turn(session);
            if turn == Some(SwitchFeed::Now) || turn.is_some() && self.core.in_flight().0 == 0 {
                match self.meanwhile(session.may_switch()).await? {
                    // Stopping has begun in between: see `turn`.
                    Some(Ok(true)) if self.deadline.is_none() => return Ok(Ended::Over),
                    None | Some(Ok(_)) => continue,
                    Some(Err(error)) => return Ok(failed_or_lost(error)),
                }
            }
            let reading = held.is_none() && self.core.wants_input() && turn.is_none();
            self.stats.reads(reading, Instant::now);
            if let Some(rest) = pace.taken(taken + mem::take(&mut awaited), Instant::now())
                && reading
                && !session.is_backed_up()
            {
                // The thread itself: whatever else it has to do can wait as long.
                std::thread::sleep(rest);
            }
            let waiting = self.core.in_flight().0 > 0;
            let retry = held.is_some().then(|| Instant::now() + RETRY_AFTER);
            let wake = retry.into_iter().chain(self.deadline).min();
            tokio::select! {
                biased;
                () = self.stop.changed() => {}
                () = self.sink.stirred(!reading) => {}
                received = session.next(reading) => {
                    let step = received.and_then(|received| self.take(received, &mut held));
                    if let Err(error) = step {
                        return Ok(failed_or_lost(error));
                    }
                    awaited = 1;
                }
                _ = look.tick(), if waiting => {}
                _ = heartbeat.tick() => {}
                () = wait_until(wake) => {}
            }
        }
    }

    /// Tells where the server ends each session with an error at the same position.
    pub(super) fn see_whether_stuck(&mut self, error: &SourceError) {
        let (SourceError::ServerError(_), at) = (error, self.core.resume_at()) else { return };
        let Some(times) = self.stuck.failed(at) else { return };
        tracing::error!(
            %error, times, received = %at, transaction = self.core.open_transaction().map(tracing::field::display),
            "PostgreSQL repeatedly ends the stream at the same position; later changes are not delivered"
        );
        self.stats.metrics.source_trouble(Some(format!(
            "PostgreSQL ended the stream behind {at} {times} times in a row: {error}"
        )));
    }

    /// Whether another feed is to take its place. Not once the relay is stopping: the last
    /// confirmation goes through the feed that is open, and what was begun is read from it.
    fn turn(&self, session: &mut P::Feed) -> Option<SwitchFeed> {
        if self.deadline.is_some() { None } else { session.turn() }
    }

    fn measure(&mut self, session: &mut P::Feed) {
        self.stats.session_bytes(session.received_bytes());
        if let Some(figures) = session.slot_figures() {
            self.stats.metrics.slot(figures);
        }
    }

    /// Takes what has come already, as far as the core wants it; gives how many
    /// messages that were.
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
        self.stats.received(&received);
        match received {
            Received::Keepalive(wal_end) => self.core.keepalive(wal_end),
            Received::Message(message) => {
                crate::crash_points::point!("received");
                let broken = |error: StreamError| {
                    SourceError::Lost(format!("PostgreSQL's stream broke its rules: {error}"))
                };
                if self.core.receive(&message, &mut self.sink).map_err(broken)? == Taken::NotYet {
                    *held = Some(message);
                } else {
                    self.received.message(&message, self.core.confirmable());
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_done(&self) -> bool {
        self.core.is_drained() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The last confirmation; gives how the session ended.
    async fn finish(&mut self, session: &mut P::Feed) -> Result<Ended, RelayError> {
        let confirmed = self.core.confirmable();
        // What is left of the time, and what was kept of it for this.
        let kept = (self.settings.drain_timeout / 4).min(Duration::from_secs(2));
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let within = left.unwrap_or_default() + kept;
        let finished = tokio::select! {
            biased;
            finished = session.finish(confirmed, within) => finished,
            () = self.stop.aborted() => return Err(RelayError::Aborted),
        };
        match finished {
            Ok(()) => {
                self.finished = true;
                tracing::info!(%confirmed, "confirmed to PostgreSQL");
            }
            Err(error) => match failed_or_lost(error) {
                Ended::Lost(error) => tracing::warn!(%error, "the next start may repeat records"),
                failed => return Ok(failed),
            },
        }
        Ok(Ended::Done)
    }
}
