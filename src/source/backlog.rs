//! The feed of a backlog: batches that are read ahead, and the slot moved on behind the
//! acknowledgements.
//!
//! Nobody streams from the slot meanwhile, so its name is locked, and it stands still
//! but for what is confirmed here: that it was moved by somebody else is seen
//! by comparing before it is moved on. What was read comes from a copy and is handed out in any case.
//!
//! The feed is over once little is left of the backlog, where the server will not hand it out
//! so, and where nothing is taken for a while: then the slot is to be held by a stream, since
//! the server may give up one that nobody uses, and people are alarmed by it.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::Client;

use super::SourceError;
use super::base::{Base, control_ended, message};
use super::batches::{Batches, Part, Stopped};
use super::config::CatchUp;
use super::connect::Control;
use super::facts::Facts;
use super::feed::{Received, Turn};
use super::patience::{Beside, Peer};
use crate::lsn::Lsn;
use crate::metrics::SlotFigures;
use crate::pgoutput::Message;

/// For how long nothing may be taken before a stream is to hold the slot.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Messages of an open transaction from which on it is read to its end first: a stream begins
/// with all of it again, and records would come twice.
const REPEATED: u64 = 1000;

/// Least time between two moves of the slot, and how many times as long as the last one
/// took: for each the server reads the log again from where decoding would have to begin.
const MOVE_INTERVAL: Duration = Duration::from_secs(1);
const MOVE_SHARE: u32 = 10;

/// How often the slot is used where it does not move: `idle_replication_slot_timeout` is more.
const TOUCH_INTERVAL: Duration = Duration::from_secs(20);

/// How often is told how it goes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Moves the slot, if it is not beyond `$3`.
const ADVANCE: &str = "
    SELECT (pg_catalog.pg_replication_slot_advance(slot_name, $2::text::pg_lsn)).end_lsn::text
      FROM pg_catalog.pg_replication_slots
     WHERE slot_name::text = $1 AND confirmed_flush_lsn <= $3::text::pg_lsn";

/// The rest of a batch: messages of the plugin.
type Rows = std::vec::IntoIter<bytes::Bytes>;

/// A backlog that is read in batches.
pub struct Backlog {
    base: Base,
    /// The connection that the batches are read on.
    reading: Control,
    /// The connection that the slot is moved on.
    moving: Control,
    /// Keeps the lock.
    kept: JoinHandle<()>,
    batches: Batches,
    rows: Rows,
    /// Messages of the transaction that is open.
    open: u64,
    mover: Mover,
    catch_up: CatchUp,
    /// Since when nothing is taken.
    idle: Option<Instant>,
    is_over: bool,
    /// Up to where was read.
    read: Lsn,
    progress: Progress,
}

/// Moves the slot, on a connection of its own: the server may take its time.
struct Mover {
    peer: Peer,
    slot: String,
    /// Where the slot stands.
    at: Lsn,
    wanted: Lsn,
    moving: Option<Moving>,
    next: Instant,
    /// When it has to be used again, where the server gives up one that is not.
    touch: Option<Instant>,
}

