//! Whether a text repeats a secret, however it is encoded: as in a URL, in JSON or in HTML, in capitals,
//! with spaces in between, or only a part of it. Pure.

/// How much of a secret must not be repeated, in letters and digits; a secret that has fewer is looked for
/// as a whole.
pub(super) const SHORT: usize = 6;
pub(super) const LONG: usize = 8;

/// A secret with fewer letters and digits would be found anywhere.
const LEAST: usize = 4;

/// Whether a text has as many letters and digits of one of the secrets, in their order.
pub(super) fn are_repeated(secrets: &[String], text: &str, length: usize) -> bool {
    // As it is, too: a sign of an encoding may stand before it by accident.
    let signs = text.chars().filter(|sign| sign.is_alphanumeric());
    let plain: String = signs.flat_map(char::to_lowercase).collect();
    let text = format!("{} {plain}", String::from_iter(reduced(text)));
    secrets.iter().map(|secret| reduced(secret)).any(|secret| {
        let mut parts = secret.windows(length.min(secret.len()).max(1));
        secret.len() >= LEAST && parts.any(|part| text.contains(&String::from_iter(part)))
    })
}

/// The letters and digits, in lower case, once what is encoded is decoded.
fn reduced(text: &str) -> Vec<char> {
    let mut letters = Vec::new();
    let mut add = |sign: char| {
        if sign.is_alphanumeric() {
            letters.extend(sign.to_lowercase());
        }
    };
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (bytes, length) = in_percent(rest);
        if length > 0 {
            match std::str::from_utf8(&bytes) {
                Ok(text) => text.chars().for_each(&mut add),
                // Perhaps of Latin-1.
                Err(_) => bytes.iter().copied().map(char::from).for_each(&mut add),
            }
            rest = &rest[length..];
            continue;
        }
        let (sign, length) = escaped(rest).unwrap_or((first, first.len_utf8()));
        add(sign);
        rest = &rest[length..];
    }
    letters
}

/// The bytes that are percent-encoded at the beginning, and the length of their code.
fn in_percent(text: &str) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(byte) = rest.strip_prefix('%').and_then(|rest| number(rest.get(..2)?, 16)) {
        bytes.extend(u8::try_from(byte));
        rest = &rest[3..];
    }
    (bytes, text.len() - rest.len())
}

/// The character that an escape at the beginning means, and the escape's length in bytes.
fn escaped(text: &str) -> Option<(char, usize)> {
    let of = |digits: &str, radix: u32| number(digits, radix).map(to_char);
    if let Some(rest) = text.strip_prefix("\\u") {
        return Some((of(rest.get(..4)?, 16)?, 6));
    }
    let rest = text.strip_prefix('&')?;
    let end = rest.bytes().take(10).position(|byte| byte == b';')?;
    let name = &rest[..end];
    let sign = match name.strip_prefix('#') {
        Some(number) => match number.strip_prefix(['x', 'X']) {
            Some(digits) => of(digits, 16)?,
            None => of(number, 10)?,
        },
        // Names are those of signs: `amp`, `quot`.
        None => ' ',
    };
    Some((sign, end + 2))
}

/// Of digits alone: no sign.
fn number(digits: &str, radix: u32) -> Option<u32> {
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    is_number.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}

fn to_char(number: u32) -> char {
    char::from_u32(number).unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for (text, expected) in [
            ("a/B-c_1", "abc1"),
            ("%41%62%zz%4", "abzz4"),
            ("%D0%BF%C3%89-%E4%41%+a", "пéäaa"),
            ("\\u0041\\u00", "au00"),
            ("&#65;&#x42;&amp;c&; &toolongtobeaname;", "abctoolongtobeaname"),
            ("É\0K", "ék"),
        ] {
            assert_eq!(String::from_iter(reduced(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_part_of_a_secret_is_found_and_a_short_one_as_a_whole() {
        let secrets = ["abcdefgh".to_owned(), "x1y2".to_owned(), "ab".to_owned()];
        for (text, found) in
            [("abcde", false), ("-bcdefg-", true), ("x1y", false), ("<X1Y2>", true), ("ab", false)]
        {
            assert_eq!(are_repeated(&secrets, text, SHORT), found, "{text}");
        }
        assert!(are_repeated(&secrets, "%abcdef", SHORT), "not 0xab");
        assert!(!are_repeated(&[], "", SHORT));
    }
}
