//! Runs a property over random cases, for tests, and prints one line that replays a failure.
//!
//! `WALPOST_CASES` sets the number of cases; `WALPOST_SEED` selects the same ones again. Nothing is
//! stored that would change a later run.

use std::env;
use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// Checks that `property`, which panics if it does not hold, holds for `cases` values; `name` is
/// the name of the calling test.
pub fn holds<S: Strategy>(name: &str, cases: u32, values: &S, property: impl Fn(S::Value))
where
    S::Value: Debug,
{
    let cases = number("WALPOST_CASES").unwrap_or(cases);
    let seed = number("WALPOST_SEED").unwrap_or_else(|| fastrand::u64(..) >> 16);
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    let judged = TestRunner::new(config).run(values, |value| {
        property(value);
        Ok(())
    });
    if let Err(fault) = judged {
        panic!("{fault}\n  WALPOST_CASES={cases} WALPOST_SEED={seed} make unit NAME={name}\n");
    }
}

fn number<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = env::var(variable).ok()?;
    let Ok(number) = text.parse() else { panic!("{variable} is no number: {text}") };
    Some(number)
}
