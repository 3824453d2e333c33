//! Poison: an event that cannot become a record, with the reason and its position.
//!
//! Whether to halt, to dead-letter or to skip it is decided elsewhere.

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
    /// Why it cannot.
    pub cause: Cause,
    /// The event's position.
    pub position: EventPosition,
    /// The event's id, shortened if it is long; `None` if it has none or it is unreadable.
    pub id: Option<String>,
}

/// Why an event is undeliverable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A field that the record needs is NULL or empty.
    #[error("`{field}` is NULL or empty, and the record needs it")]
    MissingField {
        /// The field's role or column.
        field: String,
    },
    /// Kafka does not accept the topic's name, or walpost may not publish to it.
    #[error("topic `{}` {}", excerpt(topic), excerpt(why))]
    InvalidTopic {
        /// The topic from the template, shortened if it is long.
        topic: String,
        /// Why it is invalid.
        why: String,
    },
    /// The record is larger than the topic, or the producer, accepts.
    #[error("its record for topic `{}` is refused: {}", excerpt(topic), excerpt(why))]
    TooLarge {
        /// The topic for which it was intended.
        topic: String,
        /// The error message, and the remedy.
        why: String,
    },
    /// The topic does not exist, or walpost may not publish to it, and it is not configured to wait.
    #[error("{}", excerpt(why))]
    MissingTopic {
        /// The topic for which it was intended.
        topic: String,
        /// The topic, which of them, and the remedy.
        why: String,
    },
    /// The broker permanently rejects the record, for a reason other than its size.
    #[error("its record for topic `{}` is refused: {}", excerpt(topic), excerpt(why))]
    Refused {
        /// The topic for which it was intended.
        topic: String,
        /// The error message, and the remedy.
        why: String,
    },
    /// The schema registry does not have the schema, and it is not configured to wait.
    #[error("the schema registry does not have {}: {}", excerpt(schema), excerpt(why))]
    MissingSchema {
        /// The schema, as it was asked for.
        schema: String,
        /// The registry's answer.
        why: String,
    },
    /// The value cannot have the schema, or the schema cannot be used.
    #[error("{}", excerpt(why))]
    SchemaMismatch {
        /// Why not.
        why: String,
    },
    /// A field's value cannot be decoded.
    #[error("{field} {}", excerpt(why))]
    Undecodable {
        /// The field's role or column.
        field: String,
        /// Why it cannot be decoded.
        why: String,
    },
}

impl Cause {
    /// The keys of all causes.
    pub const KEYS: [&str; 8] = [
        "missing_field",
        "invalid_topic",
        "missing_topic",
        "undecodable",
        "too_large",
        "refused",
        "missing_schema",
        "schema_mismatch",
    ];

    /// The key of its policy, under `poison` in the configuration.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::MissingField { .. } => "missing_field",
            Self::InvalidTopic { .. } => "invalid_topic",
            Self::MissingTopic { .. } => "missing_topic",
            Self::Undecodable { .. } => "undecodable",
            Self::TooLarge { .. } => "too_large",
            Self::Refused { .. } => "refused",
            Self::MissingSchema { .. } => "missing_schema",
            Self::SchemaMismatch { .. } => "schema_mismatch",
        }
    }

    /// The topic for which the record was intended, if known.
    pub fn topic(&self) -> Option<&str> {
        match self {
            Self::InvalidTopic { topic, .. }
            | Self::MissingTopic { topic, .. }
            | Self::TooLarge { topic, .. }
            | Self::Refused { topic, .. } => Some(topic),
            Self::MissingField { .. }
            | Self::Undecodable { .. }
            | Self::MissingSchema { .. }
            | Self::SchemaMismatch { .. } => None,
        }
    }

    pub(super) fn undecodable(field: &str, why: impl Into<String>) -> Self {
        Self::Undecodable { field: format!("`{field}`"), why: why.into() }
    }

    /// The remedy, unless the error message already contains one.
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
            Self::MissingSchema { .. } => "register it, or correct what names it",
            Self::MissingTopic { .. }
            | Self::TooLarge { .. }
            | Self::Refused { .. }
            | Self::SchemaMismatch { .. } => return None,
        })
    }
}

impl Poison {
    /// The poison of `event`, with this cause.
    pub fn new(cause: Cause, event: &Event<'_>) -> Self {
        let id = event.id.as_deref().map(beginning);
        Self { cause, position: event.position, id }
    }
}

/// A row or message that cannot be read as an event is also poison.
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
    fn the_text_names_cause_position_and_remedy() {
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
    fn row_content_is_shown_on_one_line_and_shortened() {
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
    fn the_list_of_causes_is_complete() {
        let text = String::new;
        let keys = [
            Cause::MissingField { field: text() },
            Cause::InvalidTopic { topic: text(), why: text() },
            Cause::MissingTopic { topic: text(), why: text() },
            Cause::Undecodable { field: text(), why: text() },
            Cause::TooLarge { topic: text(), why: text() },
            Cause::Refused { topic: text(), why: text() },
            Cause::MissingSchema { schema: text(), why: text() },
            Cause::SchemaMismatch { why: text() },
        ];
        assert_eq!(keys.map(|cause| cause.key()), Cause::KEYS);
    }

    #[test]
    fn an_unreadable_row_is_poison_at_its_position() {
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
