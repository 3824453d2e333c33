//! Compares the position that Redis or NATS keeps beside the stream with the slot, as `run` does
//! before it publishes. Reads only.

use super::SlotAt;
use super::findings::{Finding, Findings, Name};
use crate::source::SlotError;
use crate::state::{StateFailure, StoredPosition};

/// The state key, as it was read.
pub(super) type Read = Result<Option<StoredPosition>, StateFailure>;

/// How a destination is called in findings.
pub(super) struct Names {
    /// The state key and its contents.
    pub(super) state: Name,
    /// The comparison with the slot.
    pub(super) position: Name,
    /// The store, in errors.
    pub(super) store: &'static str,
    /// The state key, in errors.
    pub(super) place: String,
}

/// Checks what `run` would find in the state key. Returns whether the stream is this walpost's.
pub(super) fn check(names: &Names, read: Read, slot: &SlotAt, findings: &mut Findings) -> bool {
    let found = match read {
        Ok(Some(found)) => found,
        Ok(None) => return false,
        Err(failure) => {
            let finding = Finding::error(names.state, failure.to_string());
            findings.add(finding.why("`run` does not start").advice("see the message"));
            return false;
        }
    };
    if let Err(error) = compare(names, &found, slot) {
        let finding = Finding::error(names.position, error.to_string());
        findings.add(finding.why("`run` does not start").advice("see the message"));
    }
    true
}

/// The state key is there, and PostgreSQL could not be asked whose it is.
pub(super) fn not_compared(name: Name, text: &str) -> Finding {
    let text = format!("{text}; owner and position were not compared with the slot's");
    Finding::skipped(name, text)
}

fn compare(names: &Names, found: &StoredPosition, slot: &SlotAt) -> Result<(), SlotError> {
    let (place, store) = (names.place.clone(), names.store);
    let state = &found.state;
    if state.timeline > slot.timeline {
        let known = format!("timeline {} of the server", state.timeline);
        let found = format!("timeline {}", slot.timeline);
        return Err(SlotError::OtherState { place, known, found });
    }
    let (confirmed, acked) = (slot.confirmed, state.acked_upto);
    if confirmed > acked {
        let slot = slot.key.slot.clone();
        return Err(SlotError::AheadOfStore { slot, found: confirmed, acked, place, store });
    }
    let needed = found.needed();
    if slot.flushed < needed {
        return Err(SlotError::BehindStore { flushed: slot.flushed, acked: needed, place, store });
    }
    Ok(())
}
