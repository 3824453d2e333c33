//! The id of an entry: a generation and the position of its event.
//!
//! `(generation << 56 | commit LSN)-(ordinal + 1)`: ids rise as positions do, and ids of a higher
//! generation follow all of a lower one. A WAL of more than 2^56 bytes does not occur: it would be
//! 64 PiB.

use std::fmt;

use crate::lsn::Lsn;
use crate::position::EventPosition;

const LSN_BITS: u32 = 56;

/// The highest generation: ids stay below 2^63, which is what clients with signed integers can read.
const GENERATION_MAX: u8 = 127;

/// The id of an entry of a stream. `0-0` is before the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct EntryId {
    high: u64,
    low: u64,
}

impl EntryId {
    /// The id of the event at `position`; `None` if the LSN is too high.
    pub(crate) fn of(generation: u8, position: EventPosition) -> Option<Self> {
        let lsn = position.commit_lsn.as_u64();
        let high = (lsn >> LSN_BITS == 0).then(|| u64::from(generation) << LSN_BITS | lsn)?;
        Some(Self { high, low: u64::from(position.ordinal) + 1 })
    }

    /// The generation after this one, if there is one.
    pub(crate) fn next_generation(generation: u8) -> Option<u8> {
        (generation < GENERATION_MAX).then(|| generation + 1)
    }

    /// Parses an id as Redis writes it.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('-')?;
        Some(Self { high: high.parse().ok()?, low: low.parse().ok()? })
    }

    /// The first number: a time in milliseconds since 1970 in an id that Redis made.
    pub(crate) fn high(self) -> u64 {
        self.high
    }

    /// The generation; 0 for an id that Redis made from its clock.
    pub(crate) fn generation(self) -> u8 {
        u8::try_from(self.high >> LSN_BITS).expect("8 bits are left")
    }

    /// The position of the event; `None` for an id that is not walpost's.
    pub(crate) fn position(self) -> Option<EventPosition> {
        let ordinal = u32::try_from(self.low.checked_sub(1)?).ok()?;
        let commit_lsn = Lsn::new(self.high & ((1 << LSN_BITS) - 1));
        (self.generation() > 0).then_some(EventPosition { commit_lsn, ordinal })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.high, self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(lsn: u64, ordinal: u32) -> EventPosition {
        EventPosition { commit_lsn: Lsn::new(lsn), ordinal }
    }

    #[test]
    fn ids_rise_as_generation_and_position_do() {
        let most = (1 << LSN_BITS) - 1;
        let given = [
            (1, position(0, 0)),
            (1, position(0, 1)),
            (1, position(16, 0)),
            (1, position(most, u32::MAX)),
            (2, position(0, 0)),
            (GENERATION_MAX, position(most, u32::MAX)),
        ];
        let ids = given.map(|(generation, at)| EntryId::of(generation, at).expect("an id"));
        assert!(ids.is_sorted() && ids[0] > EntryId::default());
        for (id, (generation, at)) in ids.into_iter().zip(given) {
            assert_eq!((id.generation(), id.position()), (generation, Some(at)));
            assert_eq!(EntryId::from_text(&id.to_string()), Some(id));
        }
        assert_eq!(EntryId::of(1, position(most + 1, 0)), None);
        assert!(ids[5].high <= i64::MAX.unsigned_abs());
        let next = EntryId::next_generation;
        assert_eq!((next(0), next(126), next(127), next(255)), (Some(1), Some(127), None, None));
    }

    #[test]
    fn ids_from_the_clock_have_no_position() {
        for text in ["1795361383000-0", "1795361383000-5", "0-0"] {
            let id = EntryId::from_text(text).expect("an id");
            assert_eq!((id.generation(), id.position()), (0, None), "{text}");
        }
        for text in ["", "1", "-", "1-", "1-x", "1-2-3", "18446744073709551616-0"] {
            assert_eq!(EntryId::from_text(text), None, "{text}");
        }
    }
}
