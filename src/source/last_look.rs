//! The session in which a standby instance last looked at the slot.

use std::sync::{Arc, Mutex, PoisonError};

use super::connection::connect::SqlClient;

/// The session of a waiting instance's last look, kept until the next one has been made.
#[derive(Debug, Clone, Default)]
pub struct LastLook(Arc<Mutex<Option<Arc<SqlClient>>>>);

impl LastLook {
    /// `client`'s session has looked.
    pub(super) fn keep(&self, client: &Arc<SqlClient>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(client));
    }

    /// Another session has looked since.
    pub(super) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
