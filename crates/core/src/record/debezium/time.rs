//! Dates and times as Debezium writes them: mostly as numbers since an epoch.
//!
//! Texts are parsed in ISO style and, for intervals, in the style `postgres`, the server's
//! defaults.

use std::fmt::Write as _;

use crate::record::timestamp::{self, DATE_YEAR_MAX, NO_TIMESTAMP};

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i128 = 86_400_000_000;
/// 30.4375 days: Debezium's month.
const MICROS_PER_MONTH: i128 = 2_629_800_000_000;

const NO_DATE: &str = "is not a date in ISO style: DateStyle must be ISO";
const NO_TIME: &str = "is not a time in ISO style";
const NO_INTERVAL: &str =
    "is not an interval in the style `postgres`: IntervalStyle must be postgres";

/// Days since 1970-01-01. Infinity has the value of Debezium's driver.
pub(super) fn date(text: &str) -> Result<i64, &'static str> {
    match text {
        "infinity" => return Ok(2_146_033_979),
        "-infinity" => return Ok(-2_147_472_691),
        _ => {}
    }
    let (date, is_bc) = timestamp::without_era(text);
    timestamp::days(date, is_bc, DATE_YEAR_MAX).ok_or(NO_DATE)
}

/// Microseconds since midnight; 24:00 is a whole day.
pub(super) fn time(text: &str) -> Result<i64, &'static str> {
    let micros = timestamp::clock_micros(text, 24).ok_or(NO_TIME)?;
    if i128::from(micros) > MICROS_PER_DAY { Err(NO_TIME) } else { Ok(micros) }
}

/// A point in time: seconds since 1970, and microseconds within the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    seconds: i64,
    micros: i64,
}

impl Moment {
    /// Parses a `timestamp`. Infinity has the value of Debezium's driver.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        let (seconds, micros) = match text {
            "infinity" => (9_223_372_036_825_200, 0),
            "-infinity" => (-9_223_372_036_832_400, 0),
            _ => timestamp::read(text).ok_or(NO_TIMESTAMP)?,
        };
        Ok(Self { seconds, micros })
    }

    pub(super) fn millis(self) -> i64 {
        self.seconds * 1000 + self.micros / 1000
    }

    /// Microseconds. On overflow the result is Java's: the seconds saturate, and adding the
    /// microseconds wraps.
    pub(super) fn micros(self) -> i64 {
        self.seconds.saturating_mul(MICROS_PER_SECOND).wrapping_add(self.micros)
    }

    /// Nanoseconds, if they fit.
    pub(super) fn nanos(self) -> Option<i64> {
        let nanos = (i128::from(self.seconds) * i128::from(MICROS_PER_SECOND)
            + i128::from(self.micros))
            * 1000;
        i64::try_from(nanos).ok()
    }

    /// The text `2026-11-21T12:34:56.7Z`, with `digits` of fraction, or as many as needed.
    pub(super) fn iso(self, digits: Option<usize>) -> String {
        let (day, second) = (self.seconds.div_euclid(86_400), self.seconds.rem_euclid(86_400));
        let clock = second * MICROS_PER_SECOND + self.micros;
        format!("{}T{}Z", iso_day(day), iso_clock(clock, digits))
    }
}

/// The text `2026-11-21`; years with more than four digits have a sign, and 1 BC is year 0
/// (<https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/time/LocalDate.html#toString()>).
pub(super) fn iso_day(day: i64) -> String {
    let (year, month, day) = timestamp::civil(day);
    match year {
        10_000.. => format!("+{year}-{month:02}-{day:02}"),
        0.. => format!("{year:04}-{month:02}-{day:02}"),
        _ => format!("-{:04}-{month:02}-{day:02}", -year),
    }
}

/// The text `12:34:56.7`, with `digits` of fraction, or as many as needed.
pub(super) fn iso_clock(micros: i64, digits: Option<usize>) -> String {
    let (seconds, micros) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    let (hours, minutes, seconds) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = format!("{hours:02}:{minutes:02}:{seconds:02}");
    let fraction = format!("{micros:06}");
    let fraction = match digits {
        Some(digits) => &fraction[..digits.min(6)],
        None => fraction.trim_end_matches('0'),
    };
    if !fraction.is_empty() {
        let _ = write!(text, ".{fraction}");
    }
    text
}

/// A `timestamptz` in UTC, with `digits` of fraction; infinity remains text.
pub(super) fn timestamptz(text: &str, digits: usize) -> Result<String, &'static str> {
    match text {
        "infinity" | "-infinity" => Ok(text.to_owned()),
        _ => Moment::read(text).map(|moment| moment.iso(Some(digits))),
    }
}

