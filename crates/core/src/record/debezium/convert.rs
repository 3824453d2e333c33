//! Kafka Connect's converters: `StringConverter` and `JsonConverter` for key and value,
//! `SimpleHeaderConverter` for headers.
//!
//! For bytes, the `StringConverter` writes an object's address in Java's memory, or the length of a
//! buffer. Here they are written as in a header instead, which is usable.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::record::value::base64;

use super::connect_value::ConnectValue;
use super::json::json_string;

/// The converter to emulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Converter {
    /// Java's `toString`.
    Java,
    Json,
    Header,
}

/// Appends a value, which must not be NULL at the top level.
pub(super) fn convert(value: &ConnectValue<'_>, converter: Converter, out: &mut String) {
    match (value, converter) {
        (ConnectValue::Text(text), Converter::Json) => json_string(text, out),
        (ConnectValue::Text(text), _) => out.push_str(text),
        (ConnectValue::Bytes(bytes), Converter::Json) => json_string(&base64(bytes), out),
        (ConnectValue::Bytes(bytes), _) => out.push_str(&base64(bytes)),
        (ConnectValue::Float(text), Converter::Json)
            if !text.ends_with(|sign: char| sign.is_ascii_digit()) =>
        {
            json_string(text, out);
        }
        (ConnectValue::Float(text), _) => out.push_str(text),
        (ConnectValue::Decimal(number), Converter::Json) => {
            json_string(&base64(&number.unscaled()), out);
        }
        (ConnectValue::Decimal(number), _) => out.push_str(&number.java_text()),
        (ConnectValue::Null, _) => out.push_str("null"),
        (ConnectValue::Digits(digits), _) => out.push_str(digits),
        (ConnectValue::Bool(truth), _) => out.push_str(if *truth { "true" } else { "false" }),
        (ConnectValue::AnyDecimal(number), _) => {
            let value = base64(&number.unscaled());
            let _ = write!(out, "{{\"scale\":{},\"value\":\"{value}\"}}", number.scale());
        }
        (ConnectValue::Point { x, y }, _) => point(*x, *y, out),
        (ConnectValue::Array(elements), _) => array(elements, converter, out),
        (ConnectValue::Struct(members), Converter::Java) => java_struct(members, out),
        (ConnectValue::Struct(members), _) => object(members, converter, out),
    }
}

/// The format of Kafka Connect's `Struct.toString`, which omits NULLs.
fn java_struct(members: &[(Cow<'_, str>, ConnectValue<'_>)], out: &mut String) {
    out.push_str("Struct{");
    let present = members.iter().filter(|(_, value)| *value != ConnectValue::Null);
    for (index, (name, value)) in present.enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(name);
        out.push('=');
        convert(value, Converter::Java, out);
    }
    out.push('}');
}

fn object(members: &[(Cow<'_, str>, ConnectValue<'_>)], converter: Converter, out: &mut String) {
    out.push('{');
    for (index, (name, value)) in members.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        json_string(name, out);
        out.push(':');
        convert(value, converter, out);
    }
    out.push('}');
}

fn array(elements: &[ConnectValue<'_>], converter: Converter, out: &mut String) {
    out.push('[');
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.push_str(if converter == Converter::Java { ", " } else { "," });
        }
        match (element, converter) {
            (ConnectValue::Text(text), Converter::Header) => header_string(text, out),
            (ConnectValue::Bytes(bytes), Converter::Header) => header_string(&base64(bytes), out),
            _ => convert(element, converter, out),
        }
    }
    out.push(']');
}

/// A point with its well-known binary form (OGC 06-103r4, 8.2), little endian.
fn point(x: f64, y: f64, out: &mut String) {
    let mut wkb = vec![1, 1, 0, 0, 0];
    wkb.extend(x.to_le_bytes());
    wkb.extend(y.to_le_bytes());
    let (x, y) = (super::number::java_text(x), super::number::java_text(y));
    let _ = write!(out, "{{\"x\":{x},\"y\":{y},\"wkb\":\"{}\",\"srid\":null}}", base64(&wkb));
}

/// A text in an array in a header: only quotes and backslashes are escaped.
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
