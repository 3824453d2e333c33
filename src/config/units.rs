//! Sizes and durations with units: `32MiB`, `20s`.

use std::time::Duration;

const SIZE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const DURATION_UNITS_MS: [(&str, u64); 3] = [("min", 60_000), ("s", 1_000), ("ms", 1)];
/// Read, and not written.
const LONG_UNITS_MS: [(&str, u64); 2] = [("d", 86_400_000), ("h", 3_600_000)];

/// A text that is not a size or a duration. The message names the correct form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    #[error(
        "`{0}` is not a size: write a whole number of bytes, or one with KiB, MiB or GiB, for instance 32MiB"
    )]
    Size(String),
    #[error(
        "`{0}` is not a duration: write a whole number with ms, s, min, h or d, for instance 20s"
    )]
    Duration(String),
}

/// Parses a size; a number without a unit is bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    split(text)
        .and_then(|(number, unit)| {
            let factor = if unit.is_empty() { 1 } else { factor_of(unit, &SIZE_UNITS)? };
            number.checked_mul(factor)
        })
        .ok_or_else(|| UnitError::Size(text.to_owned()))
}

/// Parses a duration. A number without a unit is an error.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    split(text)
        .and_then(|(number, unit)| {
            let long = || factor_of(unit, &LONG_UNITS_MS);
            number.checked_mul(factor_of(unit, &DURATION_UNITS_MS).or_else(long)?)
        })
        .map(Duration::from_millis)
        .ok_or_else(|| UnitError::Duration(text.to_owned()))
}

/// A size in the largest unit that needs no fraction, for [`parse_bytes`].
pub(crate) fn show_bytes(bytes: u64) -> String {
    show(bytes, &SIZE_UNITS)
}

/// A duration in whole milliseconds, for [`parse_duration`].
pub(crate) fn show_duration(duration: Duration) -> String {
    show(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), &DURATION_UNITS_MS)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start()))
}

fn factor_of(unit: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
}

fn show(amount: u64, units: &[(&str, u64)]) -> String {
    let (name, factor) = units
        .iter()
        .find(|(_, factor)| amount >= *factor && amount.is_multiple_of(*factor))
        .copied()
        .unwrap_or((units[units.len() - 1].0, 1));
    format!("{}{name}", amount / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_have_binary_units_or_none() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("4KiB", 4096),
            ("32 MiB", 32 << 20),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for wrong in
            ["", " ", "MiB", "1.5MiB", "-1", "1MB", "1kB", "1mib", "1 MiB ", "20000000000GiB", "٣"]
        {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        for (text, ms) in [
            ("250ms", 250),
            ("20s", 20_000),
            ("2 min", 120_000),
            ("0s", 0),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in ["", "20", "s", "1w", "1.5s", "-1s", "1S", "99999999999999999999s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_size_is_parsed_to_the_same_value(amount: u64) {
            prop_assert_eq!(parse_bytes(&show_bytes(amount)), Ok(amount));
            let duration = Duration::from_millis(amount);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
    }
}
