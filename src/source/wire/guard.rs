//! Enforces the policy on a connection of `tokio-postgres`: a stream that passes received bytes on
//! only after checking them.
//!
//! Until the session is ready, it passes complete messages that the policy has accepted. Afterwards
//! it tracks only message types and lengths, to bound what a server may send: unsolicited messages,
//! and the response to each request. Of message bodies it then reads only the data types in a
//! statement's description. `tokio-postgres` queries the server for an unknown type, and again for
//! the types in that response, without a bound.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready as ready_or_pending};

use bytes::{Buf as _, BytesMut};
use postgres_protocol::message::backend::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio_postgres::fallible_iterator::FallibleIterator as _;
use tokio_postgres::tls::{self, TlsConnect};
use tokio_postgres::types::{Oid, Type};

use super::framing::{HEADER, length};
use super::line::Line;
use super::policy::{Checker, MESSAGE, MESSAGE_COST, Method, Policy, Refused, STARTUP_MESSAGE};

/// Minimum room for a read before the session is ready, in bytes.
const LEAST: usize = 1024;

/// Limits on what a server may send once the session is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    /// Maximum length of a message, in bytes.
    message: u32,
    /// Maximum size of the whole response to one request, in bytes.
    answer: u64,
}

impl Limits {
    /// The limit for small queries, whose rows are collected.
    const QUERIES: Self = Self { message: 16 << 20, answer: 64 << 20 };

    /// The limit for requests whose rows are read one by one: a row may be as large as PostgreSQL
    /// allows.
    const ROWS: Self = Self { message: MESSAGE, answer: u64::MAX };
}

/// Selects the limits of a connection's responses: those of small queries, unless lifted.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerLimit {
    is_lifted: Arc<AtomicBool>,
}

impl AnswerLimit {
    /// Allows rows of any size and number, in responses that begin before the returned `Lifted` is
    /// dropped.
    pub(crate) fn lift(&self) -> Lifted {
        self.is_lifted.store(true, Ordering::Relaxed);
        Lifted(self.clone())
    }

    fn limits(&self) -> Limits {
        if self.is_lifted.load(Ordering::Relaxed) { Limits::ROWS } else { Limits::QUERIES }
    }
}

/// A lifted limit on answers, held by what reads rows one by one.
#[must_use = "the limit holds again once this is dropped"]
#[derive(Debug)]
pub(crate) struct Lifted(AnswerLimit);

impl Drop for Lifted {
    fn drop(&mut self) {
        self.0.is_lifted.store(false, Ordering::Relaxed);
    }
}

/// Maximum length of a description of columns or parameters, in bytes; no statement of walpost has
/// 20 of either.
const DESCRIPTION: u32 = 64 << 10;

/// Maximum bytes of parameters that a server reports once the session is ready. Each may have a new
/// name, and is kept until the session ends.
const PARAMETERS: u64 = 1 << 20;

/// Maximum bytes of notices and notifications during one response.
const NOTICES: u64 = 16 << 20;

/// A connection on which the policy is enforced.
pub(crate) struct Guard<S> {
    line: Line<S>,
    checker: Checker,
    /// Received but not yet passed on.
    received: BytesMut,
    /// Number of those bytes that may be passed on.
    judged: usize,
    lengths: Lengths,
    /// Set once the session is ready.
    method: Arc<OnceLock<Method>>,
}

impl<S> Guard<S> {
    pub(crate) fn new(line: Line<S>, policy: Policy) -> Self {
        let checker = Checker::new(policy, line.binding());
        Self {
            line,
            checker,
            received: BytesMut::new(),
            judged: 0,
            lengths: Lengths::default(),
            method: Arc::default(),
        }
    }

    /// The authentication method; set once the session is ready.
    pub(crate) fn method(&self) -> Arc<OnceLock<Method>> {
        Arc::clone(&self.method)
    }

    /// The limit on responses.
    pub(crate) fn answer_limit(&self) -> AnswerLimit {
        self.lengths.limit.clone()
    }

    /// Checks all complete messages.
    fn judge(&mut self) -> Result<(), Refused> {
        while let Some(&header) = self.received[self.judged..].first_chunk::<HEADER>() {
            let end = self.judged + 1 + length(header, STARTUP_MESSAGE)? as usize;
            let Some(body) = self.received.get(self.judged + HEADER..end) else { break };
            self.checker.check(header[0], body)?;
            self.judged = end;
            if self.checker.is_ready() {
                let _ = self.method.set(self.checker.method());
                self.lengths.follow(&self.received[end..])?;
                self.judged = self.received.len();
                break;
            }
        }
        Ok(())
    }
}

/// Tracks the messages that pass.
#[derive(Debug, Default)]
struct Lengths {
    limit: AnswerLimit,
    /// The limits of the current response, fixed when it begins.
    limits: Option<Limits>,
    header: [u8; HEADER],
    /// Bytes of the current header that have passed.
    have: usize,
    /// Bytes of the current body that are still to pass.
    left: usize,
    /// The part of a description received so far, including its header.
    description: Option<BytesMut>,
    /// Bytes of reported parameters.
    parameters: u64,
    /// Bytes of notices since the last `ReadyForQuery`.
    notices: u64,
    /// Bytes of all other messages since then.
    answer: u64,
}

