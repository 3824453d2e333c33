//! Converts PostgreSQL's text form of a timestamp to milliseconds since the Unix epoch, and such
//! milliseconds to text.
//!
//! Only the ISO style of `timestamptz` and `timestamp` (taken as UTC) is supported, as in
//! `2026-11-21 14:55:01.123456+00`.

/// The last year of PostgreSQL's timestamps.
const YEAR_MAX: i64 = 294_276;
/// The last year of PostgreSQL's dates.
pub(super) const DATE_YEAR_MAX: i64 = 5_874_897;

/// Milliseconds since the Unix epoch, rounded down; negative before 1970.
pub(super) fn unix_millis(text: &str) -> Result<i64, &'static str> {
    if matches!(text, "infinity" | "-infinity") {
        return Err("is infinite, which no record's timestamp can be");
    }
    let (seconds, micros) = read(text).ok_or(NO_TIMESTAMP)?;
    Ok(seconds * 1000 + micros / 1000)
}

/// Why [`read`] rejects a text.
pub(super) const NO_TIMESTAMP: &str = "is not a timestamp in ISO style: its column must be \
                                       timestamptz or timestamp, and DateStyle ISO";

/// Milliseconds since the Unix epoch in the format of <https://www.rfc-editor.org/rfc/rfc3339>:
/// `2026-11-21T14:55:01.123Z`. That format has four digits for a year.
pub(super) fn rfc3339(unix_millis: i64) -> Result<String, &'static str> {
    let (day, millis) = (unix_millis.div_euclid(86_400_000), unix_millis.rem_euclid(86_400_000));
    let (year, month, day) = civil(day);
    if !(0..=9999).contains(&year) {
        return Err("is not in the years 0 to 9999, so it has no form in RFC 3339");
    }
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    Ok(format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z"))
}

/// Year (0 is 1 BC), month and day of a day since the Unix epoch, in the proleptic Gregorian
/// calendar.
pub(super) fn civil(day: i64) -> (i64, i64, i64) {
    // Days are counted from 0000-03-01, so that a leap day is the last of a year.
    let day = day + 719_468;
    let (era, day_of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// Seconds since the Unix epoch, and microseconds within the second.
pub(super) fn read(text: &str) -> Option<(i64, i64)> {
    let (text, is_bc) = without_era(text);
    let (date, time) = match text.split_once([' ', 'T']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let days = days(date, is_bc, YEAR_MAX)?;
    let Some(time) = time else { return Some((days * 86_400, 0)) };
    let (clock, offset) = zoned(time)?;
    let micros = clock_micros(clock, 23)?;
    Some((days * 86_400 - offset + micros / 1_000_000, micros % 1_000_000))
}

/// A date without its ` BC`, and whether it had one.
pub(super) fn without_era(text: &str) -> (&str, bool) {
    text.strip_suffix(" BC").map_or((text, false), |text| (text, true))
}

/// A time of day, and its zone's offset from UTC in seconds.
pub(super) fn zoned(time: &str) -> Option<(&str, i64)> {
    match time.find(['+', '-', 'Z']) {
        Some(at) => Some((&time[..at], offset_seconds(&time[at..])?)),
        None => Some((time, 0)),
    }
}

/// Days from the Unix epoch to `YYYY-MM-DD`, in the proleptic Gregorian calendar.
pub(super) fn days(date: &str, is_bc: bool, year_max: i64) -> Option<i64> {
    let mut parts = date.split('-');
    let year = parts.next().filter(|year| (4..=7).contains(&year.len())).and_then(digits)?;
    let month = parts.next().and_then(two_digits)?;
    let day = parts.next().and_then(two_digits)?;
    if parts.next().is_some() || !(1..=year_max).contains(&year) {
        return None;
    }
    // The year before 1 is 1 BC.
    let year = if is_bc { 1 - year } else { year };
    let is_leap =
        year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let days_of_month = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days_of_month).contains(&day) {
        return None;
    }
    // Years are counted from March, so that a leap day is the last of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    Some(year * 365 + leap_days + day_of_year - 719_468)
}

/// Microseconds of `HH:MM[:SS[.fraction]]`.
pub(super) fn clock_micros(clock: &str, hours_max: i64) -> Option<i64> {
    let (clock, fraction) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, fraction),
        None => (clock, "0"),
    };
    if !(1..=6).contains(&fraction.len()) {
        return None;
    }
    let micros = format!("{fraction:0<6}");
    Some(sexagesimal(clock, hours_max)? * 1_000_000 + digits(&micros)?)
}

/// Seconds of `Z`, `±HH`, `±HH:MM` or `±HH:MM:SS`.
fn offset_seconds(offset: &str) -> Option<i64> {
    match offset.split_at(1) {
        ("Z", "") => Some(0),
        ("+", offset) => sexagesimal(offset, 15),
        ("-", offset) => sexagesimal(offset, 15).map(|seconds| -seconds),
        _ => None,
    }
}

/// Seconds of `HH[:MM[:SS]]`.
fn sexagesimal(text: &str, hours_max: i64) -> Option<i64> {
    let mut parts = text.split(':');
    let hours = parts.next().and_then(two_digits).filter(|&hours| hours <= hours_max)?;
    let mut seconds = hours * 3600;
    for unit in [60, 1] {
        if let Some(part) = parts.next() {
            seconds += two_digits(part).filter(|&count| count < 60)? * unit;
        }
    }
    parts.next().is_none().then_some(seconds)
}

