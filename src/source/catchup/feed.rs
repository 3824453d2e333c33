//! The catch-up feed: batches that are read ahead, and the slot advanced behind the
//! acknowledgements.
//!
//! No session streams from the slot meanwhile, so its advisory lock is held: no other walpost advances
//! it. Another client may: before each advance the slot's position is compared. The batches come from a
//! copy of the slot, which is kept while such a client uses the slot, and after it has advanced it.
//!
//! The feed ends when the backlog is nearly read, when the server rejects batches, and when the
//! relay has read nothing for ten seconds. A stream holds the slot after that: the
//! server may invalidate an idle slot, and alerts fire on an inactive one.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::advancer::{Query, SlotAdvancer};
use super::backend_liveness::AuxConnection;
use super::copy::Rows;
use super::policy::CatchupProgress;
use super::reader::{BatchReader, Part, Stopped};
use crate::excerpt::line;
use crate::lsn::Lsn;
use crate::source::SlotMetrics;
use crate::source::SourceError;
use crate::source::catalog::CatalogState;
use crate::source::connection::connect::Control;
use crate::source::connection::deadline::answered;
use crate::source::feed::feed_base::{FeedBase, SqlConnection, connection_ended, message};
use crate::source::feed::{Received, SwitchFeed};
use crate::source::slot_error::SlotError;

/// How often progress is logged.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// How soon a stream may be tried again that another client's use of the slot has kept from taking over.
const SWITCH_PAUSE: Duration = Duration::from_secs(1);

/// Messages of an incomplete transaction above which the log shows their number.
const LARGE_TRANSACTION: u64 = 1000;

/// A backlog that is read in SQL batches.
pub struct CatchupFeed {
    base: FeedBase,
    /// The connection that the batches are read on.
    reading: Control,
    /// The connection that the slot is advanced on.
    advancing: Control,
    /// Keeps the session that holds the advisory lock alive.
    keep_alive: JoinHandle<()>,
    batches: BatchReader,
    rows: Rows,
    progress: CatchupProgress,
    advancer: SlotAdvancer,
    progress_log: ProgressLog,
    /// Set once the slot is unusable.
    abandoned: Option<Abandoned>,
    /// When a stream may take over, if another client used the slot the last time that one was to.
    next_switch: Option<Instant>,
}

/// An unusable slot: its copy is read to the end, and then the feed ends with the error.
struct Abandoned {
    error: SlotError,
    /// The query for the end of WAL, up to which the copy is read.
    end: Option<Query<CatalogState>>,
}

impl Drop for CatchupFeed {
    fn drop(&mut self) {
        // Do not wait for the end of the current batch.
        self.keep_alive.abort();
        self.reading.ended.abort();
        self.advancing.ended.abort();
    }
}

/// The progress that is logged.
struct ProgressLog {
    reported: Instant,
    at: Lsn,
    /// The end of WAL when it was last read.
    flushed: Lsn,
}

/// A progress message.
#[derive(Debug, PartialEq, Eq)]
struct ProgressReport {
    lag_bytes: u64,
    bytes_per_second: u64,
    /// Unknown while nothing is read.
    eta_seconds: Option<u64>,
}

impl ProgressLog {
    fn due(&self) -> Instant {
        self.reported + PROGRESS_INTERVAL
    }

    /// The message to log once everything that committed before `reached` was returned; `None` before
    /// one is due.
    fn report(&mut self, reached: Lsn, now: Instant) -> Option<ProgressReport> {
        if now < self.due() {
            return None;
        }
        let read = reached.bytes_since(self.at);
        let lag_bytes = self.flushed.bytes_since(reached);
        let bytes_per_second = read / now.saturating_duration_since(self.reported).as_secs().max(1);
        (self.reported, self.at) = (now, reached);
        let eta_seconds = lag_bytes.checked_div(bytes_per_second);
        Some(ProgressReport { lag_bytes, bytes_per_second, eta_seconds })
    }
}

impl CatchupFeed {
    /// Over `base`, with the slot at its start. `reading` and `advancing` are two further
    /// connections; `advancing` holds the slot's advisory lock, and `keep_alive` keeps its session
    /// alive. If the server may invalidate idle slots, the slot is used regularly.
    pub(in crate::source) fn start(
        base: FeedBase,
        config: &crate::source::SourceConfig,
        reading: AuxConnection,
        advancing: AuxConnection,
        keep_alive: JoinHandle<()>,
        keeps_idle_slots: bool,
    ) -> Self {
        let batches = BatchReader::start(reading.peer.clone(), config, base.start);
        let (now, at, flushed) = (Instant::now(), base.start, base.flushed);
        let slot = config.slot.clone();
        let advancer = SlotAdvancer::new(advancing.peer, slot, at, keeps_idle_slots);
        Self {
            base,
            reading: reading.control,
            advancing: advancing.control,
            keep_alive,
            batches,
            rows: Rows::default(),
            progress: CatchupProgress::new(config.catch_up.clone(), at),
            advancer,
            progress_log: ProgressLog { reported: now, at, flushed },
            abandoned: None,
            next_switch: None,
        }
    }