/// A `timetz` in UTC; one with seconds in its zone is NULL in Debezium.
pub(super) fn timetz(text: &str) -> Result<Option<String>, &'static str> {
    let (clock, ahead) = timestamp::zoned(text).ok_or(NO_TIME)?;
    let micros = time(clock)?;
    Ok(match (i128::from(micros), ahead) {
        _ if ahead % 60 != 0 => None,
        (MICROS_PER_DAY, 0) => Some("24:00:00Z".to_owned()),
        _ => {
            let micros = (micros - ahead * MICROS_PER_SECOND).rem_euclid(86_400_000_000);
            Some(format!("{}Z", iso_clock(micros, None)))
        }
    })
}

/// The independent parts of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Interval {
    years: i64,
    months: i64,
    days: i64,
    micros: i64,
}

impl Interval {
    /// Parses `1 year 2 mons -3 days 04:05:06.789`. Infinity is an interval of zero in Debezium.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        let mut interval = Self::default();
        if matches!(text, "infinity" | "-infinity") {
            return Ok(interval);
        }
        let mut words = text.split(' ');
        while let Some(word) = words.next() {
            if word.contains(':') {
                interval.micros = clock(word).ok_or(NO_INTERVAL)?;
                continue;
            }
            let count: i64 = word.parse().map_err(|_| NO_INTERVAL)?;
            match words.next() {
                Some("year" | "years") => interval.years = count,
                Some("mon" | "mons") => interval.months = count,
                Some("day" | "days") => interval.days = count,
                _ => return Err(NO_INTERVAL),
            }
        }
        Ok(interval)
    }

    /// Microseconds, saturating.
    pub(super) fn micros(self) -> i64 {
        let months = i128::from(self.years) * 12 + i128::from(self.months);
        let days = i128::from(self.days) * MICROS_PER_DAY;
        let micros = months * MICROS_PER_MONTH + days + i128::from(self.micros);
        let bound = if micros < 0 { i64::MIN } else { i64::MAX };
        i64::try_from(micros).unwrap_or(bound)
    }

    /// The text `P1Y2M3DT4H5M6.789S`, with all parts.
    pub(super) fn iso(self) -> String {
        let Self { years, months, days, micros } = self;
        let (sign, size) = (if micros < 0 { "-" } else { "" }, micros.unsigned_abs());
        let (seconds, fraction) = (size / 1_000_000, size % 1_000_000);
        let signed = |part: u64| if part == 0 { "0".to_owned() } else { format!("{sign}{part}") };
        let (hours, minutes) = (signed(seconds / 3600), signed(seconds / 60 % 60));
        let fraction = format!(".{fraction:06}");
        let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
        let whole = seconds % 60;
        let minus = if whole == 0 && fraction.is_empty() { "" } else { sign };
        format!("P{years}Y{months}M{days}DT{hours}H{minutes}M{minus}{whole}{fraction}S")
    }
}

/// Microseconds of `[+-]H…:MM:SS[.fraction]`, with any number of hours.
fn clock(text: &str) -> Option<i64> {
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (hours, rest) = text.split_once(':')?;
    if hours.is_empty() || !hours.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let rest = timestamp::clock_micros(&format!("00:{rest}"), 23)?;
    let hours: i64 = hours.parse().ok()?;
    let micros = hours.checked_mul(3_600_000_000)?.checked_add(rest)?;
    Some(if is_negative { -micros } else { micros })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn intervals_are_parsed_as_postgresql_prints_them() {
        let iso = |text| Interval::read(text).expect(text).iso();
        assert_eq!(iso("1 year 2 mons 3 days 04:05:06.789012"), "P1Y2M3DT4H5M6.789012S");
        assert_eq!(iso("-1 mons +00:00:00.000001"), "P0Y-1M0DT0H0M0.000001S");
        assert_eq!(iso("-04:00:06.5"), "P0Y0M0DT-4H0M-6.5S");
        for wrong in ["", "P1Y", "1", "1 week", "@ 1 min", "1-2", ":", "1:", "x:00", "1 day 2"] {
            assert!(Interval::read(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_yields_a_value_or_an_error(text in "[-+0-9: .ZBCinftymosdayer]{0,30}") {
            let _ = (date(&text), time(&text), timetz(&text), timestamptz(&text, 6));
            let _ = Moment::read(&text).map(|it| (it.millis(), it.micros(), it.nanos(), it.iso(None)));
            let _ = Interval::read(&text).map(|it| (it.micros(), it.iso()));
        }
    }
}
