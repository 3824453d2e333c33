//! The delays between attempts.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

/// Delays from the first to the second, doubled each time; the sequence does not end. With jitter, which
/// adds up to the delay itself, so that several instances do not retry at the same time.
pub(crate) fn delays([first, last]: [Duration; 2]) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(first)
        .with_max_delay(last / 2)
        .with_jitter()
        .without_max_times()
        .build()
}
