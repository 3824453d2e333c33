//! The id of a message, by which a broker recognises one that it has already: who has published it,
//! and the position of its event.
//!
//! `WRITER-GENERATION-POSITION`: a hash of installation, server, database and slot; a number that
//! rises with each `walpost adopt`, where the destination keeps walpost's position; and the position
//! as records have it. The same event always has the same id, and the last id of a stream tells
//! which events are there.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::position::EventPosition;

/// Bytes of the hash: enough to tell the slots of one organisation apart.
const HASH_BYTES: usize = 8;

/// What stands before the number of a dead letter.
const REPLAYED: &str = "-replayed-";

/// Whose messages they are, of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Writer(String);

impl Writer {
    /// The ids of this owner, whose names are one text.
    pub(crate) fn new(owner: &str, generation: u64) -> Self {
        Self(format!("{}-{generation}", hash(Sha256::new_with_prefix(owner))))
    }

    /// The same at a destination that does not keep walpost's position: there are no generations.
    pub(crate) fn without_generation(owner: &str) -> Self {
        Self(hash(Sha256::new_with_prefix(owner)))
    }

    /// The id of the event at `position`.
    pub(crate) fn id(&self, position: EventPosition) -> String {
        format!("{self}-{position}")
    }

    /// The id of the event of a dead letter, which the stream's message `seq` is, when it is published again.
    pub(crate) fn id_of_replayed(&self, seq: u64) -> String {
        format!("{self}{REPLAYED}{seq}")
    }

    /// Whether an id is such a one of the same owner, of whatever generation.
    pub(crate) fn is_of_replayed(&self, id: &str) -> bool {
        let owner = self.0.split('-').next().unwrap_or_default();
        id.starts_with(owner) && is_of_replayed(id)
    }

    /// The position in an id of this writer's; `None` for any other id.
    pub(crate) fn position(&self, id: &str) -> Option<EventPosition> {
        let rest = id.strip_prefix(&self.0)?;
        EventPosition::from_text(rest.strip_prefix('-')?)
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether an id is that of a dead letter's event that was published again, by whomever.
pub(crate) fn is_of_replayed(id: &str) -> bool {
    id.contains(REPLAYED)
}

/// The first bytes of a hash, as hexadecimal digits.
pub(crate) fn hash(of: Sha256) -> String {
    hexadecimal(&of.finalize()[..HASH_BYTES])
}

/// The bytes as hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    #[test]
    fn an_id_has_its_writer_and_its_position() {
        let at = EventPosition { commit_lsn: Lsn::new(0x16B_3748), ordinal: 2 };
        let writer = Writer::new("[\"walpost\",\"7\",5,\"walpost\"]", 12);
        let id = writer.id(at);
        assert_eq!(writer.position(&id), Some(at));
        assert!(id.ends_with("-12-00000000016B3748/00000002"), "{id}");
        for other in [
            Writer::new("[\"walpost\",\"8\",5,\"walpost\"]", 12),
            Writer::new("[\"walpost\",\"7\",5,\"walpost\"]", 1),
        ] {
            assert_eq!(other.position(&id), None);
        }
        for text in ["", "x", &id[1..], &id[..id.len() - 1], &format!("{id}0")] {
            assert_eq!(writer.position(text), None, "{text}");
        }
    }
}
