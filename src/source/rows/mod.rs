//! Rows that no slot sends, as a feed.

pub(super) mod row_conditions;
pub(super) mod row_feed;
pub(super) mod row_snapshot;
