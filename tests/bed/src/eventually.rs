//! Awaits a condition. The only place of the bed that sleeps.
//!
//! A deadline says how long the condition may take on a machine that has nothing else to do. Beside
//! other work it takes longer, and so the time that counts passes more slowly: [`Patience`].

use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// How many times longer than its deadline something is awaited at most.
const LOAD_MAX: f64 = 10.0;

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
    let mut patience = Patience::of(deadline);
    let mut last = "the first look did not end".to_owned();
    loop {
        if let Ok(result) = tokio::time::timeout(patience.longest_look(), probe()).await {
            match result.outcome() {
                Ok(value) => return Ok(value),
                Err(seen) => last = seen,
            }
        }
        if patience.is_over() {
            return Err(last);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Awaits that the probe sees the same thing for so long; returns that.
pub async fn unchanged<T: PartialEq + Debug>(
    rest: Duration,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> T,
) -> T {
    let (mut last, mut patience) = (probe().await, Patience::of(rest));
    eventually(deadline, "it stays as it is", async || {
        let now = probe().await;
        if now == last {
            return patience.is_over().then_some(now).ok_or_else(|| format!("{last:?}"));
        }
        patience = Patience::of(rest);
        last = now;
        Err(format!("{last:?}"))
    })
    .await
}

/// [`within`] for places that cannot await, such as `drop`.
pub fn within_blocking<R: Outcome>(
    deadline: Duration,
    mut probe: impl FnMut() -> R,
) -> Result<R::Value, String> {
    let mut patience = Patience::of(deadline);
    loop {
        match probe().outcome() {
            Ok(value) => return Ok(value),
            Err(seen) if patience.is_over() => return Err(seen),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

/// What is left of a deadline. Of the time that passes it loses one process's share: on a machine with
/// three runnable threads for each processor a third.
struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    fn of(deadline: Duration) -> Self {
        Self { left: deadline, looked: Instant::now() }
    }

    /// How long a look may take that is not answered: all that is left, as far as can be told now.
    fn longest_look(&self) -> Duration {
        under_load(self.left).max(POLL)
    }

    fn is_over(&mut self) -> bool {
        let passed = self.looked.elapsed();
        self.looked += passed;
        self.left = self.left.saturating_sub(passed.div_f64(load()));
        self.left.is_zero()
    }
}

/// How long something may take now that takes this long at most on a machine with nothing else to do.
pub fn under_load(limit: Duration) -> Duration {
    limit.mul_f64(load())
}

/// How many threads there are for each processor that could run, at least 1.
fn load() -> f64 {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, Into::into));
    load_of(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default(), *PROCESSORS)
}

/// The same by the text of `/proc/loadavg`: of those that run now, and of the last minute's, which
/// include the ones that wait for a disk, the larger number.
fn load_of(text: &str, processors: usize) -> f64 {
    let mut fields = text.split(' ');
    let mean = fields.next().and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    let runnable = fields.nth(2).and_then(|field| field.split('/').next()?.parse::<f64>().ok());
    let threads = mean.max(runnable.unwrap_or_default());
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    (threads / f64::from(processors)).clamp(1.0, LOAD_MAX)
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

    #[test]
    fn load_is_the_larger_of_now_and_the_last_minute() {
        let load = |text, processors| format!("{:.2}", load_of(text, processors));
        assert_eq!(load("0.50 2.89 1.60 1/812 4711\n", 2), "1.00");
        assert_eq!(load("6.00 2.89 1.60 1/812 4711\n", 2), "3.00");
        assert_eq!(load("0.50 2.89 1.60 7/812 4711\n", 2), "3.50");
        assert_eq!(load("800.00 2.89 1.60 7/812 4711\n", 2), format!("{LOAD_MAX:.2}"));
        assert_eq!(load("", 2), "1.00");
    }

    #[test]
    fn patience_lasts_for_its_time_and_then_ends() {
        let (begun, mut patience) = (Instant::now(), Patience::of(Duration::from_millis(50)));
        while !patience.is_over() {
            std::thread::yield_now();
        }
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn rest_begins_with_the_last_change() {
        let (mut looks, begun) = (0, Instant::now());
        let rest = Duration::from_millis(100);
        let seen = unchanged(rest, Duration::from_secs(10), async || {
            looks += 1;
            // The second look follows the first at once, each other one a pause.
            looks.min(11)
        });
        assert_eq!(seen.await, 11);
        assert!(begun.elapsed() >= POLL * 9 + rest, "{:?}", begun.elapsed());
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
