//! Stand-in for `crate::outbox::TableName`, with the same `FromStr` and `Display`.

use std::fmt;
use std::str::FromStr;

/// A table's name, with its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    schema: String,
    name: String,
}

/// A text that is not a table's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a table's name: write schema.table, with SQL's quotes where needed")]
pub struct ParseTableNameError(String);

impl FromStr for TableName {
    type Err = ParseTableNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseTableNameError(text.to_owned());
        let mut parts = Vec::new();
        let mut rest = text.trim();
        loop {
            let (part, next) = first_part(rest).ok_or_else(wrong)?;
            parts.push(part);
            match next.strip_prefix('.') {
                Some(after) => rest = after,
                None if next.is_empty() => break,
                None => return Err(wrong()),
            }
        }
        match <[String; 2]>::try_from(parts) {
            Ok([schema, name]) => Ok(Self { schema, name }),
            Err(mut parts) if parts.len() == 1 => {
                Ok(Self { schema: "public".to_owned(), name: parts.remove(0) })
            }
            Err(_) => Err(wrong()),
        }
    }
}

fn first_part(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find('.').unwrap_or(text.len());
        let (part, rest) = text.split_at(end);
        let mut chars = part.chars();
        let plain = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && chars.all(|c| c.is_alphanumeric() || c == '_' || c == '$');
        return plain.then(|| (part.to_lowercase(), rest));
    };
    let mut name = String::new();
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c != '"' {
            name.push(c);
        } else if chars.next_if(|(_, next)| *next == '"').is_some() {
            name.push('"');
        } else {
            return (!name.is_empty()).then(|| (name, &quoted[at + 1..]));
        }
    }
    None
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = |part: &str| {
            let plain =
                part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            if plain { part.to_owned() } else { format!("\"{}\"", part.replace('"', "\"\"")) }
        };
        write!(f, "{}.{}", quote(&self.schema), quote(&self.name))
    }
}
