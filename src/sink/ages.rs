//! Since when the oldest record in flight waits, to the second, for next to
//! nothing: records are counted by the second in which they were produced.
//!
//! Pure: the time is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ledger::Seq;

/// What is counted together.
const STEP: Duration = Duration::from_secs(1);

/// Counts that are kept at most: behind a record that waits for long what
/// follows is of no interest.
const SPANS: usize = 16;

/// One producer's records in flight.
#[derive(Debug, Default)]
pub(super) struct Ages(VecDeque<Span>);

#[derive(Debug)]
struct Span {
    first: Seq,
    begun: Instant,
    waiting: u64,
}

impl Ages {
    /// Production `seq` is under way; numbers rise.
    pub(super) fn produced(&mut self, seq: Seq, now: Instant) {
        let full = self.0.len() == SPANS;
        match self.0.back_mut() {
            Some(last) if full || now.saturating_duration_since(last.begun) < STEP => {
                last.waiting += 1;
                if full {
                    last.begun = now;
                }
            }
            _ => self.0.push_back(Span { first: seq, begun: now, waiting: 1 }),
        }
    }

    /// Production `seq` is done with, however it ended.
    pub(super) fn reported(&mut self, seq: Seq) {
        let behind = self.0.partition_point(|span| span.first <= seq);
        if let Some(span) = behind.checked_sub(1).and_then(|at| self.0.get_mut(at)) {
            span.waiting = span.waiting.saturating_sub(1);
        }
        while self.0.front().is_some_and(|span| span.waiting == 0) {
            self.0.pop_front();
        }
    }

    /// Nothing is in flight any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Since when the oldest record in flight waits, if one does.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.front().map(|span| span.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_record_is_found_by_the_second_whatever_the_order_of_reports() {
        let begun = Instant::now();
        let at = |tenths: u64| begun + Duration::from_millis(tenths * 100);
        let mut ages = Ages::default();
        assert_eq!(ages.oldest(), None);
        (0..50).for_each(|seq| ages.produced(seq, at(seq)));
        (10..50).rev().for_each(|seq| ages.reported(seq));
        assert_eq!(ages.oldest(), Some(at(0)));
        (1..10).for_each(|seq| ages.reported(seq));
        assert_eq!(ages.oldest(), Some(at(0)));
        ages.produced(50, at(50));
        ages.reported(0);
        assert_eq!(ages.oldest(), Some(at(50)));
        ages.reported(50);
        assert_eq!(ages.oldest(), None);
    }

    #[test]
    fn a_long_wait_costs_no_memory_and_what_follows_it_is_young() {
        let begun = Instant::now();
        let mut ages = Ages::default();
        let hour = 3600;
        (0..hour).for_each(|seq| ages.produced(seq, begun + Duration::from_secs(seq)));
        assert_eq!(ages.0.len(), SPANS);
        assert_eq!(ages.oldest(), Some(begun));
        (0..hour - 1).for_each(|seq| ages.reported(seq));
        assert_eq!(ages.oldest(), Some(begun + Duration::from_secs(hour - 1)));
    }

    #[test]
    fn a_late_report_of_an_earlier_producer_counts_for_nothing() {
        let mut ages = Ages::default();
        let begun = Instant::now();
        ages.produced(7, begun);
        ages.clear();
        ages.produced(8, begun + STEP);
        ages.reported(7);
        assert_eq!(ages.oldest(), Some(begun + STEP));
    }
}
