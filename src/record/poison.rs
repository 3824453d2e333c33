//! An event that cannot become a record: what is the matter, and where.
//!
//! Whether to halt, to divert or to skip is decided elsewhere.

use crate::excerpt::{beginning, excerpt};
use crate::outbox::{Event, EventError};
use crate::position::EventPosition;

/// An event that cannot become a record, now or later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "event {position}{}: {cause}{}",
    id.as_ref().map(|id| format!(" (id {})", excerpt(id))).unwrap_or_default(),
    cause.fix().map(|fix| format!("; {fix}")).unwrap_or_default()
)]
pub struct Poison {
    /// What is the matter.
    pub cause: Cause,
    /// Where the event stands in the log.
    pub position: EventPosition,
    /// The event's id, or the beginning of a long one, where it has one that can be read.
    pub id: Option<String>,
}

/// What is the matter with an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A field that the record needs is NULL or empty.
    #[error("`{field}` is NULL or empty, and the record needs it")]
    MissingField {
        /// The field, by role or column.
        field: String,
    },
    /// The topic's name is not one that Kafka accepts, or that walpost may publish to.
    #[error("topic `{}` {}", excerpt(topic), excerpt(why))]
    InvalidTopic {
        /// The topic that came out of the template, or the beginning of a long one.
        topic: String,
        /// What is the matter with it.
        why: String,
    },
    /// The record is larger than its topic, or the producer, takes.
    #[error("its record for topic `{}` is refused: {}", excerpt(topic), excerpt(why))]
    TooLarge {
        /// The topic that it was meant for.
        topic: String,
        /// The refusal's own words, and what to do about it.
        why: String,
    },
    /// The topic does not exist, and is not waited for.
    #[error("topic `{}` does not exist; {}", excerpt(topic), excerpt(why))]
    MissingTopic {
        /// The topic that it was meant for.
        topic: String,
        /// What to do about it.
        why: String,
    },
    /// The broker refuses the record for good, for another reason than its size.
    #[error("its record for topic `{}` is refused: {}", excerpt(topic), excerpt(why))]
    Refused {
        /// The topic that it was meant for.
        topic: String,
        /// The refusal's own words, and what to do about it.
        why: String,
    },
    /// A field's value cannot be read.
    #[error("{field} {}", excerpt(why))]
    Undecodable {
        /// The field, by role or column.
        field: String,
        /// What is the matter with it.
        why: String,
    },
}

impl Cause {
    /// The keys of all of them.
    pub const KEYS: [&str; 6] =
        ["missing_field", "invalid_topic", "missing_topic", "undecodable", "too_large", "refused"];

    /// The key of its policy, under `poison` in the configuration.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::MissingField { .. } => "missing_field",
            Self::InvalidTopic { .. } => "invalid_topic",
            Self::MissingTopic { .. } => "missing_topic",
            Self::Undecodable { .. } => "undecodable",
            Self::TooLarge { .. } => "too_large",
            Self::Refused { .. } => "refused",
        }
    }

    /// The topic that the record was meant for, where it had one.
    pub fn topic(&self) -> Option<&str> {
        match self {
            Self::InvalidTopic { topic, .. }
            | Self::MissingTopic { topic, .. }
            | Self::TooLarge { topic, .. }
            | Self::Refused { topic, .. } => Some(topic),
            Self::MissingField { .. } | Self::Undecodable { .. } => None,
        }
    }

    pub(super) fn undecodable(field: &str, why: impl Into<String>) -> Self {
        Self::Undecodable { field: format!("`{field}`"), why: why.into() }
    }

    /// What to do about it, where the refusal's own words do not say that already.
    const fn fix(&self) -> Option<&'static str> {
        Some(match self {
            Self::MissingField { .. } => {
                "fix what writes it; another column may serve (outbox.columns, record.topic)"
            }
            Self::InvalidTopic { .. } => {
                "fix what writes it, or change record.topic (perhaps with a modifier such as \
                 {aggregate_type|kebab}) or record.topics_allowed"
            }
            Self::Undecodable { .. } => "fix what writes it, or the setting that it names",
            Self::MissingTopic { .. } | Self::TooLarge { .. } | Self::Refused { .. } => {
                return None;
            }
        })
    }
}

impl Poison {
    /// That `cause` is the matter with `event`.
    pub fn new(cause: Cause, event: &Event<'_>) -> Self {
        let id = event.id.as_deref().map(beginning);
        Self { cause, position: event.position, id }
    }
}

/// A row or message that could not even be read as an event is poison too.
impl From<EventError> for Poison {
    fn from(error: EventError) -> Self {
        let (field, why, position) = match error {
            EventError::Row { position, fault, .. } => ("the row", fault.to_string(), position),
            EventError::Message { position, fault, .. } => {
                ("the logical message", fault.to_string(), position)
            }
        };
        let why = format!("cannot be read: {why}");
        let field = field.to_owned();
        Self { cause: Cause::Undecodable { field, why }, position, id: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::outbox::RowFault;

    const POSITION: EventPosition = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };

    #[test]
    fn the_text_says_what_where_and_the_way_out() {
        let cause = Cause::MissingField { field: "aggregate_id".to_owned() };
        let poison = Poison { cause, position: POSITION, id: Some("42".to_owned()) };
        assert_eq!(
            poison.to_string(),
            "event 0000000000000007/00000001 (id 42): `aggregate_id` is NULL or empty, and the \
             record needs it; fix what writes it; another column may serve (outbox.columns, \
             record.topic)"
        );
    }

    #[test]
    fn what_a_row_holds_is_shown_on_a_line_and_cut() {
        let much = format!("a\nb\u{1b}[31m{}", "x".repeat(1 << 20));
        let why = || much.clone();
        for cause in [
            Cause::InvalidTopic { topic: why(), why: why() },
            Cause::MissingTopic { topic: why(), why: why() },
            Cause::TooLarge { topic: why(), why: why() },
            Cause::Refused { topic: why(), why: why() },
            Cause::Undecodable { field: "`payload`".to_owned(), why: why() },
        ] {
            let text = Poison { cause, position: POSITION, id: Some(why()) }.to_string();
            assert!(text.len() < 2500 && !text.contains(char::is_control), "{text}");
            assert!(text.contains(r"a\nb\u{1b}[31mx"), "{text}");
        }
    }

    #[test]
    fn the_list_of_causes_is_whole() {
        let text = String::new;
        let keys = [
            Cause::MissingField { field: text() },
            Cause::InvalidTopic { topic: text(), why: text() },
            Cause::MissingTopic { topic: text(), why: text() },
            Cause::Undecodable { field: text(), why: text() },
            Cause::TooLarge { topic: text(), why: text() },
            Cause::Refused { topic: text(), why: text() },
        ];
        assert_eq!(keys.map(|cause| cause.key()), Cause::KEYS);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_poison_at_its_position() {
        let error = EventError::Row {
            table: "outbox".parse().expect("a table's name"),
            position: POSITION,
            fault: RowFault::ColumnCount { expected: 4, found: 3 },
        };
        let poison = Poison::from(error);
        assert_eq!((poison.position, poison.cause.key()), (POSITION, "undecodable"));
        assert!(poison.to_string().contains("the row cannot be read"), "{poison}");
    }
}
