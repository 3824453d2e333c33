//! JSON strings as Debezium's JSON library writes them.

use std::fmt::Write as _;

/// A JSON string as Jackson writes it to bytes: characters above U+FFFF as two escapes.
pub(super) fn json_string(text: &str, out: &mut String) {
    // Most texts have fewer escapes than one in eight bytes.
    out.reserve(text.len() + text.len() / 8 + 2);
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| ESCAPED[usize::from(byte)]) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let mut signs = after.chars();
        let sign = signs.next().expect("a sign begins with this byte");
        rest = signs.as_str();
        match sign {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{C}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            _ => {
                for unit in sign.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04X}");
                }
            }
        }
    }
    out.push_str(rest);
    out.push('"');
}

/// Whether a character that begins with this byte is escaped; those above U+FFFF begin with `0xF0`
/// or more.
const ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut first = 0;
    while first < 256 {
        escaped[first] = matches!(first, 0..0x20 | 0xF0..);
        first += 1;
    }
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(text: &str) -> String {
        let mut out = String::new();
        json_string(text, &mut out);
        out
    }

    #[test]
    fn characters_are_escaped_as_in_jackson() {
        for (sign, json) in [
            ("\0", r"\u0000"),
            ("\t", r"\t"),
            ("\u{1F}", r"\u001F"),
            (" ", " "),
            ("\"", "\\\""),
            ("\\", r"\\"),
            ("\u{7F}", "\u{7F}"),
            ("ß", "ß"),
            ("\u{FFFF}", "\u{FFFF}"),
            ("\u{10000}", r"\uD800\uDC00"),
            ("\u{10FFFF}", r"\uDBFF\uDFFF"),
        ] {
            assert_eq!(written(sign), format!("\"{json}\""), "{sign:?}");
            assert_eq!(written(&format!("é{sign}{sign}é")), format!("\"é{json}{json}é\""));
        }
    }

    proptest! {
        #[test]
        fn a_string_is_parsed_to_the_same_value(text: String) {
            let read: String = serde_json::from_str(&written(&text)).expect("JSON");
            prop_assert_eq!(read, text);
        }
    }
}
