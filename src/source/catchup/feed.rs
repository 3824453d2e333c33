//! The catch-up feed: batches that are read ahead, and the slot advanced behind the
//! acknowledgements.
//!
//! No session streams from the slot meanwhile, so its advisory lock is held, and only this feed
//! advances it. Before each advance the slot's position is compared, which shows whether another
//! client advanced it. The batches come from a copy of the slot, and are handed out in any case.
//!
//! The feed ends when little of the backlog is left, when the server refuses to be read this way,
//! and when nothing is taken for a while. Then a stream has to hold the slot: the server may
//! invalidate an idle slot, and alerts fire on an inactive one.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::Client;

use super::backend_liveness::{AuxConnection, Backend};
use super::copy::Rows;
use super::policy::{CatchupProgress, Move, SlotAdvanceSchedule};
use super::reader::{BatchReader, Part, Stopped};
use crate::excerpt::line;
use crate::lsn::Lsn;
use crate::source::SlotFigures;
use crate::source::SourceError;
use crate::source::catalog::Facts;
use crate::source::connection::connect::Control;
use crate::source::connection::deadline::answered;
use crate::source::feed::{Received, SwitchFeed};
use crate::source::feed_base::{Connection, FeedBase, connection_ended, message};
use crate::source::slot_error::SlotError;

/// How often progress is logged.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Messages of an incomplete transaction above which the log names their number.
const LARGE: u64 = 1000;

/// Advances the slot, unless it is beyond `$3`.
const ADVANCE: &str = "
    SELECT (pg_catalog.pg_replication_slot_advance(
               slot_name, $2::pg_catalog.text::pg_catalog.pg_lsn)).end_lsn::pg_catalog.text
      FROM pg_catalog.pg_replication_slots
     WHERE slot_name::pg_catalog.text = $1
       AND confirmed_flush_lsn <= $3::pg_catalog.text::pg_catalog.pg_lsn";

/// A backlog that is read in SQL batches.
pub struct CatchupFeed {
    base: FeedBase,
    /// The connection that the batches are read on.
    reading: Control,
    /// The connection that the slot is advanced on.
    moving: Control,
    /// Keeps the session of the lock alive.
    kept: JoinHandle<()>,
    batches: BatchReader,
    rows: Rows,
    handed: CatchupProgress,
    mover: Mover,
    progress: Progress,
    /// Set once the slot is unusable.
    abandoned: Option<Abandoned>,
}

/// An unusable slot: its copy is read to the end, and then the feed ends with the error.
struct Abandoned {
    error: SlotError,
    /// The query for the end of WAL, up to which the copy is read.
    end: Option<Query<Facts>>,
}

/// Advances the slot on a connection of its own, since that may take long.
struct Mover {
    peer: Backend,
    slot: String,
    moves: SlotAdvanceSchedule,
    moving: Option<Query<Lsn>>,
}

/// A query on a task of its own, so that the future that waits for the answer may be dropped.
/// Dropping the query ends it.
struct Query<T>(JoinHandle<Result<T, SourceError>>);

impl<T: Send + 'static> Query<T> {
    fn start(answer: impl Future<Output = Result<T, SourceError>> + Send + 'static) -> Self {
        Self(tokio::spawn(answer))
    }

    /// The answer. Cancel-safe. Must not be called again after it has returned.
    async fn answer(&mut self) -> Result<T, SourceError> {
        let answer = (&mut self.0).await;
        answer.unwrap_or_else(|_| Err(SourceError::Lost("a query was given up".to_owned())))
    }
}

