//! How the converters spell a value: Kafka Connect's `StringConverter` and
//! `JsonConverter` for key and value, its `SimpleHeaderConverter` for headers.
//!
//! Where the `StringConverter` writes an address in Java's memory, or the length of a
//! buffer, in the place of bytes, what a header has is written: of use to somebody.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::record::value::base64;

use super::connect_value::ConnectValue;
use super::json::json_string;

/// A converter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As Java's `toString`.
    Java,
    Json,
    Header,
}

/// Appends a value; one that is NULL at the top is not for here.
pub(super) fn spell(datum: &ConnectValue<'_>, how: Spelling, out: &mut String) {
    match (datum, how) {
        (ConnectValue::Text(text), Spelling::Json) => json_string(text, out),
        (ConnectValue::Text(text), _) => out.push_str(text),
        (ConnectValue::Bytes(bytes), Spelling::Json) => json_string(&base64(bytes), out),
        (ConnectValue::Bytes(bytes), _) => out.push_str(&base64(bytes)),
        (ConnectValue::Float(text), Spelling::Json)
            if !text.ends_with(|sign: char| sign.is_ascii_digit()) =>
        {
            json_string(text, out);
        }
        (ConnectValue::Float(text), _) => out.push_str(text),
        (ConnectValue::Decimal(number), Spelling::Json) => {
            json_string(&base64(&number.unscaled()), out);
        }
        (ConnectValue::Decimal(number), _) => out.push_str(&number.spelled()),
        (ConnectValue::Null, _) => out.push_str("null"),
        (ConnectValue::Digits(digits), _) => out.push_str(digits),
        (ConnectValue::Bool(truth), _) => out.push_str(if *truth { "true" } else { "false" }),
        (ConnectValue::AnyDecimal(number), _) => {
            let value = base64(&number.unscaled());
            let _ = write!(out, "{{\"scale\":{},\"value\":\"{value}\"}}", number.scale());
        }
        (ConnectValue::Point { x, y }, _) => point(*x, *y, out),
        (ConnectValue::Array(elements), _) => array(elements, how, out),
        (ConnectValue::Struct(members), Spelling::Java) => java_struct(members, out),
        (ConnectValue::Struct(members), _) => object(members, how, out),
    }
}

/// As Kafka Connect's `Struct.toString`, which leaves NULLs out.
fn java_struct(members: &[(Cow<'_, str>, ConnectValue<'_>)], out: &mut String) {
    out.push_str("Struct{");
    let present = members.iter().filter(|(_, datum)| *datum != ConnectValue::Null);
    for (index, (name, datum)) in present.enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(name);
        out.push('=');
        spell(datum, Spelling::Java, out);
    }
    out.push('}');
}

fn object(members: &[(Cow<'_, str>, ConnectValue<'_>)], how: Spelling, out: &mut String) {
    out.push('{');
    for (index, (name, datum)) in members.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        json_string(name, out);
        out.push(':');
        spell(datum, how, out);
    }
    out.push('}');
}

fn array(elements: &[ConnectValue<'_>], how: Spelling, out: &mut String) {
    out.push('[');
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.push_str(if how == Spelling::Java { ", " } else { "," });
        }
        match (element, how) {
            (ConnectValue::Text(text), Spelling::Header) => header_string(text, out),
            (ConnectValue::Bytes(bytes), Spelling::Header) => header_string(&base64(bytes), out),
            _ => spell(element, how, out),
        }
    }
    out.push(']');
}

/// A point with its well-known binary form (OGC 06-103r4, 8.2), little endian.
fn point(x: f64, y: f64, out: &mut String) {
    let mut wkb = vec![1, 1, 0, 0, 0];
    wkb.extend(x.to_le_bytes());
    wkb.extend(y.to_le_bytes());
    let (x, y) = (super::number::spelled(x), super::number::spelled(y));
    let _ = write!(out, "{{\"x\":{x},\"y\":{y},\"wkb\":\"{}\",\"srid\":null}}", base64(&wkb));
}

/// A text in an array in a header: only what would end it is escaped.
fn header_string(text: &str, out: &mut String) {
    out.push('"');
    for sign in text.chars() {
        if matches!(sign, '"' | '\\') {
            out.push('\\');
        }
        out.push(sign);
    }
    out.push('"');
}
