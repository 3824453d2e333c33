//! Expands a JSON payload to an object (`table.expand.json.payload`).
//!
//! Debezium first derives a schema and then writes the payload by it. A payload without a schema
//! remains text; one that has a schema but does not fit it makes Debezium's task fail. If the order
//! of members depends on Java's memory, they keep the order of their first occurrence.

use std::borrow::Cow;

use indexmap::IndexMap;
use indexmap::map::Entry;
use serde_json::value::RawValue;

use super::connect_value::ConnectValue;
use super::number;

mod node;

use node::Node;

/// Maximum bytes of a payload to expand, and of all names and texts in the result. Objects in an
/// array get the members of all of them, so the result may grow with the square of the payload.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Maximum number of members and elements of a payload, and of the result.
pub(super) const VALUES_MAX: usize = 250_000;

/// The result of an expansion.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expanded {
    /// The payload remains text.
    Text,
    /// A [`ConnectValue::Struct`].
    Object(ConnectValue<'static>),
    /// The payload does not fit its schema.
    Misfit,
    /// A document that exceeds [`BYTES_MAX`] or [`VALUES_MAX`].
    TooLarge,
}

/// Why a payload is not expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// No schema can be derived.
    NoSchema,
    Misfit,
    TooLarge,
}

/// The rest of [`VALUES_MAX`] and [`BYTES_MAX`].
#[derive(Debug)]
struct Budget {
    values: usize,
    bytes: usize,
}

impl Budget {
    fn new() -> Self {
        Self { values: VALUES_MAX, bytes: BYTES_MAX }
    }

    /// Counts a value, with this many bytes of name and text.
    fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        let values = self.values.checked_sub(1).ok_or(Fault::TooLarge)?;
        let bytes = self.bytes.checked_sub(bytes).ok_or(Fault::TooLarge)?;
        *self = Self { values, bytes };
        Ok(())
    }
}

/// What is expanded besides values with a type.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Keep {
    /// NULLs: `table.json.payload.null.behavior=optional_bytes`.
    pub(super) nulls: bool,
    /// Empty arrays: `table.json.payload.empty.array.behavior=optional_string`.
    pub(super) empty_arrays: bool,
}

/// Expands `text`.
pub(super) fn expand(text: &str, keep: Keep) -> Expanded {
    if !text.starts_with(['{', '[']) {
        return Expanded::Text;
    }
    if text.len() > BYTES_MAX {
        return Expanded::TooLarge;
    }
    match object(text, keep) {
        Ok(object) => Expanded::Object(object),
        Err(Fault::NoSchema) => Expanded::Text,
        Err(Fault::Misfit) => Expanded::Misfit,
        Err(Fault::TooLarge) => Expanded::TooLarge,
    }
}

fn object(text: &str, keep: Keep) -> Result<ConnectValue<'static>, Fault> {
    // Anything after the first complete value is ignored.
    let first = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>().next();
    let Some(Ok(raw)) = first else { return Err(Fault::NoSchema) };
    let node = Node::read(raw, &mut Budget::new())?;
    let schema = schema(&node, keep)?.ok_or(Fault::NoSchema)?;
    let value = fit(&node, &schema, &mut Budget::new())?;
    if matches!(node, Node::Object(_)) { Ok(value) } else { Err(Fault::Misfit) }
}

type Members = IndexMap<String, Schema>;

#[derive(Debug, Clone, PartialEq)]
enum Schema {
    /// NULL, if it is kept.
    Null,
    Bool,
    Int32,
    Int64,
    Huge,
    Double,
    Text,
    Array(Box<Schema>),
    Object(Members),
    /// Objects that no value fits.
    Nothing,
}

/// The value according to that schema.
fn fit(node: &Node, schema: &Schema, budget: &mut Budget) -> Result<ConnectValue<'static>, Fault> {
    let digits = |number: i64| ConnectValue::Digits(Cow::Owned(number.to_string()));
    Ok(match (node, schema) {
        (_, Schema::Nothing) => return Err(Fault::Misfit),
        (Node::Null, _) => ConnectValue::Null,
        (Node::Bool(truth), Schema::Bool) => ConnectValue::Bool(*truth),
        (Node::Int32(number), Schema::Int32) => digits(i64::from(*number)),
        (Node::Int64(number), Schema::Int64) => digits(*number),
        (Node::Double(number), Schema::Double) => ConnectValue::Float(number::java_text(*number)),
        (Node::Text(text), Schema::Text) => ConnectValue::Text(Cow::Owned(text.clone())),
        (Node::Array(elements), Schema::Array(of)) => {
            let mut element = |node: &Node| {
                budget.take(node.text_bytes())?;
                fit(node, of, budget)
            };
            ConnectValue::Array(elements.iter().map(&mut element).collect::<Result<_, _>>()?)
        }
        (Node::Object(nodes), Schema::Object(members)) => {
            let mut member = |(name, schema): (&String, &Schema)| {
                let node = nodes.get(name).unwrap_or(&Node::Null);
                budget.take(name.len() + node.text_bytes())?;
                Ok((Cow::Owned(name.clone()), fit(node, schema, budget)?))
            };
            ConnectValue::Struct(members.iter().map(&mut member).collect::<Result<_, _>>()?)
        }
        _ => return Err(Fault::Misfit),
    })
}

