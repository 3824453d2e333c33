//! A replication stream: a task of its own has the socket, takes messages apart and sends status
//! updates.
//!
//! The task never waits for whoever takes the messages. What has arrived and was not taken is
//! bounded by its bytes; beyond that the task stops reading, so that TCP holds the server back, and
//! status updates go on. It reads and writes at the same time, in whatever pieces the socket takes:
//! no message keeps a status update back.
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

/// Most often that a status update is sent of its own accord.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

/// Part of `wal_sender_timeout` within which a status update is sent in any case, and after which a
/// server that says nothing is asked for an answer: below a third, so that two may go missing.
const GAP: f64 = 0.3;

/// The same where `wal_sender_timeout` is long: the server may be given a shorter one meanwhile.
const GAP_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that may wait to be taken, beside one message and one read, before reading stops.
const QUEUED: usize = 256 << 10;

/// Memory that an event takes beside its data, in bytes.
const EVENT: usize = size_of::<Event>();

/// A batch of more events than this says that they come faster than they are taken.
const BURST: usize = 8;

/// How long the server's last words are waited for once nothing can be written any more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the server sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message of the plugin.
    Data(Bytes),
    /// The end of WAL that the server has sent everything up to.
    Keepalive(Lsn),
}

/// Events that came with one read.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) events: Vec<Event>,
    /// What they count in [`Shared::queued`].
    pub(super) bytes: usize,
}

/// How long what may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// As it holds for the session.
    pub(super) wal_sender_timeout: Duration,
    /// Silence that is the end.
    pub(super) silence_limit: Duration,
}

/// What the task and the client have in common.
#[derive(Debug)]
pub(super) struct Shared {
    /// What may be confirmed.
    confirmable: AtomicU64,
    /// Bytes that have arrived and were not taken.
    queued: AtomicUsize,
    /// How often events came faster than they are taken.
    bursts: AtomicU64,
    /// The next status update asks for an answer.
    asked: AtomicBool,
    /// The stream is to be ended in order.
    ending: AtomicBool,
    /// One of these has changed.
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

    /// Raises what may be confirmed; it never falls.
    pub(super) fn raise(&self, confirmable: Lsn) {
        if self.confirmable.fetch_max(confirmable.as_u64(), Ordering::Relaxed)
            < confirmable.as_u64()
        {
            self.changed.notify_one();
        }
    }

    /// These bytes were taken.
    pub(super) fn taken(&self, bytes: usize) {
        let before = self.queued.fetch_sub(bytes, Ordering::Relaxed);
        if before >= QUEUED && before - bytes < QUEUED {
            self.changed.notify_one();
        }
    }

    pub(super) fn bursts(&self) -> u64 {
        self.bursts.load(Ordering::Relaxed)
    }

