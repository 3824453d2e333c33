//! Delays between attempts, and waiting for a deadline.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::time::{Instant, sleep_until};

/// The delays between attempts; the sequence does not end.
pub(super) type Backoff = backon::ExponentialBackoff;

/// Completes at `deadline`, or never if there is none.
pub(super) async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Delays from 0.1 s, doubled each time, up to `limit`; with jitter, so that several instances do
/// not retry at the same time.
pub(super) fn backoff(limit: Duration) -> Backoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(limit)
        .with_jitter()
        .without_max_times()
        .build()
}
