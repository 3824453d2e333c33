//! Events that are diverted instead of published, and the rejected records that a replay diverts
//! again.

use std::collections::BTreeMap;

use super::EventOrigin;
use crate::lsn::Lsn;
use crate::position::EventPosition;
use crate::record::{Cause, Poison};

/// An event that was dead-lettered or skipped, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diverted {
    /// The table or message that the event is from.
    pub origin: EventOrigin,
    /// The event, and why it is undeliverable.
    pub poison: Poison,
    /// The dead-letter topic; `None` if the event was skipped.
    pub topic: Option<String>,
}

/// The positions of records that the broker permanently rejected, until the flush LSN has passed
/// them: a replay reads them again, and diverts them at once.
#[derive(Debug, Default)]
pub(super) struct Quarantine(BTreeMap<EventPosition, Cause>);

impl Quarantine {
    pub(super) fn add(&mut self, position: EventPosition, cause: Cause) {
        self.0.insert(position, cause);
    }

    pub(super) fn of(&self, position: EventPosition) -> Option<&Cause> {
        // Almost always empty.
        if self.0.is_empty() { None } else { self.0.get(&position) }
    }

    /// Removes everything that committed before `flush_lsn`.
    pub(super) fn forget_before(&mut self, flush_lsn: Lsn) {
        if !self.0.is_empty() {
            self.0 = self.0.split_off(&EventPosition { commit_lsn: flush_lsn, ordinal: 0 });
        }
    }
}
