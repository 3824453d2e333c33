//! Rows that no slot sends, as a feed, and which rows are delivered.

pub(super) mod confirmed_slots;
pub(super) mod row_conditions;
pub(super) mod row_feed;
pub(super) mod row_snapshot;