impl Lengths {
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Refused> {
        while !bytes.is_empty() {
            let passed = self.left.min(bytes.len());
            if let Some(description) = &mut self.description {
                description.extend_from_slice(&bytes[..passed]);
            }
            self.left -= passed;
            bytes = &bytes[passed..];
            if self.left == 0
                && let Some(mut whole) = self.description.take()
            {
                data_types(&mut whole)?;
            }
            let taken = (HEADER - self.have).min(bytes.len());
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEADER {
                self.begin()?;
                self.have = 0;
            }
        }
        Ok(())
    }

    /// Checks a message whose header has passed.
    fn begin(&mut self) -> Result<(), Refused> {
        let tag = self.header[0];
        let is_description = matches!(tag, b'T' | b't');
        let limits = self.limits(tag);
        let limit = if is_description { DESCRIPTION } else { limits.message };
        let length = length(self.header, limit)?;
        self.count(tag, length, limits)?;
        self.left = length as usize - (HEADER - 1);
        self.description = is_description.then(|| BytesMut::from(&self.header[..]));
        Ok(())
    }

    /// The limits for a message of this type.
    fn limits(&mut self, tag: u8) -> Limits {
        match (self.limits, tag) {
            (Some(limits), _) => limits,
            // These messages may arrive outside a response.
            (None, b'S' | b'N' | b'A' | b'Z') => Limits::QUERIES,
            (None, _) => *self.limits.insert(self.limit.limits()),
        }
    }

    fn count(&mut self, tag: u8, length: u32, limits: Limits) -> Result<(), Refused> {
        let (count, limit, what) = match tag {
            b'S' => (&mut self.parameters, PARAMETERS, "parameters"),
            b'N' | b'A' => (&mut self.notices, NOTICES, "notices"),
            b'Z' => {
                (self.notices, self.answer, self.limits) = (0, 0, None);
                return Ok(());
            }
            _ => (&mut self.answer, limits.answer, "rows"),
        };
        *count = count.saturating_add(u64::from(length) + MESSAGE_COST as u64);
        if *count > limit { Err(Refused::TooMuch { limit, what }) } else { Ok(()) }
    }
}

/// Checks the data types in a description of columns or parameters. Only built-in types pass, whose
/// OIDs are fixed; walpost's queries cast everything else to one of them.
fn data_types(message: &mut BytesMut) -> Result<(), Refused> {
    let unreadable = |_| Refused::OutOfOrder("a description of columns or parameters is malformed");
    let known = |oid: Oid| match Type::from_oid(oid) {
        Some(_) => Ok(()),
        None => Err(Refused::DataType(oid)),
    };
    match Message::parse(message).map_err(unreadable)? {
        Some(Message::RowDescription(body)) => {
            let mut fields = body.fields();
            while let Some(field) = fields.next().map_err(unreadable)? {
                known(field.type_oid())?;
            }
        }
        Some(Message::ParameterDescription(body)) => {
            let mut oids = body.parameters();
            while let Some(oid) = oids.next().map_err(unreadable)? {
                known(oid)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn refused(error: Refused) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.judged > 0 {
                let given = this.judged.min(buffer.remaining());
                buffer.put_slice(&this.received[..given]);
                this.received.advance(given);
                this.judged -= given;
                return Poll::Ready(Ok(()));
            }
            if this.checker.is_ready() {
                let before = buffer.filled().len();
                ready_or_pending!(Pin::new(&mut this.line).poll_read(context, buffer))?;
                this.lengths.follow(&buffer.filled()[before..]).map_err(|error| {
                    // The error that a pending request gets says only that the connection is
                    // closed.
                    tracing::warn!(%error, "closing a connection to PostgreSQL: unexpected response");
                    refused(error)
                })?;
                return Poll::Ready(Ok(()));
            }
            this.received.reserve(LEAST);
            let read = pin!(this.line.read_buf(&mut this.received));
            if ready_or_pending!(read.poll(context))? == 0 {
                return Poll::Ready(Ok(()));
            }
            this.judge().map_err(refused)?;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.line).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> tls::TlsStream for Guard<S> {
    fn channel_binding(&self) -> tls::ChannelBinding {
        match self.line.end_point() {
            Some(digest) => tls::ChannelBinding::tls_server_end_point(digest.to_vec()),
            None => tls::ChannelBinding::none(),
        }
    }
}

/// Reports to `tokio-postgres` that TLS negotiation is done: TLS, if any, is negotiated below this
/// stream.
pub(crate) struct Handshaken;

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnect<Guard<S>> for Handshaken {
    type Stream = Guard<S>;
    type Error = Infallible;
    type Future = Ready<Result<Guard<S>, Infallible>>;

    fn connect(self, stream: Guard<S>) -> Self::Future {
        ready(Ok(stream))
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