/// A move that is under way, and since when.
struct Moving {
    task: JoinHandle<Result<Lsn, SourceError>>,
    since: Instant,
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Moves the slot from `at`, or before it, to `to`; gives where it stands then.
pub(super) async fn advance(
    client: &Client,
    slot: &str,
    at: Lsn,
    to: Lsn,
) -> Result<Lsn, SourceError> {
    let moved = client.query_opt(ADVANCE, &[&slot, &to.to_string(), &at.to_string()]).await;
    let row =
        moved.map_err(|error| match error.code().map(tokio_postgres::error::SqlState::code) {
            Some("55006") => SourceError::InUse { slot: slot.to_owned(), pid: None, holder: None },
            _ => SourceError::query("moving the slot", &error),
        })?;
    let Some(row) = row else {
        let found = Facts::read(client, slot).await?.require_slot(slot)?;
        return Err(SourceError::slot_moved(slot, at, found));
    };
    let text: String =
        row.try_get(0).map_err(|error| SourceError::query("moving the slot", &error))?;
    match text.parse() {
        Ok(stands) if stands >= to => Ok(stands),
        _ => Err(SourceError::Lost(format!("the slot was to move to {to}, and stands at {text}"))),
    }
}

impl Mover {
    /// Completes when the slot was moved, or should have been. Cancel-safe.
    async fn moved(&mut self) -> Result<(), SourceError> {
        loop {
            if let Some(moving) = &mut self.moving {
                let stands = (&mut moving.task).await.unwrap_or_else(|_| {
                    Err(SourceError::Lost("moving the slot was given up".to_owned()))
                });
                let now = Instant::now();
                let took = now.saturating_duration_since(moving.since);
                self.next = now + MOVE_INTERVAL.max(took * MOVE_SHARE);
                self.moving = None;
                self.at = stands?;
                self.touch = self.touch.map(|_| now + TOUCH_INTERVAL);
                crate::crash::point!("moved");
                return Ok(());
            }
            let touch = if self.wanted > self.at { Some(self.next) } else { self.touch };
            wait_until(touch.map(|touch| touch.max(self.next))).await;
            let peer = self.peer.clone();
            let (slot, at, to) = (self.slot.clone(), self.at, self.wanted.max(self.at));
            let task = tokio::spawn(async move {
                crate::crash::point!("moving");
                peer.awaited(advance(&peer.client, &slot, at, to)).await?
            });
            self.moving = Some(Moving { task, since: Instant::now() });
        }
    }

    /// Moves the slot to `to` in any case.
    async fn finish(&mut self, to: Lsn) -> Result<(), SourceError> {
        self.wanted = self.wanted.max(to);
        while self.at < to {
            self.next = Instant::now();
            self.moved().await?;
        }
        Ok(())
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        // A batch that is under way is not waited for.
        self.kept.abort();
        self.reading.ended.abort();
        self.moving.ended.abort();
    }
}

/// How the backlog becomes less.
struct Progress {
    told: Instant,
    at: Lsn,
}

impl Progress {
    fn tell(&mut self, read: Lsn, flushed: Lsn) {
        let now = Instant::now();
        let since = now.saturating_duration_since(self.told);
        if since < PROGRESS_INTERVAL {
            return;
        }
        let less = read.as_u64().saturating_sub(self.at.as_u64());
        let behind = flushed.as_u64().saturating_sub(read.as_u64());
        let rate = less / since.as_secs().max(1);
        tracing::info!(
            behind_bytes = behind,
            bytes_a_second = rate,
            seconds_to_go = behind / rate.max(1),
            "catching up"
        );
        (self.told, self.at) = (now, read);
    }
}

impl Backlog {
    /// Over `base`, whose slot stands at its start and whose name is locked; `reading` and
    /// `moving` are connections beside it, `kept` keeps the lock. A server that does not keep idle slots is shown that
    /// this one is in use.
    pub(super) fn start(
        base: Base,
        config: &super::SourceConfig,
        reading: Beside,
        moving: Beside,
        kept: JoinHandle<()>,
        keeps_idle_slots: bool,
    ) -> Self {
        let batches = Batches::start(reading.peer.clone(), config, config.catch_up.little());
        let (now, at) = (Instant::now(), base.start);
        let mover = Mover {
            peer: moving.peer,
            slot: config.slot.clone(),
            at,
            wanted: at,
            moving: None,
            next: now + MOVE_INTERVAL,
            touch: (!keeps_idle_slots).then(|| now + TOUCH_INTERVAL),
        };
        Self {
            base,
            reading: reading.control,
            moving: moving.control,
            kept,
            batches,
            rows: Vec::new().into_iter(),
            open: 0,
            mover,
            catch_up: config.catch_up.clone(),
            idle: None,
            is_over: false,
            read: at,
            progress: Progress { told: now, at },
        }
    }

