//! Splits received bytes, in chunks of any size, into backend messages.
//!
//! <https://www.postgresql.org/docs/current/protocol-overview.html#PROTOCOL-MESSAGE-CONCEPTS>

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Length of a message's header in bytes: the tag, and the length field, which counts itself.
pub(super) const HEADER: usize = 5;

/// Minimum room for one read, in bytes: one system call reads many messages.
const READ: usize = 64 << 10;

/// A buffer larger than this is freed once its message is taken, in bytes.
const KEPT: usize = 4 * READ;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is smaller than the length field itself.
    #[error("a message has a length of {0} bytes, less than its own length field")]
    TooShort(u32),
    /// The length exceeds what is accepted at this point.
    #[error("a message has a length of {length} bytes; at most {limit} are accepted here")]
    TooLong {
        /// The length in the header.
        length: u32,
        /// The maximum that is accepted.
        limit: u32,
    },
}

/// A backend message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The message type.
    pub tag: u8,
    /// The bytes after the length field.
    pub body: Bytes,
}

/// The length in a header, in bytes, including the length field's own four.
pub(super) fn length(header: [u8; HEADER], limit: u32) -> Result<u32, FrameError> {
    let [_, length @ ..] = header;
    match u32::from_be_bytes(length) {
        short @ ..4 => Err(FrameError::TooShort(short)),
        length if length > limit => Err(FrameError::TooLong { length, limit }),
        length => Ok(length),
    }
}

/// A buffer of received bytes that yields complete messages.
///
/// Memory grows with the bytes received, not with the length that a message announces. It is at
/// most one and a half times the size of the message.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    limit: u32,
    /// Size of the message being received, including its header, if known.
    awaited: Option<usize>,
    is_large: bool,
}

impl Frames {
    /// Accepts messages of at most `limit` bytes each, including the length field.
    pub fn new(limit: u32) -> Self {
        Self { buffer: BytesMut::new(), limit, awaited: None, is_large: false }
    }

    /// Changes the limit for all messages not yet taken.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// The next message, if it is complete. It shares the receive buffer's memory.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(&header) = self.buffer.first_chunk::<HEADER>() else {
            self.awaited = None;
            return Ok(None);
        };
        // The length does not count the tag.
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

    /// Reads at least one byte into the buffer; 0 means end of file. Cancel-safe.
    pub async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.make_room();
        from.read_buf(&mut self.buffer).await
    }

    /// Reserves room for one read. The buffer grows at most by half of what is already received, or
    /// by [`READ`].
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

/// Copies the bytes into a new buffer.
fn copied(bytes: &[u8]) -> BytesMut {
    let mut copy = BytesMut::with_capacity(READ.max(bytes.len()));
    copy.extend_from_slice(bytes);
    copy
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
