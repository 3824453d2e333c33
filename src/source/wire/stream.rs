//! A replication stream: its own task owns the socket, parses messages and sends status updates.
//!
//! The task never waits for the caller to take events. Received events that are not yet taken are
//! bounded by their bytes. Above the bound the task stops reading, so TCP slows the server down,
//! and continues to send status updates. It reads and writes concurrently, in whatever chunks the
//! socket takes, so no message delays a status update.
//!
//! <https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-START-REPLICATION>

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, Sleep, sleep_until};

use super::error::{ServerError, WireError};
use super::framing::{Frame, Frames};
use super::line::Line;
use crate::lsn::Lsn;
use crate::pgoutput::PgTimestamp;

/// Minimum interval between status updates that the server did not request.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

/// Fraction of `wal_sender_timeout` within which a status update is always sent, and after which a
/// silent server is asked for a reply. It is below a third, so that two may be lost.
const GAP: f64 = 0.3;

/// Upper bound of that interval: the server's `wal_sender_timeout` may be lowered meanwhile.
const GAP_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that may be queued, in addition to one message and one read, before reading stops.
const QUEUED: usize = 256 << 10;

/// Memory of an event in addition to its data, in bytes.
const EVENT: usize = size_of::<Event>();

/// A batch of more events than this means that they arrive faster than they are taken.
const BURST: usize = 8;

/// How long to wait for the server's final messages after a write fails.
const FINAL_MESSAGE_WAIT: Duration = Duration::from_secs(1);

/// An event from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message of the output plugin.
    Data(Bytes),
    /// `wal_end` of a keepalive: the server has sent everything before it.
    Keepalive(Lsn),
}

/// Events that were received with one read.
#[derive(Debug)]
pub(super) struct ReceivedEvents {
    pub(super) events: Vec<Event>,
    /// The size of the events in [`Shared::queued`].
    pub(super) bytes: usize,
}

/// The session's timeouts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// The session's value.
    pub(super) wal_sender_timeout: Duration,
    /// How long the server may send nothing.
    pub(super) silence_limit: Duration,
}

/// State shared by the task and the client.
#[derive(Debug)]
pub(super) struct Shared {
    /// The LSN that may be confirmed.
    confirmable: AtomicU64,
    /// Bytes received but not yet taken.
    queued: AtomicUsize,
    /// How often events arrived faster than they were taken.
    bursts: AtomicU64,
    /// Whether the next status update requests a reply.
    asked: AtomicBool,
    /// Whether to end the stream in an orderly way.
    ending: AtomicBool,
    /// Notified when one of these changes.
    changed: Notify,
}

