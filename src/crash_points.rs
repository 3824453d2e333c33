//! Points at which a test lets walpost die, or err.
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

/// Whether a point is armed now, where something else than death is to happen.
#[cfg(feature = "crash-points")]
pub(crate) fn is_armed(name: &str) -> bool {
    fail::eval(name, |_| ()).is_some()
}

/// No point is.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn is_armed(_: &str) -> bool {
    false
}
