//! Which topics rows may choose.
//!
//! A topic that is made of a column is chosen by whoever may write a row. The list keeps that
//! within what whoever configures walpost has named.

use regex::Regex;

use super::topic::{TopicFault, check_signs};

/// Stands for any characters, or none, as in Kafka's ACLs and quotas, where `*` is every name.
const ANY: char = '*';

/// The topics that events may go to: all, or those that one of the patterns matches whole.
///
/// A pattern is a topic's name in which `*` stands for any characters, or none. No other
/// character means anything but itself, so that the point of `outbox.event` matches a point alone.
#[derive(Debug, Clone, Default)]
pub struct TopicsAllowed(Option<Regex>);

impl TopicsAllowed {
    /// Those of these patterns; all where there is none.
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
            return Ok(Self(None));
        }
        let regex = format!(r"\A(?:{})\z", alternatives.join("|"));
        Regex::new(&regex).map(Some).map(Self).map_err(|error| error.to_string())
    }

    /// Whether events may go to that topic.
    pub fn allows(&self, topic: &str) -> bool {
        self.0.as_ref().is_none_or(|patterns| patterns.is_match(topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asterisk_stands_for_any_characters_and_nothing_else_for_another() {
        let allowed = TopicsAllowed::new(&["outbox.event.*", "audit", "*-v*.x"]).expect("patterns");
        for topic in ["outbox.event.order", "outbox.event.", "audit", "a-v1.x", "-v.x"] {
            assert!(allowed.allows(topic), "{topic}");
        }
        for topic in ["outbox-event-order", "my.outbox.event.order", "audits", "a-v1.xx", ""] {
            assert!(!allowed.allows(topic), "{topic}");
        }
    }

    #[test]
    fn without_a_pattern_all_are_allowed() {
        assert!(TopicsAllowed::new::<&str>(&[]).expect("no pattern").allows("any"));
        assert!(TopicsAllowed::new(&["*"]).expect("a pattern").allows("any"));
    }

    #[test]
    fn a_pattern_that_matches_no_topic_is_refused() {
        for wrong in ["", r"outbox\..*", "a|b", "a b", "(a)"] {
            assert!(TopicsAllowed::new(&[wrong]).is_err(), "{wrong}");
        }
    }
}
