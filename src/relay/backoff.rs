//! Delays between attempts, and waiting for a deadline.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::time::{Instant, sleep_until};

/// The delays between attempts, without end.
pub(super) type Backoff = backon::ExponentialBackoff;

/// Completes at that time, or never.
pub(super) async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Delays from a tenth of a second on, each twice the last, up to `limit`; with jitter, so that
/// several instances do not retry at the same moment.
pub(super) fn backoff(limit: Duration) -> Backoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(limit)
        .with_jitter()
        .without_max_times()
        .build()
}
