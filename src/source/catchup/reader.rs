//! Reads a backlog in batches by SQL, on a connection of its own, ahead of who takes it.
//!
//! A stream costs the server a system call or more for each message; the same bytes by COPY
//! come several times faster. They are read from a temporary copy of the slot, which moves as
//! it is read and goes with its session; the slot itself stays where it is confirmed.
//!
//! What has to be known (PostgreSQL's manual, "Replication Management Functions", and
//! measured on 14 to 18): the bytes are those of the stream, in the same order; a Relation
//! comes again in each batch. A batch ends at a commit, once it has as many rows as asked for
//! or has come to the position that it was to read up to. Nothing is sent before all of it is
//! decoded, and what does not fit `work_mem` the server puts into a temporary file. After a
//! batch the copy stands where all that committed before was handed out.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, StreamExt as _};
use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;

use super::backend_liveness::Backend;
use super::copy::{CopyRows, Packing, Rows};
use super::policy::WalPosition;
use crate::lsn::Lsn;
use crate::source::config::SourceConfig;
use crate::source::error::SourceError;

/// Bytes of rows that may wait here: the server decodes the next batch meanwhile.
const ROOM: u32 = 32 << 20;

/// Bytes of rows that are handed on together at most, and one row.
const TOGETHER: usize = 48 << 10;

/// How large a batch is to be, in bytes of rows: for each the server reads the log again from
/// the last point that decoding can begin at, so that many small ones cost more than a file of
/// the server's for what a large one has beyond its memory (measured: 500,000 rows in batches of
/// 16 MiB at 1.4 to 1.75 times `pg_recvlogical`, of 64 MiB at 2.3 to 3.0 times).
const BATCH_BYTES: u64 = 64 << 20;

/// Messages of the first batch, and of any.
const FIRST: u64 = 50_000;
const MOST: u64 = 1_000_000;
const LEAST: u64 = 100;

/// What a batch may take of the server's memory before it becomes a temporary file; and the
/// server sees within this time that nobody waits for a batch any more.
const SETTINGS: &str = "SET work_mem = '32MB'; SET client_connection_check_interval = '2s'";

/// Longer than this a batch should not take to be decoded.
const LONG: Duration = Duration::from_secs(1);

/// Bytes of log a second below which a stream is faster, after so many batches that took long:
/// where an old transaction is open, the server reads from its beginning for each of them.
const SLOW: f64 = 16e6;
const SLOW_BATCHES: u32 = 3;

/// One that took so long is enough.
const VERY_LONG: Duration = Duration::from_secs(60);

/// What was read.
pub(crate) enum Part {
    /// Messages of the plugin.
    Rows(Rows),
    /// A batch has ended.
    ReadUpTo(WalPosition),
    /// What is left is little; more comes only after [`BatchReader::read_to`].
    NearEnd,
}

/// Why there are no more parts.
pub(crate) enum Stopped {
    /// The server will not do it this way; its words.
    Refused(String),
    /// It passes with time.
    Failed(SourceError),
}

/// Batches, read until it is dropped or what is left is little.
pub(crate) struct BatchReader {
    parts: UnboundedReceiver<Result<Part, Stopped>>,
    room: Arc<Semaphore>,
    /// Up to where is read in any case, if that is known.
    target: watch::Sender<Option<Lsn>>,
    task: JoinHandle<()>,
}

impl Drop for BatchReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl BatchReader {
    /// Begins where the slot stands, and pauses once no more than `little` bytes of log are left.
    /// It is expected to stand at `from`.
    pub(crate) fn start(peer: Backend, config: &SourceConfig, from: Lsn, little: u64) -> Self {
        let (tell, parts) = unbounded_channel();
        let room = Arc::new(Semaphore::new(ROOM as usize));
        let (target, targets) = watch::channel(None);
        let reader = Reader {
            peer,
            slot: config.slot.clone(),
            publication: config.publication.clone(),
            messages: config.messages,
            from,
            tell,
            room: Arc::clone(&room),
            target: targets,
            limit: FIRST,
            slow: 0,
        };
        let task = tokio::spawn(async move {
            let tell = reader.tell.clone();
            if let Err(stopped) = reader.read(little).await {
                let _ = tell.send(Err(stopped));
            }
        });
        Self { parts, room, target, task }
    }

    /// Reads on until all that committed before `lsn` was handed out, and ends then.
    pub(crate) fn read_to(&self, lsn: Lsn) {
        self.target.send_replace(Some(lsn));
    }

