//! Which opening of the state key is the current one, and what the stream has: shared by the store
//! of the position, which opens the key, and the sink, which publishes under it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::state_key::Last;

/// The claim of this process. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Rises with each change of the claim.
    version: AtomicU64,
    current: Mutex<Option<String>>,
    last: Mutex<Option<Last>>,
}

impl Claims {
    /// The number of changes so far.
    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// The claim that the state key has; `None` before it is open.
    pub(crate) fn current(&self) -> Option<String> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The state key was opened with this claim, or has to be opened again.
    pub(crate) fn set(&self, claim: Option<String>) {
        *self.0.current.lock().unwrap_or_else(PoisonError::into_inner) = claim;
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// The last message of the stream that is known to be an event.
    pub(crate) fn last(&self) -> Option<Last> {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This message was acknowledged, or found.
    pub(crate) fn set_last(&self, last: Option<Last>) {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }
}
