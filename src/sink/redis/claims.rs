//! Which opening of the state key is the current one: shared by the store of the position, which
//! opens it, and the sink, which adds entries under it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The claim of this process. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Rises with each change.
    version: AtomicU64,
    current: Mutex<Option<String>>,
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
}
