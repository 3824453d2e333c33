//! A cache of topics.
//!
//! Most events have the same topic as an earlier one, and evaluating the regular expression takes
//! longer than the rest of a record. The cache is bounded.

use std::collections::HashMap;

/// Maximum number of cached topics.
const TOPICS_MAX: usize = 1_000;

/// Maximum length of a text whose topic is cached; a topic itself is never longer.
const TEXT_BYTES_MAX: usize = 249;

/// Topics by the texts from which they are built.
#[derive(Debug, Default)]
pub(super) struct Topics(HashMap<String, String>);

impl Topics {
    /// The topic for that text, if it is cached.
    pub(super) fn of(&self, text: &str) -> Option<&str> {
        self.0.get(text).map(String::as_str)
    }

    /// Caches a topic that Kafka accepts; a full cache is cleared first.
    pub(super) fn remember(&mut self, text: &str, topic: &str) {
        if text.len() > TEXT_BYTES_MAX {
            return;
        }
        if self.0.len() >= TOPICS_MAX {
            self.0.clear();
        }
        self.0.insert(text.to_owned(), topic.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Converters, Debezium, DebeziumRouter};
    use super::*;
    use crate::record::route::tests::event;

    #[test]
    fn a_cached_topic_is_that_of_its_own_text() {
        let debezium = Debezium::new(Converters::String, []).expect("no options");
        let mut router = DebeziumRouter::new(debezium);
        for (text, topic) in [
            ("order", Some("outbox.event.order")),
            ("a b", None),
            ("Order", Some("outbox.event.Order")),
            ("order", Some("outbox.event.order")),
            ("a b", None),
            ("Order", Some("outbox.event.Order")),
        ] {
            let mut event = event();
            event.aggregate_type = Some(text.as_bytes().into());
            let record = router.route(&event);
            assert_eq!(record.ok().map(|record| record.topic.to_owned()).as_deref(), topic);
        }
    }

    #[test]
    fn the_cache_keeps_neither_many_nor_long_texts() {
        let mut topics = Topics::default();
        topics.remember(&"x".repeat(TEXT_BYTES_MAX + 1), "t");
        assert!(topics.0.is_empty());
        for number in 0..3 * TOPICS_MAX {
            topics.remember(&number.to_string(), "t");
            assert!(topics.0.len() <= TOPICS_MAX);
        }
        assert_eq!(topics.of(&(3 * TOPICS_MAX - 1).to_string()), Some("t"));
    }
}
