//! Advances the slot behind what a catch-up read has delivered, on a connection of its own: PostgreSQL decodes
//! the WAL up to there, which can take minutes.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::backend_liveness::Backend;
use super::policy::{SlotAdvance, SlotAdvanceSchedule};
use crate::lsn::Lsn;
use crate::source::SourceError;
use crate::source::catalog::CatalogState;
use crate::source::connection::deadline::answered;
use crate::source::error::with_causes;
use crate::source::slot_error::SlotError;

/// The time after which another client's use of the slot is logged, and makes walpost not ready.
const LONG_USE: Duration = Duration::from_secs(10);

/// The pause between attempts to advance the slot for the last time, while another client uses it.
const IN_USE_PAUSE: Duration = Duration::from_millis(100);

/// Advances the slot, unless it has passed that position.
const ADVANCE: &str = "
    SELECT (pg_catalog.pg_replication_slot_advance(
               slot_name, $2::pg_catalog.text::pg_catalog.pg_lsn)).end_lsn::pg_catalog.text
      FROM pg_catalog.pg_replication_slots
     WHERE slot_name::pg_catalog.text = $1
       AND confirmed_flush_lsn <= $2::pg_catalog.text::pg_catalog.pg_lsn";

/// The slot of a catch-up read, and the connection on which it is advanced.
pub(super) struct SlotAdvancer {
    peer: Backend,
    slot: String,
    schedule: SlotAdvanceSchedule,
    advancing: Option<Query<Lsn>>,
    /// Whether another client's use of the slot was logged.
    is_logged: bool,
}

/// Advances the slot; returns its new position.
pub(in crate::source) async fn advance(
    client: &Client,
    slot: &str,
    advance: SlotAdvance,
) -> Result<Lsn, SourceError> {
    let refused = match client.query_opt(ADVANCE, &[&slot, &advance.to.to_string()]).await {
        Ok(Some(row)) => return new_position(&row, advance),
        Ok(None) => "the slot's position has changed meanwhile".to_owned(),
        // An invalidated slot, and a target before the slot's position (PostgreSQL 14 to 18).
        Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
            text(&error)
        }
        Err(error) => return Err(advance_error(&error, slot)),
    };
    match CatalogState::read(client, slot).await.and_then(|facts| facts.require_slot(slot)) {
        Ok(found) if found > advance.to => {
            Err(SourceError::slot_advanced(slot, advance.from, found))
        }
        Err(error @ SourceError::Slot(_)) => Err(error),
        _ => Err(SourceError::Lost(refused)),
    }
}

/// The slot's position in the row of [`ADVANCE`].
fn new_position(row: &Row, SlotAdvance { from, to }: SlotAdvance) -> Result<Lsn, SourceError> {
    let text: String =
        row.try_get(0).map_err(|error| SourceError::query("advancing the slot", &error))?;
    match text.parse() {
        Ok(position) if position >= to => Ok(position),
        _ => Err(SourceError::Lost(format!(
            "the slot was to be advanced from {from} to {to}, but its position is {text}"
        ))),
    }
}

fn text(error: &tokio_postgres::Error) -> String {
    format!("advancing the slot: {}", with_causes(error))
}

/// Classifies an error of [`ADVANCE`].
fn advance_error(error: &tokio_postgres::Error, slot: &str) -> SourceError {
    match error.code().map(SqlState::code) {
        Some("55006") => SourceError::InUse { slot: slot.to_owned(), pid: None, holder: None },
        Some("58P01") => SourceError::Slot(SlotError::WalRemoved(text(error))),
        Some("42704") => SourceError::Slot(SlotError::Dropped(text(error))),
        _ => SourceError::Lost(text(error)),
    }
}

impl SlotAdvancer {
    /// Over `peer`, for a slot whose position is `at`. If the server may invalidate idle slots, the slot is
    /// used regularly.
    pub(super) fn new(peer: Backend, slot: String, at: Lsn, keeps_idle_slots: bool) -> Self {
        let schedule = SlotAdvanceSchedule::new(at, keeps_idle_slots, Instant::now());
        Self { peer, slot, schedule, advancing: None, is_logged: false }
    }

    /// Requests an advance to `lsn`: everything before it was read and is durable.
    pub(super) fn want(&mut self, lsn: Lsn) {
        self.schedule.want(lsn);
    }

