//! Whether PostgreSQL's stream fails at the same position again and again, so that nothing behind
//! it is delivered though each session is opened.

use crate::lsn::Lsn;

/// As many sessions in a row that fail at the same position are told of.
const AGAIN: u32 = 5;

/// Sessions in a row that the server ended with an error.
#[derive(Debug, Default)]
pub(super) struct StuckStream {
    /// Everything that committed before was received.
    at: Lsn,
    times: u32,
    /// Where the log ended when the last session was opened.
    flushed: Lsn,
}

impl StuckStream {
    /// A session was opened while the server's log ended there.
    pub(super) fn opened(&mut self, flushed: Lsn) {
        self.flushed = flushed;
    }

    /// The server ended a session with an error, where all before `at` was received. How many
    /// did so in a row, where that is to be told.
    pub(super) fn failed(&mut self, at: Lsn) -> Option<u32> {
        if at > self.at {
            (self.at, self.times) = (at, 0);
        }
        self.times = self.times.saturating_add(1);
        (self.times >= AGAIN).then_some(self.times)
    }

    /// All before `at` was received now: true where the stream goes on only from here.
    pub(super) fn received(&mut self, at: Lsn) -> bool {
        let is_past = self.times >= AGAIN && (at > self.at || at >= self.flushed);
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
    fn five_failures_in_a_row_at_one_position_are_told_of_until_it_is_passed() {
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
    fn where_nothing_more_is_to_come_it_is_passed() {
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
