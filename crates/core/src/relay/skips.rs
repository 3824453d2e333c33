//! Events that an operator has ordered to skip: `walpost skip`.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use crate::outbox::{Event, RowId};
use crate::pgoutput::Message;
use crate::position::EventPosition;

#[derive(Debug, Default)]
pub(super) struct Skips {
    ordered: BTreeSet<EventPosition>,
    /// Read and not published.
    taken: Vec<EventPosition>,
    /// The rows of all that were ever taken; `None`: a logical message, which has none.
    rows: BTreeMap<EventPosition, Option<RowId>>,
}

impl Core {
    /// Sets the events that are read and not published, because an operator has ordered it.
    pub fn skip(&mut self, positions: impl IntoIterator<Item = EventPosition>) {
        self.skips.ordered = positions.into_iter().collect();
    }

    /// Whether the event at this position is not published.
    pub(super) fn is_skipped(&self, position: EventPosition) -> bool {
        self.skips.ordered.contains(&position)
    }

    /// Takes an event that is not published; `None`: it cannot be read.
    pub(super) fn take_skip(
        &mut self,
        position: EventPosition,
        message: &Message,
        event: Option<&Event<'_>>,
    ) {
        self.skips.taken.push(position);
        match message {
            Message::Insert(insert) => {
                let row = event.and_then(|event| self.outbox.row_id(insert.relation, event));
                self.skips.rows.extend(row.map(|row| (position, Some(row))));
            }
            _ => drop(self.skips.rows.insert(position, None)),
        }
        self.counters.skipped += 1;
        self.count_event(position);
    }

    /// Takes the positions of these events that were read since the last call, including replays.
    pub fn take_skipped(&mut self) -> Vec<EventPosition> {
        std::mem::take(&mut self.skips.taken)
    }

    /// The rows of all these events that were read, if they are known by an id; `None`: it has none.
    pub fn skipped_rows(&self) -> &BTreeMap<EventPosition, Option<RowId>> {
        &self.skips.rows
    }
}
