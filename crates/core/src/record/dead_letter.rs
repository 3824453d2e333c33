//! A dead letter: an undeliverable event with all its fields and the reason.
//!
//! Key and value are the event's own, byte for byte. The other fields are one JSON object in a
//! header, so that the event can be published again through the normal path once the cause is
//! fixed: [`Letter`] restores the event. The format of dead letters is defined only here.

use std::borrow::Cow;

use serde_json::{Map, Value};
use smallvec::smallvec;

use crate::outbox::{DataType, Event, Field, FieldTypes, Role};

use super::poison::Poison;
use super::types::{Header, Record};
use super::value::base64;

mod read;

pub use read::{Letter, LetterFault};

/// The cause's key under `poison` in the configuration.
pub const CAUSE: &str = "walpost.cause";
/// The cause as text.
pub const ERROR: &str = "walpost.error";
/// The event's position.
pub const POSITION: &str = "walpost.position";
/// When its transaction committed, in microseconds since 1970.
pub const COMMIT_TIME: &str = "walpost.commit_time";
/// The topic for which the event was intended, if known.
pub const SOURCE_TOPIC: &str = "walpost.source_topic";
/// The event's table, or the logical message's prefix.
pub const ORIGIN: &str = "walpost.origin";
/// The event's fields except key and value, as a JSON object; bytes that are not text as
/// `{"base64": …}`. NULL fields are omitted, except additional columns.
pub const FIELDS: &str = "walpost.fields";

/// The member of [`FIELDS`] with the additional columns.
const COLUMNS: &str = "columns";

/// The member of [`FIELDS`] with their data types, for a row.
const TYPES: &str = "types";
/// The member of [`FIELDS`] that marks the value as the content of an unreadable logical message
/// instead of a payload.
const UNREAD: &str = "unread";
/// The member with bytes that are not text.
const BASE64: &str = "base64";

/// The roles in [`FIELDS`]. The payload is the value. The aggregate's id is the key; it is a member
/// only if it is empty, because an empty key is not written.
const ROLES: [Role; 9] = [
    Role::Id,
    Role::AggregateType,
    Role::AggregateId,
    Role::EventType,
    Role::Headers,
    Role::Traceparent,
    Role::Tracestate,
    Role::Timestamp,
    Role::SchemaVersion,
];

/// The content of a dead letter in addition to the event.
#[derive(Debug, Clone, Copy)]
pub struct DeadLetter<'a> {
    /// The dead-letter topic.
    pub topic: &'a str,
    /// Why the event is undeliverable.
    pub poison: &'a Poison,
    /// The event's table, or the logical message's prefix.
    pub origin: &'a str,
    /// Whether the event is only the content of an unreadable message.
    pub is_unread: bool,
    /// The names of the event's additional columns.
    pub placed: &'a [String],
    /// Whether its timestamp is the time of production instead of the commit time.
    pub is_untimed: bool,
}

impl<'a> DeadLetter<'a> {
    /// The dead letter of `event`.
    pub fn of(&self, event: &'a Event<'_>) -> Record<'a> {
        let text = |name, value: String| Header {
            name: Cow::Borrowed(name),
            value: Some(Cow::Owned(value.into_bytes())),
        };
        let cause = &self.poison.cause;
        let mut headers = smallvec![
            text(CAUSE, cause.key().to_owned()),
            text(ERROR, cause.to_string()),
            text(POSITION, event.position.to_string()),
            text(COMMIT_TIME, event.commit_time.unix_micros().to_string()),
        ];
        headers.extend(cause.topic().map(|topic| text(SOURCE_TOPIC, topic.to_owned())));
        headers.push(text(ORIGIN, self.origin.to_owned()));
        headers.push(text(FIELDS, self.fields(event)));
        Record {
            topic: self.topic,
            partition: None,
            key: key(event),
            value: event.payload.as_deref(),
            timestamp_ms: (!self.is_untimed).then(|| event.commit_time.unix_millis()),
            headers,
        }
    }

    /// A lower bound of the size of the dead letter of `event`, in bytes.
    pub fn bytes_at_least(&self, event: &Event<'_>) -> u64 {
        let key = key(event);
        let roles = ROLES.into_iter().filter(|role| *role != Role::AggregateId || key.is_none());
        let fields = roles.map(|role| event.field(role)).chain(&event.placed);
        let fields: u64 = fields.map(|field| field.as_deref().map_or(0, json_bytes)).sum();
        let own = [key, event.payload.as_deref()];
        fields + own.into_iter().flatten().map(|bytes| bytes.len() as u64).sum::<u64>()
    }

    fn fields(&self, event: &Event<'_>) -> String {
        let mut fields = Map::new();
        for role in ROLES {
            if role == Role::AggregateId && key(event).is_some() {
                continue;
            }
            if let Some(value) = json(event.field(role)) {
                fields.insert(role.name().to_owned(), value);
            }
        }
        let placed = self.placed.iter().zip(&event.placed);
        let placed: Map<String, Value> =
            placed.map(|(name, field)| (name.clone(), json(field).unwrap_or_default())).collect();
        if !placed.is_empty() {
            fields.insert(COLUMNS.to_owned(), Value::Object(placed));
        }
        if let Some(types) = &event.types {
            fields.insert(TYPES.to_owned(), self.types(types));
        }
        if self.is_unread {
            fields.insert(UNREAD.to_owned(), Value::Bool(true));
        }
        Value::Object(fields).to_string()
    }

    /// The data types of the fields, by role; those of the additional columns by name.
    fn types(&self, types: &FieldTypes) -> Value {
        let text = |data_type: DataType| Value::String(data_type.to_string());
        let roles = Role::ALL.into_iter();
        let mut named: Map<String, Value> = roles
            .filter_map(|role| Some((role.name().to_owned(), text(types.role(role)?))))
            .collect();
        let placed = self.placed.iter().enumerate();
        let placed: Map<String, Value> = placed
            .filter_map(|(index, name)| Some((name.clone(), text(types.placed(index)?))))
            .collect();
        if !placed.is_empty() {
            named.insert(COLUMNS.to_owned(), Value::Object(placed));
        }
        Value::Object(named)
    }
}

