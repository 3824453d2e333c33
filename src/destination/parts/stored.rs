//! Compares the position at the destination with the slot, as `run` does before it publishes. Reads only.

use crate::findings::{Finding, Findings, Name};
use crate::lsn::Lsn;
use crate::source::SlotError;
use crate::state::{Decision, Facts, Layout, StateFailure, StateKey, StoredPosition, decide};

/// The slot and its position, to compare with the position at the destination.
#[derive(Clone)]
pub(crate) struct SlotAt {
    pub(crate) key: StateKey,
    /// The start time of the postmaster, in microseconds since 1970.
    pub(crate) server_started: i64,
    pub(crate) timeline: u32,
    pub(crate) confirmed: Lsn,
    /// The end of the server's WAL.
    pub(crate) flushed: Lsn,
    pub(crate) is_standby: bool,
    /// Whether a walpost reads the slot, which has compared the positions and publishes meanwhile.
    pub(crate) is_read: bool,
    /// What numbers the events now.
    pub(crate) layout: Layout,
}

/// The state key, as it was read.
pub(crate) type Read = Result<Option<StoredPosition>, StateFailure>;

/// How a destination is called in findings.
pub(crate) struct FindingNames {
    /// The state key and its contents.
    pub(crate) state: Name,
    /// The comparison with the slot.
    pub(crate) position: Name,
    /// The stream, with its state key.
    pub(crate) stream: Name,
    /// The store, in errors, if it keeps the position beside the events.
    pub(crate) store: Option<&'static str>,
    /// The place of the position, in errors.
    pub(crate) place: String,
}

/// Checks what `run` would find in the state key that is there, which `text` says; `None`: PostgreSQL could
/// not be asked whose it is.
pub(crate) fn check(
    names: &FindingNames,
    text: String,
    stored: Option<(&SlotAt, Read)>,
    findings: &mut Findings,
) {
    let Some((slot, read)) = stored else {
        let text = format!("{text}; owner and position were not compared with the slot's");
        return findings.add(Finding::skipped(names.state, text));
    };
    if is_usable(names, read, slot, findings) {
        findings.add(Finding::ok(names.stream, text));
    }
}

/// Whether the stream is this walpost's, and `run` would continue from its position.
fn is_usable(names: &FindingNames, read: Read, slot: &SlotAt, findings: &mut Findings) -> bool {
    let found = match read {
        Ok(Some(found)) => found,
        Ok(None) => {
            let SlotAt { key, .. } = slot;
            let text = format!(
                "{} has no position for slot {}, server {} and delivery.id {}",
                names.place, key.slot, key.system_identifier, key.delivery_id
            );
            let finding = Finding::error(names.position, text).command("walpost adopt --apply");
            findings
                .add(finding.why("`run` does not start: it cannot tell whether rows were skipped"));
            return false;
        }
        Err(failure) => {
            let why = match failure {
                StateFailure::Unavailable(_) => "`run` waits until it can read the position",
                _ => "`run` does not start",
            };
            let finding = Finding::error(names.state, failure.to_string());
            findings.add(finding.why(why).advice("see the message"));
            return false;
        }
    };
    if let Err(error) = compare(names, &found, slot) {
        let finding = Finding::error(names.position, error.to_string());
        findings.add(finding.why("`run` does not start").advice("see the message"));
        return false;
    }
    true
}

/// Decides as `run` does. What only a session knows is taken to be as it was; it can still refuse.
fn compare(names: &FindingNames, found: &StoredPosition, slot: &SlotAt) -> Result<(), SlotError> {
    let state = &found.state;
    let facts = Facts {
        server_started: slot.server_started,
        timeline: slot.timeline,
        fork: None,
        flushed: if slot.is_read { slot.flushed.max(found.needed()) } else { slot.flushed },
        is_standby: slot.is_standby,
        slot: slot.confirmed,
        cluster: None,
        layout: &slot.layout,
        published: found.published,
        rows: None,
        is_own: false,
        awaited: Some(found.needed()),
    };
    let Decision::Refuse(refusal) = decide(state, &facts) else { return Ok(()) };
    let at = (names.place.clone(), names.store);
    Err(refusal.into_error(at, slot.key.slot.clone(), state, &facts))
}
