//! Translates a Java regular expression to Rust's syntax.
//!
//! The two mostly agree. Where they differ, the same text would silently select another topic:
//! `\w`, `\d`, `\s`, `\b` and the POSIX classes are ASCII in Java, `.` excludes more than a line
//! feed, `a*+` is possessive. Such parts are translated, or rejected with the reason
//! (<https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/regex/Pattern.html>).

use std::iter::Peekable;
use std::str::Chars;

/// An expression that means the same in Rust as in Java, except for some texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a trait of its own")]
pub(super) struct Expression {
    pub(super) rust: String,
    /// Whether the pattern contains a `$`, which in Java also matches before a line end at the end.
    has_end: bool,
    /// Whether the pattern contains a `\b`, whose meaning in Java is unclear next to combining
    /// characters.
    has_boundary: bool,
    /// Whether the pattern starts with `(?i)`, which in Java applies to ASCII only.
    ignores_case: bool,
    /// Whether the pattern starts with `(?s)`.
    dot_is_all: bool,
}

type Signs<'a> = Peekable<Chars<'a>>;

/// Unicode categories with the same names in both.
const CATEGORIES: [&str; 35] = [
    "L",
    "Lu",
    "Ll",
    "Lt",
    "Lm",
    "Lo",
    "M",
    "Mn",
    "Mc",
    "Me",
    "N",
    "Nd",
    "Nl",
    "No",
    "P",
    "Pc",
    "Pd",
    "Ps",
    "Pe",
    "Pi",
    "Pf",
    "Po",
    "S",
    "Sm",
    "Sc",
    "Sk",
    "So",
    "Z",
    "Zs",
    "Zl",
    "Zp",
    "Cc",
    "Cf",
    "Co",
    "IsAlphabetic",
];

/// Java's classes of ASCII characters, which Rust has in brackets.
const POSIX: [&str; 13] = [
    "Lower", "Upper", "ASCII", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank",
    "Cntrl", "XDigit", "Space",
];

