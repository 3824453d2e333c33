//! Formats numbers as Java does.

use std::fmt::{Display, LowerExp};
use std::str::FromStr;

use num_bigint::BigInt;

/// Maximum digits of a `numeric`: PostgreSQL allows this many before and after the decimal point.
const DIGITS_MAX: usize = 131_072 + 16_383;

/// A decimal number: `unscaled` divided by the `scale`-th power of ten, as Java's `BigDecimal`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: String,
    scale: usize,
}

impl Decimal {
    /// Parses PostgreSQL's text form, `-1.50`; the scale is that of the text.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (sign, number) = match text.strip_prefix('-') {
            Some(number) => ("-", number),
            None => ("", text),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let all_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
        if whole.len() + fraction.len() > DIGITS_MAX || whole.is_empty() {
            return None;
        }
        if !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        let digits = if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") };
        Some(Self { digits, scale: fraction.len() })
    }

    /// Without trailing zeros in the fraction.
    pub(super) fn stripped(mut self) -> Self {
        if self.digits == "0" {
            self.scale = 0;
        }
        while self.scale > 0 && self.digits.ends_with('0') {
            self.digits.pop();
            self.scale -= 1;
        }
        self
    }

    pub(super) fn scale(&self) -> usize {
        self.scale
    }

    /// The unscaled number in two's complement, big endian, in the minimum number of bytes.
    pub(super) fn unscaled(&self) -> Vec<u8> {
        BigInt::from_str(&self.digits).unwrap_or_default().to_signed_bytes_be()
    }

    /// The format of `BigDecimal.toString`: with an exponent if the first digit is after the sixth
    /// decimal.
    pub(super) fn java_text(&self) -> String {
        let (sign, digits) = match self.digits.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", self.digits.as_str()),
        };
        if self.scale == 0 {
            return self.digits.clone();
        }
        let point = i64::try_from(digits.len()).unwrap_or(i64::MAX)
            - i64::try_from(self.scale).unwrap_or(i64::MAX);
        // The adjusted exponent, in the terms of `BigDecimal`.
        let exponent = point - 1;
        if exponent < -6 {
            let (first, rest) = digits.split_at(1);
            let rest = if rest.is_empty() { String::new() } else { format!(".{rest}") };
            return format!("{sign}{first}{rest}E{exponent}");
        }
        match usize::try_from(point) {
            Ok(point @ 1..) => format!("{sign}{}.{}", &digits[..point], &digits[point..]),
            _ => format!("{sign}0.{digits:0>scale$}", scale = self.scale),
        }
    }

    /// All digits, without an exponent.
    pub(super) fn plain(&self) -> String {
        let (sign, digits) = match self.digits.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", self.digits.as_str()),
        };
        if self.scale == 0 {
            return self.digits.clone();
        }
        let digits = format!("{digits:0>width$}", width = self.scale + 1);
        let point = digits.len() - self.scale;
        format!("{sign}{}.{}", &digits[..point], &digits[point..])
    }
}

/// A `float4` or `float8`.
pub(super) trait Float: Copy + PartialEq + FromStr + Display + LowerExp {
    fn is_finite(self) -> bool;
}

impl Float for f32 {
    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

impl Float for f64 {
    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

/// The format of `Double.toString` and `Float.toString` since Java 19: the shortest digits that
/// identify the number, but at least two; with an exponent below 0.001 and from 10,000,000 on
/// (<https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/lang/Double.html#toString(double)>).
pub(super) fn java_text<F: Float>(number: F) -> String {
    if !number.is_finite() {
        return match number.to_string().as_str() {
            "inf" => "Infinity".to_owned(),
            "-inf" => "-Infinity".to_owned(),
            other => other.to_owned(),
        };
    }
    let shortest = format!("{number:e}");
    let mantissa = shortest.split('e').next().unwrap_or_default();
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    // Among candidates with the same number of digits (two, if one would suffice), Java takes the
    // nearest; of two equally near ones, which Rust's shortest form does not consider, the even
    // one.
    let nearest = format!("{number:.*e}", digits.max(2) - 1);
    let text = if nearest.parse::<F>().is_ok_and(|it| it == number) { nearest } else { shortest };
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits),
    };
    let digits: String = digits.chars().filter(|sign| *sign != '.').collect();
    let is_zero = digits.bytes().all(|digit| digit == b'0');
    let body = match exponent {
        _ if is_zero => "0.0".to_owned(),
        0..=6 => {
            let whole = usize::try_from(exponent).unwrap_or(0) + 1;
            let digits = format!("{digits:0<whole$}");
            let (whole, fraction) = digits.split_at(whole);
            format!("{whole}.{}", or_zero(fraction))
        }
        -3..=-1 => {
            let zeros = "0".repeat(usize::try_from(-exponent - 1).unwrap_or(0));
            format!("0.{zeros}{}", digits.trim_end_matches('0'))
        }
        _ => format!("{}.{}E{exponent}", &digits[..1], or_zero(&digits[1..])),
    };
    format!("{sign}{body}")
}

