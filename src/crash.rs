//! Points at which a test lets walpost die.
//!
//! They are there with the feature `crash-points` alone, which no ordinary build
//! has. The environment arms them, as in `FAILPOINTS='acknowledged=7*off->return'`:
//! the eighth time that an acknowledgement was credited is the process's end.
//! `return` is a death without a word; `panic` is what it says.

/// Ends the process where the point is armed; without the feature it is nothing at all.
macro_rules! point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        let _: Option<()> = fail::eval($name, |_| std::process::abort());
    };
}

pub(crate) use point;

/// Reads which points are armed; they are for as long as this is kept.
#[cfg(feature = "crash-points")]
pub(crate) fn arm() -> fail::FailScenario<'static> {
    fail::FailScenario::setup()
}

/// There is nothing to arm.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn arm() {}
