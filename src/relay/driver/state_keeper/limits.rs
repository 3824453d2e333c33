//! When a Kafka transaction is committed.

use std::time::Duration;

/// When a Kafka transaction is committed: also whenever the source has nothing more to read.
#[derive(Debug, Clone, Copy)]
pub struct CommitLimits {
    /// The time from its first record, after which it is committed between two PostgreSQL
    /// transactions.
    pub interval: Duration,
    /// Bytes of records from which on it is committed at once.
    pub bytes: u64,
    /// The time from its first record after which it is committed at once: a third of
    /// `transaction.timeout.ms`.
    pub timeout: Duration,
}

impl CommitLimits {
    pub(super) fn transaction_timeout(self) -> Duration {
        self.timeout * 3
    }
}
