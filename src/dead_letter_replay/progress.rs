//! Which letters of a partition are done with.
//!
//! A consumer group's offset says: all before it. Letters that are left for another
//! time stand between ones that are done, so those that are done beyond the offset are
//! written down beside it, as the metadata that a commit may have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// Bytes of metadata that a broker takes, at least
/// (<https://kafka.apache.org/documentation/#brokerconfigs_offset.metadata.max.bytes>), less
/// some for a range more.
const TEXT_MAX: usize = 4096 - 48;

/// What the metadata begins with.
const MARK: &str = "done beyond:";

/// What is done of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks {
    /// All before it is done, and it is not.
    next: i64,
    /// What is done beyond: starts and ends, disjoint and apart.
    beyond: BTreeMap<i64, i64>,
}

impl Marks {
    /// As they were committed; metadata of another's making counts for nothing.
    pub(crate) fn committed(next: i64, metadata: &str) -> Self {
        let mut marks = Self { next, beyond: BTreeMap::new() };
        let mut at = next;
        for range in metadata.strip_prefix(MARK).into_iter().flat_map(str::split_whitespace) {
            let numbers = range.split_once('+');
            let numbers = numbers.and_then(|(gap, length)| {
                let start = at.checked_add(gap.parse().ok().filter(|gap| *gap > 0)?)?;
                Some(start..start.checked_add(length.parse().ok().filter(|count| *count > 0)?)?)
            });
            let Some(range) = numbers else { break };
            at = range.end;
            marks.beyond.insert(range.start, range.end);
        }
        marks
    }

    /// The first that is not done.
    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// What is done beyond it, as text: each range by its distance and its length.
    pub(crate) fn metadata(&self) -> String {
        let mut text = String::new();
        let mut at = self.next;
        for (start, end) in &self.beyond {
            let begin = if text.is_empty() { MARK } else { "" };
            // A String takes every text.
            let _ = write!(text, "{begin} {}+{}", start - at, end - start);
            at = *end;
        }
        text
    }

    /// Whether one more can be marked wherever it stands.
    pub(crate) fn has_room(&self) -> bool {
        // Shorter than that for sure where the ranges are few.
        self.beyond.len() < TEXT_MAX / 48 || self.metadata().len() <= TEXT_MAX
    }

    pub(crate) fn contains(&self, offset: i64) -> bool {
        offset < self.next
            || self.beyond.range(..=offset).next_back().is_some_and(|(_, end)| offset < *end)
    }

    /// These are done too.
    pub(crate) fn add(&mut self, range: Range<i64>) {
        let (mut start, mut end) = (range.start.max(self.next), range.end);
        if start >= end {
            return;
        }
        // What it touches becomes one with it.
        while let Some((&at, &until)) = self.beyond.range(..=end).next_back() {
            if until < start {
                break;
            }
            (start, end) = (start.min(at), end.max(until));
            self.beyond.remove(&at);
        }
        if start == self.next {
            self.next = end;
        } else {
            self.beyond.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_marked_is_done_and_nothing_else_also_after_a_commit(
            ranges in prop::collection::vec((0_i64..60, 0_i64..6), 0..30)
        ) {
            let mut marks = Marks::committed(3, "");
            let mut naive: BTreeSet<i64> = (0..3).collect();
            for (start, length) in ranges {
                marks.add(start..start + length);
                naive.extend(start..start + length);
                let next = (0..100).find(|offset| !naive.contains(offset));
                prop_assert_eq!(Some(marks.next()), next);
                let again = Marks::committed(marks.next(), &marks.metadata());
                prop_assert_eq!(&again, &marks);
                for offset in 0..70 {
                    prop_assert_eq!(marks.contains(offset), naive.contains(&offset), "{}", offset);
                }
            }
        }

        #[test]
        fn any_metadata_is_read(next: i64, text in "(done beyond:)?[0-9+ -]{0,60}") {
            let _ = Marks::committed(next, &text).metadata();
        }
    }

    #[test]
    fn the_text_is_short_and_bounded() {
        let mut marks = Marks::committed(10, "somebody else's");
        assert_eq!((marks.next(), marks.metadata()), (10, String::new()));
        marks.add(12..15);
        marks.add(20..21);
        assert_eq!(marks.metadata(), "done beyond: 2+3 5+1");
        let mut offset = 30;
        while marks.has_room() {
            marks.add(offset..offset + 1);
            offset += 2;
        }
        let length = marks.metadata().len();
        assert!((4000..4096).contains(&length), "{length}");
    }
}
