//! The maximum size of the producer's batches: as configured, and smaller for a while after a broker
//! has rejected one.
//!
//! A broker rejects a whole batch for one record. Smaller batches isolate that record sooner, but
//! cost up to one request per record, so the configured size is restored after a while. If batches
//! of that size are rejected again soon (they exceed a topic's limit), the next attempt to restore
//! it waits longer each time.

use std::time::{Duration, Instant};

/// The factor by which a rejection makes batches smaller: few steps from the default to single
/// records, and the first step fits most topics with a limit of their own.
const SHRINKS_BY: u32 = 16;

/// How long after the last rejection the configured size is restored: longer than the longest pause
/// between two replays.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// The factor by which that time grows after a failed attempt, and its maximum.
const WAIT_GROWS_BY: u32 = 6;
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The maximum size of batches, in bytes.
#[derive(Debug)]
pub(crate) struct BatchSize {
    configured: u32,
    bytes: u32,
    wait: Duration,
    /// When the configured size may be restored.
    restore_at: Option<Instant>,
    restored_at: Option<Instant>,
}

impl BatchSize {
    pub(crate) fn new(configured: u32) -> Self {
        Self {
            configured,
            bytes: configured,
            wait: FIRST_WAIT,
            restore_at: None,
            restored_at: None,
        }
    }

    /// The maximum size for this configured one.
    pub(crate) fn at_most(&self, configured: u32) -> u32 {
        if self.are_smaller() { self.bytes.min(configured) } else { configured }
    }

    pub(crate) fn configured(&self) -> u32 {
        self.configured
    }

    /// Whether a rejection has made batches smaller.
    pub(crate) fn are_smaller(&self) -> bool {
        self.restore_at.is_some()
    }

    /// Records a rejected batch. Returns the new maximum size, if it changes.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<u32> {
        if !self.are_smaller() {
            let was_of_use =
                |then: Instant| now.saturating_duration_since(then) >= self.wait * WAIT_GROWS_BY;
            self.wait = match self.restored_at {
                Some(then) if !was_of_use(then) => (self.wait * WAIT_GROWS_BY).min(WAIT_MAX),
                _ => FIRST_WAIT,
            };
        }
        self.restore_at = Some(now + self.wait);
        let smaller = (self.bytes / SHRINKS_BY).max(1);
        (std::mem::replace(&mut self.bytes, smaller) != smaller).then_some(smaller)
    }

    /// Whether it is time to restore the configured size.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.restore_at.is_some_and(|at| now >= at)
    }

    /// Records that the configured size could not be restored now.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.restore_at = self.restore_at.map(|_| now + self.wait);
    }

    /// Records that the configured size is restored.
    pub(crate) fn restored(&mut self, now: Instant) {
        (self.bytes, self.restore_at, self.restored_at) = (self.configured, None, Some(now));
    }

    /// Changes the configured size.
    pub(crate) fn configure(&mut self, configured: u32) {
        self.bytes = self.at_most(configured);
        self.configured = configured;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_to_single_records_and_are_restored_later() {
        let (mut batches, began) = (BatchSize::new(1_000_000), Instant::now());
        let lengths: Vec<_> = std::iter::from_fn(|| batches.refused(began)).collect();
        assert_eq!(lengths, [62_500, 3_906, 244, 15, 1]);
        let later = began + FIRST_WAIT / 2;
        assert_eq!(batches.refused(later), None);
        assert!(!batches.is_due(began + FIRST_WAIT), "rejected since");
        assert!(batches.is_due(later + FIRST_WAIT));
        batches.restored(later + FIRST_WAIT);
        assert!(!batches.are_smaller() && batches.at_most(1_000_000) == 1_000_000);
        assert!(!batches.is_due(later + WAIT_MAX));
    }

    #[test]
    fn repeatedly_rejected_size_is_restored_less_and_less_often() {
        let (mut batches, mut now) = (BatchSize::new(1_000), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            batches.refused(now);
            let wait = batches.wait;
            waits.push(wait.as_secs());
            now += wait;
            assert!(batches.is_due(now));
            batches.restored(now);
        }
        assert_eq!(waits, [10, 60, 360, 2160, 12960, 77760, 86400, 86400]);
        // A rejection long after has another cause.
        now += WAIT_MAX * WAIT_GROWS_BY;
        batches.refused(now);
        assert_eq!(batches.wait, FIRST_WAIT);
    }

    #[test]
    fn changed_configuration_applies_once_batches_are_restored() {
        let (mut batches, now) = (BatchSize::new(1_000), Instant::now());
        batches.configure(2_000);
        assert_eq!(batches.at_most(2_000), 2_000);
        batches.refused(now);
        batches.configure(4_000);
        assert_eq!((batches.at_most(4_000), batches.configured()), (125, 4_000));
        batches.restored(now);
        assert_eq!(batches.refused(now), Some(250));
    }
}
