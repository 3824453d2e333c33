//! Which topics rows may select.
//!
//! If a topic is built from a column, any role that may write a row selects it. This list restricts
//! the selection to topics that walpost's configuration names.

use regex::Regex;

use super::topic::{TopicFault, check_signs};

/// Matches any characters, or none, as in Kafka's ACLs and quotas, where `*` is every name.
const ANY: char = '*';

/// The topics to which events may go: all, or those that match one of the patterns completely.
///
/// A pattern is a topic name in which `*` matches any characters, or none. All other characters are
/// literal, so the period in `outbox.event` matches only a period.
#[derive(Debug, Clone, Default)]
pub struct TopicsAllowed {
    /// `None`: all.
    patterns: Option<Regex>,
    /// A topic that no event may go to.
    reserved: Option<String>,
}

impl TopicsAllowed {
    /// Allows topics that match these patterns; all if there are none.
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self, String> {
        let mut alternatives = Vec::with_capacity(patterns.len());
        for pattern in patterns.iter().map(AsRef::as_ref) {
            if pattern.is_empty() {
                return Err("an empty pattern matches no topic: remove it".to_owned());
            }
            let literals: Vec<_> = pattern.split(ANY).collect();
            if let Some(TopicFault::Sign(sign)) =
                literals.iter().find_map(|literal| check_signs(literal).err())
            {
                return Err(format!(
                    "pattern `{pattern}` has {sign:?}, which no topic has: write a topic's name, in \
                     which `*` stands for any characters"
                ));
            }
            let literals: Vec<_> = literals.into_iter().map(regex::escape).collect();
            alternatives.push(literals.join(".*"));
        }
        if alternatives.is_empty() {
            return Ok(Self::default());
        }
        let regex = format!(r"\A(?:{})\z", alternatives.join("|"));
        let patterns = Regex::new(&regex).map_err(|error| error.to_string())?;
        Ok(Self { patterns: Some(patterns), reserved: None })
    }

    /// The same without that topic, which walpost itself writes to.
    #[must_use]
    pub fn without(self, reserved: Option<String>) -> Self {
        Self { reserved, ..self }
    }

    /// Whether events may go to that topic.
    pub fn allows(&self, topic: &str) -> bool {
        self.patterns.as_ref().is_none_or(|patterns| patterns.is_match(topic))
            && self.reserved.as_deref() != Some(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_asterisk_matches_other_characters() {
        let allowed = TopicsAllowed::new(&["outbox.event.*", "audit", "*-v*.x"]).expect("patterns");
        for topic in ["outbox.event.order", "outbox.event.", "audit", "a-v1.x", "-v.x"] {
            assert!(allowed.allows(topic), "{topic}");
        }
        for topic in ["outbox-event-order", "my.outbox.event.order", "audits", "a-v1.xx", ""] {
            assert!(!allowed.allows(topic), "{topic}");
        }
    }

    #[test]
    fn all_topics_are_allowed_without_a_pattern() {
        assert!(TopicsAllowed::new::<&str>(&[]).expect("no pattern").allows("any"));
        assert!(TopicsAllowed::new(&["*"]).expect("a pattern").allows("any"));
    }

    #[test]
    fn no_pattern_allows_the_reserved_topic() {
        for patterns in [&[][..], &["*"]] {
            let allowed = TopicsAllowed::new(patterns).expect("patterns");
            let allowed = allowed.without(Some("walpost.state".to_owned()));
            assert!(allowed.allows("walpost.states") && !allowed.allows("walpost.state"));
        }
    }

    #[test]
    fn a_pattern_that_matches_no_topic_is_rejected() {
        for wrong in ["", r"outbox\..*", "a|b", "a b", "(a)"] {
            assert!(TopicsAllowed::new(&[wrong]).is_err(), "{wrong}");
        }
    }
}