    /// Whether an advance is in progress.
    pub(super) fn is_advancing(&self) -> bool {
        self.schedule.is_advancing()
    }

    /// The text that another client uses the slot; `None`: nobody else does.
    pub(super) fn used(&self) -> Option<String> {
        self.schedule.in_use_since()?;
        Some(format!("another client uses replication slot \"{}\"", self.slot))
    }

    /// What keeps the slot from being advanced for long.
    pub(super) fn trouble(&self) -> Option<String> {
        let used = self.used().filter(|_| self.is_used_for_long())?;
        Some(used + ": it is not advanced, and no event behind the backlog is delivered")
    }

    /// Completes when the slot was advanced, or the advance failed. Cancel-safe.
    pub(super) async fn advanced(&mut self) -> Result<(), SourceError> {
        loop {
            if let Some(advancing) = &mut self.advancing {
                let position = advancing.answer().await;
                self.advancing = None;
                self.schedule.ended(position.as_ref().ok().copied(), Instant::now());
                match &position {
                    Ok(_) => self.note_use(false),
                    Err(SourceError::InUse { .. }) => self.note_use(true),
                    Err(_) => {}
                }
                position?;
                crate::crash_points::point!("moved");
                return Ok(());
            }
            let Some(due) = self.schedule.due() else {
                return std::future::pending().await;
            };
            sleep_until(due).await;
            let peer = self.peer.clone();
            let (slot, next) = (self.slot.clone(), self.schedule.begin(Instant::now()));
            self.advancing = Some(Query::start(async move {
                crate::crash_points::point!("moving");
                peer.awaited(advance(&peer.client, &slot, next)).await?
            }));
        }
    }

    /// Takes whether another client uses the slot. A long use is logged, and its end.
    pub(super) fn note_use(&mut self, is_in_use: bool) {
        self.schedule.in_use(is_in_use, Instant::now());
        let (slot, is_long) = (&self.slot, self.is_used_for_long());
        match (std::mem::replace(&mut self.is_logged, is_long), is_long) {
            (false, true) => tracing::warn!(
                slot,
                "another client uses the slot; advancing it once that client has released it"
            ),
            (true, false) => tracing::info!(slot, "the slot can be advanced again"),
            _ => {}
        }
    }

    fn is_used_for_long(&self) -> bool {
        self.schedule.in_use_since().is_some_and(|since| since.elapsed() >= LONG_USE)
    }

    /// Advances the slot to `to` without delay, and checks its position.
    pub(super) async fn finish(&mut self, to: Lsn) -> Result<(), SourceError> {
        self.schedule.want(to);
        while !self.schedule.has_reached(to) {
            self.schedule.hurry(Instant::now());
            match self.advanced().await {
                Err(SourceError::InUse { .. }) => sleep(IN_USE_PAUSE).await,
                advanced => advanced?,
            }
        }
        self.check_position().await.map(drop)
    }

    /// Checks that the slot's position is not past the one that this feed advances it to; returns whether
    /// it is in use.
    pub(super) async fn check_position(&self) -> Result<bool, SourceError> {
        let facts = CatalogState::read(&self.peer.client, &self.slot);
        let facts = answered("the connection that advances the slot", facts).await?;
        let found = facts.require_slot(&self.slot)?;
        if found > self.schedule.wanted() {
            return Err(SourceError::slot_advanced(&self.slot, self.schedule.position(), found));
        }
        Ok(facts.slot.is_some_and(|slot| slot.active_pid.is_some()))
    }
}

/// A query that runs in its own task, so that the future that waits for the answer can be dropped.
/// Dropping the query cancels it.
pub(super) struct Query<T>(JoinHandle<Result<T, SourceError>>);

impl<T: Send + 'static> Query<T> {
    pub(super) fn start(
        answer: impl Future<Output = Result<T, SourceError>> + Send + 'static,
    ) -> Self {
        Self(tokio::spawn(answer))
    }

    /// The answer. Cancel-safe. Must not be called again after it has returned.
    pub(super) async fn answer(&mut self) -> Result<T, SourceError> {
        let answer = (&mut self.0).await;
        answer.unwrap_or_else(|_| Err(SourceError::Lost("a query was cancelled".to_owned())))
    }
}

impl<T> Drop for Query<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
