//! Converts Debezium's list of tables, which are regular expressions, to names.

use super::options::items;
use crate::outbox::TableName;

/// The tables in a `table.include.list`; the error is the first item that is not a plain name.
pub(crate) fn names(list: &str) -> Result<Vec<TableName>, String> {
    let mut names = Vec::new();
    for item in items(list) {
        let name = plain(item).ok_or_else(|| item.to_owned())?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The table that an expression matches: it contains only letters and periods, escaped or not, with
/// one period between schema and table.
fn plain(item: &str) -> Option<TableName> {
    let item = item.strip_prefix('^').unwrap_or(item);
    let item = item.strip_suffix('$').filter(|rest| !rest.ends_with('\\')).unwrap_or(item);
    let mut text = String::new();
    let mut signs = item.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => match signs.next() {
                // `\d`, `\w` and similar are classes.
                Some(escaped) if !escaped.is_ascii_alphanumeric() => text.push(escaped),
                _ => return None,
            },
            '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => return None,
            other => text.push(other),
        }
    }
    let (schema, name) = text.split_once('.')?;
    let is_part = |part: &str| !part.is_empty() && !part.contains(['.', '\0', ' ', '"']);
    (is_part(schema) && is_part(name))
        .then(|| TableName { schema: schema.to_owned(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_parsed_with_and_without_escapes() {
        for (list, expected) in [
            ("public.outbox", "public.outbox"),
            (r"public\.outbox", "public.outbox"),
            (r"^public\.outbox$", "public.outbox"),
            (r" shop\.outbox , billing.outbox,shop.outbox", "shop.outbox billing.outbox"),
            (r"public\.Outbox", "public.\"Outbox\""),
            (r"public\.out-box", "public.\"out-box\""),
            (r"public\.a\$", "public.\"a$\""),
        ] {
            let names = names(list).unwrap();
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            assert_eq!(names.join(" "), expected, "{list}");
        }
    }

    #[test]
    fn an_expression_that_may_match_several_tables_is_not_a_name() {
        for list in [
            r"public\..*",
            "public.outbox_.+",
            r"(a|b)\.outbox",
            "public.[ab]",
            r"public\.outbox\d",
            "outbox",
            "a.b.c",
            "public.",
            ".outbox",
            r"public.outbox\",
            "a b.c",
        ] {
            assert_eq!(names(list), Err(list.to_owned()));
        }
        assert_eq!(names("public.outbox, x.*"), Err("x.*".to_owned()));
    }
}
