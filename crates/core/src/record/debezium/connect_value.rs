//! A column's value as Debezium represents it; the converters write it as text.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::outbox::hex_bytes;
use crate::record::value::base64;

use super::array;
use super::kind::{Kind, Shape};
use super::modes::{Binary, Decimals, Intervals, Modes, Times};
use super::number::{self, Decimal};
use super::time::{self, Interval, Moment};

/// A value before conversion.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ConnectValue<'a> {
    Null,
    Text(Cow<'a, str>),
    /// An integer, or a date or time as a number: its digits.
    Digits(Cow<'a, str>),
    Bool(bool),
    /// A number in Java's format, including `NaN` and `Infinity`.
    Float(String),
    /// A `BigDecimal` whose schema has the scale.
    Decimal(Decimal),
    /// A `BigDecimal` that contains its scale.
    AnyDecimal(Decimal),
    Bytes(Cow<'a, [u8]>),
    Array(Vec<ConnectValue<'a>>),
    /// Members in order.
    Struct(Vec<(Cow<'a, str>, ConnectValue<'a>)>),
    Point {
        x: f64,
        y: f64,
    },
}

/// The value of a column of that shape, from PostgreSQL's text form.
pub(super) fn connect_value(
    shape: Shape,
    text: &[u8],
    modes: Modes,
) -> Result<ConnectValue<'_>, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8")?;
    match shape {
        Shape::One(kind) => one(kind, Cow::Borrowed(text), modes),
        Shape::Array(kind) => elements(kind, text, modes),
        Shape::Absent => Ok(ConnectValue::Null),
    }
}

fn elements<'a>(kind: Kind, text: &str, modes: Modes) -> Result<ConnectValue<'a>, &'static str> {
    let elements = array::read(text).ok_or("is not an array as PostgreSQL prints it")?;
    // If one element is not a number, Debezium writes no array.
    let is_none = |text: &str| matches!(text, "NaN" | "Infinity" | "-Infinity");
    let any_none =
        elements.iter().any(|it| matches!(it, array::Element::Text(text) if is_none(text)));
    if any_none && matches!(kind, Kind::Decimal | Kind::AnyDecimal) {
        return Ok(ConnectValue::Null);
    }
    let value = |element: array::Element| match element {
        array::Element::Text(text) => in_array(kind, text, modes),
        // Debezium writes an object's address in Java's memory, or NULL.
        array::Element::Null | array::Element::Array => Ok(ConnectValue::Null),
    };
    elements.into_iter().map(value).collect::<Result<_, _>>().map(ConnectValue::Array)
}

/// An array element, which Debezium decodes differently from a column's value.
fn in_array<'a>(kind: Kind, text: String, modes: Modes) -> Result<ConnectValue<'a>, &'static str> {
    match kind {
        // At most milliseconds; 24:00 becomes midnight.
        Kind::Time(precision) => {
            let millis = time::time(&text)? / 1000 % 86_400_000;
            Ok(clock(millis * 1000, precision, modes.times))
        }
        Kind::Date => match (text.as_str(), modes.times) {
            ("infinity", Times::IsoString) => Ok(text_of("+292278994-08-16Z".to_owned())),
            ("-infinity", Times::IsoString) => Err("has -infinity in an array of dates"),
            ("infinity", _) => Ok(digits(-622_191_234)),
            ("-infinity", _) => Ok(digits(-625_821_272)),
            _ => one(kind, Cow::Owned(text), modes),
        },
        _ => one(kind, Cow::Owned(text), modes),
    }
}

fn one(kind: Kind, text: Cow<'_, str>, modes: Modes) -> Result<ConnectValue<'_>, &'static str> {
    Ok(match kind {
        Kind::Text => ConnectValue::Text(text),
        Kind::Int | Kind::Int4 => ConnectValue::Digits(text),
        Kind::AlwaysNull => ConnectValue::Null,
        Kind::Bool | Kind::Bit => ConnectValue::Bool(match text.as_ref() {
            "t" | "1" => true,
            "f" | "0" => false,
            _ => return Err("is not a boolean"),
        }),
        Kind::Float4 => ConnectValue::Float(number::java_text(float::<f32>(&text)?)),
        Kind::Float8 => ConnectValue::Float(number::java_text(float::<f64>(&text)?)),
        Kind::Money => decimal(&money(&text), modes, ConnectValue::Decimal)?,
        Kind::Decimal => decimal(&text, modes, ConnectValue::Decimal)?,
        Kind::AnyDecimal => decimal(&text, modes, |it| ConnectValue::AnyDecimal(it.stripped()))?,
        Kind::Date => match modes.times {
            Times::IsoString => text_of(format!("{}Z", time::iso_day(time::date(&text)?))),
            _ => digits(time::date(&text)?),
        },
        Kind::Time(precision) => clock(time::time(&text)?, precision, modes.times),
        Kind::Timestamp(precision) => moment(Moment::read(&text)?, precision, modes.times)?,
        Kind::Timestamptz(precision) => {
            text_of(time::timestamptz(&text, usize::from(precision.unwrap_or(6)))?)
        }
        Kind::Timetz => time::timetz(&text)?.map_or(ConnectValue::Null, text_of),
        Kind::Interval => {
            let interval = Interval::read(&text)?;
            match modes.intervals {
                Intervals::Numeric => digits(interval.micros()),
                Intervals::String => text_of(interval.iso()),
            }
        }
        Kind::Bytea => bytea(Cow::Owned(hex_bytes(text.as_bytes())?), modes.binary),
        Kind::Bits => ConnectValue::Bytes(Cow::Owned(bits(&text)?)),
        Kind::Point => point(&text).ok_or("is not a point")?,
        Kind::Hstore => ConnectValue::Text(Cow::Owned(
            array::hstore_as_json(&text).ok_or("is not an hstore as PostgreSQL prints it")?,
        )),
    })
}