impl Shared {
    pub(super) fn new(confirmable: Lsn) -> Self {
        Self {
            confirmable: AtomicU64::new(confirmable.as_u64()),
            queued: AtomicUsize::new(0),
            bursts: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// Raises the LSN that may be confirmed; it never decreases.
    pub(super) fn raise(&self, confirmable: Lsn) {
        if self.confirmable.fetch_max(confirmable.as_u64(), Ordering::Relaxed)
            < confirmable.as_u64()
        {
            self.changed.notify_one();
        }
    }

    /// Records that these bytes were taken.
    pub(super) fn taken(&self, bytes: usize) {
        let before = self.queued.fetch_sub(bytes, Ordering::Relaxed);
        if before >= QUEUED && before - bytes < QUEUED {
            self.changed.notify_one();
        }
    }

    pub(super) fn bursts(&self) -> u64 {
        self.bursts.load(Ordering::Relaxed)
    }

    /// Requests a reply from the server.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Requests an orderly end of the stream.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// The stream's task.
pub(super) struct Pump<S> {
    line: Line<S>,
    frames: Frames,
    shared: Arc<Shared>,
    batches: UnboundedSender<ReceivedEvents>,
    timing: Timing,
    /// Bytes not yet written to the socket.
    out: BytesMut,
    is_flushed: bool,
    /// What the last status update confirmed, and when it was created; `None` before the first.
    sent: Option<(Lsn, Instant)>,
    /// When data was last received, or when the task last paused reading.
    last_received: Instant,
    asked: Instant,
    /// Whether the server requested an immediate status update.
    is_reply_requested: bool,
    /// Why writing failed, and when.
    broken: Option<(WireError, Instant)>,
}

/// Why the task woke up.
enum Step {
    Read(io::Result<usize>),
    Written(io::Result<()>),
    Woken,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pump<S> {
    pub(super) fn new(
        line: Line<S>,
        frames: Frames,
        shared: Arc<Shared>,
        batches: UnboundedSender<ReceivedEvents>,
        timing: Timing,
    ) -> Self {
        let now = Instant::now();
        Self {
            line,
            frames,
            shared,
            batches,
            timing,
            out: BytesMut::new(),
            is_flushed: true,
            sent: None,
            last_received: now,
            asked: now,
            is_reply_requested: false,
            broken: None,
        }
    }

    /// Runs until the stream ends; `Ok` is an orderly end, by either side.
    pub(super) async fn run(mut self) -> Result<(), WireError> {
        let shared = Arc::clone(&self.shared);
        let mut timer = pin!(sleep_until(Instant::now()));
        // Data received together with `CopyBothResponse`.
        if self.take()? {
            return Ok(());
        }
        loop {
            if shared.ending.load(Ordering::Relaxed) {
                return self.end().await;
            }
            let now = Instant::now();
            let is_reading = shared.queued.load(Ordering::Relaxed) < QUEUED;
            if !is_reading {
                self.last_received = now;
            }
            self.write_status(now, is_reading);
            let mut due = pin!(shared.changed.notified());
            set(timer.as_mut(), self.wake_at(is_reading));
            let step = self.step(is_reading, due.as_mut(), timer.as_mut()).await;
            match step {
                Step::Read(Ok(0)) => return Err(self.ended()),
                Step::Read(Ok(_)) => {
                    self.last_received = Instant::now();
                    if self.take()? {
                        return Ok(());
                    }
                }
                Step::Read(Err(error)) => return Err(self.lost(error)),
                Step::Written(Ok(())) => {}
                Step::Written(Err(error)) => {
                    // The server may have sent the reason before.
                    self.out.clear();
                    self.is_flushed = true;
                    let error = self.lost(error);
                    self.broken = Some((error, Instant::now()));
                }
                Step::Woken => self.judge(Instant::now(), is_reading)?,
            }
        }
    }

    /// Waits for the first of these. Cancel-safe.
    async fn step(
        &mut self,
        is_reading: bool,
        mut changed: Pin<&mut impl Future<Output = ()>>,
        mut timer: Pin<&mut Sleep>,
    ) -> Step {
        poll_fn(|context| {
            if !self.is_flushed
                && let Poll::Ready(written) = self.poll_write(context)
            {
                return Poll::Ready(Step::Written(written));
            }
            if is_reading
                && let Poll::Ready(read) = pin!(self.frames.read(&mut self.line)).poll(context)
            {
                return Poll::Ready(Step::Read(read));
            }
            if changed.as_mut().poll(context).is_ready() || timer.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Step::Woken);
            }
            Poll::Pending
        })
        .await
    }

    fn poll_write(&mut self, context: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let written = Pin::new(&mut self.line).poll_write(context, &self.out);
            match std::task::ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.out.advance(count),
            }
        }
        std::task::ready!(Pin::new(&mut self.line).poll_flush(context))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    /// Writes a status update if one is due.
    fn write_status(&mut self, now: Instant, is_reading: bool) {
        // One at a time: the next one includes what this one would confirm.
        if !self.is_flushed || self.broken.is_some() {
            return;
        }
        let confirmable = Lsn::new(self.shared.confirmable.load(Ordering::Relaxed));
        let is_due = self.sent.is_none_or(|(sent, at)| {
            now >= at + self.gap() || confirmable > sent && now >= at + STATUS_INTERVAL
        });
        let asks =
            is_reading && now >= self.ask_at() || self.shared.asked.swap(false, Ordering::Relaxed);
        if is_due || asks || self.is_reply_requested {
            put_status(&mut self.out, confirmable, asks);
            self.is_flushed = false;
            self.is_reply_requested = false;
            self.sent = Some((confirmable, now));
            if asks {
                self.asked = now;
            }
        }
    }

    /// The maximum interval between status updates.
    fn gap(&self) -> Duration {
        self.timing.wal_sender_timeout.mul_f64(GAP).min(GAP_LIMIT)
    }

    /// When to request a reply from the server: an idle one may send nothing unasked.
    fn ask_at(&self) -> Instant {
        self.last_received.max(self.asked) + self.gap()
    }

    /// The next time to check, if nothing happens.
    fn wake_at(&self, is_reading: bool) -> Instant {
        let silent = is_reading.then(|| self.last_received + self.timing.silence_limit);
        let unwritable = self.broken.as_ref().map(|(_, since)| *since + FINAL_MESSAGE_WAIT);
        let status = self.sent.filter(|_| self.is_flushed && self.broken.is_none()).map(|sent| {
            let (sent, at) = sent;
            let confirmable = self.shared.confirmable.load(Ordering::Relaxed);
            let after = if confirmable > sent.as_u64() { STATUS_INTERVAL } else { self.gap() };
            let ask = is_reading.then(|| self.ask_at());
            (at + after).min(ask.unwrap_or(at + after))
        });
        let far = Instant::now() + self.timing.wal_sender_timeout;
        [silent, unwritable, status].into_iter().flatten().min().unwrap_or(far)
    }

    /// Fails if a timeout has expired.
    fn judge(&mut self, now: Instant, is_reading: bool) -> Result<(), WireError> {
        if let Some((_, since)) = &self.broken
            && now >= *since + FINAL_MESSAGE_WAIT
            && let Some((error, _)) = self.broken.take()
        {
            return Err(error);
        }
        let limit = self.timing.silence_limit;
        if is_reading && now >= self.last_received + limit {
            return Err(WireError::Silent(limit));
        }
        Ok(())
    }

    /// Passes complete messages on; returns true if the server has ended the stream.
    fn take(&mut self) -> Result<bool, WireError> {
        let mut batch = ReceivedEvents { events: Vec::new(), bytes: 0 };
        let ended = loop {
            match self.frames.take() {
                Ok(Some(frame)) => match self.message(frame, &mut batch) {
                    Ok(false) => {}
                    end => break end,
                },
                Ok(None) => break Ok(false),
                Err(error) => break Err(error.into()),
            }
        };
        let count = batch.events.len();
        if count > 0 {
            let queued = self.shared.queued.fetch_add(batch.bytes, Ordering::Relaxed);
            if count > BURST || queued + batch.bytes >= QUEUED {
                self.shared.bursts.fetch_add(1, Ordering::Relaxed);
            }
            // A closed channel is no error here: the client is about to abort this task.
            let _ = self.batches.send(batch);
        }
        ended
    }

    fn message(&mut self, frame: Frame, batch: &mut ReceivedEvents) -> Result<bool, WireError> {
        match frame.tag {
            b'd' => {
                let (event, wants_answer) = event(frame.body)?;
                self.is_reply_requested |= wants_answer;
                batch.bytes += EVENT + if let Event::Data(data) = &event { data.len() } else { 0 };
                batch.events.push(event);
                Ok(false)
            }
            b'E' => Err(WireError::Server(ServerError::read(&frame.body))),
            // CopyDone, CommandComplete: the server shuts down.
            b'c' | b'C' => Ok(true),
            // A notice, a parameter.
            b'N' | b'S' => Ok(false),
            _ => Err(WireError::unexpected(&frame, "replication")),
        }
    }

    /// Sends the final status update and waits until the server closes the connection.
    async fn end(mut self) -> Result<(), WireError> {
        let confirmable = Lsn::new(self.shared.confirmable.load(Ordering::Relaxed));
        put_status(&mut self.out, confirmable, false);
        frontend::copy_done(&mut self.out);
        frontend::terminate(&mut self.out);
        self.line.write_all(&self.out).await?;
        self.line.flush().await?;
        self.line.shutdown().await?;
        // Closing a socket with unread data resets the connection, which discards data already
        // sent.
        let mut rest = BytesMut::new();
        while self.line.read_buf(&mut rest).await? > 0 {
            rest.clear();
        }
        Ok(())
    }

    /// The error if the server closed the connection without a message.
    fn ended(&self) -> WireError {
        WireError::Ended { wal_sender_timeout: self.timing.wal_sender_timeout }
    }

    fn lost(&mut self, error: io::Error) -> WireError {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        if let Some((error, _)) = self.broken.take() {
            return error;
        }
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => self.ended(),
            _ => error.into(),
        }
    }
}

