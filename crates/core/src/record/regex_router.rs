//! Rewrites a topic by a regular expression, as Kafka's `RegexRouter` does.
//!
//! If the expression matches the whole text, its first match in the text is replaced; otherwise the
//! text is unchanged (`org.apache.kafka.connect.transforms.RegexRouter`). The replacement has the
//! syntax of Java's `Matcher.appendReplacement`: `$1`, `${name}`, and `\` before a literal
//! character.

use std::fmt::Write as _;

use regex::{Captures, Regex};

use super::java_regex::Expression;

/// An expression and its replacement.
#[derive(Debug, Clone)]
pub struct Rewrite {
    expression: Expression,
    whole: Regex,
    first: Regex,
    replacement: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Group(usize),
}

/// An invalid expression or replacement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// The expression is invalid.
    #[error("`{regex}` is not a regular expression that walpost supports: {why}")]
    Regex {
        /// The expression.
        regex: String,
        /// Why it is invalid.
        why: String,
    },
    /// The replacement is invalid.
    #[error("the replacement `{replacement}` {why}")]
    Replacement {
        /// The replacement.
        replacement: String,
        /// Why it is invalid.
        why: String,
    },
}

impl Rewrite {
    /// Parses both. Some of Java's syntax is rejected, such as look-around and back-references.
    pub fn new(regex: &str, replacement: &str) -> Result<Self, RewriteError> {
        let refused = |why: &str| {
            let why = why.trim_start_matches("error: ").to_owned();
            RewriteError::Regex { regex: regex.to_owned(), why }
        };
        let compiled = |text: &str| {
            // The last line is the message; the lines before it point at the position.
            Regex::new(text)
                .map_err(|error| refused(error.to_string().lines().last().unwrap_or_default()))
        };
        let expression = Expression::read(regex).map_err(|why| refused(&why))?;
        let first = compiled(&expression.rust)?;
        let whole = compiled(&format!(r"\A(?:{})\z", expression.rust))?;
        let replacement = pieces(replacement, &first).map_err(|why| RewriteError::Replacement {
            replacement: replacement.to_owned(),
            why,
        })?;
        Ok(Self { expression, whole, first, replacement })
    }

    /// Rewrites `topic` in place.
    pub(super) fn apply(&self, topic: &mut String) {
        if self.expression.may_differ_on(topic) || !self.whole.is_match(topic) {
            return;
        }
        let Some(found) = self.first.captures(topic) else { return };
        let mut rewritten = String::with_capacity(topic.len() + 16);
        let range = found.get(0).map_or(0..0, |found| found.range());
        rewritten.push_str(&topic[..range.start]);
        self.replacement.iter().for_each(|piece| piece.write(&found, &mut rewritten));
        rewritten.push_str(&topic[range.end..]);
        *topic = rewritten;
    }
}

impl Piece {
    fn write(&self, found: &Captures<'_>, out: &mut String) {
        match self {
            Self::Text(text) => out.push_str(text),
            // A group that did not take part in the match is empty.
            Self::Group(group) => out.push_str(found.get(*group).map_or("", |it| it.as_str())),
        }
    }
}

/// Parses a replacement as Java does.
fn pieces(text: &str, regex: &Regex) -> Result<Vec<Piece>, String> {
    let mut pieces = vec![];
    let mut literal = String::new();
    let mut rest = text.chars();
    while let Some(sign) = rest.next() {
        match sign {
            '\\' => literal.push(rest.next().ok_or("ends in a lone backslash")?),
            '$' => {
                let group = group(&mut rest, regex)?;
                if !literal.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Group(group));
            }
            _ => literal.push(sign),
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal));
    }
    Ok(pieces)
}

