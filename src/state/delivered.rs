//! Which rows are delivered, told by the transaction ids in their `xmin`: for `walpost recover`, which
//! may have no slot that tells.
//!
//! A **bookmark** is taken in one query: the oldest transaction id that is still running
//! (`pg_snapshot_xmin`), then the WAL's insert position. Every transaction with a lower id has ended,
//! and its commit record lies before that position: a transaction stops running only after its
//! commit record is in the WAL
//! ([transam/README](https://github.com/postgres/postgres/blob/master/src/backend/access/transam/README)).
//! So once everything that committed before the position is acknowledged, every row of those
//! transactions is delivered; of their savepoints and prepared transactions too, since these run
//! under ids of their own until they end. It needs no clock.
//!
//! A bookmark whose position is not acknowledged yet is of no use for another session: after a crash
//! the server may give ids again that it had not written down. Nor is one of a history that the server
//! has lost: after a restore, ids and positions are given again, to other rows.

use serde::{Deserialize, Serialize};

use crate::lsn::Lsn;

/// Minimum time between two bookmarks, in milliseconds.
const SPACING_MS: u64 = 60_000;

/// How long bookmarks are kept, in milliseconds: a week.
const KEPT_MS: u64 = 7 * 24 * 3600 * 1000;

/// A bound of what is delivered. Transaction ids have 64 bits: a row's `xmin` has the lower 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bookmark {
    /// Rows of transactions with a lower id are delivered.
    pub below: u64,
    /// The position behind their commits.
    #[serde(with = "text")]
    pub lsn: Lsn,
    /// When it was taken, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The rows that are delivered: of transactions from an id on, and below that of a bookmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// Transactions with this id and higher ones began after the slot had its position.
    pub from: u64,
    /// The server's time then, in milliseconds since 1970: a row of an older transaction that was
    /// updated since is told by its own time.
    #[serde(default)]
    pub from_ms: u64,
    /// The newest first. They lie the farther apart the older they are: a restored server's WAL may
    /// end before the newest ones.
    pub bookmarks: Vec<Bookmark>,
}

impl Delivered {
    /// Nothing yet.
    pub fn new(from: u64, from_ms: u64) -> Self {
        Self { from, from_ms, bookmarks: Vec::new() }
    }

    /// Whether it is time for another bookmark.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let is_old = |newest: &Bookmark| now_ms.saturating_sub(newest.at_ms) >= spacing_ms();
        self.bookmarks.first().is_none_or(is_old)
    }

    /// Removes the bookmarks that a restored server may have lost. Those up to `kept` stay: the slot,
    /// which was restored with it, has confirmed that position. So do those of transactions that the
    /// server has begun, whose ids are lower than `xmax`.
    #[must_use]
    pub fn of_restarted(mut self, kept: Lsn, xmax: u64) -> Self {
        self.bookmarks.retain(|bookmark| bookmark.lsn <= kept && bookmark.below <= xmax);
        self
    }

    /// Adds the newest bookmark, of which everything is acknowledged.
    pub fn add(&mut self, bookmark: Bookmark) {
        self.bookmarks.insert(0, bookmark);
        let age = |one: &Bookmark| bookmark.at_ms.saturating_sub(one.at_ms);
        self.bookmarks.retain(|one| age(one) <= KEPT_MS);
        let mut index = 1;
        while let [newer, _, older] = self.bookmarks.get(index - 1..index + 2).unwrap_or_default() {
            let gap = newer.at_ms.saturating_sub(older.at_ms);
            if gap <= age(newer).max(spacing_ms()) {
                self.bookmarks.remove(index);
            } else {
                index += 1;
            }
        }
    }
}

fn spacing_ms() -> u64 {
    if crate::crash_points::is_armed("frequent_bookmarks") { 0 } else { SPACING_MS }
}

/// An LSN as PostgreSQL writes it.
pub(super) mod text {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::lsn::Lsn;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(in crate::state) fn serialize<S: Serializer>(lsn: &Lsn, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(lsn)
    }

    pub(in crate::state) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Lsn, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookmark(minute: u64) -> Bookmark {
        Bookmark { below: minute, lsn: Lsn::new(minute), at_ms: minute * 60_000 }
    }

    #[test]
    fn bookmarks_lie_farther_apart_the_older_they_are() {
        let mut delivered = Delivered::new(3, 4);
        assert!(delivered.is_due(0));
        for minute in 0..100_000 {
            delivered.add(bookmark(minute));
            let ages: Vec<_> =
                delivered.bookmarks.iter().map(|one| minute - one.at_ms / 60_000).collect();
            assert!(ages.len() <= 32, "{ages:?}");
            assert!(ages.is_sorted() && ages[0] == 0, "{ages:?}");
            // For any point in the last week there is one before it, at most about three times as old.
            for pair in ages.windows(2) {
                assert!(pair[1] <= pair[0] * 3 + 2, "{ages:?}");
            }
            let kept = minute.min(KEPT_MS / 60_000);
            assert!(ages.last().is_some_and(|oldest| *oldest * 3 + 2 >= kept), "{ages:?}");
        }
        assert!(!delivered.is_due(100_000 * 60_000 - 1) && delivered.is_due(100_000 * 60_000));
    }

    #[test]
    fn bookmarks_of_a_history_that_may_be_lost_are_removed() {
        let mut delivered = Delivered::new(3, 4);
        [10, 20, 30].into_iter().for_each(|minute| delivered.add(bookmark(minute)));
        for (kept, xmax, left) in [
            (30, 30, vec![30, 20, 10]),
            (29, 30, vec![20, 10]),
            (u64::MAX, 20, vec![20, 10]),
            (9, u64::MAX, vec![]),
        ] {
            let found = delivered.clone().of_restarted(Lsn::new(kept), xmax);
            let found: Vec<_> = found.bookmarks.iter().map(|one| one.below).collect();
            assert_eq!(found, left, "{kept} {xmax}");
        }
    }

    #[test]
    fn they_are_read_as_they_were_written() {
        let mut delivered = Delivered::new(u64::MAX, 5);
        delivered.add(Bookmark { lsn: Lsn::new(0x1_0000_00A0), ..bookmark(7) });
        let json = serde_json::to_string(&delivered).expect("JSON");
        assert!(json.contains(r#""lsn":"1/A0""#), "{json}");
        assert_eq!(serde_json::from_str::<Delivered>(&json).expect("the same"), delivered);
    }
}
