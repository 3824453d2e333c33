//! Measures how long records have been in flight, to the millisecond and at almost no cost: records
//! are counted by the millisecond in which they were produced.
//!
//! Pure: the time is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ledger::Seq;

/// The unit of time in which records are counted together.
const STEP: Duration = Duration::from_millis(1);

/// Maximum number of counts. If as many are in flight, the records that follow are counted together,
/// as if all of them had been produced with the last one.
const SPANS: usize = 4096;

/// One producer's records in flight.
#[derive(Debug, Default)]
pub(crate) struct AckAges(VecDeque<Span>);

#[derive(Debug)]
struct Span {
    first: Seq,
    begun: Instant,
    waiting: u64,
}

impl AckAges {
    /// Records that production `seq` is in flight; numbers rise.
    pub(crate) fn produced(&mut self, seq: Seq, now: Instant) {
        if self.0.len() == SPANS {
            self.0.retain(|span| span.waiting > 0);
        }
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

    /// Records the end of production `seq`, delivered or not. Returns when it was produced, if that
    /// is known.
    pub(crate) fn reported(&mut self, seq: Seq) -> Option<Instant> {
        // Most reports are for the oldest.
        let is_first = self.0.get(1).is_none_or(|second| seq < second.first);
        let behind = if is_first { 1 } else { self.0.partition_point(|span| span.first <= seq) };
        let span = self.0.get_mut(behind.checked_sub(1)?)?;
        let begun = (span.first <= seq && span.waiting > 0).then_some(span.begun);
        span.waiting = span.waiting.saturating_sub(u64::from(begun.is_some()));
        while self.0.front().is_some_and(|span| span.waiting == 0) {
            self.0.pop_front();
        }
        begun
    }

    /// Forgets all records in flight.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// When the oldest record in flight was produced, if there is one.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.0.front().map(|span| span.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_found_for_reports_in_any_order() {
        let begun = Instant::now();
        let at = |tenths: u64| begun + Duration::from_millis(tenths * 100);
        let mut ages = AckAges::default();
        assert_eq!(ages.oldest(), None);
        (0..50).for_each(|seq| ages.produced(Seq::new(seq), at(seq)));
        (10..50).rev().for_each(|seq| assert_eq!(ages.reported(Seq::new(seq)), Some(at(seq))));
        assert_eq!(ages.oldest(), Some(at(0)));
        (1..10).for_each(|seq| assert_eq!(ages.reported(Seq::new(seq)), Some(at(seq))));
        assert_eq!(ages.oldest(), Some(at(0)));
        ages.produced(Seq::new(50), at(50));
        ages.reported(Seq::new(0));
        assert_eq!(ages.oldest(), Some(at(50)));
        ages.reported(Seq::new(50));
        assert_eq!(ages.oldest(), None);
    }

    #[test]
    fn long_wait_uses_no_memory_and_later_records_are_young() {
        let begun = Instant::now();
        let mut ages = AckAges::default();
        let many = 3 * SPANS as u64;
        (0..many).for_each(|seq| ages.produced(Seq::new(seq), begun + Duration::from_secs(seq)));
        assert_eq!(ages.0.len(), SPANS);
        assert_eq!(ages.oldest(), Some(begun));
        (0..many - 1).for_each(|seq| assert!(ages.reported(Seq::new(seq)).is_some()));
        assert_eq!(ages.oldest(), Some(begun + Duration::from_secs(many - 1)));
    }

    #[test]
    fn record_that_waits_long_does_not_change_the_ages_of_others() {
        let begun = Instant::now();
        let at = |seq| begun + Duration::from_secs(seq);
        let mut ages = AckAges::default();
        ages.produced(Seq::new(0), begun);
        for seq in 1..3 * SPANS as u64 {
            ages.produced(Seq::new(seq), at(seq));
            assert_eq!(ages.reported(Seq::new(seq)), Some(at(seq)));
        }
        assert_eq!(ages.oldest(), Some(begun));
    }

    #[test]
    fn late_report_of_a_replaced_producer_is_ignored() {
        let mut ages = AckAges::default();
        let begun = Instant::now();
        ages.produced(Seq::new(7), begun);
        ages.clear();
        ages.produced(Seq::new(8), begun + STEP);
        assert_eq!(ages.reported(Seq::new(7)), None);
        assert_eq!(ages.oldest(), Some(begun + STEP));
    }
}