    /// The next part; `None` after the last. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Part, Stopped>> {
        let part = self.parts.recv().await;
        self.taken(part.as_ref());
        part
    }

    /// A part that waits.
    pub(crate) fn try_next(&mut self) -> Option<Result<Part, Stopped>> {
        let part = self.parts.try_recv().ok();
        self.taken(part.as_ref());
        part
    }

    fn taken(&self, part: Option<&Result<Part, Stopped>>) {
        if let Some(Ok(Part::Rows(rows))) = part {
            self.room.add_permits(permits(rows) as usize);
        }
    }
}

/// The room that rows take: one that is larger than all of it has to pass too.
fn permits(rows: &Rows) -> u32 {
    u32::try_from(rows.size()).unwrap_or(ROOM).min(ROOM)
}

struct Reader {
    peer: Backend,
    slot: String,
    publication: String,
    messages: bool,
    from: Lsn,
    tell: UnboundedSender<Result<Part, Stopped>>,
    room: Arc<Semaphore>,
    target: watch::Receiver<Option<Lsn>>,
    /// Messages of the next batch.
    limit: u64,
    /// Batches in a row that came too slowly.
    slow: u32,
}

impl Reader {
    async fn read(mut self, little: u64) -> Result<(), Stopped> {
        let set = self.peer.client.batch_execute(SETTINGS);
        self.answer("reading the backlog", set).await?;
        let copy = self.copy().await?;
        crate::crash_points::point!("copied");
        let mut stand = self.stand(&copy).await?;
        if stand.begins_beyond(self.from) {
            let moved = SourceError::slot_advanced(&self.slot, self.from, stand.read);
            return Err(Stopped::Failed(moved));
        }
        loop {
            let decoding = self.batch(&copy, stand.upto()).await?;
            let before = std::mem::replace(&mut stand, self.stand(&copy).await?).read;
            self.judge(decoding, before, stand.read)?;
            if self.tell.send(Ok(Part::ReadUpTo(stand))).is_err() {
                return Ok(());
            }
            if self.is_read(&mut stand, &copy, little).await? {
                return Ok(());
            }
        }
    }

    /// Whether nothing more is to be read: where little is left, waits until somebody wants that
    /// too.
    async fn is_read(
        &mut self,
        stand: &mut WalPosition,
        copy: &str,
        little: u64,
    ) -> Result<bool, Stopped> {
        let target = *self.target.borrow_and_update();
        if let Some(target) = target {
            return Ok(stand.read >= target);
        }
        if !stand.is_near_the_end(little) {
            return Ok(false);
        }
        if self.tell.send(Ok(Part::NearEnd)).is_err() || self.target.changed().await.is_err() {
            return Ok(true);
        }
        *stand = self.stand(copy).await?;
        let target = *self.target.borrow_and_update();
        Ok(target.is_some_and(|target| stand.read >= target))
    }

    /// Copies the slot for as long as this session lasts; the copy's name.
    async fn copy(&self) -> Result<String, Stopped> {
        let failed = |error: tokio_postgres::Error| stopped("copying the slot", &error);
        let query = "SELECT slot_name::pg_catalog.text FROM pg_catalog.pg_copy_logical_replication_slot(\
                     $1, ('walpost_batches_' || pg_catalog.pg_backend_pid()::pg_catalog.text)::pg_catalog.name, \
                     true)";
        let parameters: [&(dyn ToSql + Sync); 1] = [&self.slot];
        let row = self.peer.client.query_one(query, &parameters);
        let row = self.answer("copying the slot", row).await?;
        row.try_get(0).map_err(failed)
    }

    async fn stand(&self, copy: &str) -> Result<WalPosition, Stopped> {
        let failed =
            |error: tokio_postgres::Error| stopped("asking how far the backlog is read", &error);
        let query = "SELECT pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text, \
                     confirmed_flush_lsn::pg_catalog.text FROM pg_catalog.pg_replication_slots \
                     WHERE slot_name::pg_catalog.text = $1";
        let parameters: [&(dyn ToSql + Sync); 1] = [&copy];
        let row = self.peer.client.query_one(query, &parameters);
        let row = self.answer("asking how far the backlog is read", row).await?;
        let lsn = |column: usize| -> Result<Lsn, Stopped> {
            let text: String = row.try_get(column).map_err(failed)?;
            text.parse().map_err(|_| Stopped::Failed(SourceError::Lost(format!("no LSN: {text}"))))
        };
        Ok(WalPosition { flushed: lsn(0)?, read: lsn(1)? })
    }

