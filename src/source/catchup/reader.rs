//! Reads a backlog in batches by SQL, ahead of the relay, on a connection of its own.
//!
//! A stream costs the server at least one system call per message; COPY sends the same bytes several
//! times faster. The batches come from a temporary copy of the slot. The copy advances as it is read,
//! and PostgreSQL drops it at the end of the session. The slot itself stays at the confirmed
//! position.
//!
//! Facts (PostgreSQL's manual, "Replication Management Functions", and measured on 14 to 18): the
//! bytes are those of the stream, in the same order; Relation messages repeat in each batch. A batch
//! ends at a commit, once it has the requested number of rows or reached the requested position. The
//! server sends nothing before it has decoded the whole batch; what exceeds `work_mem` goes to a
//! temporary file. After a batch, everything that committed before the copy's position was sent.

use std::pin::pin;
use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _};
use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::backend_liveness::Backend;
use super::copy::{CopyRows, RowBuffer, Rows};
use super::cost::{Backlog, BatchEnd, Traffic};
use super::policy::WalPosition;
use crate::lsn::Lsn;
use crate::source::config::{CatchUp, SourceConfig};
use crate::source::error::SourceError;

/// Maximum bytes of rows to buffer while the server decodes the next batch.
const BUFFER_BYTES: u32 = 32 << 20;

/// Maximum bytes of rows to pass on together, unless one row is larger.
const CHUNK_BYTES: usize = 48 << 10;

/// The server's memory for a batch, before it writes a temporary file, and how soon the server
/// detects that the client is gone.
const SETTINGS: &str = "SET work_mem = '32MB'; SET client_connection_check_interval = '2s'";

/// The size of the tables of a publication, with their partitions and indexes. It waits for
/// the locks of other sessions on them.
const TABLE_BYTES: &str = "
    SELECT coalesce(pg_catalog.sum(coalesce(parts.bytes, pg_catalog.pg_total_relation_size(c.oid))), 0)::pg_catalog.int8
      FROM pg_catalog.pg_publication_tables t
      JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
      CROSS JOIN LATERAL (SELECT pg_catalog.sum(pg_catalog.pg_total_relation_size(p.relid)) AS bytes
                            FROM pg_catalog.pg_partition_tree(c.oid) p) parts
     WHERE t.pubname::pg_catalog.text = $1";

/// What was read.
pub(crate) enum Part {
    /// Messages of the output plugin.
    Rows(Rows),
    /// The end of a batch.
    ReadUpTo(WalPosition),
    /// The backlog is nearly read; more follows only after [`BatchReader::read_to`].
    NearEnd,
    /// A stream reads the rest at a lower cost; more follows only after [`BatchReader::read_to`].
    StreamCostsLess(Backlog),
}

/// Why there are no more parts.
pub(crate) enum Stopped {
    /// The server rejected the query, with this message.
    Refused(String),
    /// The session failed: reconnect.
    Failed(SourceError),
}

/// Reads batches until it is dropped or the backlog is nearly read.
pub(crate) struct BatchReader {
    parts: UnboundedReceiver<Result<Part, Stopped>>,
    /// The free bytes of the buffer.
    room: Arc<Semaphore>,
    /// The position to read up to, once [`BatchReader::read_to`] has set it.
    target: watch::Sender<Option<Lsn>>,
    task: JoinHandle<()>,
}

impl Drop for BatchReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl BatchReader {
    /// Reads from the slot's position, which must be `from` or earlier, until only the WAL that the
    /// stream reads is left.
    pub(crate) fn start(peer: Backend, config: &SourceConfig, from: Lsn) -> Self {
        let (sender, parts) = unbounded_channel();
        let room = Arc::new(Semaphore::new(BUFFER_BYTES as usize));
        let (target, targets) = watch::channel(None);
        let reader = Reader {
            peer,
            slot: config.slot.clone(),
            publication: config.publication.clone(),
            messages: config.messages,
            catch_up: config.catch_up.clone(),
            from,
            sender,
            room: Arc::clone(&room),
            target: targets,
        };
        let task = tokio::spawn(async move {
            let sender = reader.sender.clone();
            if let Err(stopped) = reader.read().await {
                let _ = sender.send(Err(stopped));
            }
        });
        Self { parts, room, target, task }
    }

