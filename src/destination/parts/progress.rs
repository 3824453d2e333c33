//! The processed dead letters of a partition.
//!
//! A consumer group's offset covers all dead letters before it. Dead letters that are kept for a
//! later replay lie between processed ones. So the processed dead letters beyond the offset are
//! stored in the metadata of the commit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// The default maximum of a broker's metadata in bytes
/// (<https://kafka.apache.org/documentation/#brokerconfigs_offset.metadata.max.bytes>), minus room
/// for one more range.
const METADATA_MAX: usize = 4096 - 48;

/// The metadata's prefix.
const PREFIX: &str = "done beyond:";

/// The processed dead letters of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The first dead letter that is not processed.
    next: i64,
    /// The processed ranges after it: start and end, with gaps between them.
    beyond: BTreeMap<i64, i64>,
}

impl Progress {
    /// Parses a commit; metadata of another program is ignored.
    pub(crate) fn committed(next: i64, metadata: &str) -> Self {
        let mut progress = Self { next, beyond: BTreeMap::new() };
        let mut at = next;
        for range in metadata.strip_prefix(PREFIX).into_iter().flat_map(str::split_whitespace) {
            let numbers = range.split_once('+');
            let numbers = numbers.and_then(|(gap, length)| {
                let start = at.checked_add(gap.parse().ok().filter(|gap| *gap > 0)?)?;
                Some(start..start.checked_add(length.parse().ok().filter(|count| *count > 0)?)?)
            });
            let Some(range) = numbers else { break };
            at = range.end;
            progress.beyond.insert(range.start, range.end);
        }
        progress
    }

    /// The first dead letter that is not processed.
    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// The processed ranges after it as text: each by its distance and its length.
    pub(crate) fn metadata(&self) -> String {
        let mut text = String::new();
        let mut at = self.next;
        for (start, end) in &self.beyond {
            let begin = if text.is_empty() { PREFIX } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{begin} {}+{}", start - at, end - start);
            at = *end;
        }
        text
    }

    /// Whether the metadata has room for another range.
    pub(crate) fn has_room(&self) -> bool {
        // A few ranges always fit: each takes at most 48 bytes.
        self.beyond.len() < METADATA_MAX / 48 || self.metadata().len() <= METADATA_MAX
    }

    pub(crate) fn contains(&self, offset: i64) -> bool {
        offset < self.next
            || self.beyond.range(..=offset).next_back().is_some_and(|(_, end)| offset < *end)
    }

    /// Adds processed dead letters.
    pub(crate) fn add(&mut self, range: Range<i64>) {
        let (mut start, mut end) = (range.start.max(self.next), range.end);
        if start >= end {
            return;
        }
        // Adjacent and overlapping ranges are merged.
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
        fn exactly_the_marked_letters_are_processed_even_after_a_commit(
            ranges in prop::collection::vec((0_i64..60, 0_i64..6), 0..30)
        ) {
            let mut progress = Progress::committed(3, "");
            let mut naive: BTreeSet<i64> = (0..3).collect();
            for (start, length) in ranges {
                progress.add(start..start + length);
                naive.extend(start..start + length);
                let next = (0..100).find(|offset| !naive.contains(offset));
                prop_assert_eq!(Some(progress.next()), next);
                let again = Progress::committed(progress.next(), &progress.metadata());
                prop_assert_eq!(&again, &progress);
                for offset in 0..70 {
                    prop_assert_eq!(progress.contains(offset), naive.contains(&offset), "{}", offset);
                }
            }
        }

        #[test]
        fn any_metadata_is_parsed(next: i64, text in "(done beyond:)?[0-9+ -]{0,60}") {
            let _ = Progress::committed(next, &text).metadata();
        }
    }

    #[test]
    fn the_text_is_short_and_bounded() {
        let mut progress = Progress::committed(10, "somebody else's");
        assert_eq!((progress.next(), progress.metadata()), (10, String::new()));
        progress.add(12..15);
        progress.add(20..21);
        assert_eq!(progress.metadata(), "done beyond: 2+3 5+1");
        let mut offset = 30;
        while progress.has_room() {
            progress.add(offset..offset + 1);
            offset += 2;
        }
        let length = progress.metadata().len();
        assert!((4000..4096).contains(&length), "{length}");
    }
}
