//! Parses JSON in one pass, keeping the distinction between number types.
//!
//! The text was validated as JSON before. Anything invalid results in no schema, never in a panic.

use indexmap::IndexMap;
use serde_json::value::RawValue;

use super::{Budget, Fault};

/// Maximum nesting of a payload to expand: Java's parser allows 1000, walpost's is limited by the
/// stack.
const DEPTH_MAX: usize = 128;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Int32(i32),
    Int64(i64),
    /// Beyond the range of `int8`.
    Huge,
    Double(f64),
    Text(String),
    Array(Vec<Node>),
    /// An object; for duplicate names, the last value at the position of the first.
    Object(IndexMap<String, Node>),
}

impl Node {
    /// Parses a value whose number of members and elements, and whose bytes, are within `budget`.
    pub(super) fn read(raw: &RawValue, budget: &mut Budget) -> Result<Self, Fault> {
        Reader { rest: raw.get(), budget }.value(0)
    }

    /// Bytes of its text; 0 if it is not a string.
    pub(super) fn text_bytes(&self) -> usize {
        if let Self::Text(text) = self { text.len() } else { 0 }
    }

    fn number(text: &str) -> Result<Self, Fault> {
        if text.contains(['.', 'e', 'E']) {
            return text.parse().map(Self::Double).map_err(|_| Fault::NoSchema);
        }
        let Ok(number) = text.parse::<i64>() else { return Ok(Self::Huge) };
        Ok(i32::try_from(number).map_or(Self::Int64(number), Self::Int32))
    }
}

struct Reader<'t, 'b> {
    rest: &'t str,
    budget: &'b mut Budget,
}

impl<'t> Reader<'t, '_> {
    fn value(&mut self, depth: usize) -> Result<Node, Fault> {
        if depth > DEPTH_MAX {
            return Err(Fault::NoSchema);
        }
        self.skip_blanks();
        match self.rest.as_bytes().first() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(Node::Text),
            _ => match self.word() {
                "" => Err(Fault::NoSchema),
                "null" => Ok(Node::Null),
                "true" => Ok(Node::Bool(true)),
                "false" => Ok(Node::Bool(false)),
                number => Node::number(number),
            },
        }
    }

    fn object(&mut self, depth: usize) -> Result<Node, Fault> {
        let mut members = IndexMap::new();
        self.take('{')?;
        if self.take('}').is_ok() {
            return Ok(Node::Object(members));
        }
        loop {
            self.skip_blanks();
            let name = self.string()?;
            self.take(':')?;
            self.budget.take(name.len())?;
            let node = self.value(depth)?;
            members.insert(name, node);
            if self.take(',').is_err() {
                return self.take('}').map(|()| Node::Object(members));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Node, Fault> {
        let mut elements = Vec::new();
        self.take('[')?;
        if self.take(']').is_ok() {
            return Ok(Node::Array(elements));
        }
        loop {
            self.budget.take(0)?;
            elements.push(self.value(depth)?);
            if self.take(',').is_err() {
                return self.take(']').map(|()| Node::Array(elements));
            }
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        let inside = self.rest.strip_prefix('"').ok_or(Fault::NoSchema)?;
        let mut is_escaped = false;
        let end = inside.bytes().position(|byte| {
            let ends = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        });
        let end = end.ok_or(Fault::NoSchema)?;
        let (text, quoted) = (&inside[..end], &self.rest[..end + 2]);
        self.rest = &inside[end + 1..];
        if !text.contains('\\') {
            return Ok(text.to_owned());
        }
        // An unpaired surrogate is not valid text.
        serde_json::from_str(quoted).map_err(|_| Fault::NoSchema)
    }

    /// A number, `true`, `false` or `null`.
    fn word(&mut self) -> &'t str {
        let is_of_word =
            |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '+' | '-' | '.');
        let end = self.rest.find(|sign| !is_of_word(sign)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn take(&mut self, sign: char) -> Result<(), Fault> {
        self.skip_blanks();
        self.rest = self.rest.strip_prefix(sign).ok_or(Fault::NoSchema)?;
        Ok(())
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(json: &str) -> Result<Node, Fault> {
        let raw: &RawValue = serde_json::from_str(json).expect("JSON");
        Node::read(raw, &mut Budget::new())
    }

    /// The same value in `serde_json`'s representation, with numbers as doubles.
    fn as_value(node: &Node) -> serde_json::Value {
        match node {
            Node::Null | Node::Huge => serde_json::Value::Null,
            Node::Bool(truth) => (*truth).into(),
            Node::Int32(number) => (*number).into(),
            Node::Int64(number) => (*number).into(),
            Node::Double(number) => (*number).into(),
            Node::Text(text) => text.as_str().into(),
            Node::Array(elements) => elements.iter().map(as_value).collect(),
            Node::Object(members) => {
                members.iter().map(|(name, node)| (name.clone(), as_value(node))).collect()
            }
        }
    }

    #[test]
    fn number_types_are_distinguished_by_their_notation() {
        for (json, node) in [
            ("-0", Node::Int32(0)),
            ("2147483648", Node::Int64(2_147_483_648)),
            ("9223372036854775808", Node::Huge),
            ("1.0", Node::Double(1.0)),
            ("1e400", Node::Double(f64::INFINITY)),
        ] {
            assert_eq!(read(&format!("[ {json} ]")), Ok(Node::Array(vec![node])), "{json}");
        }
    }

    #[test]
    fn an_unpaired_surrogate_is_not_text() {
        for json in [r#"{"a":"\ud800"}"#, r#"{"\ud800":1}"#] {
            assert_eq!(read(json), Err(Fault::NoSchema), "{json}");
        }
    }

    proptest! {
        #[test]
        fn any_json_is_parsed_as_by_serde_json(
            text in r#"[{}\[\],:"ab\\\\1 -]{0,24}"#, member: String, number: i64
        ) {
            let member = serde_json::Value::from(member);
            for json in [text.clone(), format!("{{{member} : [{number} , {text}],\n{member}:{text}}}")] {
                if let Ok(value) = serde_json::from_str::<serde_json::Value>(&json) {
                    prop_assert_eq!(read(&json).map(|node| as_value(&node)), Ok(value));
                }
            }
        }
    }
}