/// The schema of a value; `None` if it is omitted: NULL, and an empty array, unless they are kept.
fn schema(node: &Node, keep: Keep) -> Result<Option<Schema>, Fault> {
    Ok(Some(match node {
        Node::Null if keep.nulls => Schema::Null,
        Node::Null => return Ok(None),
        Node::Bool(_) => Schema::Bool,
        Node::Int32(_) => Schema::Int32,
        Node::Int64(_) => Schema::Int64,
        Node::Huge => Schema::Huge,
        Node::Double(_) => Schema::Double,
        Node::Text(_) => Schema::Text,
        Node::Array(elements) if elements.is_empty() && keep.empty_arrays => {
            Schema::Array(Box::new(Schema::Text))
        }
        Node::Array(elements) if elements.is_empty() => return Ok(None),
        Node::Array(elements) => Schema::Array(Box::new(of_elements(elements, keep)?)),
        Node::Object(members) => Schema::Object(of_members(members, keep)?),
    }))
}

fn of_members(members: &IndexMap<String, Node>, keep: Keep) -> Result<Members, Fault> {
    let mut found = Members::with_capacity(members.len());
    for (name, node) in members {
        if name.is_empty() {
            return Err(Fault::NoSchema);
        }
        if let Some(schema) = schema(node, keep)? {
            found.insert(name.clone(), schema);
        }
    }
    Ok(found)
}

/// The common schema of an array's elements.
fn of_elements(elements: &[Node], keep: Keep) -> Result<Schema, Fault> {
    let mut values = elements.iter().filter(|node| **node != Node::Null).peekable();
    let Some(first) = values.peek().copied() else {
        return if keep.nulls { Ok(Schema::Null) } else { Err(Fault::NoSchema) };
    };
    let kind = std::mem::discriminant(first);
    if values.clone().any(|node| std::mem::discriminant(node) != kind) {
        return Err(Fault::NoSchema);
    }
    if !matches!(first, Node::Object(_)) {
        return schema(first, keep)?.ok_or(Fault::NoSchema);
    }
    let mut members = Members::new();
    let mut is_uniform = true;
    for (index, node) in values.enumerate() {
        let Node::Object(mine) = node else { continue };
        let found = of_members(mine, keep)?;
        is_uniform &= index == 0 || found.len() == members.len();
        merge(&mut members, found);
        // With as many members as this object has, the comparison's cost is covered by the
        // payload's budget.
        is_uniform = is_uniform && members.keys().all(|name| mine.contains_key(name));
    }
    let has_nulls = elements.contains(&Node::Null);
    Ok(if has_nulls && !is_uniform { Schema::Nothing } else { Schema::Object(members) })
}

/// Adds the members of one object to those of the previous objects.
fn merge(members: &mut Members, more: Members) {
    for (name, schema) in more {
        match members.entry(name) {
            Entry::Vacant(place) => {
                place.insert(schema);
            }
            Entry::Occupied(mut known) => match (known.get_mut(), schema) {
                (known @ Schema::Null, schema) => *known = schema,
                (Schema::Object(known), Schema::Object(more)) => merge(known, more),
                _ => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::debezium::convert::{Converter, convert};
    use proptest::prelude::*;

    fn expanded(text: &str) -> String {
        match expand(text, Keep::default()) {
            Expanded::Text => "text".to_owned(),
            Expanded::Misfit => "misfit".to_owned(),
            Expanded::TooLarge => "too large".to_owned(),
            Expanded::Object(value) => {
                let mut json = String::new();
                convert(&value, Converter::Json, &mut json);
                json
            }
        }
    }

    #[test]
    fn members_keep_their_first_order_if_java_has_none() {
        let json = r#"{"a": [{"b": 1, "c": 2}, {"b": 1, "d": {"e": 3}}, {"d": {"f": 4}}]}"#;
        let expected = r#"{"a":[{"b":1,"c":2,"d":null},{"b":1,"c":null,"d":{"e":3,"f":null}},{"b":null,"c":null,"d":{"e":null,"f":4}}]}"#;
        assert_eq!(expanded(json), expected);
        // Debezium itself produces this order on one JVM, and the other one on another.
        let json = r#"{"i": [{"sku": 1}, {"qty": 2}, {"qty": 3, "sku": 4}]}"#;
        let expected = r#"{"i":[{"sku":1,"qty":null},{"sku":null,"qty":2},{"sku":4,"qty":3}]}"#;
        assert_eq!(expanded(json), expected);
    }

    #[test]
    fn deep_nesting_does_not_exhaust_the_stack() {
        assert_eq!(expanded(&"{\"a\":".repeat(100_000)), "text");
        let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(expanded(&deep), "text");
    }

    /// Objects in an array, each with one member of a unique name of this length.
    fn with_unique_names(objects: usize, name_bytes: usize) -> String {
        let object = |number: usize| format!("{{\"{number:0>name_bytes$}\":1}}");
        let objects: Vec<_> = (0..objects).map(object).collect();
        format!("{{\"a\":[{}]}}", objects.join(","))
    }

    #[test]
    fn a_payload_that_is_or_becomes_too_large_is_an_error() {
        let elements = |count: usize| format!("{{\"a\":[{}1]}}", "1,".repeat(count - 1));
        // The array itself is a member.
        assert_ne!(expanded(&elements(VALUES_MAX - 1)), "too large");
        assert_eq!(expanded(&elements(VALUES_MAX)), "too large");
        let text = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes));
        assert_ne!(expanded(&text(BYTES_MAX - 8)), "too large");
        assert_eq!(expanded(&text(BYTES_MAX)), "too large");
        // Each object gets the other objects' members.
        assert_ne!(expanded(&with_unique_names(400, 10)), "too large");
        assert_eq!(expanded(&with_unique_names(600, 10)), "too large");
        assert_eq!(expanded(&with_unique_names(200, 1_000)), "too large");
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_not(text in "[{}\\[\\],:\"ab\\\\1e.nul -]{0,30}") {
            let all = Keep { nulls: true, empty_arrays: true };
            let _ = (expand(&text, Keep::default()), expand(&text, all));
            let _ = expand(&format!("{{\"a\":{text}}}"), Keep::default());
        }
    }
}