fn or_zero(fraction: &str) -> &str {
    match fraction.trim_end_matches('0') {
        "" => "0",
        fraction => fraction,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::read(text).expect(text)
    }

    #[test]
    fn decimals_have_javas_format() {
        for (text, java_text) in [
            ("0", "0"),
            ("1.50", "1.50"),
            ("-0.01", "-0.01"),
            ("0.0000001000", "1.000E-7"),
            ("0.000001", "0.000001"),
            ("0.0000000000", "0E-10"),
            ("0.00", "0.00"),
            ("123456789.12", "123456789.12"),
        ] {
            assert_eq!(decimal(text).java_text(), java_text, "{text}");
            assert_eq!(decimal(text).plain(), text);
        }
        assert_eq!(decimal("1.500").stripped(), decimal("1.5"));
        assert_eq!(decimal("100").stripped(), decimal("100"));
        assert_eq!(decimal("0.00").stripped().scale(), 0);
        assert_eq!(decimal("1.50").unscaled(), [0x00, 0x96]);
        assert_eq!(decimal("-1").unscaled(), [0xFF]);
        for wrong in ["", ".", "-", "1e5", "NaN", "1.-5", "٣"] {
            assert_eq!(Decimal::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn floats_have_javas_format() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (100.0, "100.0"),
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (12_345_678.9, "1.23456789E7"),
            (0.001, "0.001"),
            (0.00099, "9.9E-4"),
            (1e23, "1.0E23"),
            (2e23, "2.0E23"),
            (5e-324, "4.9E-324"),
            (f64::MAX, "1.7976931348623157E308"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(java_text::<f64>(number), text);
        }
        assert_eq!(java_text(1e-45_f32), "1.4E-45");
        assert_eq!(java_text(1.234_5e10_f32), "1.2345E10");
    }

    #[test]
    fn of_two_equally_near_decimals_the_even_one_is_used() {
        for (bits, text) in [
            (1_245_346_033, "3055164.2"),
            (3_369_168_228, "-428907.12"),
            (1_190_919_328, "32254.312"),
        ] {
            assert_eq!(java_text(f32::from_bits(bits)), text);
        }
        assert_eq!(java_text(f64::from_bits(4_834_006_367_182_470_569)), "1.5368916603247142E15");
        assert_eq!(java_text(f64::from_bits(4_786_560_775_616_844_032)), "1.0060511446225312E12");
    }

    proptest! {
            #[test]
            fn a_formatted_float_is_parsed_to_the_same_value(number: f64) {
                let text = java_text(number).replace("Infinity", "inf");
                let read: f64 = text.parse().expect("a number");
                prop_assert!(read.to_bits() == number.to_bits() || number.is_nan());
            }

            #[test]
            fn a_formatted_decimal_is_parsed_to_the_same_value(text in "-?[0-9]{1,25}(\\.[0-9]{1,25})?") {
                let plain = decimal(&text).plain();
                let number: f64 = text.parse().expect("a number");
    let plain: f64 = plain.parse().expect("a number");
                prop_assert!((plain - number).abs() <= f64::MIN_POSITIVE);
                let java_text: f64 = decimal(&text).java_text().parse().expect("a number");
                prop_assert!((java_text - number).abs() <= number.abs() * 1e-12);
            }
        }
}
