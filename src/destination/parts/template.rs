//! A text with the placeholders `{topic}`, `{key}` and `{partition(N)}`: what a message's subject or
//! routing key is made of.

//!
//! Subjects and routing keys are lists of words, separated by dots, by which consumers choose. So a
//! key is one word: a row cannot add others, and what cannot be in a word is percent-encoded.

use std::fmt::{self, Write as _};
use std::num::NonZeroU32;

use crate::destination::kafka::KeyHash;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    /// Whose text it is.
    setting: &'static str,
    pub(crate) parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Static(String),
    Topic,
    Key,
    /// The number of the key's partition, if there are that many.
    Partition(NonZeroU32),
}

impl Part {
    fn parse(placeholder: &str) -> Option<Self> {
        match placeholder {
            "topic" => Some(Self::Topic),
            "key" => Some(Self::Key),
            other => {
                let count = other.strip_prefix("partition(")?.strip_suffix(')')?;
                // Not `+8`, which is a number for Rust.
                let count = count.bytes().all(|digit| digit.is_ascii_digit()).then_some(count)?;
                count.parse().ok().map(Self::Partition)
            }
        }
    }
}

impl Template {
    /// The text of a setting.
    pub(crate) fn parse(setting: &'static str, text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| format!("`{text}` has a `{{` that is not closed"))?;
            if !before.is_empty() {
                parts.push(Part::Static(before.to_owned()));
            }
            parts.push(Part::parse(name).ok_or_else(|| {
                format!(
                    "`{text}` has {{{name}}}: {{topic}}, {{key}} and {{partition(N)}} are possible, \
                     N from 1 to {}. Columns of the row are placeholders of record.topic and \
                     record.key",
                    u32::MAX
                )
            })?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Static(rest.to_owned()));
        }
        Ok(Self { setting, parts })
    }

    /// The text for a topic and a key; fails with the reason if there is none. Characters of the key
    /// for which `is_plain` is false are encoded, as are `%` and `.`.
    pub(crate) fn render(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        is_plain: impl Fn(char) -> bool,
    ) -> Result<String, String> {
        let key_for = |placeholder: fmt::Arguments<'_>| {
            let setting = self.setting;
            key.ok_or_else(|| {
                format!(
                    "it has no key, and {setting} has {{{placeholder}}}: give the event a key, or \
                     write {setting} without it"
                )
            })
        };
        let mut rendered = String::with_capacity(topic.len());
        for part in &self.parts {
            match part {
                Part::Static(text) => rendered.push_str(text),
                Part::Topic => rendered.push_str(topic),
                Part::Key => append_word(key_for(format_args!("key"))?, &is_plain, &mut rendered),
                Part::Partition(count) => {
                    let key = key_for(format_args!("partition({count})"))?;
                    let _ = write!(rendered, "{}", KeyHash::Murmur2.partition(key, *count));
                }
            }
        }
        Ok(rendered)
    }
}

/// Appends a key as one word. Bytes that are not text are encoded, so any two keys differ.
fn append_word(key: &[u8], is_plain: &impl Fn(char) -> bool, text: &mut String) {
    let encode = |bytes: &[u8], text: &mut String| {
        for byte in bytes {
            let _ = write!(text, "%{byte:02X}");
        }
    };
    for chunk in key.utf8_chunks() {
        for sign in chunk.valid().chars() {
            if is_plain(sign) && !matches!(sign, '%' | '.') {
                text.push(sign);
            } else {
                encode(sign.encode_utf8(&mut [0; 4]).as_bytes(), text);
            }
        }
        encode(chunk.invalid(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_made_of_its_parts() {
        for (text, rendered) in [
            ("", ""),
            ("{topic}", "t"),
            ("{key}{topic}", "7t"),
            ("eu.{topic}.{key}.x", "eu.t.7.x"),
            ("}", "}"),
            ("{topic}.{partition(1)}", "t.0"),
        ] {
            let template = Template::parse("s", text).expect(text);
            assert_eq!(template.render("t", Some(b"7"), |_| true), Ok(rendered.to_owned()));
        }
        let template = Template::parse("s", "a.{key}").expect("a template");
        let render = |key: &[u8]| template.render("t", Some(key), |sign| sign != ' ');
        assert_eq!(render("b.c %\u{e9}".as_bytes()), Ok("a.b%2Ec%20%25\u{e9}".to_owned()));
        assert_eq!(render(b"\xff\xe9."), Ok("a.%FF%E9%2E".to_owned()));
        for (text, placeholder) in
            [("{key}", "has {key}"), ("{partition(8)}", "has {partition(8)}")]
        {
            let template = Template::parse("nats.subject", text).expect(text);
            let error = template.render("t", None, |_| true).expect_err("no key");
            assert!(error.contains(&format!("nats.subject {placeholder}")), "{error}");
        }
    }

    #[test]
    fn other_placeholders_are_refused() {
        for text in [
            "{topic",
            "{",
            "{}",
            "{tenant}",
            "{{key}}",
            "{partition}",
            "{partition()}",
            "{partition(0)}",
            "{partition(-1)}",
            "{partition(+8)}",
            "{partition(8}",
            "{partition(4294967296)}",
        ] {
            assert!(Template::parse("s", text).is_err(), "{text}");
        }
    }
}
