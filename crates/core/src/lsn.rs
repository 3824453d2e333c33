//! A position in PostgreSQL's WAL, as its own type.
//!
//! LSNs are compared and passed on. They are never added: the sum of two LSNs has no meaning.

use std::fmt;
use std::str::FromStr;

/// A byte position in the WAL (PostgreSQL's `pg_lsn`).
///
/// Text form: two hexadecimal numbers around a slash, the high and the low 32
/// bits, as in `16/B374D848`
/// (<https://www.postgresql.org/docs/current/datatype-pg-lsn.html>).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// `0/0`, PostgreSQL's `InvalidXLogRecPtr`: an invalid position.
    pub const ZERO: Self = Self(0);

    /// The position that many bytes from the start of the WAL.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The position in bytes from the start of the WAL.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Whether this is `0/0`.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Bytes from `earlier` to this position; 0 if `earlier` is not earlier.
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not an LSN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an LSN: write it as PostgreSQL does, for instance 16/B374D848")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len())
                && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(half(high)? << 32 | half(low)?))
            .map(Self)
            .ok_or_else(|| ParseLsnError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_form_matches_postgresqls() {
        assert_eq!(Lsn::new(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!("0/0".parse(), Ok(Lsn::ZERO));
        for wrong in ["", "/", "1", "1/", "/1", "1/2/3", "g/0", "123456789/0", "+1/0", "1/ 2"] {
            assert!(wrong.parse::<Lsn>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_lsn_is_parsed_to_the_same_value(bytes: u64) {
            let lsn = Lsn::new(bytes);
            prop_assert_eq!(lsn.to_string().parse(), Ok(lsn));
        }
    }
}