impl Expression {
    /// Translates an expression. Not every error is found here; Rust's parser finds the others.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut this = Self::default();
        let body = this.flags(text);
        if this.ignores_case && !body.is_ascii() {
            return Err("letters beyond ASCII with (?i), which is about ASCII in Java".to_owned());
        }
        let mut signs = body.chars().peekable();
        while let Some(sign) = signs.next() {
            this.sign(sign, &mut signs)?;
        }
        if this.ignores_case {
            this.rust.insert_str(0, "(?i)");
        }
        Ok(this)
    }

    /// Whether Java might match `text` differently. Then the expression does not apply, and the
    /// unchanged topic is one that Kafka rejects.
    pub(super) fn may_differ_on(&self, text: &str) -> bool {
        const LINE_ENDS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
        // The two non-ASCII characters that Unicode folds to ASCII letters.
        const FOLDED: [char; 2] = ['\u{17F}', '\u{212A}'];
        (self.has_end && text.ends_with(LINE_ENDS))
            || (self.has_boundary && !text.is_ascii())
            || (self.ignores_case && text.contains(FOLDED))
    }

    /// Parses flags at the start.
    fn flags<'a>(&mut self, text: &'a str) -> &'a str {
        let Some((flags, rest)) = text.strip_prefix("(?").and_then(|rest| rest.split_once(')'))
        else {
            return text;
        };
        if flags.is_empty() || !flags.bytes().all(|flag| matches!(flag, b'i' | b's')) {
            return text;
        }
        self.ignores_case = flags.contains('i');
        self.dot_is_all = flags.contains('s');
        rest
    }

    fn sign(&mut self, sign: char, signs: &mut Signs<'_>) -> Result<(), String> {
        match sign {
            '\\' => self.escape(signs, false)?,
            '[' => self.class(signs)?,
            '(' => self.group(signs)?,
            '*' | '+' | '?' => {
                self.rust.push(sign);
                self.after_quantifier(signs)?;
            }
            '{' => self.count(signs)?,
            '.' if self.dot_is_all => self.rust.push_str("(?s:.)"),
            '.' => self.rust.push_str(r"[^\n\r\x{85}\x{2028}\x{2029}]"),
            '$' => {
                self.has_end = true;
                self.rust.push(sign);
            }
            _ => self.rust.push(sign),
        }
        Ok(())
    }

    /// What may follow `*`, `+`, `?` and `{1,2}`: a `?` that makes it lazy.
    fn after_quantifier(&mut self, signs: &mut Signs<'_>) -> Result<(), String> {
        if let Some(lazy) = signs.next_if_eq(&'?') {
            self.rust.push(lazy);
        }
        match signs.peek() {
            Some('+') => Err("possessive quantifiers are not supported".to_owned()),
            Some('*' | '?' | '{') => Err("a quantifier follows a quantifier".to_owned()),
            _ => Ok(()),
        }
    }

    fn count(&mut self, signs: &mut Signs<'_>) -> Result<(), String> {
        if !signs.peek().is_some_and(char::is_ascii_digit) {
            return Err(r"a brace that begins no count: write it as `\{`".to_owned());
        }
        self.rust.push('{');
        while let Some(sign) = signs.next_if(|sign| sign.is_ascii_digit() || *sign == ',') {
            self.rust.push(sign);
        }
        match signs.next() {
            Some('}') => self.rust.push('}'),
            _ => return Err("a count that is not closed".to_owned()),
        }
        self.after_quantifier(signs)
    }

    /// The start of a group; Rust itself rejects look-around.
    fn group(&mut self, signs: &mut Signs<'_>) -> Result<(), String> {
        self.rust.push('(');
        if signs.next_if_eq(&'?').is_none() {
            return Ok(());
        }
        self.rust.push('?');
        match signs.next() {
            Some(sign @ (':' | '=' | '!')) => self.rust.push(sign),
            Some('<') => {
                self.rust.push('<');
                if let Some(sign) = signs.next_if(|sign| matches!(sign, '=' | '!')) {
                    self.rust.push(sign);
                    return Ok(());
                }
                while let Some(sign) = signs.next_if(char::is_ascii_alphanumeric) {
                    self.rust.push(sign);
                }
                if signs.peek() != Some(&'>') {
                    return Err("a group's name is not of letters and digits".to_owned());
                }
            }
            Some('>') => return Err("atomic groups are not supported".to_owned()),
            _ => {
                return Err("flags other than (?i), (?s) and (?is) at the beginning are not \
                            supported"
                    .to_owned());
            }
        }
        Ok(())
    }

    fn class(&mut self, signs: &mut Signs<'_>) -> Result<(), String> {
        self.rust.push('[');
        if signs.next_if_eq(&'^').is_some() {
            self.rust.push('^');
        }
        let mut is_first = true;
        loop {
            let sign = signs.next().ok_or("a class that is not closed")?;
            match sign {
                ']' if is_first => self.rust.push_str(r"\]"),
                ']' => break,
                '[' => return Err(r"a class in a class: write the sign as `\[`".to_owned()),
                '&' | '-' if signs.peek() == Some(&sign) => {
                    return Err(format!("`{sign}{sign}` in a class"));
                }
                '&' | '~' => self.rust.extend(['\\', sign]),
                '\\' => self.escape(signs, true)?,
                _ => self.rust.push(sign),
            }
            is_first = false;
        }
        self.rust.push(']');
        Ok(())
    }

    /// The character after a backslash.
    fn escape(&mut self, signs: &mut Signs<'_>, is_in_class: bool) -> Result<(), String> {
        let sign = signs.next().ok_or("a lone backslash at the end")?;
        match sign {
            'w' => self.rust.push_str("[0-9A-Za-z_]"),
            'W' => self.rust.push_str("[^0-9A-Za-z_]"),
            'd' => self.rust.push_str("[0-9]"),
            'D' => self.rust.push_str("[^0-9]"),
            's' => self.rust.push_str(r"[ \t\n\x0B\f\r]"),
            'S' => self.rust.push_str(r"[^ \t\n\x0B\f\r]"),
            'b' if !is_in_class && signs.peek() != Some(&'{') => {
                self.has_boundary = true;
                self.rust.push_str(r"(?-u:\b)");
            }
            'p' | 'P' => self.property(sign == 'P', signs)?,
            'x' | 'u' if self.ignores_case => {
                return Err(format!(r"`\{sign}` with (?i)"));
            }
            '0' => return Err(r"octal numbers such as `\0` are not supported".to_owned()),
            // Means the same in both, or is rejected by Rust (back-references).
            't' | 'n' | 'r' | 'f' | 'a' | 'x' | 'u' | 'A' | 'z' | '1'..='9' => {
                self.rust.extend(['\\', sign]);
            }
            // With a backslash these are word boundaries in Rust.
            '<' | '>' | ' ' => self.rust.push(sign),
            _ if sign.is_ascii_punctuation() => self.rust.extend(['\\', sign]),
            _ => return Err(format!(r"`\{sign}` is not supported")),
        }
        Ok(())
    }

    fn property(&mut self, is_negated: bool, signs: &mut Signs<'_>) -> Result<(), String> {
        if self.ignores_case {
            return Err(r"`\p` with (?i)".to_owned());
        }
        let name: String = match signs.next() {
            Some('{') => signs.by_ref().take_while(|sign| *sign != '}').collect(),
            sign => sign.into_iter().collect(),
        };
        let not = if is_negated { "^" } else { "" };
        if POSIX.contains(&name.as_str()) {
            self.rust.extend(["[[:", not, &name.to_ascii_lowercase(), ":]]"]);
        } else if CATEGORIES.contains(&name.as_str()) {
            let name = name.strip_prefix("Is").unwrap_or(&name);
            self.rust.extend(["[", not, r"\p{", name, "}]"]);
        } else {
            return Err(format!(
                r"the class `\p{{{name}}}` is not supported: Unicode's categories such as `\p{{Lu}}` and Java's `\p{{Alnum}}` are"
            ));
        }
        Ok(())
    }
}
