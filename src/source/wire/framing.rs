//! Backend messages out of bytes that come in pieces of any size.
//!
//! <https://www.postgresql.org/docs/current/protocol-overview.html#PROTOCOL-MESSAGE-CONCEPTS>

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes of a message before its body: the tag and the length, which counts itself.
pub(super) const HEADER: usize = 5;

/// Least room for one read, in bytes: many messages come with one system call.
const READ: usize = 64 << 10;

/// A buffer that has grown beyond this is given back once its message is taken, in bytes.
const KEPT: usize = 4 * READ;

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length that does not even count itself.
    #[error("a message has a length of {0} bytes, less than its own length field")]
    TooShort(u32),
    /// A length beyond what is acceptable at this point.
    #[error("a message has a length of {length} bytes; at most {limit} are accepted here")]
    TooLong {
        /// The length that was announced.
        length: u32,
        /// The most that is accepted.
        limit: u32,
    },
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its type.
    pub tag: u8,
    /// What follows the length.
    pub body: Bytes,
}

/// The length that a header announces, in bytes, its own four included.
pub(super) fn length(header: [u8; HEADER], limit: u32) -> Result<u32, FrameError> {
    let [_, length @ ..] = header;
    match u32::from_be_bytes(length) {
        short @ ..4 => Err(FrameError::TooShort(short)),
        length if length > limit => Err(FrameError::TooLong { length, limit }),
        length => Ok(length),
    }
}

/// Received bytes and the messages in them.
///
/// Memory grows with the bytes that have been received: at most by half as much again as a
/// message needs, whatever length it announces.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    limit: u32,
    /// The message that is being received, its header included, where that is known.
    awaited: Option<usize>,
    is_large: bool,
}

impl Frames {
    /// Messages of at most `limit` bytes each, the length field included.
    pub fn new(limit: u32) -> Self {
        Self { buffer: BytesMut::new(), limit, awaited: None, is_large: false }
    }

    /// Changes the limit for the messages after those that were taken.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// The next message, where all of it has been received. It shares the memory that it was
    /// received in.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(&header) = self.buffer.first_chunk::<HEADER>() else {
            self.awaited = None;
            return Ok(None);
        };
        // The tag is not counted.
        let whole = 1 + length(header, self.limit)? as usize;
        if self.buffer.len() < whole {
            self.awaited = Some(whole);
            return Ok(None);
        }
        self.awaited = None;
        let tag = header[0];
        let mut body = self.buffer.split_to(whole);
        body.advance(HEADER);
        Ok(Some(Frame { tag, body: body.freeze() }))
    }

    /// Reads what has come, at least one byte; 0 is the end. Cancel-safe.
    pub async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.make_room();
        from.read_buf(&mut self.buffer).await
    }

    /// Makes room for one read: never more than has been received of the message before.
    fn make_room(&mut self) {
        let have = self.buffer.len();
        if self.is_large && have < READ {
            self.buffer = copied(&self.buffer);
            self.is_large = false;
        }
        let spare = self.buffer.capacity() - have;
        let missing = self.awaited.map_or(0, |whole| whole.saturating_sub(have));
        if spare < READ / 4 || spare == 0 {
            self.buffer.reserve(missing.min(have / 2).max(READ));
            self.is_large |= self.buffer.capacity() > KEPT;
        }
    }
}

/// The same bytes in memory of their own.
fn copied(bytes: &[u8]) -> BytesMut {
    let mut copy = BytesMut::with_capacity(READ.max(bytes.len()));
    copy.extend_from_slice(bytes);
    copy
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
