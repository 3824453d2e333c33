//! Parses the text that a tracer stores with a row: Debezium's column `tracingspancontext`.
//!
//! Debezium's own format is the text of `java.util.Properties`, one property per line, as its
//! `ActivateTracingSpan` reads it. If that contains no trace, the text may be a comment as
//! `SQLCommenter` writes it: `traceparent='00-…',tracestate='…'`.

use std::str::Chars;

/// The column's name.
pub(super) const COLUMN: &str = "tracingspancontext";

/// Longer texts are not parsed: a tracer's text has some hundred bytes, and the time for lines that
/// end in many backslashes grows quadratically.
const TEXT_BYTES_MAX: usize = 16 << 10;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// A trace, in W3C's terms (<https://www.w3.org/TR/trace-context/>).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trace {
    pub(super) parent: String,
    pub(super) state: Option<String>,
}

/// The trace in the text. A text without one does not make the event invalid.
pub(super) fn read(text: &[u8]) -> Option<Trace> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= TEXT_BYTES_MAX)?;
    trace(properties(text)).or_else(|| trace(comment(text)))
}

/// The last value of each name wins, as in Java.
fn trace(pairs: Vec<(String, String)>) -> Option<Trace> {
    let (mut parent, mut state) = (None, None);
    for (name, value) in pairs {
        match name.as_str() {
            PARENT => parent = Some(value),
            STATE => state = Some(value),
            _ => {}
        }
    }
    let parent = parent.filter(|parent| is_parent(parent))?;
    Some(Trace { parent, state: state.filter(|state| !state.is_empty()) })
}

/// Version, trace id, span id and flags; later versions may have more fields.
fn is_parent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut is_hex = |length: usize| {
        let is_digit = |sign: u8| sign.is_ascii_digit() || (b'a'..=b'f').contains(&sign);
        parts.next().is_some_and(|part| part.len() == length && part.bytes().all(is_digit))
    };
    is_hex(2) && is_hex(32) && is_hex(16) && is_hex(2)
}

/// Parses the format of `java.util.Properties.load`.
fn properties(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut lines = text.split(['\n', '\r']).map(trim_start);
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut line = line.to_owned();
        // An odd number of trailing backslashes joins the next line.
        while line.bytes().rev().take_while(|sign| *sign == b'\\').count() % 2 == 1 {
            line.pop();
            let Some(next) = lines.next() else { break };
            line.push_str(next);
        }
        let (name, value) = parted(&line);
        pairs.push((unescaped(name), unescaped(value)));
    }
    pairs
}

fn trim_start(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\x0C'])
}

/// A name ends at the first `=`, `:` or whitespace that is not escaped by a backslash.
fn parted(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line.find(|sign| {
        let ends = !is_escaped && matches!(sign, '=' | ':' | ' ' | '\t' | '\x0C');
        is_escaped = !is_escaped && sign == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = trim_start(rest);
    (name, rest.strip_prefix(['=', ':']).map_or(rest, trim_start))
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        if sign != '\\' {
            out.push(sign);
            continue;
        }
        match signs.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\x0C'),
            // A trace contains no surrogates, so half of a pair does not matter.
            Some('u') => out.push(unicode(&mut signs).unwrap_or('\u{FFFD}')),
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

fn unicode(signs: &mut Chars<'_>) -> Option<char> {
    let digits: String = signs.by_ref().take(4).collect();
    u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)
}

/// The pairs of a comment (<https://google.github.io/sqlcommenter/spec/>): values in single quotes,
/// percent-encoded, separated by commas.
fn comment(text: &str) -> Vec<(String, String)> {
    let text = text.trim();
    let inside = text.strip_prefix("/*").and_then(|text| text.strip_suffix("*/"));
    let mut rest = inside.unwrap_or(text);
    let mut pairs = Vec::new();
    while let Some((name, value)) = rest.split_once("='") {
        let Some(end) = value.find('\'') else { break };
        let name = name.trim_start_matches([',', ' ']);
        pairs.push((decoded(name), decoded(&value[..end])));
        rest = &value[end + 1..];
    }
    pairs
}

/// Percent-decodes the text; the result of invalid UTF-8 is not a valid trace.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read_of(text: &str) -> Option<(String, Option<String>)> {
        read(text.as_bytes()).map(|trace| (trace.parent, trace.state))
    }

    #[test]
    fn a_text_too_long_for_a_tracer_is_not_parsed() {
        let padded = |bytes: usize| format!("traceparent={TRACE}\n{}", "#".repeat(bytes));
        assert!(read_of(&padded(1_000)).is_some());
        assert_eq!(read_of(&padded(TEXT_BYTES_MAX)), None);
    }

    #[test]
    fn properties_are_parsed_as_in_java() {
        let state = Some("a=1,b:2".to_owned());
        for text in [
            // As `Properties.store` writes them.
            "#\n#Sat Nov 21 14:55:01 UTC 2026\ntracestate=a\\=1,b\\:2\ntraceparent=TRACE\n",
            "traceparent=TRACE\r\ntracestate=a=1,b:2",
            "  traceparent : TRACE\n! a comment\ntracestate\ta=1,b:2",
            "trace\\\n   parent=TRACE\ntracestate=a=1\\u002Cb:2",
            "traceparent=00-old\ntraceparent=TRACE\ntracestate=a=1,b:2\nuber-trace-id=x",
        ] {
            let text = text.replace("TRACE", TRACE);
            assert_eq!(read_of(&text), Some((TRACE.to_owned(), state.clone())), "{text}");
        }
    }

    #[test]
    fn sqlcommenter_comments_are_parsed() {
        let state = Some("a=1,b:2".to_owned());
        for text in [
            "traceparent='TRACE',tracestate='a%3D1%2Cb%3A2'",
            "/*action='%2Fpay',framework='x',traceparent='TRACE',tracestate='a%3d1%2cb%3a2'*/",
        ] {
            let text = text.replace("TRACE", TRACE);
            assert_eq!(read_of(&text), Some((TRACE.to_owned(), state.clone())), "{text}");
        }
        let alone = format!("traceparent='{TRACE}'");
        assert_eq!(read_of(&alone), Some((TRACE.to_owned(), None)));
    }

    #[test]
    fn a_text_without_a_complete_trace_has_none() {
        for text in [
            "",
            "traceparent=",
            "traceparent=00-0af7-b7ad-01",
            "tracestate=a\\=1",
            "traceparent='TRACE",
            "xtraceparent=TRACE",
            "traceparent=00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            assert_eq!(read_of(&text.replace("TRACE", TRACE)), None, "{text}");
        }
        assert_eq!(read(b"traceparent=\xFF"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "[a-z%'=:,\\\\u0-9 \n\r\u{e9}]{0,60}") {
            let _ = read(text.as_bytes());
        }
    }
}
