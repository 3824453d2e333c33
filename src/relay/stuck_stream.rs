//! Detects that PostgreSQL's stream fails repeatedly at the same position, so that nothing after it
//! is delivered although each session is opened.

use crate::lsn::Lsn;

/// Consecutive failures at the same position before that is reported.
const FAILURES_REPORTED: u32 = 5;

/// Counts consecutive sessions that the server ended with an error.
#[derive(Debug, Default)]
pub(super) struct StuckStream {
    /// Everything that committed before this LSN was received.
    at: Lsn,
    times: u32,
    /// The end of flushed WAL when the last session was opened.
    flushed: Lsn,
}

impl StuckStream {
    /// Records that a session was opened, with this end of flushed WAL.
    pub(super) fn opened(&mut self, flushed: Lsn) {
        self.flushed = flushed;
    }

    /// Records that the server ended a session with an error after everything before `at` was
    /// received. Returns the number of consecutive failures, if it should be reported.
    pub(super) fn failed(&mut self, at: Lsn) -> Option<u32> {
        if at > self.at {
            (self.at, self.times) = (at, 0);
        }
        self.times = self.times.saturating_add(1);
        (self.times >= FAILURES_REPORTED).then_some(self.times)
    }

    /// Records that everything before `at` was received. Returns true if the stream was stuck until
    /// now.
    pub(super) fn received(&mut self, at: Lsn) -> bool {
        let is_past = self.times >= FAILURES_REPORTED && (at > self.at || at >= self.flushed);
        if is_past {
            self.times = 0;
        }
        is_past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_in_a_row_at_one_position_are_reported_until_it_is_passed() {
        let mut stuck = StuckStream::default();
        let at = Lsn::new;
        for _ in 0..4 {
            stuck.opened(at(900));
            assert_eq!(stuck.failed(at(7)), None);
            assert!(!stuck.received(at(7)));
        }
        assert_eq!(stuck.failed(at(8)), None, "it went on a little");
        for _ in 0..3 {
            assert_eq!(stuck.failed(at(8)), None);
        }
        assert_eq!((stuck.failed(at(8)), stuck.failed(at(8))), (Some(5), Some(6)));
        assert!(!stuck.received(at(8)));
        assert!(stuck.received(at(9)) && !stuck.received(at(9)), "once");
        assert_eq!(stuck.failed(at(9)), None, "counted anew");
    }

    #[test]
    fn a_position_at_the_end_of_wal_is_passed() {
        let mut stuck = StuckStream::default();
        for _ in 0..5 {
            stuck.failed(Lsn::new(7));
        }
        stuck.opened(Lsn::new(8));
        assert!(!stuck.received(Lsn::new(7)));
        stuck.opened(Lsn::new(7));
        assert!(stuck.received(Lsn::new(7)));
    }
}
