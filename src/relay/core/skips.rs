//! Events that an operator has ordered to skip: `walpost skip`.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use crate::outbox::Event;
use crate::position::EventPosition;

#[derive(Debug, Default)]
pub(super) struct Skips {
    ordered: BTreeSet<EventPosition>,
    /// Read and not published.
    taken: Vec<EventPosition>,
    /// The ids of all that were ever taken and have one.
    ids: BTreeMap<EventPosition, String>,
}

impl Skips {
    /// Whether the event at this position, which is read now, is skipped; `None`: it cannot be read.
    pub(super) fn take(&mut self, position: EventPosition, event: Option<&Event<'_>>) -> bool {
        let is_ordered = self.ordered.contains(&position);
        if is_ordered {
            self.taken.push(position);
            let id = event.and_then(|event| str::from_utf8(event.id.as_deref()?).ok());
            self.ids.extend(id.map(|id| (position, id.to_owned())));
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

    /// The ids of all these events that were read.
    pub fn skipped_ids(&self) -> &BTreeMap<EventPosition, String> {
        &self.skips.ids
    }
}
