//! The reader through which all pgoutput bytes pass.
//!
//! Each step is checked against the remaining bytes, and bytes left at the end are an error. It
//! reads numbers and strings in PostgreSQL's format, and knows nothing of messages.

use crate::lsn::Lsn;

use super::message::PgTimestamp;

/// Bytes that are not a message of pgoutput's protocol version 1.
///
/// None of these errors may be retried or skipped: either the server uses another protocol, or the
/// connection corrupted the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first byte is not a message type of protocol version 1.
    #[error(
        "a pgoutput message begins with byte 0x{0:02x}, which protocol version 1 does not know: \
         is the plugin of the slot pgoutput?"
    )]
    UnknownTag(u8),
    /// The message is too short.
    #[error("a pgoutput message is cut short at byte {offset}: wanted {wanted} more, {left} left")]
    Short {
        /// Bytes read before.
        offset: usize,
        /// Bytes that the next part needs.
        wanted: usize,
        /// Remaining bytes.
        left: usize,
    },
    /// A string without its terminating zero byte.
    #[error("a pgoutput message has a string at byte {offset} that does not end")]
    Unterminated {
        /// Start of the string.
        offset: usize,
    },
    /// Bytes after the end of the message.
    #[error("a pgoutput message has {left} bytes after its end at byte {offset}")]
    Trailing {
        /// End of the message.
        offset: usize,
        /// Bytes after it.
        left: usize,
    },
    /// A name that is not UTF-8, though the session's `client_encoding` is.
    #[error("a pgoutput message has a string at byte {offset} that is not UTF-8")]
    NotUtf8 {
        /// Start of the string.
        offset: usize,
    },
    /// A byte that the protocol does not allow in this position.
    #[error("a pgoutput message has byte 0x{found:02x} as {what} at byte {offset}")]
    Unexpected {
        /// The meaning of the byte.
        what: &'static str,
        /// The byte.
        found: u8,
        /// The offset of the value.
        offset: usize,
    },
}

/// Reads a byte slice from start to end.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, length: bytes.len() }
    }

    /// Bytes read so far.
    pub(super) const fn offset(&self) -> usize {
        self.length - self.rest.len()
    }

    /// Bytes not yet read: an upper bound for what a count may reserve.
    pub(super) const fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `wanted` bytes.
    pub(super) fn take(&mut self, wanted: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(wanted).ok_or_else(|| self.short(wanted))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next byte.
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next byte, which must be one of `allowed`; `what` names it in the error.
    pub(super) fn one_of(&mut self, allowed: &[u8], what: &'static str) -> Result<u8, DecodeError> {
        let offset = self.offset();
        let found = self.u8()?;
        if allowed.contains(&found) {
            Ok(found)
        } else {
            Err(DecodeError::Unexpected { what, found, offset })
        }
    }

    /// The next two bytes, as a number.
    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next four bytes, as a number.
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A four-byte length, and that many bytes after it.
    pub(super) fn counted(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// The next eight bytes, as an LSN.
    pub(super) fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array().map(u64::from_be_bytes).map(Lsn::new)
    }

    /// The next eight bytes, as a timestamp.
    pub(super) fn timestamp(&mut self) -> Result<PgTimestamp, DecodeError> {
        self.array().map(i64::from_be_bytes).map(PgTimestamp::from_micros)
    }

    /// A string up to its zero byte, which is consumed as well.
    pub(super) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let offset = self.offset();
        let end = self
            .rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(DecodeError::Unterminated { offset })?;
        let text = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(text).map_err(|_| DecodeError::NotUtf8 { offset })
    }

    /// Fails if bytes are left.
    pub(super) fn finish(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { offset: self.offset(), left }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.short(N))?;
        self.rest = rest;
        Ok(*taken)
    }

    const fn short(&self, wanted: usize) -> DecodeError {
        DecodeError::Short { offset: self.offset(), wanted, left: self.left() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_input_is_rejected_without_being_consumed() {
        let mut reader = Reader::new(&[1, 2, 3]);
        let short = |wanted| Err(DecodeError::Short { offset: 0, wanted, left: 3 });
        assert_eq!(reader.u32(), short(4));
        assert_eq!(reader.lsn().map(|_| 0), short(8));
        assert_eq!(reader.take(usize::MAX).map(|_| 0), short(usize::MAX));
        assert_eq!(reader.u16(), Ok(0x0102));
        assert_eq!(reader.finish(), Err(DecodeError::Trailing { offset: 2, left: 1 }));
        assert_eq!(reader.u8(), Ok(3));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn a_string_ends_at_its_zero_byte_and_is_utf_8() {
        let mut reader = Reader::new(b"ab\0\0\xff\0c");
        assert_eq!(reader.string(), Ok("ab"));
        assert_eq!(reader.string(), Ok(""));
        assert_eq!(reader.string(), Err(DecodeError::NotUtf8 { offset: 4 }));
        assert_eq!(reader.string(), Err(DecodeError::Unterminated { offset: 6 }));
    }

    #[test]
    fn a_length_beyond_the_end_is_rejected() {
        let mut reader = Reader::new(&[0xFF, 0xFF, 0xFF, 0xFF, 1]);
        let wanted = usize::try_from(u32::MAX).expect("a 64-bit machine runs the tests");
        assert_eq!(reader.counted(), Err(DecodeError::Short { offset: 4, wanted, left: 1 }));
    }
}
