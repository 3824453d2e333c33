//! Names of tables and other objects, parsed and printed as in SQL, and on one line.
//!
//! Only the name: whether the table exists is checked elsewhere.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use crate::excerpt::is_harmless;
use crate::pgoutput::Relation;

/// Maximum length of an identifier in bytes (`NAMEDATALEN` - 1); PostgreSQL truncates longer ones.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// The keywords that a schema or table name can only use in quotes
/// (<https://www.postgresql.org/docs/current/sql-keywords-appendix.html>, "reserved").
const RESERVED: &str = " all analyse analyze and any array as asc asymmetric authorization binary both \
    case cast check collate collation column concurrently constraint create cross current_catalog \
    current_date current_role current_schema current_time current_timestamp current_user default \
    deferrable desc distinct do else end except false fetch for foreign freeze from full grant group \
    having ilike in initially inner intersect into is isnull join lateral leading left like limit \
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing \
    primary references returning right select session_user similar some symmetric system_user table \
    tablesample then to trailing true union unique user using variadic verbose when where window with ";

/// A table by schema and name, both as stored in the catalog.
///
/// Parsed as in SQL: `outbox` is `public.outbox`, unquoted letters fold to lower case, and
/// `"Sales"."OutBox"` keeps its capitals.
///
/// Printed on one line and without control characters, whatever it has, as
/// [`U&"a\000Ab"`](https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS):
/// names of others reach terminals and shell pipelines.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// Schema, without quotes.
    pub schema: String,
    /// Name, without quotes.
    pub name: String,
}

impl TableName {
    /// Whether this is the name of `relation`.
    pub fn names(&self, relation: &Relation) -> bool {
        self.name == relation.name && self.schema == relation.schema
    }

    /// The name as `to_regclass` reads it, which does not know `U&"…"`.
    pub fn regclass_text(&self) -> String {
        let quoted = |part: &str| {
            if is_plain(part) {
                part.to_owned()
            } else {
                format!("\"{}\"", part.replace('"', "\"\""))
            }
        };
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

/// The name of an object in SQL, quoted if necessary, on one line and without control characters.
pub fn identifier_text(name: &str) -> String {
    Quoted(name).to_string()
}

/// The same, quoted in any case.
pub fn identifier_in_quotes(name: &str) -> String {
    if is_plain(name) { format!("\"{name}\"") } else { identifier_text(name) }
}

impl From<&Relation> for TableName {
    fn from(relation: &Relation) -> Self {
        Self { schema: relation.schema.clone(), name: relation.name.clone() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", Quoted(&self.schema), Quoted(&self.name))
    }
}

/// A text that is not a table name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a table's name: {why}; write it as in SQL, for instance public.outbox, \
     or \"Sales\".\"OutBox\" if capitals or other characters are part of it"
)]
pub struct ParseTableNameError {
    text: String,
    why: &'static str,
}

impl FromStr for TableName {
    type Err = ParseTableNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        split(text).map_err(|why| ParseTableNameError { text: text.to_owned(), why })
    }
}

fn split(text: &str) -> Result<TableName, &'static str> {
    let (first, rest) = identifier(text)?;
    let Some(rest) = rest.strip_prefix('.') else {
        return match rest {
            "" => Ok(TableName { schema: "public".to_owned(), name: first }),
            _ => Err("there is text after the name"),
        };
    };
    match identifier(rest)? {
        (name, "") => Ok(TableName { schema: first, name }),
        (_, rest) if rest.starts_with('.') => Err("it has more than a schema and a name"),
        _ => Err("there is text after the name"),
    }
}

/// The identifier at the start of `text`, and the rest.
fn identifier(text: &str) -> Result<(String, &str), &'static str> {
    let (name, rest) = if let Some(quoted) = text.strip_prefix('"') {
        quoted_identifier(quoted)?
    } else if let Some(escaped) = text.strip_prefix("U&\"").or(text.strip_prefix("u&\"")) {
        let (escaped, rest) = quoted_identifier(escaped)?;
        (unescaped(&escaped).ok_or("it has an invalid Unicode escape")?, rest)
    } else {
        plain_identifier(text)?
    };
    if name.len() > IDENTIFIER_BYTES_MAX {
        return Err("an identifier has 63 bytes at most");
    }
    Ok((name, rest))
}

/// The text before the closing quote, and the rest.
fn quoted_identifier(text: &str) -> Result<(String, &str), &'static str> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"').ok_or("a quote is not closed")?;
        name.push_str(part);
        let Some(more) = after.strip_prefix('"') else {
            return match name.as_str() {
                "" => Err("there is no text between the quotes"),
                name if name.contains('\0') => Err("it has a zero byte"),
                _ => Ok((name, after)),
            };
        };
        name.push('"');
        rest = more;
    }
}