fn two_digits(text: &str) -> Option<i64> {
    (text.len() == 2).then(|| digits(text)).flatten()
}

fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timestamps_are_parsed_as_postgresql_prints_them() {
        for (text, millis) in [
            ("1970-01-01 00:00:00+00", 0),
            ("1970-01-01", 0),
            ("2026-11-21 14:55:01.123456+00", 1_795_272_901_123),
            ("2026-11-21T14:55:01.123Z", 1_795_272_901_123),
            ("2026-11-21 14:55:01.1", 1_795_272_901_100),
            ("2026-11-21 16:55+02", 1_795_272_900_000),
            ("2026-11-21 20:25:00+05:30", 1_795_272_900_000),
            ("2026-11-21 11:25:00-03:30", 1_795_272_900_000),
            // Amsterdam's time before 1937: mean solar time.
            ("1900-01-01 00:19:32+00:19:32", -2_208_988_800_000),
            ("1969-12-31 23:59:59.9999+00", -1),
            ("2000-02-29 00:00:00+00", 951_782_400_000),
            ("2000-03-01 00:00:00+00", 951_868_800_000),
            ("1900-03-01 00:00:00+00", -2_203_891_200_000),
            ("2024-02-29 23:59:59+00", 1_709_251_199_000),
            ("2024-12-31 00:00:00+00", 1_735_603_200_000),
            ("0001-01-01 00:00:00+00", -62_135_596_800_000),
            ("0001-12-31 00:00:00+00 BC", -62_135_683_200_000),
            ("0001-02-29 00:00:00+00 BC", -62_162_121_600_000),
            ("4714-11-24 00:00:00+00 BC", -210_866_803_200_000),
            ("294276-12-31 23:59:59.999999+00", 9_224_318_015_999_999),
        ] {
            assert_eq!(unix_millis(text), Ok(millis), "{text}");
        }
    }

    #[test]
    fn an_invalid_timestamp_is_rejected() {
        for text in [
            "",
            "now",
            "1795272901",
            "2026-02-29",
            "1900-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-01-00",
            "2026-04-31",
            "0000-01-01",
            "294277-01-01",
            "26-01-01",
            "2026-1-01",
            "2026-01-01 ",
            "2026-01-01 24:00:00",
            "2026-01-01 00:60",
            "2026-01-01 00:00:60",
            "2026-01-01 00:00:00.",
            "2026-01-01 00:00:00.1234567",
            "2026-01-01 00:00:00+",
            "2026-01-01 00:00:00+16",
            "2026-01-01 00:00:00Z0",
            "2026-01-01 00:00:00 UTC",
            "Sat 21 Nov 14:55:01 2026 UTC",
            "21/11/2026 14:55:01",
            "-2026-01-01",
            "2026-01-01 +1:00",
            "2026-01-01 00:00:00:00",
        ] {
            assert!(unix_millis(text).is_err(), "{text}");
        }
        assert!(unix_millis("infinity").expect_err("infinite").contains("infinite"));
        assert!(unix_millis("-infinity").is_err());
    }

    proptest! {
        #[test]
        fn any_text_yields_a_time_or_an_error(text in "[0-9TZ:. +BC-]{0,40}") {
            let _ = unix_millis(&text);
        }

        #[test]
        fn a_printed_time_is_parsed_to_the_same_value(millis in 0_i64..253_402_300_800_000) {
            prop_assert_eq!(rfc3339(millis).and_then(|text| unix_millis(&text)), Ok(millis));
        }

        #[test]
        fn a_printed_time_has_a_year_of_four_digits(text in "[0-9]{4,6}-0[1-9]-2[0-8]( BC)?") {
            let Ok(millis) = unix_millis(&text) else { return Ok(()) };
            let form = rfc3339(millis);
            prop_assert!(form.as_ref().map_or(true, |form| form.len() == 24), "{:?}", form);
            let (date, is_bc) = without_era(&text);
            let year: i64 = date[..date.len() - 6].parse().expect("digits");
            let year = if is_bc { 1 - year } else { year };
            prop_assert_eq!(form.is_ok(), (0..=9999).contains(&year));
        }

        #[test]
        fn each_day_follows_the_previous_one(day in -2_000_000_i64..100_000_000) {
            // Derived from a date by the calendar's own rules, not by the formula above.
            let date = walked(day);
            let text = format!("{:04}-{:02}-{:02}", if date.0 > 0 { date.0 } else { 1 - date.0 }, date.1, date.2);
            prop_assert_eq!(days(&text, date.0 <= 0, DATE_YEAR_MAX), Some(day));
            prop_assert_eq!(civil(day), date);
        }
    }

    /// Year (0 is 1 BC), month and day of a day since the Unix epoch, by iterating over centuries,
    /// years and months.
    fn walked(day: i64) -> (i64, i64, i64) {
        let is_leap = |year: i64| {
            year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
        };
        // 400 years are 146,097 days; 2000-01-01 is day 10,957.
        let day = day - 10_957;
        let mut year = 2000 + 400 * day.div_euclid(146_097);
        let mut day = day.rem_euclid(146_097);
        while day >= if is_leap(year) { 366 } else { 365 } {
            day -= if is_leap(year) { 366 } else { 365 };
            year += 1;
        }
        let february = if is_leap(year) { 29 } else { 28 };
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        (year, month, day + 1)
    }
}
