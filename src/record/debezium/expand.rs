//! A JSON payload as an object of its own (`table.expand.json.payload`).
//!
//! Debezium first finds a schema and then writes the payload by it. What has no schema
//! stays the text that it is; what has one and does not fit to it kills its task.
//! Where the order of members depends on Java's memory, they come as they first appear.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::outbox::json;

use super::datum::Datum;
use super::number;

/// How deep a payload may be nested to be expanded: that of Java has 1000, ours a stack.
const DEPTH_MAX: usize = 128;

/// What becomes of a payload.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expanded {
    /// It stays the text that it is.
    Text,
    /// A [`Datum::Struct`].
    Object(Datum<'static>),
    /// It has a schema that it does not fit to.
    Misfit,
}

/// Expands `text`; `keep_nulls`: `table.json.payload.null.behavior` is `optional_bytes`.
pub(super) fn expand(text: &str, keep_nulls: bool) -> Expanded {
    if !text.starts_with(['{', '[']) {
        return Expanded::Text;
    }
    // What follows the first whole value does not count.
    let first = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>().next();
    let Some(Ok(raw)) = first else { return Expanded::Text };
    let Some(node) = Node::read(raw, 0) else { return Expanded::Text };
    let Ok(Some(schema)) = schema(&node, keep_nulls) else { return Expanded::Text };
    match (&node, node.fit(&schema)) {
        (Node::Object(_), Some(datum)) => Expanded::Object(datum),
        _ => Expanded::Misfit,
    }
}

/// JSON with its numbers as they stand.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Null,
    Bool(bool),
    Int32(i32),
    Int64(i64),
    /// Past the range of `int8`.
    Huge,
    Double(f64),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

#[derive(Debug, Clone, PartialEq)]
enum Schema {
    /// Of NULL, where it is kept.
    Null,
    Bool,
    Int32,
    Int64,
    Huge,
    Double,
    Text,
    Array(Box<Schema>),
    Object(Vec<(String, Schema)>),
    /// Of objects that nothing fits to.
    Nothing,
}

/// No schema can be found.
#[derive(Debug)]
struct NoSchema;

impl Node {
    fn read(raw: &RawValue, depth: usize) -> Option<Self> {
        let text = raw.get();
        if depth > DEPTH_MAX {
            return None;
        }
        Some(match text.as_bytes().first()? {
            b'n' => Self::Null,
            b't' => Self::Bool(true),
            b'f' => Self::Bool(false),
            b'"' => Self::Text(serde_json::from_str(text).ok()?),
            b'[' => {
                let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                let read = |element| Self::read(element, depth + 1);
                Self::Array(elements.into_iter().map(read).collect::<Option<_>>()?)
            }
            b'{' => Self::object(text, depth + 1)?,
            _ => Self::number(text)?,
        })
    }

    fn number(text: &str) -> Option<Self> {
        if text.contains(['.', 'e', 'E']) {
            return text.parse().ok().map(Self::Double);
        }
        let Ok(number) = text.parse::<i64>() else { return Some(Self::Huge) };
        Some(i32::try_from(number).map_or(Self::Int64(number), Self::Int32))
    }

