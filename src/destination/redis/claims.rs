//! Which opening of the state key is the current one: shared by the store of the position, which
//! opens it, and the sink, which adds entries under it.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::entry_id::EntryId;

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
pub(super) fn is_own(nonce: &str) -> bool {
    nonce.starts_with(&*PROCESS)
}

/// The claim of this process. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Rises with each change.
    version: AtomicU64,
    current: Mutex<Option<String>>,
    acknowledged: Mutex<EntryId>,
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

    /// The state key was opened with this claim.
    pub(crate) fn set(&self, claim: String) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(claim);
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// The claim of this version is not in the state key any more. A later one stays.
    pub(super) fn clear(&self, version: u64) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        if self.version() == version {
            *current = None;
            self.0.version.fetch_add(1, Ordering::Release);
        }
    }

    /// The highest id that Redis has acknowledged to this process.
    pub(crate) fn acknowledged(&self) -> EntryId {
        *self.0.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Redis has acknowledged everything up to this id.
    pub(super) fn acknowledge(&self, id: EntryId) {
        *self.0.acknowledged.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_claim_is_not_cleared_with_an_older_one() {
        let claims = Claims::default();
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