    /// Continues until everything that committed before `lsn` is read, and ends then.
    pub(crate) fn read_to(&self, lsn: Lsn) {
        self.target.send_replace(Some(lsn));
    }

    /// The next part; `None` after the last. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Part, Stopped>> {
        let part = self.parts.recv().await;
        self.taken(part.as_ref());
        part
    }

    /// The next part, if it is buffered.
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

/// The permits that rows need: rows larger than the buffer need all.
fn permits(rows: &Rows) -> u32 {
    u32::try_from(rows.size()).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES)
}

struct Reader {
    peer: Backend,
    slot: String,
    publication: String,
    messages: bool,
    catch_up: CatchUp,
    from: Lsn,
    sender: UnboundedSender<Result<Part, Stopped>>,
    room: Arc<Semaphore>,
    target: watch::Receiver<Option<Lsn>>,
}

impl Reader {
    async fn read(mut self) -> Result<(), Stopped> {
        let set = self.peer.client.batch_execute(SETTINGS);
        self.answer("reading the backlog", set).await?;
        let copy = self.copy().await?;
        crate::crash_points::point!("copied");
        let mut position = self.position(&copy).await?;
        if position.starts_after(self.from) {
            let advanced = SourceError::slot_advanced(&self.slot, self.from, position.read);
            return Err(Stopped::Failed(advanced));
        }
        let mut end = self.first_batch(position).await?;
        loop {
            let batch = self.batch(&copy, end).await?;
            let before = std::mem::replace(&mut position, self.position(&copy).await?).read;
            self.catch_up
                .record_traffic(Traffic { wal: position.read.bytes_since(before), ..batch });
            if self.sender.send(Ok(Part::ReadUpTo(position))).is_err() {
                return Ok(());
            }
            if self.is_finished(&mut position, &copy).await? {
                return Ok(());
            }
            end = position.backlog().next_batch(position.read, self.catch_up.traffic());
        }
    }

    /// Whether to read no more batches. If a stream should read the rest, waits until it is dropped
    /// or a target is set.
    async fn is_finished(
        &mut self,
        position: &mut WalPosition,
        copy: &str,
    ) -> Result<bool, Stopped> {
        let target = *self.target.borrow_and_update();
        if let Some(target) = target {
            return Ok(position.read >= target);
        }
        let backlog = position.backlog();
        let last = if position.is_near_end(self.catch_up.stream_tail_bytes()) {
            Part::NearEnd
        } else if backlog.costs_less_as_stream(self.catch_up.traffic()) {
            Part::StreamCostsLess(backlog)
        } else {
            return Ok(false);
        };
        if self.sender.send(Ok(last)).is_err() || self.target.changed().await.is_err() {
            return Ok(true);
        }
        *position = self.position(copy).await?;
        let target = *self.target.borrow_and_update();
        Ok(target.is_some_and(|target| position.read >= target))
    }

    /// The end of the first batch.
    async fn first_batch(&self, position: WalPosition) -> Result<BatchEnd, Stopped> {
        let (backlog, traffic) = (position.backlog(), self.catch_up.traffic());
        if traffic.is_some() || self.messages {
            return Ok(backlog.next_batch(position.read, traffic));
        }
        let bytes = self.table_bytes().await?;
        Ok(backlog.first_batch(position.read, u64::try_from(bytes).unwrap_or_default()))
    }

