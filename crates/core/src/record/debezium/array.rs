//! Parses PostgreSQL's text forms of arrays and hstore.

use std::iter::Peekable;
use std::str::Chars;

use super::json::json_string;

/// An element of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    Null,
    Text(String),
    /// A nested array; its elements are not kept.
    Array,
}

/// The elements of `{a,"b c",NULL}`, also of `[2:3]={a,b}`
/// (<https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO>).
pub(super) fn read(text: &str) -> Option<Vec<Element>> {
    let text = match text.strip_prefix('[') {
        Some(bounds) => bounds.split_once('=')?.1,
        None => text,
    };
    let mut signs = text.chars().peekable();
    let elements = braces(&mut signs)?;
    signs.next().is_none().then_some(elements)
}

fn braces(signs: &mut Peekable<Chars<'_>>) -> Option<Vec<Element>> {
    let mut elements = Vec::new();
    (signs.next()? == '{').then_some(())?;
    if signs.next_if_eq(&'}').is_some() {
        return Some(elements);
    }
    loop {
        elements.push(match signs.peek()? {
            '{' => {
                skip_array(signs)?;
                Element::Array
            }
            '"' => Element::Text(quoted(signs)?),
            _ => bare(signs)?,
        });
        match signs.next()? {
            ',' => {}
            '}' => return Some(elements),
            _ => return None,
        }
    }
}

/// Skips a nested array of any depth.
fn skip_array(signs: &mut Peekable<Chars<'_>>) -> Option<()> {
    let mut depth = 0_usize;
    loop {
        match signs.peek()? {
            '"' => {
                quoted(signs)?;
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        signs.next();
        if depth == 0 {
            return Some(());
        }
    }
}

fn bare(signs: &mut Peekable<Chars<'_>>) -> Option<Element> {
    let mut text = String::new();
    while let Some(sign) = signs.next_if(|sign| !matches!(sign, ',' | '}' | '{' | '"')) {
        text.push(if sign == '\\' { signs.next()? } else { sign });
    }
    Some(if text == "NULL" { Element::Null } else { Element::Text(text) })
}

/// A quoted text, in which a backslash escapes the next character.
fn quoted(signs: &mut Peekable<Chars<'_>>) -> Option<String> {
    let mut text = String::new();
    (signs.next()? == '"').then_some(())?;
    loop {
        match signs.next()? {
            '"' => return Some(text),
            '\\' => text.push(signs.next()?),
            sign => text.push(sign),
        }
    }
}

/// Converts `"a"=>"1", "b"=>NULL` to a JSON object, in its order
/// (<https://www.postgresql.org/docs/current/hstore.html>).
pub(super) fn hstore_as_json(text: &str) -> Option<String> {
    let mut signs = text.chars().peekable();
    let mut json = String::from("{");
    while signs.peek().is_some() {
        if json.len() > 1 {
            json.push(',');
        }
        json_string(&quoted(&mut signs)?, &mut json);
        (signs.next()? == '=' && signs.next()? == '>').then_some(())?;
        json.push(':');
        if signs.peek() == Some(&'"') {
            json_string(&quoted(&mut signs)?, &mut json);
        } else {
            let null: String = signs.by_ref().take(4).collect();
            (null == "NULL").then_some(())?;
            json.push_str("null");
        }
        match signs.next() {
            None => break,
            Some(',') => (signs.next()? == ' ').then_some(())?,
            Some(_) => return None,
        }
    }
    json.push('}');
    Some(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arrays_are_parsed_as_postgresql_prints_them() {
        let text = |text: &str| Element::Text(text.to_owned());
        for (array, elements) in [
            ("{}", vec![]),
            ("{a,NULL,\"NULL\",\"\"}", vec![text("a"), Element::Null, text("NULL"), text("")]),
            (r#"{"a \"b\" \\"}"#, vec![text("a \"b\" \\")]),
            ("{{1,\"}\"},{{2}}}", vec![Element::Array, Element::Array]),
            ("[2:3]={a,b}", vec![text("a"), text("b")]),
        ] {
            assert_eq!(read(array), Some(elements), "{array}");
        }
        for wrong in
            ["", "{", "{a", "{a,", "{\"a}", "a", "{}x", "{{1}", "{a\"b\"}", "{}}", "[1={a}"]
        {
            assert!(wrong.starts_with("[1") || read(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn an_hstore_becomes_a_json_object() {
        let json = |text| hstore_as_json(text).expect(text);
        assert_eq!(json(""), "{}");
        assert_eq!(json(r#""a"=>"1", "b \"c\""=>NULL"#), r#"{"a":"1","b \"c\"":null}"#);
        for wrong in ["a", "\"a\"", "\"a\"=>", "\"a\"=>x", "\"a\"=>\"b\",", "\"a\"=>NULL, "] {
            assert!(hstore_as_json(wrong).is_none() || wrong.ends_with(", "), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_yields_elements_or_none(text in "[{}\\[\\],=\"\\\\a:NUL> ]{0,24}") {
            let _ = (read(&text), hstore_as_json(&text));
        }
    }
}
