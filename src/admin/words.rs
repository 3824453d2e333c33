//! Human-readable sizes and durations.

/// A number of bytes as `12.3 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[allow(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that would be shown as 1024.0 uses the next unit.
    while size >= 1023.95 && unit < UNITS.len() - 1 {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// A duration as `2 h 5 min`: the two largest units.
pub(crate) fn duration(seconds: f64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    if seconds < 10.0 {
        return format!("{:.1} s", seconds.max(0.0));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let mut left = seconds as u64;
    let mut parts = Vec::new();
    for (length, name) in UNITS {
        if left >= length && parts.len() < 2 {
            parts.push(format!("{} {name}", left / length));
            left %= length;
        } else if !parts.is_empty() {
            break;
        }
    }
    parts.join(" ")
}

/// A duration below a minute as `1.2 ms` or `3.4 s`.
pub(crate) fn short_duration(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1000.0) } else { duration(seconds) }
}

/// The time until an acknowledgement; the histogram ends at five minutes.
pub(crate) fn latency(seconds: f64) -> String {
    if seconds < 300.0 { short_duration(seconds) } else { "over 5 min".to_owned() }
}

/// A number of records as `1 234 567 records`.
pub(crate) fn records(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped + if count == 1 { " record" } else { " records" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_durations_and_counts_are_human_readable() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (12_900_000, "12.3 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
        for (seconds, text) in [
            (-1.0, "0.0 s"),
            (0.25, "0.2 s"),
            (59.0, "59 s"),
            (60.0, "1 min"),
            (7500.0, "2 h 5 min"),
            (3601.0, "1 h"),
            (90_000.0, "1 d 1 h"),
        ] {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
        for (count, text) in [(0, "0 records"), (1, "1 record"), (1_234_567, "1 234 567 records")] {
            assert_eq!(records(count), text);
        }
    }
}