    /// The size of the published tables; 0 if one of them is locked.
    async fn table_bytes(&self) -> Result<i64, Stopped> {
        let doing = "querying the size of the outbox";
        let client = &self.peer.client;
        self.answer(doing, client.batch_execute("SET lock_timeout = '1s'")).await?;
        let parameters: [&(dyn ToSql + Sync); 1] = [&self.publication];
        let row = self.peer.awaited(client.query_one(TABLE_BYTES, &parameters)).await;
        let bytes = match row.map_err(Stopped::Failed)? {
            Ok(row) => row.try_get(0).map_err(|error| stopped(doing, &error))?,
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                tracing::debug!(%error, "a published table is locked: its size is not known");
                0
            }
            Err(error) => return Err(stopped(doing, &error)),
        };
        self.answer(doing, client.batch_execute("RESET lock_timeout")).await?;
        Ok(bytes)
    }

    /// Copies the slot for the duration of this session; returns the copy's name.
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

    async fn position(&self, copy: &str) -> Result<WalPosition, Stopped> {
        let failed = |error: tokio_postgres::Error| stopped("querying the copy's position", &error);
        let query = "SELECT pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text, \
                     confirmed_flush_lsn::pg_catalog.text, restart_lsn::pg_catalog.text, \
                     coalesce(pg_catalog.age(pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.xid) \
                     >= pg_catalog.age(catalog_xmin), false) \
                     FROM pg_catalog.pg_replication_slots WHERE slot_name::pg_catalog.text = $1";
        let parameters: [&(dyn ToSql + Sync); 1] = [&copy];
        let row = self.peer.client.query_one(query, &parameters);
        let row = self.answer("querying the copy's position", row).await?;
        let lsn = |column: usize| -> Result<Lsn, Stopped> {
            let text: String = row.try_get(column).map_err(failed)?;
            text.parse()
                .map_err(|_| Stopped::Failed(SourceError::Lost(format!("not an LSN: {text}"))))
        };
        let is_held = row.try_get(3).map_err(failed)?;
        Ok(WalPosition { flushed: lsn(0)?, read: lsn(1)?, restart: lsn(2)?, is_held })
    }

    /// Reads one batch; returns its traffic.
    async fn batch(&self, copy: &str, end: BatchEnd) -> Result<Traffic, Stopped> {
        let failed =
            |error: tokio_postgres::Error| stopped("reading a batch of the backlog", &error);
        let query = format!(
            "COPY (SELECT data FROM pg_catalog.pg_logical_slot_get_binary_changes({}, '{}', {}, \
             'proto_version', '1', 'publication_names', {}, 'messages', '{}')) \
             TO STDOUT (FORMAT binary)",
            escape_literal(copy),
            end.upto,
            end.messages,
            escape_literal(&escape_identifier(&self.publication)),
            self.messages,
        );
        let _large = self.peer.client.large_rows();
        // Fused: it is polled again if its end was received together with the last rows.
        let stream = self.peer.client.copy_out(query.as_str());
        let mut stream = pin!(self.answer("reading a batch of the backlog", stream).await?.fuse());
        let (mut copied, mut rows) = (CopyRows::default(), RowBuffer::default());
        let mut batch = Traffic::default();
        while let Some(piece) = self.peer.awaited(stream.next()).await.map_err(Stopped::Failed)? {
            let mut next = Some(piece);
            // Rows that were received already are passed on together.
            while let Some(piece) = next {
                let piece = piece.map_err(failed)?;
                copied.take(piece, &mut rows).map_err(|error| {
                    Stopped::Failed(SourceError::Undecodable(error.to_string()))
                })?;
                let more = rows.size() < CHUNK_BYTES;
                next = if more { stream.next().now_or_never().flatten() } else { None };
            }
            batch.bytes += rows.size() as u64;
            batch.messages += rows.rows();
            self.send_rows(rows.take()).await?;
        }
        if !copied.is_ended() {
            let incomplete = "a batch of the backlog is incomplete".to_owned();
            return Err(Stopped::Failed(SourceError::Lost(incomplete)));
        }
        Ok(batch)
    }

    async fn answer<T>(
        &self,
        doing: &str,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Stopped> {
        let answer = self.peer.awaited(answer).await.map_err(Stopped::Failed)?;
        answer.map_err(|error| stopped(doing, &error))
    }

    /// Sends rows to the feed, once the buffer has room.
    async fn send_rows(&self, rows: Rows) -> Result<(), Stopped> {
        if rows.is_empty() {
            return Ok(());
        }
        let gone = || Stopped::Failed(SourceError::Lost("the feed was closed".to_owned()));
        self.room.acquire_many(permits(&rows)).await.map_err(|_| gone())?.forget();
        self.sender.send(Ok(Part::Rows(rows))).map_err(|_| gone())
    }
}

/// Classifies an error: an error that the server reports recurs, unless it ends the session.
fn stopped(doing: &str, error: &tokio_postgres::Error) -> Stopped {
    let ends_the_session = |code: &str| code.starts_with("57P0") || code.starts_with("08");
    let failed = SourceError::query(doing, error);
    let is_temporary = match error.as_db_error() {
        Some(reported) => ends_the_session(reported.code().code()),
        None => error.is_closed(),
    };
    if is_temporary { Stopped::Failed(failed) } else { Stopped::Refused(failed.to_string()) }
}