/// The text of `U&"…"`: `\XXXX`, `\+XXXXXX` and `\\` are characters.
fn unescaped(text: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        name.push_str(before);
        let (digits, after) = match escape.strip_prefix('+') {
            Some(long) => long.split_at_checked(6)?,
            None if escape.starts_with('\\') => {
                name.push('\\');
                rest = &escape[1..];
                continue;
            }
            None => escape.split_at_checked(4)?,
        };
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let code = u32::from_str_radix(digits, 16).ok().filter(|code| is_hex && *code > 0)?;
        name.push(char::from_u32(code)?);
        rest = after;
    }
    name.push_str(rest);
    Some(name)
}

fn plain_identifier(text: &str) -> Result<(String, &str), &'static str> {
    let letter = |sign: char| sign.is_ascii_alphabetic() || sign == '_' || !sign.is_ascii();
    let inner = |sign: char| letter(sign) || sign.is_ascii_digit() || sign == '$';
    match text.chars().next() {
        Some(first) if letter(first) => {
            let end = text.find(|sign| !inner(sign)).unwrap_or(text.len());
            Ok((text[..end].to_ascii_lowercase(), &text[end..]))
        }
        Some('.') | None => Err("a part of it is empty"),
        Some(_) => Err("outside of quotes an identifier begins with a letter or an underscore"),
    }
}

/// Whether SQL reads the name without quotes as it is.
fn is_plain(name: &str) -> bool {
    name.starts_with(|sign: char| sign.is_ascii_lowercase() || sign == '_')
        && name.bytes().all(|sign| matches!(sign, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        && !RESERVED.contains(&format!(" {name} "))
}

/// An identifier that is printed with quotes if SQL needs them.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_plain(self.0) {
            return f.write_str(self.0);
        }
        if self.0.chars().all(is_harmless) {
            return write!(f, "\"{}\"", self.0.replace('"', "\"\""));
        }
        f.write_str("U&\"")?;
        for sign in self.0.chars() {
            match (sign, u32::from(sign)) {
                ('"', _) => f.write_str("\"\"")?,
                ('\\', _) => f.write_str("\\\\")?,
                _ if is_harmless(sign) => f.write_char(sign)?,
                (_, code @ ..=0xffff) => write!(f, "\\{code:04X}")?,
                (_, code) => write!(f, "\\+{code:06X}")?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(schema: &str, name: &str) -> TableName {
        TableName { schema: schema.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_name_is_parsed_as_in_sql() {
        for (text, expected) in [
            ("outbox", table("public", "outbox")),
            ("public.outbox", table("public", "outbox")),
            ("Public.OutBox", table("public", "outbox")),
            ("\"Sales\".\"OutBox\"", table("Sales", "OutBox")),
            ("sales.\"a.b\"", table("sales", "a.b")),
            ("\"say \"\"hi\"\"\"", table("public", "say \"hi\"")),
            ("_a1$.größe", table("_a1$", "größe")),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_name_is_rejected_with_the_correct_form() {
        for wrong in [
            "", ".", "a.", ".a", "a.b.c", "a b", " a", "a-b", "1a", "\"a", "\"\"", "\"a\"b",
            "a.\"\"", "a..b", "\"a\0\"",
        ] {
            let error = wrong.parse::<TableName>().expect_err(wrong).to_string();
            assert!(error.contains("public.outbox"), "{error}");
        }
        assert!("a".repeat(64).parse::<TableName>().is_err());
        assert!("a".repeat(63).parse::<TableName>().is_ok());
    }

    #[test]
    fn quotes_are_printed_only_if_sql_needs_them() {
        assert_eq!(table("public", "outbox_2").to_string(), "public.outbox_2");
        assert_eq!(table("Sales", "a\"b").to_string(), "\"Sales\".\"a\"\"b\"");
        assert_eq!(table("order", "user").to_string(), "\"order\".\"user\"");
        assert_eq!(table("1st", "a b").to_string(), "\"1st\".\"a b\"");
    }

    #[test]
    fn a_name_is_printed_on_one_line_whatever_it_has() {
        let name = table("a\nb", "x\"\\\u{1b}[2K\u{e0041}");
        let text = r#"U&"a\000Ab".U&"x""\\\001B[2K\+0E0041""#;
        assert_eq!(name.to_string(), text);
        assert_eq!(text.parse(), Ok(name.clone()));
        assert_eq!(name.regclass_text(), "\"a\nb\".\"x\"\"\\\u{1b}[2K\u{e0041}\"");
        for wrong in ["U&\"\\00\"", "U&\"\\zzzz\"", "U&\"\\D800\"", "U&\"\\+00000", "U&\"\\0000\""]
        {
            assert!(wrong.parse::<TableName>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_name_is_parsed_to_the_same_value(schema in "[^\0]{1,15}", name in "[a-zA-Z\"._ 0-9]{1,63}") {
            let table = table(&schema, &name);
            prop_assert!(table.to_string().chars().all(is_harmless));
            prop_assert_eq!(table.to_string().parse(), Ok(table));
        }

        #[test]
        fn any_text_yields_a_name_or_an_error(text: String) {
            let _ = text.parse::<TableName>();
        }
    }
}