    /// Handles a slot that was dropped, invalidated, or advanced by another client. The copy that the batches are
    /// read from is then the last slot with the undelivered changes, and PostgreSQL drops it at the
    /// end of its session. So the feed reads it up to the current end of WAL.
    fn abandon(&mut self, error: SlotError) {
        let (client, slot) = (Arc::clone(&self.base.control.client), self.base.slot.clone());
        let end = Query::start(async move {
            answered("the control connection", CatalogState::read(&client, &slot)).await
        });
        self.abandoned = Some(Abandoned { error, end: Some(end) });
    }

    /// Reads the copy of an unusable slot up to the end of WAL.
    fn read_to_the_end(
        &mut self,
        end: Result<CatalogState, SourceError>,
    ) -> Result<(), SourceError> {
        let flushed = match end {
            Ok(facts) => facts.flushed,
            Err(because) => return Err(self.abandoned(Some(&because)).unwrap_or(because)),
        };
        if let Some(Abandoned { error, end }) = &mut self.abandoned {
            *end = None;
            tracing::error!(
                error = %line(&error.to_string()),
                up_to = %flushed,
                "the slot is no longer usable; publishing the rest of its temporary copy, then \
                 halting"
            );
        }
        self.batches.read_to(flushed);
        Ok(())
    }

    /// The error that ends a feed on an unusable slot; `because` says why the copy could not be read
    /// to its end.
    fn abandoned(&mut self, because: Option<&SourceError>) -> Option<SourceError> {
        let Abandoned { error, .. } = self.abandoned.take()?;
        let (read, _) = self.progress.reached();
        let copy_lost = because.map(ToString::to_string);
        Some(SourceError::Slot(SlotError::CopyRead { error: Box::new(error), read, copy_lost }))
    }

    /// Logs progress when a message is due, also within a batch, which may be one large transaction.
    fn log_progress(&mut self) {
        let (reached, messages) = self.progress.reached();
        if let Some(reported) = self.progress_log.report(reached, Instant::now()) {
            tracing::info!(
                lag_bytes = reported.lag_bytes,
                bytes_per_second = reported.bytes_per_second,
                eta_seconds = reported.eta_seconds,
                within_transaction = (messages > LARGE_TRANSACTION).then_some(messages),
                "catch-up progress"
            );
        }
    }

    fn row(&mut self) -> Option<Result<Received, SourceError>> {
        let row = self.rows.next()?;
        self.base.received_bytes += row.len() as u64;
        let message = message(&row);
        if let Ok(message) = &message {
            self.progress.message(message);
        }
        Some(message.map(Received::Message))
    }

    /// Processes a part of a batch. Returns what the relay receives for it, which is nothing if it
    /// only has rows.
    fn part(
        &mut self,
        part: Option<Result<Part, Stopped>>,
    ) -> Result<Option<Received>, SourceError> {
        Ok(match part {
            None => match self.abandoned(None) {
                Some(error) => return Err(error),
                None => Some(self.progress.ended()),
            },
            Some(Ok(Part::NearEnd)) => Some(self.progress.ended()),
            Some(Ok(Part::StreamCostsLess(rest))) => Some(self.progress.stream_costs_less(rest)),
            Some(Ok(Part::Rows(rows))) => {
                self.rows = rows;
                self.log_progress();
                None
            }
            Some(Ok(Part::ReadUpTo(position))) => {
                crate::crash_points::point!("batch");
                self.progress_log.flushed = position.flushed;
                Some(self.progress.read_up_to(position.read))
            }
            Some(Err(Stopped::Failed(error))) => {
                if let Some(abandoned) = self.abandoned(Some(&error)) {
                    return Err(abandoned);
                }
                if matches!(error, SourceError::Lost(_)) {
                    self.progress.connection_lost();
                }
                return Err(error);
            }
            Some(Err(Stopped::Refused(reason))) => {
                if let Some(abandoned) = self.abandoned(Some(&SourceError::Lost(reason.clone()))) {
                    return Err(abandoned);
                }
                Some(self.progress.refused(&reason))
            }
        })
    }

    pub(in crate::source) fn base(&self) -> &FeedBase {
        &self.base
    }

