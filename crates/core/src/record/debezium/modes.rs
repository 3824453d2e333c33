//! How the connector represents numbers, times and bytes: its `….mode` options.

/// `decimal.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Decimals {
    #[default]
    Precise,
    String,
    Double,
}

/// `time.precision.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Times {
    #[default]
    Adaptive,
    AdaptiveTimeMicroseconds,
    Microseconds,
    Nanoseconds,
    IsoString,
}

/// `binary.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Binary {
    #[default]
    Bytes,
    Base64,
    Base64UrlSafe,
    Hex,
}

/// `interval.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Intervals {
    #[default]
    Numeric,
    String,
}

/// All modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Modes {
    pub(super) decimals: Decimals,
    pub(super) times: Times,
    pub(super) binary: Binary,
    pub(super) intervals: Intervals,
}
