//! What the core counts, for metrics and the log.

use super::halt::EventOrigin;
use crate::position::EventPosition;

/// What was received, and how much of it was skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Completely received transactions, including those without an outbox event.
    pub transactions: u64,
    /// Outbox events received, including replays.
    pub events: u64,
    /// Outbox events received for the first time.
    pub new_events: u64,
    /// Updates of outbox rows, which are not events.
    pub ignored_updates: u64,
    /// Deletes of outbox rows, which are not events.
    pub ignored_deletes: u64,
    /// Truncates of outbox tables, which are not events.
    pub ignored_truncates: u64,
    /// Non-transactional logical messages with the configured prefix: they are refused, because
    /// they have no position that survives a replay.
    pub refused_messages: u64,
    /// Events that were published to the dead-letter topic, including replays.
    pub dead_letters: u64,
    /// Events that were skipped, including replays.
    pub skipped: u64,
    /// Members of rows' headers that were dropped because walpost reserves their names, including
    /// replays.
    pub dropped_headers: u64,
}

/// An event of which headers were dropped, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedHeaders {
    /// The table or message that the event is from.
    pub origin: EventOrigin,
    /// The event's position.
    pub position: EventPosition,
    /// The name of the first dropped header.
    pub name: String,
}
