//! Replication commands that return rows, by the simple query protocol.
//!
//! <https://www.postgresql.org/docs/current/protocol-replication.html>

use bytes::{Buf as _, Bytes, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::error::{ServerError, WireError};
use super::framing::Frame;
use super::policy::{ANSWER, MESSAGE_COST};
use super::startup::Ready;
use crate::lsn::Lsn;

/// What is received of a response.
#[derive(Debug, Default)]
pub(super) struct Answer {
    bytes: usize,
}

impl Answer {
    /// Counts a message; fails if the response is too large.
    pub(super) fn received(&mut self, frame: &Frame) -> Result<(), WireError> {
        self.bytes = self.bytes.saturating_add(frame.body.len() + MESSAGE_COST);
        if self.bytes <= ANSWER as usize {
            return Ok(());
        }
        Err(WireError::Protocol(format!("a command was answered with more than {ANSWER} bytes")))
    }
}

/// A column's value as text; `None` for NULL.
pub(super) type Value = Option<Bytes>;

/// The server's `IDENTIFY_SYSTEM` row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct System {
    pub(crate) identifier: String,
    pub(crate) timeline: u32,
    /// The end of its flushed WAL.
    pub(crate) flushed: Lsn,
}

/// `IDENTIFY_SYSTEM`.
pub(super) async fn identify<S>(session: &mut Ready<S>) -> Result<System, WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let rows = query(session, "IDENTIFY_SYSTEM").await?;
    system(&rows).ok_or_else(|| WireError::Protocol("IDENTIFY_SYSTEM gave no such row".to_owned()))
}

fn system(rows: &[Vec<Value>]) -> Option<System> {
    let [row] = rows else { return None };
    let [identifier, timeline, flushed, ..] = row.as_slice() else { return None };
    let text = |value: &Value| Some(std::str::from_utf8(value.as_deref()?).ok()?.to_owned());
    // It must be a number, since it is logged.
    let _: u64 = text(identifier)?.parse().ok()?;
    Some(System {
        identifier: text(identifier)?,
        timeline: text(timeline)?.parse().ok()?,
        flushed: text(flushed)?.parse().ok()?,
    })
}

/// Runs a command and returns its rows. The session remains usable after a server error.
pub(super) async fn query<S>(
    session: &mut Ready<S>,
    command: &str,
) -> Result<Vec<Vec<Value>>, WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut message = BytesMut::new();
    frontend::query(command, &mut message)?;
    session.line.write_all(&message).await?;
    session.line.flush().await?;
    let (mut rows, mut error, mut answer) = (Vec::new(), None, Answer::default());
    loop {
        let frame = session.receive().await?;
        answer.received(&frame)?;
        match frame.tag {
            b'D' => rows.push(row(frame.body)?),
            b'E' => error = Some(ServerError::read(&frame.body)),
            b'Z' => return error.map_or(Ok(rows), |error| Err(WireError::Server(error))),
            // RowDescription, CommandComplete, EmptyQueryResponse, notices, parameters.
            b'T' | b'C' | b'I' | b'N' | b'S' => {}
            _ => return Err(WireError::unexpected(&frame, "a command")),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Ready<S> {
    /// Receives the next message.
    pub(super) async fn receive(&mut self) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = self.frames.take()? {
                return Ok(frame);
            }
            if self.frames.read(&mut self.line).await? == 0 {
                return Err(WireError::Closed);
            }
        }
    }
}

/// A `DataRow`.
fn row(mut body: Bytes) -> Result<Vec<Value>, WireError> {
    let short = || WireError::Protocol("a row is cut short".to_owned());
    let columns = body.try_get_u16().map_err(|_| short())?;
    (0..columns)
        .map(|_| {
            let length = body.try_get_i32().map_err(|_| short())?;
            match usize::try_from(length) {
                Err(_) => Ok(None),
                Ok(length) if length <= body.len() => Ok(Some(body.split_to(length))),
                Ok(_) => Err(short()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_row_is_an_error() {
        let whole = Bytes::from_static(b"\0\x02\0\0\0\x01x\xff\xff\xff\xff");
        assert_eq!(row(whole.clone()).expect("a row"), [Some(Bytes::from_static(b"x")), None]);
        for cut in 0..whole.len() {
            assert!(row(whole.slice(..cut)).is_err(), "{cut}");
        }
    }

    #[test]
    fn the_identify_system_row_is_parsed() {
        let value = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        let row = vec![value("7000000000000000001"), value("3"), value("1/2A"), value("shop")];
        let found = system(&[row]).expect("a system");
        assert_eq!((found.timeline, found.flushed), (3, Lsn::new(0x1_0000_002A)));
        assert_eq!(system(&[]), None);
        assert_eq!(system(&[vec![value("7"), value("x"), value("0/1")]]), None);
    }
}