impl<T> Drop for Query<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Advances the slot; returns its new position.
pub(in crate::source) async fn advance(
    client: &Client,
    slot: &str,
    one: Move,
) -> Result<Lsn, SourceError> {
    let Move { at, to } = one;
    let moved = client.query_opt(ADVANCE, &[&slot, &to.to_string(), &at.to_string()]).await;
    let row =
        moved.map_err(|error| match error.code().map(tokio_postgres::error::SqlState::code) {
            Some("55006") => SourceError::InUse { slot: slot.to_owned(), pid: None, holder: None },
            _ => SourceError::query("moving the slot", &error),
        })?;
    let Some(row) = row else {
        let found = Facts::read(client, slot).await?.require_slot(slot)?;
        return Err(SourceError::slot_advanced(slot, at, found));
    };
    let text: String =
        row.try_get(0).map_err(|error| SourceError::query("moving the slot", &error))?;
    match text.parse() {
        Ok(stands) if stands >= to => Ok(stands),
        _ => Err(SourceError::Lost(format!("the slot was to move to {to}, and stands at {text}"))),
    }
}

impl Mover {
    /// Completes when the slot was advanced, or that failed. Cancel-safe.
    async fn moved(&mut self) -> Result<(), SourceError> {
        loop {
            if let Some(moving) = &mut self.moving {
                let stands = moving.answer().await;
                self.moving = None;
                self.moves.ended(stands.as_ref().ok().copied(), Instant::now());
                stands?;
                crate::crash_points::point!("moved");
                return Ok(());
            }
            let Some(due) = self.moves.due() else {
                return std::future::pending().await;
            };
            sleep_until(due).await;
            let peer = self.peer.clone();
            let (slot, one) = (self.slot.clone(), self.moves.begin(Instant::now()));
            self.moving = Some(Query::start(async move {
                crate::crash_points::point!("moving");
                peer.awaited(advance(&peer.client, &slot, one)).await?
            }));
        }
    }

    /// Advances the slot to `to` without delay, and checks its position.
    async fn finish(&mut self, to: Lsn) -> Result<(), SourceError> {
        self.moves.want(to);
        while !self.moves.has_reached(to) {
            self.moves.hurry(Instant::now());
            self.moved().await?;
        }
        self.look().await
    }

    /// Checks that the slot's position is the one that this feed advanced it to.
    async fn look(&self) -> Result<(), SourceError> {
        let facts = Facts::read(&self.peer.client, &self.slot);
        let facts = answered("the connection that the slot is moved on", facts).await?;
        let found = facts.require_slot(&self.slot)?;
        if found > self.moves.stands() {
            return Err(SourceError::slot_advanced(&self.slot, self.moves.stands(), found));
        }
        Ok(())
    }
}

impl Drop for CatchupFeed {
    fn drop(&mut self) {
        // Do not wait for a batch that is being read.
        self.kept.abort();
        self.reading.ended.abort();
        self.moving.ended.abort();
    }
}

/// The progress that is logged.
struct Progress {
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

impl Progress {
    fn due(&self) -> Instant {
        self.reported + PROGRESS_INTERVAL
    }

    /// The message to log once everything that committed before `reached` was handed out; `None`
    /// before one is due.
    fn at(&mut self, reached: Lsn, now: Instant) -> Option<ProgressReport> {
        if now < self.due() {
            return None;
        }
        let less = reached.bytes_since(self.at);
        let lag_bytes = self.flushed.bytes_since(reached);
        let bytes_per_second = less / now.saturating_duration_since(self.reported).as_secs().max(1);
        (self.reported, self.at) = (now, reached);
        let eta_seconds = lag_bytes.checked_div(bytes_per_second);
        Some(ProgressReport { lag_bytes, bytes_per_second, eta_seconds })
    }
}

impl CatchupFeed {
    /// Over `base`, with the slot at its start and its advisory lock held; `reading` and `moving` are
    /// further connections, and `kept` keeps the lock. If the server does not keep idle slots, the
    /// slot is used regularly.
    pub(in crate::source) fn start(
        base: FeedBase,
        config: &crate::source::SourceConfig,
        reading: AuxConnection,
        moving: AuxConnection,
        kept: JoinHandle<()>,
        keeps_idle_slots: bool,
    ) -> Self {
        let little = config.catch_up.little();
        let batches = BatchReader::start(reading.peer.clone(), config, base.start, little);
        let (now, at, flushed) = (Instant::now(), base.start, base.flushed);
        let mover = Mover {
            peer: moving.peer,
            slot: config.slot.clone(),
            moves: SlotAdvanceSchedule::new(at, keeps_idle_slots, now),
            moving: None,
        };
        Self {
            base,
            reading: reading.control,
            moving: moving.control,
            kept,
            batches,
            rows: Rows::default(),
            handed: CatchupProgress::new(config.catch_up.clone(), at),
            mover,
            progress: Progress { reported: now, at, flushed },
            abandoned: None,
        }
    }