/// Moves a timer to an earlier time, or restarts an expired one.
fn set(timer: Pin<&mut Sleep>, at: Instant) {
    if timer.is_elapsed() || at < timer.deadline() {
        timer.reset(at);
    }
}

/// Writes a Standby Status Update: everything up to `confirmable` is written, flushed and applied.
fn put_status(out: &mut BytesMut, confirmable: Lsn, asks: bool) {
    out.put_u8(b'd');
    out.put_u32(4 + 1 + 4 * 8 + 1);
    out.put_u8(b'r');
    for _ in 0..3 {
        out.put_u64(confirmable.as_u64());
    }
    let since_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since_unix.as_micros()).unwrap_or(i64::MAX);
    out.put_i64(PgTimestamp::from_unix_micros(micros).micros());
    out.put_u8(u8::from(asks));
}

/// Parses a `CopyData` message of the stream; also returns whether the server requests a reply.
fn event(mut body: Bytes) -> Result<(Event, bool), WireError> {
    let broken = || WireError::Protocol("a message of the replication stream is broken".to_owned());
    let (kind, rest) = body.split_first().ok_or_else(broken)?;
    match (kind, rest) {
        // WAL start of the message, end of WAL, and the send time.
        (b'w', rest) if rest.len() >= 24 => {
            body.advance(25);
            Ok((Event::Data(body), false))
        }
        // End of WAL, the send time, and whether a reply is requested.
        (b'k', [rest @ .., wanted]) if rest.len() == 16 => {
            let wal_end = rest.first_chunk().copied().unwrap_or_default();
            Ok((Event::Keepalive(Lsn::new(u64::from_be_bytes(wal_end))), *wanted != 0))
        }
        _ => Err(broken()),
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