    /// Asks the server for an answer.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Ends the stream in order.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// The task.
pub(super) struct Pump<S> {
    line: Line<S>,
    frames: Frames,
    shared: Arc<Shared>,
    batches: UnboundedSender<Batch>,
    timing: Timing,
    /// Written and not taken by the socket.
    out: BytesMut,
    is_flushed: bool,
    /// What the last status update confirmed, and when it was made; none before the first.
    sent: Option<(Lsn, Instant)>,
    /// When something of the server was last read, or when walpost last did not read.
    last_received: Instant,
    asked: Instant,
    /// The server wants a status update at once.
    is_wanted: bool,
    /// Why nothing can be written any more, and since when.
    broken: Option<(WireError, Instant)>,
}

/// What the task was woken for.
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
        batches: UnboundedSender<Batch>,
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
            is_wanted: false,
            broken: None,
        }
    }

    /// Runs until the stream ends; `Ok` is an end in order, by either side.
    pub(super) async fn run(mut self) -> Result<(), WireError> {
        let shared = Arc::clone(&self.shared);
        let mut timer = pin!(sleep_until(Instant::now()));
        // What came together with the server's consent.
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
                    // The server may have said why before.
                    self.out.clear();
                    self.is_flushed = true;
                    let error = self.lost(error);
                    self.broken = Some((error, Instant::now()));
                }
                Step::Woken => self.judge(Instant::now(), is_reading)?,
            }
        }
    }

    /// Whichever comes first. Cancel-safe.
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

    /// Writes a status update where one is due.
    fn write_status(&mut self, now: Instant, is_reading: bool) {
        // One at a time: the next says what this one would.
        if !self.is_flushed || self.broken.is_some() {
            return;
        }
        let confirmable = Lsn::new(self.shared.confirmable.load(Ordering::Relaxed));
        let is_due = self.sent.is_none_or(|(sent, at)| {
            now >= at + self.gap() || confirmable > sent && now >= at + STATUS_INTERVAL
        });
        let asks =
            is_reading && now >= self.ask_at() || self.shared.asked.swap(false, Ordering::Relaxed);
        if is_due || asks || self.is_wanted {
            put_status(&mut self.out, confirmable, asks);
            self.is_flushed = false;
            self.is_wanted = false;
            self.sent = Some((confirmable, now));
            if asks {
                self.asked = now;
            }
        }
    }

    /// How long no status update may be sent.
    fn gap(&self) -> Duration {
        self.timing.wal_sender_timeout.mul_f64(GAP).min(GAP_LIMIT)
    }

    /// When the server is asked for an answer. An idle one would say nothing by itself.
    fn ask_at(&self) -> Instant {
        self.last_received.max(self.asked) + self.gap()
    }

    /// When to look again, if nothing happens.
    fn wake_at(&self, is_reading: bool) -> Instant {
        let silent = is_reading.then(|| self.last_received + self.timing.silence_limit);
        let unwritable = self.broken.as_ref().map(|(_, since)| *since + LAST_WORDS);
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

    /// Whether it is to end since nothing happens.
    fn judge(&mut self, now: Instant, is_reading: bool) -> Result<(), WireError> {
        if let Some((_, since)) = &self.broken
            && now >= *since + LAST_WORDS
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

    /// Hands over the messages that are whole; true where the server has ended the stream.
    fn take(&mut self) -> Result<bool, WireError> {
        let mut batch = Batch { events: Vec::new(), bytes: 0 };
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
            // Whoever took them is about to abort this task.
            let _ = self.batches.send(batch);
        }
        ended
    }

    fn message(&mut self, frame: Frame, batch: &mut Batch) -> Result<bool, WireError> {
        match frame.tag {
            b'd' => {
                let (event, wants_answer) = event(frame.body)?;
                self.is_wanted |= wants_answer;
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

    /// The last status update, and the end of the session, which is done when the server has
    /// closed the connection.
    async fn end(mut self) -> Result<(), WireError> {
        let confirmable = Lsn::new(self.shared.confirmable.load(Ordering::Relaxed));
        put_status(&mut self.out, confirmable, false);
        frontend::copy_done(&mut self.out);
        frontend::terminate(&mut self.out);
        self.line.write_all(&self.out).await?;
        self.line.flush().await?;
        self.line.shutdown().await?;
        // A socket that is closed with something unread takes back what it has sent.
        let mut rest = BytesMut::new();
        while self.line.read_buf(&mut rest).await? > 0 {
            rest.clear();
        }
        Ok(())
    }

    /// The server is gone without a word.
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

/// Sets a timer to an earlier time, or one that has run out to a new one.
fn set(timer: Pin<&mut Sleep>, at: Instant) {
    if timer.is_elapsed() || at < timer.deadline() {
        timer.reset(at);
    }
}

/// A Standby Status Update: all up to `applied` has been written, flushed and confirmable.
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

/// What a `CopyData` message of the stream holds, and whether the server wants a status update.
fn event(mut body: Bytes) -> Result<(Event, bool), WireError> {
    let broken = || WireError::Protocol("a message of the replication stream is broken".to_owned());
    let (kind, rest) = body.split_first().ok_or_else(broken)?;
    match (kind, rest) {
        // Where the WAL of the message begins, where WAL ends, and when it was sent.
        (b'w', rest) if rest.len() >= 24 => {
            body.advance(25);
            Ok((Event::Data(body), false))
        }
        // Where WAL ends, when it was sent, and whether an answer is wanted.
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