    /// The slot was dropped, or another client advanced it. The copy that the batches are read from
    /// is then the last slot that has the undelivered changes, and ends with its session. So it is
    /// read up to the present end of WAL.
    fn abandon(&mut self, error: SlotError) {
        let (client, slot) = (Arc::clone(&self.base.control.client), self.base.slot.clone());
        let end = Query::start(async move {
            answered("the control connection", Facts::read(&client, &slot)).await
        });
        self.abandoned = Some(Abandoned { error, end: Some(end) });
    }

    /// Reads the copy of an unusable slot up to the end of WAL.
    fn read_to_the_end(&mut self, end: Result<Facts, SourceError>) -> Result<(), SourceError> {
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
        let (read, _) = self.handed.reached();
        let copy_lost = because.map(ToString::to_string);
        Some(SourceError::Slot(SlotError::CopyRead { error: Box::new(error), read, copy_lost }))
    }

    /// Logs progress when that is due, also within a batch, which may be one large transaction.
    fn log_progress(&mut self) {
        let (reached, messages) = self.handed.reached();
        if let Some(reported) = self.progress.at(reached, Instant::now()) {
            tracing::info!(
                lag_bytes = reported.lag_bytes,
                bytes_per_second = reported.bytes_per_second,
                eta_seconds = reported.eta_seconds,
                within_transaction = (messages > LARGE).then_some(messages),
                "catch-up progress"
            );
        }
    }

    fn row(&mut self) -> Option<Result<Received, SourceError>> {
        let row = self.rows.next()?;
        self.base.received_bytes += row.len() as u64;
        let message = message(&row);
        if let Ok(message) = &message {
            self.handed.message(message);
        }
        Some(message.map(Received::Message))
    }

    /// What follows from a part; `None` if it only has rows.
    fn part(
        &mut self,
        part: Option<Result<Part, Stopped>>,
    ) -> Result<Option<Received>, SourceError> {
        Ok(match part {
            None => match self.abandoned(None) {
                Some(error) => return Err(error),
                None => Some(self.handed.ended()),
            },
            Some(Ok(Part::NearEnd)) => Some(self.handed.ended()),
            Some(Ok(Part::StreamPays(rest))) => Some(self.handed.left(rest)),
            Some(Ok(Part::Rows(rows))) => {
                self.rows = rows;
                self.log_progress();
                None
            }
            Some(Ok(Part::ReadUpTo(stand))) => {
                crate::crash_points::point!("batch");
                self.progress.flushed = stand.flushed;
                Some(self.handed.read_up_to(stand.read))
            }
            Some(Err(Stopped::Failed(error))) => {
                if let Some(abandoned) = self.abandoned(Some(&error)) {
                    return Err(abandoned);
                }
                if matches!(error, SourceError::Lost(_)) {
                    self.handed.lost();
                }
                return Err(error);
            }
            Some(Err(Stopped::Refused(reason))) => {
                if let Some(abandoned) = self.abandoned(Some(&SourceError::Lost(reason.clone()))) {
                    return Err(abandoned);
                }
                Some(self.handed.refused(&reason))
            }
        })
    }

    pub(in crate::source) fn base(&self) -> &FeedBase {
        &self.base
    }

