//! Awaits a condition. The only place of the bed that sleeps.

use std::fmt::Debug;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// What a probe may return: a value, or the state seen instead of it.
pub trait Outcome {
    type Value;
    /// The awaited value, or what was seen in its place.
    fn outcome(self) -> Result<Self::Value, String>;
}

impl<T> Outcome for Option<T> {
    type Value = T;
    fn outcome(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing yet".to_owned())
    }
}

impl<T, E: Debug> Outcome for Result<T, E> {
    type Value = T;
    fn outcome(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:?}"))
    }
}

impl Outcome for bool {
    type Value = ();
    fn outcome(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

/// Awaits that the probe yields; panics with `what` and the last seen state.
///
/// The probe returns an `Option`, a `bool`, or a `Result` whose error is the state seen.
pub async fn eventually<R: Outcome>(
    deadline: Duration,
    what: &str,
    probe: impl AsyncFnMut() -> R,
) -> R::Value {
    match within(deadline, probe).await {
        Ok(value) => value,
        Err(seen) => panic!("not within {deadline:?}: {what}; last seen: {seen}"),
    }
}

/// As [`eventually`], but hands the last seen state back instead of panicking.
pub async fn within<R: Outcome>(
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> R,
) -> Result<R::Value, String> {
    let end = Instant::now() + deadline;
    let mut last = "the first look did not end".to_owned();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left.max(POLL), probe()).await {
            Ok(result) => match result.outcome() {
                Ok(value) => return Ok(value),
                Err(seen) => last = seen,
            },
            Err(_) => return Err(last),
        }
        if Instant::now() >= end {
            return Err(last);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// [`within`] for places that cannot await, such as `drop`.
pub fn within_blocking<R: Outcome>(
    deadline: Duration,
    mut probe: impl FnMut() -> R,
) -> Result<R::Value, String> {
    let end = Instant::now() + deadline;
    loop {
        match probe().outcome() {
            Ok(value) => return Ok(value),
            Err(seen) if Instant::now() >= end => return Err(seen),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn satisfied_condition_returns_its_value() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(5), "three looks", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        })
        .await;
        assert_eq!(value, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "the moon; last seen: \"half\"")]
    async fn timeout_reports_the_last_observation() {
        let _: u8 = eventually(Duration::from_millis(50), "the moon", async || Err("half")).await;
    }

    #[tokio::test]
    async fn hanging_probe_does_not_exceed_the_deadline() {
        let hung = within(Duration::from_millis(50), async || {
            std::future::pending::<()>().await;
            true
        });
        assert!(hung.await.is_err());
    }
}
