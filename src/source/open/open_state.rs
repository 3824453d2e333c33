//! State that an attempt to open a session leaves for the next attempt, or for the relay.
//!
//! It is kept outside the future that opens the session: a stop drops that future, and must not
//! lose an error that is already known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::source::connection::connect::SqlClient;
use crate::source::error::SourceError;

/// The state that attempts to open a session share.
#[derive(Debug, Clone, Default)]
pub struct OpenState(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    standby_session: Option<Arc<SqlClient>>,
    advanced_slot: Option<AdvancedSlot>,
}

/// The session that holds the lock on the slot, and the error that the instance exits with unless
/// another walpost turns out to have advanced the slot.
type AdvancedSlot = (Arc<SqlClient>, SourceError);

impl OpenState {
    /// Keeps the session of a standby instance open, and with it its advisory locks, until the next
    /// session has checked whether another instance halts.
    pub(in crate::source) fn keep_standby_session(&self, client: &Arc<SqlClient>) {
        self.state().standby_session = Some(Arc::clone(client));
    }

    /// Closes that session: a newer one has made the check.
    pub(in crate::source) fn close_standby_session(&self) {
        self.state().standby_session = None;
    }

    /// Records that the slot is ahead of this instance, before it is known who advanced it.
    pub(in crate::source) fn begin_advanced_slot(
        &self,
        client: &Arc<SqlClient>,
        error: SourceError,
    ) {
        self.state().advanced_slot = Some((Arc::clone(client), error));
    }

    /// Records that it is known who advanced the slot, or that this can no longer be determined.
    pub(in crate::source) fn end_advanced_slot(&self) {
        self.state().advanced_slot = None;
    }

    /// Takes the advanced slot that a dropped attempt was still examining.
    pub(in crate::source) fn take_advanced_slot(&self) -> Option<AdvancedSlot> {
        self.state().advanced_slot.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