    fn row(&mut self) -> Option<Result<Received, SourceError>> {
        let row = self.rows.next()?;
        self.idle = None;
        self.base.received_bytes += row.len() as u64;
        let message = message(&row);
        match &message {
            Ok(Message::Commit(_)) => self.open = 0,
            _ => self.open += 1,
        }
        Some(message.map(Received::Message))
    }

    /// What a part brings; nothing where it only has rows.
    fn part(
        &mut self,
        part: Option<Result<Part, Stopped>>,
    ) -> Result<Option<Received>, SourceError> {
        match part {
            None => {
                self.catch_up.was_of_use();
                self.is_over = true;
            }
            Some(Ok(Part::Rows(rows))) => {
                self.rows = rows.into_iter();
                return Ok(None);
            }
            Some(Ok(Part::ReadUpTo { upto, flushed })) => {
                crate::crash::point!("batch");
                self.progress.tell(upto, flushed);
                self.read = upto;
            }
            Some(Err(Stopped::Failed(error))) => {
                self.failed();
                return Err(error);
            }
            Some(Err(Stopped::Refused(reason))) => {
                self.catch_up.refused(&reason);
                self.is_over = true;
            }
        }
        Ok(Some(Received::Keepalive(self.read)))
    }

    /// Where not even one batch came whole, the next may not either: somebody may end each
    /// that takes long.
    fn failed(&self) {
        if self.read == self.base.start {
            self.catch_up.bar();
        }
    }

    pub(super) fn base(&self) -> &Base {
        &self.base
    }

    pub(super) async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        if reading {
            self.idle = None;
        } else {
            self.idle.get_or_insert_with(Instant::now);
        }
        loop {
            if reading && let Some(received) = self.row() {
                return received;
            }
            let part = tokio::select! {
                biased;
                verified = self.base.watch.verified() => {
                    self.mover.wanted = verified?.max(self.mover.wanted);
                    continue;
                }
                moved = self.mover.moved() => {
                    moved?;
                    if self.is_over {
                        return Ok(Received::Keepalive(self.read));
                    }
                    continue;
                }
                ended = &mut self.base.control.ended => return Err(control_ended(ended)),
                part = self.batches.next(), if reading && !self.is_over => part,
                ended = &mut self.moving.ended => return Err(control_ended(ended)),
                ended = &mut self.reading.ended, if !self.is_over => {
                    let error = control_ended(ended);
                    self.failed();
                    return Err(error);
                }
            };
            if let Some(received) = self.part(part)? {
                return Ok(received);
            }
        }
    }

    pub(super) fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
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

    pub(super) fn is_backed_up(&mut self) -> bool {
        self.rows.len() > 0
    }

    pub(super) fn slot_figures(&mut self) -> Option<SlotFigures> {
        self.base.observer.news()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.base.flushed.as_u64().saturating_sub(self.base.start.as_u64())
    }

    pub(super) fn turn(&mut self) -> Option<Turn> {
        let idle = self.idle.is_some_and(|since| since.elapsed() >= IDLE_LIMIT);
        // Who comes next would find the slot in use by what moves it.
        let is_over = self.is_over && self.rows.len() == 0 && self.mover.moving.is_none();
        let idle = idle && self.open < REPEATED;
        if idle {
            // What is open may be all that is not delivered, and no sign of it is left then.
            self.catch_up.put_off();
        }
        (is_over || idle).then_some(Turn::Now)
    }

    pub(super) async fn finish(mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        let noted = timeout(within, async {
            self.base.watch.verify().await?;
            self.mover.finish(lsn).await
        });
        noted.await.unwrap_or_else(|_| {
            let unseen = format!("the last confirmation ({lsn}) was not seen to arrive");
            Err(SourceError::Lost(unseen))
        })
    }
}
