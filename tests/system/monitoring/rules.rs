//! The shipped alert rules, and the same rules with shorter durations for a test of minutes.

/// The rules as shipped.
pub const RULES: &str = include_str!("../../../docker/prometheus/rules/walpost.rules.yml");

/// What is shorter than people would have it: waits, windows and the bound of lag. The
/// expressions stay.
const SHORTER: [(&str, &str); 7] = [
    ("for: 5m", "for: 5s"),
    ("for: 3m", "for: 5s"),
    ("for: 1m", "for: 3s"),
    ("[2m]", "[10s]"),
    ("[5m]", "[10s]"),
    ("15m", "30s"),
    ("walpost:lag_seconds > 60", "walpost:lag_seconds > 10"),
];

/// The rules with the times of [`SHORTER`].
pub fn quick() -> String {
    SHORTER.into_iter().fold(RULES.to_owned(), |rules, (long, short)| {
        assert!(rules.contains(long), "the rules have no {long} any more");
        rules.replace(long, short)
    })
}
