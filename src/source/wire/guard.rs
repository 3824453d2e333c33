//! The policy on a connection of `tokio-postgres`: a stream that hands over what the server sends
//! once the policy has seen it.
//!
//! Until the session is ready it hands over whole messages that were judged. Afterwards it follows
//! the messages' types and lengths alone, so that what a server sends has a limit: what nobody asked
//! for, and what answers a request.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready as ready_or_pending};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{self, TlsConnect};

use super::framing::{HEADER, length};
use super::line::Line;
use super::policy::{Checker, MESSAGE, MESSAGE_COST, Method, Policy, Refused, STARTUP_MESSAGE};

/// Least room for a read before the session is ready, in bytes.
const LEAST: usize = 1024;

/// What a server may send once the session is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// A message, in bytes.
    message: u32,
    /// All that answers one request, in bytes.
    answer: u64,
}

impl Limits {
    /// Of a connection for small queries, whose rows are collected.
    pub(crate) const QUERIES: Self = Self { message: 16 << 20, answer: 64 << 20 };

    /// Of one whose rows are taken one by one: each may be as large as a value can be.
    pub(crate) const ROWS: Self = Self { message: MESSAGE, answer: u64::MAX };
}

/// Most bytes of parameters that a server reports once the session is ready: each may be another,
/// and is kept for as long as the session lasts.
const PARAMETERS: u64 = 1 << 20;

/// Most bytes of notices and notifications beside one answer.
const NOTICES: u64 = 16 << 20;

/// A connection that the policy watches over.
pub(crate) struct Guard<S> {
    line: Line<S>,
    checker: Checker,
    /// Received and not handed over.
    received: BytesMut,
    /// How many bytes of that may be handed over.
    judged: usize,
    lengths: Lengths,
    /// Set once the session is ready.
    method: Arc<OnceLock<Method>>,
}

impl<S> Guard<S> {
    pub(crate) fn new(line: Line<S>, policy: Policy, limits: Limits) -> Self {
        let checker = Checker::new(policy, line.binding());
        Self {
            line,
            checker,
            received: BytesMut::new(),
            judged: 0,
            lengths: Lengths::new(limits),
            method: Arc::default(),
        }
    }

    /// Where the authentication method stands once the session is ready.
    pub(crate) fn method(&self) -> Arc<OnceLock<Method>> {
        Arc::clone(&self.method)
    }

    /// Judges the messages that are whole.
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

/// The messages that pass by.
#[derive(Debug)]
struct Lengths {
    limits: Limits,
    header: [u8; HEADER],
    /// Bytes of the header that have passed.
    have: usize,
    /// Bytes of the body that have not.
    left: usize,
    /// Bytes of reported parameters.
    parameters: u64,
    /// Bytes of notices since the last `ReadyForQuery`.
    notices: u64,
    /// Bytes of all else since then.
    answer: u64,
}

impl Lengths {
    fn new(limits: Limits) -> Self {
        let header = [0; HEADER];
        Self { limits, header, have: 0, left: 0, parameters: 0, notices: 0, answer: 0 }
    }

    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Refused> {
        while !bytes.is_empty() {
            let passed = self.left.min(bytes.len());
            self.left -= passed;
            bytes = &bytes[passed..];
            let taken = (HEADER - self.have).min(bytes.len());
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEADER {
                let length = length(self.header, self.limits.message)?;
                self.count(self.header[0], length)?;
                self.left = length as usize - (HEADER - 1);
                self.have = 0;
            }
        }
        Ok(())
    }

    /// Judges a message that begins.
    fn count(&mut self, tag: u8, length: u32) -> Result<(), Refused> {
        let (count, limit, what) = match tag {
            b'S' => (&mut self.parameters, PARAMETERS, "parameters"),
            b'N' | b'A' => (&mut self.notices, NOTICES, "notices"),
            b'Z' => {
                (self.notices, self.answer) = (0, 0);
                return Ok(());
            }
            _ => (&mut self.answer, self.limits.answer, "rows"),
        };
        *count = count.saturating_add(u64::from(length) + MESSAGE_COST as u64);
        if *count > limit { Err(Refused::TooMuch { limit, what }) } else { Ok(()) }
    }
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
                    // Whoever waits for an answer learns only that the connection is closed.
                    tracing::warn!(%error, "closing a connection to PostgreSQL: its response is too large");
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

/// Tells `tokio-postgres` that the stream is as it has to be: TLS, where there is any, is below
/// the policy and has been negotiated.
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