fn key<'a>(event: &'a Event<'_>) -> Option<&'a [u8]> {
    event.aggregate_id.as_deref().filter(|key| !key.is_empty())
}

/// A lower bound of the length of these bytes as a JSON string, without quotes.
fn json_bytes(bytes: &[u8]) -> u64 {
    if std::str::from_utf8(bytes).is_err() {
        return bytes.len() as u64;
    }
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    bytes.iter().map(escaped).sum()
}

fn json(field: &Field<'_>) -> Option<Value> {
    let bytes = field.as_deref()?;
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Some(Value::String(text.to_owned()));
    }
    let text = Value::String(base64(bytes));
    Some(Value::Object(Map::from_iter([(BASE64.to_owned(), text)])))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::property;
    use crate::record::Cause;
    use crate::record::route::tests::event;

    #[test]
    fn a_dead_letter_has_the_events_bytes_and_the_reason() {
        let mut event = event();
        event.payload = Some(b"\xFF\x00".as_slice().into());
        event.traceparent = Some(b"\xFE".as_slice().into());
        event.placed = vec![Some(b"Acme".as_slice().into()), None];
        let cause = Cause::InvalidTopic { topic: "a b".into(), why: "has ' '".into() };
        let poison = Poison::new(cause, &event);
        let placed = ["tenant".to_owned(), "region".to_owned()];
        let letter = DeadLetter {
            topic: "dead",
            poison: &poison,
            origin: "public.outbox",
            is_unread: false,
            placed: &placed,
            is_untimed: false,
        };
        let record = letter.of(&event);
        assert_eq!((record.topic, record.key), ("dead", Some(b"7".as_slice())));
        assert_eq!(record.value, Some(b"\xFF\x00".as_slice()));
        let header = |name: &str| {
            let header = record.headers.iter().find(|header| header.name == name);
            let value = header.and_then(|header| header.value.as_deref()).expect(name);
            String::from_utf8(value.to_vec()).expect("text")
        };
        assert_eq!(header(CAUSE), "invalid_topic");
        assert_eq!(header(ERROR), "topic `a b` has ' '");
        assert_eq!(header(POSITION), "0000001600B374D8/00000003");
        assert_eq!(header(COMMIT_TIME), "946684800001999");
        assert_eq!(header(SOURCE_TOPIC), "a b");
        assert_eq!(header(ORIGIN), "public.outbox");
        let fields: Value = serde_json::from_str(&header(FIELDS)).expect("JSON");
        let expected = serde_json::json!({
            "id": "42", "aggregate_type": "Order", "traceparent": {"base64": "/g=="},
            "columns": {"tenant": "Acme", "region": null},
        });
        assert_eq!(fields, expected);
    }

    #[test]
    fn the_size_bound_is_not_above_the_size_of_the_dead_letter() {
        let fields = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 6);
        let name = "the_size_bound_is_not_above_the_size_of_the_dead_letter";
        property::holds(name, 2000, &fields, |fields| {
            let mut event = event();
            let field = |index: usize| Some(fields[index].as_slice().into());
            (event.id, event.event_type, event.aggregate_id) = (field(0), field(1), field(2));
            (event.payload, event.headers) = (field(3), field(4));
            event.placed = vec![field(5)];
            let poison = Poison::new(Cause::MissingField { field: "id".into() }, &event);
            let placed = ["tenant".to_owned()];
            let letter = DeadLetter {
                topic: "dead",
                poison: &poison,
                origin: "o",
                is_unread: false,
                placed: &placed,
                is_untimed: false,
            };
            assert!(letter.bytes_at_least(&event) <= letter.of(&event).bytes() as u64);
        });
        for (text, bytes) in [("\u{1}\n\"ä", 6 + 2 + 2 + 2), ("", 0)] {
            let string = Value::String(text.to_owned()).to_string();
            assert_eq!((json_bytes(text.as_bytes()), string.len() as u64), (bytes, bytes + 2));
        }
    }

    #[test]
    fn a_letter_without_a_key_has_a_null_one() {
        let mut event = event();
        event.aggregate_id = Some(b"".as_slice().into());
        let poison = Poison::new(Cause::MissingField { field: "aggregate_id".into() }, &event);
        let letter = DeadLetter {
            topic: "d",
            poison: &poison,
            origin: "o",
            is_unread: false,
            placed: &[],
            is_untimed: true,
        };
        let record = letter.of(&event);
        assert_eq!((record.key, record.timestamp_ms), (None, None));
    }
}
