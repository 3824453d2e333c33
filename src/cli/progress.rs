//! The progress of long work.

use std::time::Duration;

/// How often it is printed.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

/// The text `2000 of 10000, 950 rows/s, 8 s left`.
pub(super) fn progress(done: u64, of: u64, elapsed: Duration) -> String {
    let left = u128::from(of.saturating_sub(done));
    let done_u128 = u128::from(done.max(1));
    let left = elapsed.as_millis() * left / done_u128 / 1000;
    let rate = done_u128 * 1000 / elapsed.as_millis().max(1);
    format!("{done} of {of}, {rate} rows/s, {left} s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_the_rate_and_the_time_left() {
        let text = progress(2000, 10_000, Duration::from_secs(2));
        assert_eq!(text, "2000 of 10000, 1000 rows/s, 8 s left");
        assert_eq!(progress(0, 5, Duration::ZERO), "0 of 5, 1000 rows/s, 0 s left");
    }
}