    /// Of equal names the last value, in the place of the first.
    fn object(text: &str, depth: usize) -> Option<Self> {
        let mut members: Vec<(String, Self)> = Vec::new();
        let mut is_read = true;
        json::members(text.as_bytes(), |name, value| {
            let node = Self::read(value, depth);
            is_read &= node.is_some();
            let node = node.unwrap_or(Self::Null);
            match members.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = node,
                None => members.push((name.into_owned(), node)),
            }
            Ok(())
        })
        .ok()?;
        is_read.then_some(Self::Object(members))
    }

    fn member(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(known, _)| known == name).map(|(_, node)| node)
    }

    /// The value by that schema; `None` where it does not fit.
    fn fit(&self, schema: &Schema) -> Option<Datum<'static>> {
        let digits = |number: i64| Datum::Digits(Cow::Owned(number.to_string()));
        Some(match (self, schema) {
            (_, Schema::Nothing) => return None,
            (Self::Null, _) => Datum::Null,
            (Self::Bool(truth), Schema::Bool) => Datum::Bool(*truth),
            (Self::Int32(number), Schema::Int32) => digits(i64::from(*number)),
            (Self::Int64(number), Schema::Int64) => digits(*number),
            (Self::Double(number), Schema::Double) => Datum::Float(number::spelled(*number)),
            (Self::Text(text), Schema::Text) => Datum::Text(Cow::Owned(text.clone())),
            (Self::Array(elements), Schema::Array(of)) => {
                Datum::Array(elements.iter().map(|it| it.fit(of)).collect::<Option<_>>()?)
            }
            (Self::Object(_), Schema::Object(members)) => {
                let member = |(name, schema): &(String, Schema)| {
                    let value = self.member(name).unwrap_or(&Self::Null).fit(schema)?;
                    Some((Cow::Owned(name.clone()), value))
                };
                Datum::Struct(members.iter().map(member).collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

/// The schema of a value; `None` where it is left out: NULL, and an empty array.
fn schema(node: &Node, keep_nulls: bool) -> Result<Option<Schema>, NoSchema> {
    Ok(Some(match node {
        Node::Null if keep_nulls => Schema::Null,
        Node::Null => return Ok(None),
        Node::Bool(_) => Schema::Bool,
        Node::Int32(_) => Schema::Int32,
        Node::Int64(_) => Schema::Int64,
        Node::Huge => Schema::Huge,
        Node::Double(_) => Schema::Double,
        Node::Text(_) => Schema::Text,
        Node::Array(elements) if elements.is_empty() => return Ok(None),
        Node::Array(elements) => Schema::Array(Box::new(of_elements(elements, keep_nulls)?)),
        Node::Object(members) => Schema::Object(of_members(members, keep_nulls)?),
    }))
}

fn of_members(
    members: &[(String, Node)],
    keep_nulls: bool,
) -> Result<Vec<(String, Schema)>, NoSchema> {
    let mut found = Vec::with_capacity(members.len());
    for (name, node) in members {
        if name.is_empty() {
            return Err(NoSchema);
        }
        if let Some(schema) = schema(node, keep_nulls)? {
            found.push((name.clone(), schema));
        }
    }
    Ok(found)
}

/// The one schema of an array's elements.
fn of_elements(elements: &[Node], keep_nulls: bool) -> Result<Schema, NoSchema> {
    let mut values = elements.iter().filter(|node| **node != Node::Null).peekable();
    let Some(first) = values.peek().copied() else {
        return if keep_nulls { Ok(Schema::Null) } else { Err(NoSchema) };
    };
    let kind = std::mem::discriminant(first);
    if values.clone().any(|node| std::mem::discriminant(node) != kind) {
        return Err(NoSchema);
    }
    if !matches!(first, Node::Object(_)) {
        return schema(first, keep_nulls)?.ok_or(NoSchema);
    }
    let mut members = Vec::new();
    let mut is_uniform = true;
    for (index, node) in values.enumerate() {
        let Node::Object(mine) = node else { continue };
        let mine = of_members(mine, keep_nulls)?;
        is_uniform &= index == 0 || mine.len() == members.len();
        merge(&mut members, mine);
        is_uniform &= members.iter().all(|(name, _)| node.member(name).is_some());
    }
    let has_nulls = elements.contains(&Node::Null);
    Ok(if has_nulls && !is_uniform { Schema::Nothing } else { Schema::Object(members) })
}

/// Adds the members of one object to those of the objects before it.
fn merge(members: &mut Vec<(String, Schema)>, more: Vec<(String, Schema)>) {
    for (name, schema) in more {
        match members.iter_mut().find(|(known, _)| *known == name) {
            None => members.push((name, schema)),
            Some((_, known @ Schema::Null)) => *known = schema,
            Some((_, Schema::Object(known))) => {
                if let Schema::Object(more) = schema {
                    merge(known, more);
                }
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spell::{Spelling, spell};
    use super::*;
    use proptest::prelude::*;

    fn expanded(text: &str) -> String {
        match expand(text, false) {
            Expanded::Text => "text".to_owned(),
            Expanded::Misfit => "misfit".to_owned(),
            Expanded::Object(datum) => {
                let mut json = String::new();
                spell(&datum, Spelling::Json, &mut json);
                json
            }
        }
    }

    #[test]
    fn members_come_as_they_first_appear_where_java_has_no_order() {
        let json = r#"{"a": [{"b": 1, "c": 2}, {"b": 1, "d": {"e": 3}}, {"d": {"f": 4}}]}"#;
        let expected = r#"{"a":[{"b":1,"c":2,"d":null},{"b":1,"c":null,"d":{"e":3,"f":null}},{"b":null,"c":null,"d":{"e":null,"f":4}}]}"#;
        assert_eq!(expanded(json), expected);
    }

    #[test]
    fn deep_nesting_does_not_exhaust_the_stack() {
        assert_eq!(expanded(&"{\"a\":".repeat(100_000)), "text");
        let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(expanded(&deep), "text");
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_not(text in "[{}\\[\\],:\"ab\\\\1e.nul -]{0,30}") {
            let _ = (expand(&text, false), expand(&text, true));
            let _ = expand(&format!("{{\"a\":{text}}}"), false);
        }
    }
}