fn text_of<'a>(text: String) -> ConnectValue<'a> {
    ConnectValue::Text(Cow::Owned(text))
}

fn digits<'a>(number: i64) -> ConnectValue<'a> {
    ConnectValue::Digits(Cow::Owned(number.to_string()))
}

fn float<F: std::str::FromStr>(text: &str) -> Result<F, &'static str> {
    text.parse().map_err(|_| "is not a number")
}

/// `$1,234.56` without the other characters; the locale is ignored, its decimal separator must be a
/// period.
fn money(text: &str) -> String {
    let is_negative = text.contains('-') || text.contains('(');
    let digits: String =
        text.chars().filter(|sign| sign.is_ascii_digit() || *sign == '.').collect();
    if is_negative { format!("-{digits}") } else { digits }
}

fn decimal<'a>(
    text: &str,
    modes: Modes,
    precise: impl FnOnce(Decimal) -> ConnectValue<'a>,
) -> Result<ConnectValue<'a>, &'static str> {
    let is_number = !matches!(text, "NaN" | "Infinity" | "-Infinity");
    let read = || Decimal::read(text).ok_or("is not a number");
    Ok(match modes.decimals {
        Decimals::Double => ConnectValue::Float(number::java_text(float::<f64>(text)?)),
        Decimals::String if is_number => text_of(read()?.plain()),
        Decimals::String => text_of(
            match text {
                "NaN" => "NAN",
                "Infinity" => "POSITIVE_INFINITY",
                _ => "NEGATIVE_INFINITY",
            }
            .to_owned(),
        ),
        Decimals::Precise if is_number => precise(read()?),
        Decimals::Precise => ConnectValue::Null,
    })
}

fn clock<'a>(micros: i64, precision: Option<u8>, times: Times) -> ConnectValue<'a> {
    match (times, precision) {
        (Times::Adaptive, Some(0..=3)) => digits(micros / 1000),
        (Times::IsoString, _) => text_of(format!("{}Z", time::iso_clock(micros, None))),
        (Times::Nanoseconds, _) => digits(micros * 1000),
        _ => digits(micros),
    }
}

fn moment<'a>(
    moment: Moment,
    precision: Option<u8>,
    times: Times,
) -> Result<ConnectValue<'a>, &'static str> {
    Ok(match (times, precision) {
        (Times::Adaptive | Times::AdaptiveTimeMicroseconds, Some(0..=3)) => digits(moment.millis()),
        (Times::IsoString, _) => text_of(moment.iso(None)),
        (Times::Nanoseconds, _) => {
            digits(moment.nanos().ok_or("cannot be counted in nanoseconds")?)
        }
        _ => digits(moment.micros()),
    })
}

/// Converts decoded `bytea`.
pub(super) fn bytea(bytes: Cow<'_, [u8]>, mode: Binary) -> ConnectValue<'_> {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE;
    match mode {
        Binary::Bytes => ConnectValue::Bytes(bytes),
        Binary::Base64 => text_of(base64(&bytes)),
        Binary::Base64UrlSafe => text_of(URL_SAFE.encode(bytes)),
        Binary::Hex => text_of(hex(&bytes)),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A bit string as a number's bytes, lowest first, without trailing zero bytes, like Java's
/// `BitSet`.
fn bits(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut bytes = vec![0_u8; text.len().div_ceil(8)];
    for (index, bit) in text.bytes().rev().enumerate() {
        match bit {
            b'1' => bytes[index / 8] |= 1 << (index % 8),
            b'0' => {}
            _ => return Err("is not a bit string"),
        }
    }
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn point<'a>(text: &str) -> Option<ConnectValue<'a>> {
    let (x, y) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Some(ConnectValue::Point { x: x.parse().ok()?, y: y.parse().ok()? })
}