    pub(in crate::source) async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        self.handed.asked(reading, Instant::now());
        loop {
            if reading && let Some(received) = self.row() {
                return received;
            }
            // On an unusable slot everything is read.
            let is_read = self.handed.is_over() && self.abandoned.is_none();
            let part = tokio::select! {
                // First what is seldom ready and decides whether more may be confirmed or read: the
                // guard, the slot's advance, the end of WAL for an unusable slot, and the end of the
                // control connection. Batches are ready most of the time and would starve them; the
                // progress timer is before them for the same reason. The ends of the two further
                // connections are after the batches: the error that the reader got on them says
                // more, and so does the advance's own.
                biased;
                verified = self.base.publication_guard.verified() => {
                    self.mover.moves.want(verified?);
                    continue;
                }
                moved = self.mover.moved(), if self.abandoned.is_none() => {
                    match moved {
                        Err(SourceError::Slot(error)) => self.abandon(error),
                        Err(error) => return Err(error),
                        Ok(()) if self.handed.is_over() => return Ok(self.handed.stands()),
                        Ok(()) => {}
                    }
                    continue;
                }
                end = end_of_wal(&mut self.abandoned) => {
                    self.read_to_the_end(end)?;
                    continue;
                }
                ended = &mut self.base.control.ended => {
                    return Err(self.lost(Connection::Control, ended));
                }
                // The server decodes, and sends nothing before all of a batch is.
                () = sleep_until(self.progress.due()), if reading && !is_read => {
                    self.log_progress();
                    continue;
                }
                part = self.batches.next(), if reading && !is_read => part,
                ended = &mut self.moving.ended => return Err(self.lost(Connection::Moving, ended)),
                ended = &mut self.reading.ended, if !is_read => {
                    let error = self.lost(Connection::Reading, ended);
                    self.handed.lost();
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
        connection: Connection,
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

    pub(in crate::source) fn slot_figures(&mut self) -> Option<SlotFigures> {
        self.base.observer.changed()
    }

    pub(in crate::source) fn bytes(&self) -> u64 {
        self.base.flushed.bytes_since(self.base.start)
    }

    pub(in crate::source) fn turn(&mut self) -> Option<SwitchFeed> {
        if self.abandoned.is_some() {
            return None;
        }
        let is_moving = self.mover.moves.is_under_way();
        self.handed.turn(!self.rows.is_empty(), is_moving, Instant::now())
    }

    /// Whether a stream may take over: not if the slot was dropped or advanced, since the copy that
    /// the batches are read from is then the last slot that has the undelivered changes.
    pub(in crate::source) async fn may_switch(&mut self) -> Result<bool, SourceError> {
        match self.mover.look().await {
            Ok(()) => Ok(true),
            Err(SourceError::Slot(error)) => {
                self.abandon(error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
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
        let noted = timeout(within, async {
            self.base.publication_guard.verify().await?;
            self.mover.finish(lsn).await
        });
        noted.await.unwrap_or_else(|_| {
            let unseen = format!("it is not known whether the last confirmation ({lsn}) arrived");
            Err(SourceError::Lost(unseen))
        })
    }
}

/// The end of WAL, if it was queried. Cancel-safe.
async fn end_of_wal(abandoned: &mut Option<Abandoned>) -> Result<Facts, SourceError> {
    match abandoned {
        Some(Abandoned { end: Some(end), .. }) => end.answer().await,
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is_is_told_each_ten_seconds_and_no_time_to_go_where_nothing_moved() {
        let begun = Instant::now();
        let mut progress =
            Progress { reported: begun, at: Lsn::new(1000), flushed: Lsn::new(9000) };
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(progress.at(Lsn::new(2000), after(9)), None);
        let reported =
            ProgressReport { lag_bytes: 6000, bytes_per_second: 200, eta_seconds: Some(30) };
        assert_eq!(progress.at(Lsn::new(3000), after(10)), Some(reported));
        assert_eq!(progress.at(Lsn::new(3000), after(19)), None);
        let reported = ProgressReport { lag_bytes: 6000, bytes_per_second: 0, eta_seconds: None };
        assert_eq!(progress.at(Lsn::new(3000), after(20)), Some(reported));
    }
}
