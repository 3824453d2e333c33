//! Parses the members of a JSON object, in order, without building a tree.
//!
//! Values remain unparsed text; nothing below the first level is examined.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Why a text is not a usable JSON object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonFault {
    /// Bytes that are not UTF-8.
    #[error("is not UTF-8")]
    NotUtf8,
    /// A text that may be JSON, but is not an object.
    #[error("is not a JSON object")]
    NotAnObject,
    /// A text that is not JSON.
    #[error("is not JSON: {0}")]
    Malformed(String),
}

impl From<serde_json::Error> for JsonFault {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Calls `member` for each member of the object, in order, including duplicates.
pub(crate) fn members<'a>(
    text: &'a [u8],
    member: impl FnMut(Cow<'a, str>, &'a RawValue) -> Result<(), JsonFault>,
) -> Result<(), JsonFault> {
    let text = std::str::from_utf8(text).map_err(|_| JsonFault::NotUtf8)?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(JsonFault::NotAnObject);
    }
    let mut fault = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let read =
        json.deserialize_map(Members { member, fault: &mut fault }).and_then(|()| json.end());
    match fault {
        Some(fault) => Err(fault),
        None => Ok(read?),
    }
}

/// A value as text: a string without quotes and escapes, `null` as `None`, anything else as its
/// JSON text.
pub(crate) fn text(value: &RawValue) -> Result<Option<Cow<'_, [u8]>>, JsonFault> {
    let json = value.get();
    let inside = json.strip_prefix('"').and_then(|json| json.strip_suffix('"'));
    match inside {
        Some(inside) if inside.contains('\\') => {
            let unescaped = serde_json::from_str::<String>(json)?;
            Ok(Some(Cow::Owned(unescaped.into_bytes())))
        }
        Some(inside) => Ok(Some(Cow::Borrowed(inside.as_bytes()))),
        None => Ok(as_is(value)),
    }
}

/// A value as its JSON text; `null` as `None`.
pub(crate) fn as_is(value: &RawValue) -> Option<Cow<'_, [u8]>> {
    (value.get() != "null").then(|| Cow::Borrowed(value.get().as_bytes()))
}

struct Members<'f, F> {
    member: F,
    fault: &'f mut Option<JsonFault>,
}

impl<'a, F> Visitor<'a> for Members<'_, F>
where
    F: FnMut(Cow<'a, str>, &'a RawValue) -> Result<(), JsonFault>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = map.next_entry()? {
            if let Err(fault) = (self.member)(name, value) {
                *self.fault = Some(fault);
                return Err(de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// A member's name, borrowed if it contains no escape.
struct Name<'a>(Cow<'a, str>);

impl<'de> de::Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(json: &str) -> Result<Vec<(String, Option<String>)>, JsonFault> {
        let mut read = Vec::new();
        members(json.as_bytes(), |name, value| {
            let value = text(value)?
                .map(|value| String::from_utf8(value.into_owned()).expect("JSON is UTF-8"));
            read.push((name.into_owned(), value));
            Ok(())
        })?;
        Ok(read)
    }

    #[test]
    fn members_are_in_order_and_unchanged() {
        let json = r#" {"b": "x\n\u00e9", "a\"": {"n": [1, 2.50]}, "n":null, "b" : 1.50 ,"e":""} "#;
        let some = |text: &str| Some(text.to_owned());
        let expected = [
            ("b", some("x\né")),
            ("a\"", some(r#"{"n": [1, 2.50]}"#)),
            ("n", None),
            ("b", some("1.50")),
            ("e", some("")),
        ];
        let expected: Vec<_> =
            expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(read(json), Ok(expected));
    }

    #[test]
    fn anything_but_an_object_is_rejected() {
        for json in ["[]", "1", "\"{}\"", "null", "", "  "] {
            assert_eq!(read(json), Err(JsonFault::NotAnObject), "{json}");
        }
        for json in ["{", "{}x", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", r#"{"a":"\ud800"}"#] {
            assert!(matches!(read(json), Err(JsonFault::Malformed(_))), "{json}");
        }
        assert_eq!(members(b"{\"a\":\"\xFF\"}", |_, _| Ok(())), Err(JsonFault::NotUtf8));
    }

    #[test]
    fn deep_nesting_does_not_exhaust_the_stack() {
        let deep = "[".repeat(1_000_000);
        assert!(matches!(read(&format!("{{\"a\":{deep}")), Err(JsonFault::Malformed(_))));
    }

    proptest! {
        #[test]
        fn a_string_is_parsed_to_the_same_value(name: String, value: String) {
            let json = serde_json::json!({ name.as_str(): value.as_str() }).to_string();
            prop_assert_eq!(read(&json), Ok(vec![(name, Some(value))]));
        }

        #[test]
        fn any_bytes_yield_members_or_an_error(junk in "[\\[\\]{}\",:\\\\u0-9a-fntr \u{80}]{0,40}") {
            let _ = read(&junk);
            let _ = read(&format!("{{\"a\":{junk}}}"));
        }
    }
}
