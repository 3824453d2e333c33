//! The subject of a message: a template, and which subjects a stream takes.
//!
//! A subject is a list of tokens, separated by dots; `*` and `>` are wildcards of consumers and of
//! streams, and no token is empty (<https://docs.nats.io/nats-concepts/subjects>). A topic keeps its
//! dots, so each of its parts is a token. A key is one token.

use std::str::FromStr;

use crate::destination::parts::template::{Part, Template};

/// The maximum length of a subject. A server closes the connection at a command line of more than
/// 4096 bytes (`max_control_line`), which has a reply subject and lengths too.
const SUBJECT_BYTES_MAX: usize = 2000;

/// A subject with placeholders: `{topic}`, `{key}` and `{partition(N)}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubjectTemplate(Template);

impl SubjectTemplate {
    /// The subject of an event, or the reason why there is none.
    pub(super) fn render(&self, topic: &str, key: Option<&[u8]>) -> Result<String, String> {
        // A token cannot be empty.
        let key = key.filter(|key| !key.is_empty());
        let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_/=:+@~!".contains(sign);
        let subject = self.0.render(topic, key, is_plain)?;
        check(&subject).map(|()| subject)
    }

    /// The subject with `*` or `>` where it varies: all subjects of the template match it.
    pub(crate) fn pattern(&self, topic: &str) -> String {
        let mut text = String::new();
        for part in &self.0.parts {
            match part {
                Part::Static(part) => text.push_str(part),
                Part::Topic => text.push_str(topic),
                Part::Key | Part::Partition(_) => text.push('*'),
            }
        }
        let mut tokens = Vec::new();
        for token in text.split('.') {
            // A field of a topic may contain dots.
            if token.contains('{') {
                tokens.push(">");
                break;
            }
            tokens.push(if token.contains('*') { "*" } else { token });
        }
        tokens.join(".")
    }
}

impl FromStr for SubjectTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let template = Self(Template::parse("nats.subject", text)?);
        let example = template.render("topic", Some(b"key"));
        example.map_err(|reason| format!("`{text}` makes no subject: {reason}"))?;
        Ok(template)
    }
}

/// Whether messages can be published to a subject; fails with the reason.
pub(crate) fn check(subject: &str) -> Result<(), String> {
    if subject.len() > SUBJECT_BYTES_MAX {
        return Err(format!(
            "its subject has {} bytes, and {SUBJECT_BYTES_MAX} are possible",
            subject.len()
        ));
    }
    let quoted: String = subject.chars().take(100).collect();
    if subject.split('.').any(str::is_empty) {
        return Err(format!("the subject `{quoted}` has an empty part between its dots"));
    }
    if subject.starts_with('$') || subject.starts_with("_INBOX.") {
        return Err(format!("the subject `{quoted}` is one that NATS keeps for itself"));
    }
    let is_refused = |sign: char| sign.is_whitespace() || sign.is_control() || "*>".contains(sign);
    match subject.chars().find(|sign| is_refused(*sign)) {
        None => Ok(()),
        Some(sign) => {
            Err(format!("the subject `{quoted}` has {sign:?}, which no subject may have"))
        }
    }
}

/// Whether everything that matches `subject`, which may have wildcards itself, matches `pattern`.
pub(crate) fn covers(pattern: &str, subject: &str) -> bool {
    let (mut patterns, mut tokens) = (pattern.split('.'), subject.split('.'));
    loop {
        match (patterns.next(), tokens.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> SubjectTemplate {
        text.parse().expect(text)
    }

    #[test]
    fn subject_is_made_of_topic_and_key() {
        let render =
            |text: &str, key: &str| template(text).render("shop.order", Some(key.as_bytes()));
        assert_eq!(render("{topic}", "k"), Ok("shop.order".to_owned()));
        assert_eq!(render("eu.{topic}.{key}", "A-7"), Ok("eu.shop.order.A-7".to_owned()));
        let escaped = "x.a%20b%2Ec%2A%3E%25%C3%A9";
        assert_eq!(render("x.{key}", "a b.c*>%é"), Ok(escaped.to_owned()));
        assert_eq!(render("{topic}.{partition(8)}", "21"), Ok("shop.order.4".to_owned()));
    }

    #[test]
    fn what_makes_no_subject_has_a_reason() {
        let all = template("{topic}.{key}");
        for (topic, key, part) in [
            ("a..b", Some(&b"k"[..]), "empty part"),
            (".a", Some(b"k"), "empty part"),
            ("a", None, "has no key"),
            ("a", Some(b""), "has no key"),
            ("a", Some(&[b'k'; 3000]), "2000"),
        ] {
            let error = all.render(topic, key).expect_err(topic);
            assert!(error.contains(part), "{error}");
        }
        for text in
            ["", "a b", "{topic", "{tenant}", "a..{topic}", "orders.*", "a.>", "$JS.{topic}"]
        {
            assert!(text.parse::<SubjectTemplate>().is_err(), "{text}");
        }
    }

    #[test]
    fn pattern_covers_what_it_contains() {
        for (pattern, subject) in [
            ("a.>", "a.b.c"),
            ("a.*", "a.b"),
            (">", "a"),
            ("a.b", "a.b"),
            ("a.>", "a.>"),
            ("a.*.c", "a.*.c"),
        ] {
            assert!(covers(pattern, subject), "{pattern} {subject}");
        }
        for (pattern, subject) in [
            ("a.>", "a"),
            ("a.*", "a.b.c"),
            ("a.*", "a.>"),
            ("a.b", "a.*"),
            ("a", "b"),
            ("a.b", "a"),
        ] {
            assert!(!covers(pattern, subject), "{pattern} {subject}");
        }
    }

    #[test]
    fn template_becomes_a_pattern() {
        let pattern = |text: &str, topic: &str| template(text).pattern(topic);
        assert_eq!(pattern("{topic}", "outbox.event.{aggregate_type}"), "outbox.event.>");
        assert_eq!(pattern("eu.{topic}.{key}", "orders"), "eu.orders.*");
        assert_eq!(pattern("x.{topic}", "orders"), "x.orders");
        assert_eq!(pattern("p{partition(8)}.{topic}", "o.{aggregate_type}"), "*.o.>");
    }
}
