//! Points at which a test makes walpost crash or fail.
//!
//! They exist only with the feature `crash-points`, which no ordinary build has. The environment
//! arms them, as in `FAILPOINTS='acknowledged=7*off->return'`: the process ends at the eighth
//! acknowledgement. `return` aborts without a message; `panic` panics.

/// Aborts the process if the point is armed; without the feature it expands to nothing.
macro_rules! point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        let _: Option<()> = fail::eval($name, |_| std::process::abort());
    };
}

pub(crate) use point;

/// Whether a point is armed now, for points that do something other than abort.
#[cfg(feature = "crash-points")]
pub(crate) fn is_armed(name: &str) -> bool {
    fail::eval(name, |_| ()).is_some()
}

/// Without the feature, no point is armed.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn is_armed(_: &str) -> bool {
    false
}
