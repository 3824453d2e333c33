//! Events that an operator has ordered to skip: `walpost skip`.

use std::collections::BTreeSet;

use super::Core;
use crate::position::EventPosition;

#[derive(Debug, Default)]
pub(super) struct Skips {
    ordered: BTreeSet<EventPosition>,
    /// Read and not published.
    taken: Vec<EventPosition>,
}

impl Skips {
    /// Whether the event at this position, which is read now, is skipped.
    pub(super) fn take(&mut self, position: EventPosition) -> bool {
        let is_ordered = self.ordered.contains(&position);
        if is_ordered {
            self.taken.push(position);
        }
        is_ordered
    }
}

impl Core {
    /// Sets the events that are read and not published, because an operator has ordered it.
    pub fn skip(&mut self, positions: impl IntoIterator<Item = EventPosition>) {
        self.skips.ordered = positions.into_iter().collect();
    }

    /// Takes the positions of these events that were read since the last call, including replays.
    pub fn take_skipped(&mut self) -> Vec<EventPosition> {
        std::mem::take(&mut self.skips.taken)
    }
}
