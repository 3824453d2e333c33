//! The position of an event: its identity and its order; and the position behind published events.

use std::fmt;

use crate::lsn::Lsn;

/// The identity of an event: the LSN of its transaction's commit record, and its index among the
/// transaction's outbox events.
///
/// Totally ordered, and equal after every replay with the same tables, prefix and filters; of slots
/// whose publications have different filters, two events can have the same position. Text form
/// `0000001600B374D8/00000003`: 16 hexadecimal digits and 8, so that texts sort as positions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventPosition {
    /// LSN of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// Index of the event inside its transaction, from 0.
    pub ordinal: u32,
}

/// The position behind a committed Kafka transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Every event that committed before this LSN is published.
    pub upto: Lsn,
    /// The first event that is not published, if its transaction is published in part.
    pub partial: Option<EventPosition>,
}

impl EventPosition {
    /// Parses that text form; `None` if the text is invalid.
    pub fn from_text(text: &str) -> Option<Self> {
        let (lsn, ordinal) = text.split_once('/')?;
        let is_hexadecimal = text.bytes().all(|byte| byte == b'/' || byte.is_ascii_hexdigit());
        if !is_hexadecimal || (lsn.len(), ordinal.len()) != (16, 8) {
            return None;
        }
        let commit_lsn = Lsn::new(u64::from_str_radix(lsn, 16).ok()?);
        Some(Self { commit_lsn, ordinal: u32::from_str_radix(ordinal, 16).ok()? })
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every record has one, and formatting the digits with `fmt` would be a quarter of its
        // cost.
        let mut text = [b'/'; 25];
        write_digits(self.commit_lsn.as_u64(), &mut text[..16]);
        write_digits(u64::from(self.ordinal), &mut text[17..]);
        f.write_str(std::str::from_utf8(&text).expect("hexadecimal digits are ASCII"))
    }
}

/// Fills `out` with the last hexadecimal digits of `number`.
fn write_digits(number: u64, out: &mut [u8]) {
    let mut rest = number;
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789ABCDEF"[(rest & 0xF) as usize];
        rest >>= 4;
    }
}
