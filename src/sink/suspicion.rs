//! Whose fault it is if a destination that keeps one order refuses a record for an unknown reason:
//! the record's, or its own.
//!
//! No later record can be tried, since it would be stored before the refused one. So the record is
//! tried alone, several times; between two tries the destination has accepted another write, that of
//! the state key, which each new producer opens. And one record at most is blamed until another one is
//! stored: a destination that refuses everything costs no more than that.

use crate::outlet::{Ground, Refusal};
use crate::position::EventPosition;
use crate::sink::Outcome;

/// How often a record is refused alone before it is blamed.
const REFUSALS: u32 = 3;

/// The record that is suspected.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    suspect: Option<(EventPosition, u32)>,
    /// A record was blamed, and none was stored since.
    has_blamed: bool,
}

impl Suspicion {
    /// A record was stored.
    pub(super) fn stored(&mut self) {
        *self = Self::default();
    }

    /// A record was refused: alone, if its `position` is given. Returns the outcome to report.
    pub(super) fn refused(&mut self, position: Option<EventPosition>, reason: &str) -> Outcome {
        let Some(position) = position else { return Outcome::Lost(reason.to_owned()) };
        let before = self.suspect.filter(|(suspect, _)| *suspect == position);
        let refusals = before.map_or(0, |(_, refusals)| refusals).saturating_add(1);
        self.suspect = Some((position, refusals));
        let reason = format!("the event at {position} was refused alone: {reason}");
        if refusals < REFUSALS || self.has_blamed {
            return Outcome::Lost(reason);
        }
        (self.has_blamed, self.suspect) = (true, None);
        Outcome::Refused(Refusal { ground: Ground::Other, may_pass: false, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    fn at(lsn: u64) -> Option<EventPosition> {
        Some(EventPosition { commit_lsn: Lsn::new(lsn), ordinal: 0 })
    }

    fn is_blamed(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Refused(_))
    }

    #[test]
    fn record_that_is_refused_alone_again_and_again_is_blamed() {
        let mut suspicion = Suspicion::default();
        let outcomes = [None, at(1), at(1), at(1)].map(|position| suspicion.refused(position, "x"));
        assert_eq!(outcomes.each_ref().map(is_blamed), [false, false, false, true]);
    }

    #[test]
    fn destination_that_refuses_everything_costs_one_record() {
        let mut suspicion = Suspicion::default();
        let refuse = |suspicion: &mut Suspicion, lsn| {
            let outcomes = [(); 20].map(|()| suspicion.refused(at(lsn), "x"));
            outcomes.iter().filter(|outcome| is_blamed(outcome)).count()
        };
        assert_eq!((1..10).map(|lsn| refuse(&mut suspicion, lsn)).sum::<usize>(), 1);
        suspicion.stored();
        assert_eq!((1..10).map(|lsn| refuse(&mut suspicion, lsn)).sum::<usize>(), 1);
    }
}