    /// Whether it is worth while, after a batch that brought the log from here to there.
    fn judge(&mut self, decoding: Duration, from: Lsn, to: Lsn) -> Result<(), Stopped> {
        if decoding < LONG {
            self.slow = 0;
            return Ok(());
        }
        #[allow(clippy::cast_precision_loss, reason = "a batch is no exabyte")]
        let bytes = to.as_u64().saturating_sub(from.as_u64()) as f64;
        self.slow = if bytes / decoding.as_secs_f64() < SLOW { self.slow + 1 } else { 0 };
        if self.slow < SLOW_BATCHES && (self.slow == 0 || decoding < VERY_LONG) {
            return Ok(());
        }
        let reason = "each batch takes long: the server reads the log again from the beginning of \
                      the oldest transaction that is open (pg_stat_activity.xact_start)";
        Err(Stopped::Refused(reason.to_owned()))
    }

    /// Reads one batch; how long the server took to decode it.
    async fn batch(&mut self, copy: &str, upto: Lsn) -> Result<Duration, Stopped> {
        let began = Instant::now();
        let mut decoding = None;
        let failed =
            |error: tokio_postgres::Error| stopped("reading a batch of the backlog", &error);
        let query = format!(
            "COPY (SELECT data FROM pg_catalog.pg_logical_slot_get_binary_changes({}, '{upto}', {}, \
             'proto_version', '1', 'publication_names', {}, 'messages', '{}')) \
             TO STDOUT (FORMAT binary)",
            escape_literal(copy),
            self.limit,
            escape_literal(&escape_identifier(&self.publication)),
            self.messages,
        );
        let _large = self.peer.client.large_rows();
        // It is asked again after its end where that came together with its last rows.
        let stream = self.peer.client.copy_out(query.as_str());
        let mut stream = pin!(self.answer("reading a batch of the backlog", stream).await?.fuse());
        let (mut copied, mut rows) = (CopyRows::default(), Packing::default());
        let (mut bytes, mut messages) = (0, 0);
        while let Some(piece) = self.peer.awaited(stream.next()).await.map_err(Stopped::Failed)? {
            decoding.get_or_insert_with(|| began.elapsed());
            let mut next = Some(piece);
            // What has come already goes on together.
            while let Some(piece) = next {
                let piece = piece.map_err(failed)?;
                copied.take(piece, &mut rows).map_err(|error| {
                    Stopped::Failed(SourceError::Undecodable(error.to_string()))
                })?;
                let more = rows.size() < TOGETHER;
                next = if more { stream.next().now_or_never().flatten() } else { None };
            }
            (bytes, messages) = (bytes + rows.size() as u64, messages + rows.rows());
            self.hand_on(rows.take()).await?;
        }
        if !copied.is_ended() {
            let short = "a batch of the backlog ended before its end".to_owned();
            return Err(Stopped::Failed(SourceError::Lost(short)));
        }
        if messages > 0 {
            self.limit = (BATCH_BYTES * messages / bytes.max(1)).clamp(LEAST, MOST);
        }
        Ok(decoding.unwrap_or_else(|| began.elapsed()))
    }

    async fn answer<T>(
        &self,
        doing: &str,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Stopped> {
        let answer = self.peer.awaited(answer).await.map_err(Stopped::Failed)?;
        answer.map_err(|error| stopped(doing, &error))
    }

    /// Waits for room.
    async fn hand_on(&self, rows: Rows) -> Result<(), Stopped> {
        if rows.is_empty() {
            return Ok(());
        }
        let gone = || Stopped::Failed(SourceError::Lost("nobody reads any more".to_owned()));
        self.room.acquire_many(permits(&rows)).await.map_err(|_| gone())?.forget();
        self.tell.send(Ok(Part::Rows(rows))).map_err(|_| gone())
    }
}

/// What an error means: the server's own word is that it will not, also the next time.
fn stopped(doing: &str, error: &tokio_postgres::Error) -> Stopped {
    let ends_the_session = |code: &str| code.starts_with("57P0") || code.starts_with("08");
    let lost = SourceError::query(doing, error);
    let passes = match error.as_db_error() {
        Some(refusal) => ends_the_session(refusal.code().code()),
        None => error.is_closed(),
    };
    if passes { Stopped::Failed(lost) } else { Stopped::Refused(lost.to_string()) }
}
