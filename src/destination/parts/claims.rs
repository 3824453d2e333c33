//! Which opening of a state key is the current one: shared by the store of the position, which opens
//! the key, and the sink, which publishes under it.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// What all texts of this process begin with.
static PROCESS: LazyLock<String> = LazyLock::new(|| {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Containers may have the same process id at the same time.
    let random = RandomState::new().hash_one(());
    format!("{:x}-{:x}-{random:016x}-", elapsed.as_nanos(), std::process::id())
});

/// A text that nobody else uses.
pub(crate) fn nonce() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}{:x}", *PROCESS, COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether this process has made it.
pub(crate) fn is_own(nonce: &str) -> bool {
    nonce.starts_with(&*PROCESS)
}

/// The claim of this process, and the last event that is known to be at the destination (of Redis an
/// entry's id, of NATS a message). Clones share both.
#[derive(Debug, Default)]
pub(crate) struct Claims<T>(Arc<Inner<T>>);

#[derive(Debug, Default)]
struct Inner<T> {
    /// Rises with each change of the claim.
    version: AtomicU64,
    current: Mutex<Option<String>>,
    last: Mutex<T>,
}

impl<T> Clone for Claims<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Claims<()> {
    /// The claims of a destination that has no state key: one that never changes.
    pub(crate) fn unclaimed() -> Self {
        let claims = Self::default();
        claims.set(String::new());
        claims
    }
}

impl<T: Copy> Claims<T> {
    /// The number of changes so far.
    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// The claim that the state key has; `None` before it is open.
    pub(crate) fn current(&self) -> Option<String> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The state key was opened with this claim.
    pub(crate) fn set(&self, claim: String) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(claim);
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// The claim of this version is not in the state key any more. A later one stays.
    pub(crate) fn clear(&self, version: u64) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        if self.version() == version {
            *current = None;
            self.0.version.fetch_add(1, Ordering::Release);
        }
    }

    /// The last event that this process knows to be there.
    pub(crate) fn last(&self) -> T {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This one was acknowledged, or found.
    pub(crate) fn set_last(&self, last: T) {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_claim_is_not_cleared_with_an_older_one() {
        let claims = Claims::<()>::default();
        claims.set("a".to_owned());
        let version = claims.version();
        claims.set("b".to_owned());
        claims.clear(version);
        assert_eq!(claims.current().as_deref(), Some("b"));
        claims.clear(claims.version());
        assert_eq!(claims.current(), None);
    }

    #[test]
    fn claims_of_this_process_are_told_from_others() {
        assert!(is_own(&nonce()) && nonce() != nonce());
        assert!(!is_own("") && !is_own("187f0a-1-0000000000000001-0"));
    }
}
