//! An advanced slot that is still being judged, kept outside the future that judges it: a stop in the
//! meantime must not lose it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connection::connect::SqlClient;
use super::error::SourceError;

/// The error that an instance exits with if it is stopped while it waits to see who advanced the
/// slot.
#[derive(Debug, Clone, Default)]
pub struct Judgement(Arc<Mutex<Option<Pending>>>);

/// The session that has locked the slot's name, and what it ends with unless somebody vouches.
type Pending = (Arc<SqlClient>, SourceError);

impl Judgement {
    pub(super) fn begin(&self, client: &Arc<SqlClient>, error: SourceError) {
        *self.pending() = Some((Arc::clone(client), error));
    }

    pub(super) fn end(&self) {
        *self.pending() = None;
    }

    /// What was being judged when the opening was given up.
    pub(super) fn take(&self) -> Option<Pending> {
        self.pending().take()
    }

    fn pending(&self) -> MutexGuard<'_, Option<Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