    pub(in crate::source) async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        self.progress.polled(reading, Instant::now());
        loop {
            if reading && let Some(received) = self.row() {
                return received;
            }
            // The copy of an unusable slot is read to its end.
            let is_read = self.progress.is_over() && self.abandoned.is_none();
            let part = tokio::select! {
                // The order matters. The guard, the slot's advance, the end of WAL for an unusable
                // slot, and the end of the control connection come first: they are rarely ready, and
                // decide whether the feed may confirm or read more. Batches are ready most of the
                // time and would starve them, and the progress timer. The ends of the other two
                // connections come after the batches: the errors of the reader and of the advance
                // are more precise.
                biased;
                verified = self.base.publication_guard.verified() => {
                    self.advancer.want(verified?);
                    continue;
                }
                advanced = self.advancer.advanced(), if self.abandoned.is_none() => {
                    match advanced {
                        Err(SourceError::Slot(error)) => self.abandon(error),
                        // That client may move it: a feed that ended here would lose its copy.
                        Err(SourceError::InUse { .. }) => {}
                        Err(error) => return Err(error),
                        Ok(()) if self.progress.is_over() => return Ok(self.progress.keepalive()),
                        Ok(()) => {}
                    }
                    continue;
                }
                end = end_of_wal(&mut self.abandoned) => {
                    self.read_to_the_end(end)?;
                    continue;
                }
                ended = &mut self.base.control.ended => {
                    return Err(self.lost(SqlConnection::Control, ended));
                }
                // The server sends nothing before it has decoded the whole batch.
                () = sleep_until(self.progress_log.due()), if reading && !is_read => {
                    self.log_progress();
                    continue;
                }
                part = self.batches.next(), if reading && !is_read => part,
                ended = &mut self.advancing.ended => return Err(self.lost(SqlConnection::Advancing, ended)),
                ended = &mut self.reading.ended, if !is_read => {
                    let error = self.lost(SqlConnection::Reading, ended);
                    self.progress.connection_lost();
                    return Err(error);
                }
            };
            if let Some(received) = self.part(part)? {
                return Ok(received);
            }
        }
    }

    /// The error of a feed whose connection has ended.
    fn lost(
        &mut self,
        connection: SqlConnection,
        ended: Result<Result<(), tokio_postgres::Error>, tokio::task::JoinError>,
    ) -> SourceError {
        let error = connection_ended(connection, ended);
        self.abandoned(Some(&error)).unwrap_or(error)
    }

    pub(in crate::source) fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        loop {
            if let Some(received) = self.row() {
                return Some(received);
            }
            let part = self.batches.try_next()?;
            if let Some(received) = self.part(Some(part)).transpose() {
                return Some(received);
            }
        }
    }

    pub(in crate::source) fn slot_metrics(&mut self) -> Option<SlotMetrics> {
        self.base.observer.changed()
    }

    pub(in crate::source) fn bytes(&self) -> u64 {
        self.base.flushed.bytes_since(self.base.start)
    }

    pub(in crate::source) fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        if self.abandoned.is_some() || self.next_switch.is_some_and(|next| Instant::now() < next) {
            return None;
        }
        let is_advancing = self.advancer.is_advancing();
        self.progress.wanted_switch(!self.rows.is_empty(), is_advancing, Instant::now())
    }

    /// Has a stream follow, as [`CatchupProgress::stream_next`].
    pub(in crate::source) fn stream_next(&self) {
        self.progress.stream_next();
    }

    /// Whether a stream may take over. It may not if the slot was dropped or advanced: the copy that
    /// the batches are read from is then the last slot with the undelivered changes. Nor while another
    /// client uses the slot, which may advance it.
    pub(in crate::source) async fn may_switch(&mut self) -> Result<bool, SourceError> {
        match self.advancer.check_position().await {
            Ok(is_in_use) => {
                self.advancer.note_use(is_in_use);
                self.next_switch = is_in_use.then(|| Instant::now() + SWITCH_PAUSE);
                Ok(!is_in_use)
            }
            Err(SourceError::Slot(error)) => {
                self.abandon(error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// What holds the feed up for long.
    pub(in crate::source) fn trouble(&self) -> Option<String> {
        self.advancer.trouble().filter(|_| self.abandoned.is_none())
    }

    pub(in crate::source) async fn finish(
        &mut self,
        lsn: Lsn,
        within: Duration,
    ) -> Result<(), SourceError> {
        let stopped = SourceError::Lost("walpost was stopped by a signal".to_owned());
        if let Some(error) = self.abandoned(Some(&stopped)) {
            return Err(error);
        }
        let finished = timeout(within, async {
            self.base.publication_guard.verify().await?;
            self.advancer.finish(lsn).await
        });
        finished.await.unwrap_or_else(|_| {
            let why = match self.advancer.used() {
                Some(used) => format!("{used}: the last confirmation ({lsn}) was not possible"),
                None => format!("it is not known whether the last confirmation ({lsn}) arrived"),
            };
            Err(SourceError::Lost(why))
        })
    }
}

/// The end of WAL, if it was queried. Cancel-safe.
async fn end_of_wal(abandoned: &mut Option<Abandoned>) -> Result<CatalogState, SourceError> {
    match abandoned {
        Some(Abandoned { end: Some(end), .. }) => end.answer().await,
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reported_every_ten_seconds_without_an_eta_while_nothing_is_read() {
        let begun = Instant::now();
        let mut progress =
            ProgressLog { reported: begun, at: Lsn::new(1000), flushed: Lsn::new(9000) };
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(progress.report(Lsn::new(2000), after(9)), None);
        let reported =
            ProgressReport { lag_bytes: 6000, bytes_per_second: 200, eta_seconds: Some(30) };
        assert_eq!(progress.report(Lsn::new(3000), after(10)), Some(reported));
        assert_eq!(progress.report(Lsn::new(3000), after(19)), None);
        let reported = ProgressReport { lag_bytes: 6000, bytes_per_second: 0, eta_seconds: None };
        assert_eq!(progress.report(Lsn::new(3000), after(20)), Some(reported));
    }
}
