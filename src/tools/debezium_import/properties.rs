//! Java's properties format, as `java.util.Properties` reads it
//! (<https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)>).
//!
//! Names and values in the order of the text; the meaning of a name is not interpreted.

/// A text that Java would reject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `\\u` wants four hexadecimal digits")]
pub struct PropertiesError {
    /// The line, from 1.
    line: usize,
}

const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// The names and values of `text`, including duplicates.
pub(crate) fn parse(text: &str) -> Result<Vec<(String, String)>, PropertiesError> {
    let mut pairs = Vec::new();
    let mut lines = natural_lines(text).enumerate();
    while let Some((index, line)) = lines.next() {
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        while is_continued(&logical) {
            logical.pop();
            let Some((_, more)) = lines.next() else { break };
            logical.push_str(more.trim_start_matches(BLANKS));
        }
        let (name, value) = split(&logical);
        let unescaped = |part| unescape(part).ok_or(PropertiesError { line: index + 1 });
        pairs.push((unescaped(name)?, unescaped(value)?));
    }
    Ok(pairs)
}

/// Lines that end in `\n`, `\r` or both.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(['\n', '\r']).unwrap_or(rest.len());
        let (line, tail) = rest.split_at(end);
        rest = tail.strip_prefix("\r\n").unwrap_or_else(|| tail.get(1..).unwrap_or_default());
        Some(line)
    })
}

/// Whether the line ends in an odd number of backslashes.
fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

/// Name and value, with escapes. They are separated by `=`, `:` or whitespace.
fn split(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line.find(|sign| {
        let ends = !is_escaped && (BLANKS.contains(&sign) || matches!(sign, '=' | ':'));
        is_escaped = !is_escaped && sign == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(BLANKS);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, value.trim_start_matches(BLANKS))
}

/// `None` if a `\u` is incomplete. An unpaired surrogate becomes U+FFFD.
fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut units: Vec<u16> = Vec::new();
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        let escaped = if sign == '\\' { signs.next() } else { None };
        if escaped == Some('u') {
            let digits = signs.as_str().get(..4)?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            units.push(u16::from_str_radix(digits, 16).ok()?);
            signs = signs.as_str()[4..].chars();
            continue;
        }
        plain.push_str(&String::from_utf16_lossy(&std::mem::take(&mut units)));
        match (sign, escaped) {
            ('\\', Some('t')) => plain.push('\t'),
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('r')) => plain.push('\r'),
            ('\\', Some('f')) => plain.push('\u{c}'),
            // A backslash at the end of the text is ignored.
            ('\\', None) => {}
            (_, Some(other)) | (other, None) => plain.push(other),
        }
    }
    plain.push_str(&String::from_utf16_lossy(&units));
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::property;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).expect(text)
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn name_and_value_are_separated_by_an_equals_sign_a_colon_or_whitespace() {
        for text in ["a=b", "a:b", "a b", "a = b", "\ta\t:\tb", "a\u{c}b", "a=b\r", "a=b\r\n"] {
            assert_eq!(pairs(text), [pair("a", "b")], "{text:?}");
        }
        assert_eq!(pairs("a"), [pair("a", "")]);
        assert_eq!(pairs("a==b"), [pair("a", "=b")]);
        assert_eq!(pairs("a= b \n"), [pair("a", "b ")]);
        assert_eq!(pairs("=b"), [pair("", "b")]);
    }

    #[test]
    fn comments_and_empty_lines_are_ignored() {
        assert_eq!(pairs("# a=b\\\n ! c=d\n\n   \n e=f # g"), [pair("e", "f # g")]);
    }

    #[test]
    fn a_backslash_at_the_end_of_a_line_joins_the_next_one() {
        assert_eq!(pairs("a=b,\\\n   c,\\\r\n d\ne=f"), [pair("a", "b,c,d"), pair("e", "f")]);
        assert_eq!(pairs("a=b\\\\\nc=d"), [pair("a", "b\\"), pair("c", "d")]);
        assert_eq!(pairs("a=b\\\n\nc=d"), [pair("a", "b"), pair("c", "d")]);
        assert_eq!(pairs("a=b\\\n# c"), [pair("a", "b# c")]);
        assert_eq!(pairs("a=b\\"), [pair("a", "b")]);
    }

    #[test]
    fn escapes_are_javas() {
        assert_eq!(pairs("a\\ b\\:c\\=d=e"), [pair("a b:c=d", "e")]);
        assert_eq!(pairs("a=\\t\\n\\r\\f\\\\\\x\\."), [pair("a", "\t\n\r\u{c}\\x.")]);
        assert_eq!(pairs("a=\\u00e9\\uD83D\\uDE00"), [pair("a", "é😀")]);
        assert_eq!(pairs("a=\\uD83Dx"), [pair("a", "\u{fffd}x")]);
        for wrong in ["\n\na=\\u12", "b=c\n\na=\\u12g4", "\r\n\na=\\u+123", "#\n#\na=\\u123é"] {
            assert_eq!(parse(wrong), Err(PropertiesError { line: 3 }), "{wrong:?}");
        }
    }

    #[test]
    fn any_text_yields_pairs_or_an_error() {
        let texts = prop_oneof![any::<String>(), "[a-z\\\\:=#! \t\r\nu0-9é]{0,40}"];
        property::holds("any_text_gives_pairs", 2_000, &texts, |text| {
            let _ = parse(&text);
        });
    }

    #[test]
    fn escaped_text_is_parsed_to_the_same_value() {
        let names = proptest::collection::vec((".{1,12}", ".{0,12}"), 0..6);
        property::holds("escaped_text_is_parsed_to_the_same_value", 1_000, &names, |expected| {
            let escape = |text: &str| {
                let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
                units.collect::<String>()
            };
            let line = |(name, value): &(String, String)| {
                format!("{} = {}\n", escape(name), escape(value))
            };
            let text: String = expected.iter().map(line).collect();
            assert_eq!(pairs(&text), expected);
        });
    }
}
