//! Formats external text (rows, messages, servers' errors) for log lines, errors and the status
//! page: on one line, without control characters, and of limited length.

use std::fmt::Write as _;

/// Maximum length in characters; of a longer text, the beginning and the total number of bytes are
/// shown.
const MOST: usize = 500;

/// The same for a whole error, whose external parts may already be shortened.
const LINE: usize = 8000;

/// `text`, shortened, with control characters, line separators, invisible characters and
/// bidirectional controls escaped.
pub fn excerpt(text: &str) -> String {
    at_most(MOST, text)
}

/// A whole error or log message, with its advice, as it is logged, stored and displayed.
pub fn line(text: &str) -> String {
    at_most(LINE, text)
}

/// The whole of `text`, escaped in the same way.
pub fn escaped(text: &str) -> String {
    at_most(usize::MAX, text)
}

/// The same with up to `most` characters, for an external text that is followed by advice.
pub fn at_most(most: usize, text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(most));
    for (count, sign) in text.chars().enumerate() {
        if count == most {
            let _ = write!(shown, "… ({} bytes)", text.len());
            break;
        }
        if is_harmless(sign) {
            shown.push(sign);
        } else {
            shown.extend(sign.escape_default());
        }
    }
    shown
}

/// Bytes that are kept of a long text; fewer than are shown.
const KEPT: usize = 450;

/// A short text unchanged; of a long text the beginning and the total number of bytes, so that a
/// stored error does not contain a whole row.
pub fn beginning(text: &[u8]) -> String {
    let Some(head) = text.get(..KEPT) else { return String::from_utf8_lossy(text).into_owned() };
    let head = String::from_utf8_lossy(head);
    // A character cut in two.
    let head = head.trim_end_matches(char::REPLACEMENT_CHARACTER);
    format!("{head}… ({} bytes)", text.len())
}

/// Whether the character is shown unescaped.
pub fn is_harmless(sign: char) -> bool {
    !sign.is_control()
        && !matches!(
            sign,
            '\u{ad}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_is_unchanged() {
        assert_eq!(excerpt("a\nb\r\u{1b}[31mc\0\u{202e}d"), r"a\nb\r\u{1b}[31mc\u{0}\u{202e}d");
        for plain in ["", "topic `a b`", "Größe 価格 \\ \"x\" 'y'"] {
            assert_eq!(excerpt(plain), plain);
        }
    }

    #[test]
    fn invisible_characters_are_escaped() {
        for sign in [
            '\u{ad}',
            '\u{61c}',
            '\u{200b}',
            '\u{200d}',
            '\u{200f}',
            '\u{2066}',
            '\u{feff}',
            '\u{e0000}',
            '\u{e0041}',
            '\u{e007f}',
        ] {
            let shown = excerpt(&format!("a{sign}b"));
            assert_eq!(shown, format!("a{}b", sign.escape_unicode()));
        }
    }

    #[test]
    fn the_kept_beginning_of_a_long_text_is_not_shortened_again() {
        assert_eq!(beginning("Größe".as_bytes()), "Größe");
        for sign in ["x", "ö", "價"] {
            let kept = beginning(sign.repeat(1 << 20).as_bytes());
            let bytes = sign.len() << 20;
            assert!(kept.len() <= KEPT + 30 && kept.starts_with(sign), "{kept}");
            assert!(kept.ends_with(&format!("{sign}… ({bytes} bytes)")), "{kept}");
            assert_eq!(excerpt(&kept), kept);
        }
    }

    #[test]
    fn a_long_text_is_shortened() {
        let long = excerpt(&"é".repeat(10_000_000));
        assert!(long.ends_with("é… (20000000 bytes)"), "{long}");
        assert_eq!(long.chars().filter(|sign| *sign == 'é').count(), MOST);
        assert_eq!(excerpt(&"x".repeat(MOST)), "x".repeat(MOST));
    }

    proptest! {
        #[test]
        fn an_excerpt_is_one_short_line(text in any::<String>()) {
            let shown = excerpt(&text);
            prop_assert!(shown.chars().all(is_harmless), "{shown:?}");
            prop_assert!(shown.len() <= 10 * MOST + 40);
        }
    }
}
