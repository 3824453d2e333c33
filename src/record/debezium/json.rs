//! JSON strings as Debezium's JSON library writes them.

use std::fmt::Write as _;

/// A JSON string as Jackson writes it into bytes: signs above U+FFFF as two escapes.
pub(super) fn json_string(text: &str, out: &mut String) {
    out.push('"');
    let mut from = 0;
    for (at, sign) in text.char_indices() {
        if sign >= ' ' && sign != '"' && sign != '\\' && u32::from(sign) <= 0xFFFF {
            continue;
        }
        out.push_str(&text[from..at]);
        from = at + sign.len_utf8();
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
    out.push_str(&text[from..]);
    out.push('"');
}