/// The group named after a `$`.
fn group(rest: &mut std::str::Chars<'_>, regex: &Regex) -> Result<usize, String> {
    if let Some(after) = rest.as_str().strip_prefix('{') {
        let (name, after) = after.split_once('}').ok_or("has a brace that is not closed")?;
        *rest = after.chars();
        let mut names = regex.capture_names();
        return names.position(|known| known == Some(name)).ok_or_else(|| {
            let mut why = format!("names a group `{name}` that the expression does not have");
            let known: Vec<_> = regex.capture_names().flatten().collect();
            if !known.is_empty() {
                let _ = write!(why, ": it has {}", known.join(", "));
            }
            why
        });
    }
    let groups = regex.captures_len();
    let mut group: Option<usize> = None;
    // Java takes as many digits as still name a group.
    while let Some(digit) = rest.as_str().chars().next().and_then(|sign| sign.to_digit(10)) {
        let next = group.unwrap_or(0) * 10 + digit as usize;
        if group.is_some() && next >= groups {
            break;
        }
        group = Some(next);
        rest.next();
    }
    match group {
        Some(group) if group < groups => Ok(group),
        Some(group) => {
            Err(format!("refers to group {group}, and the expression has {}", groups - 1))
        }
        None => Err("has a `$` that names no group: write it as `\\$`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rewritten(regex: &str, replacement: &str, topic: &str) -> String {
        let mut topic = topic.to_owned();
        Rewrite::new(regex, replacement).expect("a rewrite").apply(&mut topic);
        topic
    }

    #[test]
    fn the_whole_text_must_match_and_groups_are_inserted() {
        for (regex, replacement, from, to) in [
            (
                "(?<routedByValue>.*)",
                "outbox.event.${routedByValue}",
                "Order",
                "outbox.event.Order",
            ),
            ("(.*)-(.*)", "$2.$1", "a-b", "b.a"),
            ("(.*)-(.*)", "$2.$1", "ab", "ab"),
            ("a", "x", "aa", "aa"),
            ("(a)|(b)", "[$1][$2]", "b", "[][b]"),
            ("(.*)", r"\$1\\$1", "a", r"$1\a"),
            ("(a)(.*)", "$12", "ab", "a2"),
            ("(.*)", "", "a", ""),
            // Java searches for the first match after it has found that the whole text matches.
            ("a.*?", "x", "abc", "xbc"),
        ] {
            assert_eq!(rewritten(regex, replacement, from), to, "{regex} {replacement} {from}");
        }
    }

    #[test]
    fn invalid_input_is_rejected_with_the_reason() {
        for (regex, replacement, why) in [
            ("(", "", "unclosed group"),
            ("(?=a)", "", "look-around"),
            (r"(a)\1", "", "backreferences"),
            ("(.*)", "$2", "refers to group 2, and the expression has 1"),
            ("(?<a>.*)", "${b}", "names a group `b` that the expression does not have: it has a"),
            ("(.*)", "$", r"write it as `\$`"),
            ("(.*)", "$x", r"write it as `\$`"),
            ("(.*)", "${a", "not closed"),
            ("(.*)", "a\\", "lone backslash"),
        ] {
            let error = Rewrite::new(regex, replacement).expect_err(regex).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    /// The results of Java 25.
    #[test]
    fn expressions_have_the_meaning_that_they_have_in_java() {
        for (regex, from, to) in [
            (r"(\w+)", "größe", "größe"),
            (r"(\w+)", "o_9", "t"),
            (r"o[\W]r", "oßr", "t"),
            (r"order\d", "order٣", "order٣"),
            (r"order\D", "order٣", "t"),
            (r"a\sb", "a\u{a0}b", "a\u{a0}b"),
            (r"a\Sb", "a\u{a0}b", "t"),
            (r"gr\b.*", "gr-x", "t"),
            (r"\p{Alpha}+", "größe", "größe"),
            (r"\p{L}+", "größe", "t"),
            (r"[\p{Lu}\p{Punct}]+", "A^~", "t"),
            (r"\P{L}+", "12", "t"),
            ("a.b", "a\u{2028}b", "a\u{2028}b"),
            ("a.b", "a\rb", "a\rb"),
            ("(?s)a.b", "a\nb", "t"),
            ("(?is)A.b", "a\nB", "t"),
            (r"\<ab", "ab", "ab"),
            (r"\<ab", "<ab", "t"),
            ("[a~~b]+", "a~b", "t"),
            ("[]a]", "]", "t"),
            (r"a\-b", "a-b", "t"),
            ("(?i)(K)", "k", "t"),
        ] {
            assert_eq!(rewritten(regex, "t", from), to, "{regex} {from:?}");
        }
        // Unchanged, and so a topic that Kafka rejects.
        for (regex, text) in
            [("(?i)k(.*)", "\u{212a}x"), (r"(order)$|order\s", "order\n"), (r".\b.*", "e\u{301}")]
        {
            assert_eq!(rewritten(regex, "t", text), text, "{regex} {text:?}");
        }
    }

    #[test]
    fn expressions_without_a_rust_equivalent_are_rejected() {
        for (regex, why) in [
            ("a*+b", "possessive"),
            ("a{1,2}+", "possessive"),
            ("a**", "follows a quantifier"),
            ("a{,2}", "begins no count"),
            ("a{2", "not closed"),
            ("(?>a)", "atomic"),
            ("(?m)a", "flags other than"),
            ("a(?i)b", "flags other than"),
            ("(?i:a)", "flags other than"),
            ("(?P<a>b)", "flags other than"),
            ("(?<a_b>c)", "letters and digits"),
            ("[a-z&&[^b]]", "`&&` in a class"),
            ("[a[b]]", "a class in a class"),
            ("[a--b]", "`--` in a class"),
            ("[a", "not closed"),
            (r"a\Z", r"`\Z` is not supported"),
            (r"a\h", r"`\h` is not supported"),
            (r"a\B", r"`\B` is not supported"),
            (r"\b{start}a", r"`\b` is not supported"),
            (r"\Qa\E", r"`\Q` is not supported"),
            (r"\0141", "octal"),
            (r"\p{IsLatin}", "`\\p{IsLatin}` is not supported"),
            (r"(?i)\p{Lu}", "with (?i)"),
            (r"(?i)\u00e4", "with (?i)"),
            ("(?i)ä", "beyond ASCII"),
            ("a\\", "lone backslash"),
        ] {
            let error = Rewrite::new(regex, "").expect_err(regex).to_string();
            assert!(error.contains(why), "{regex}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_expression_is_parsed_or_rejected(text in "[\\[\\](){}a-c*+?^$|.\\\\<>&iswp:-]{0,12}", topic in "[a-c]{0,6}") {
            if let Ok(rewrite) = Rewrite::new(&text, "t") {
                rewrite.apply(&mut topic.clone());
            }
        }

        #[test]
        fn any_replacement_is_parsed_or_rejected(text in "[$\\\\{}a0-9]{0,12}", topic in "[a-c]{0,6}") {
            if let Ok(rewrite) = Rewrite::new("(?<a>a)?(b)?(.*)", &text) {
                rewrite.apply(&mut topic.clone());
            }
        }
    }
}
