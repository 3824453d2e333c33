//! Reads a dead letter back to its event, for the current configuration.

use crate::position::EventPosition;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use serde_json::{Map, Value};

use super::{BASE64, CAUSE, COLUMNS, COMMIT_TIME, FIELDS, ORIGIN, POSITION, ROLES, TYPES, UNREAD};
use crate::outbox::{ColumnNames, DataType, Event, Field, FieldTarget, FieldTypes, Role};
use crate::pgoutput::PgTimestamp;
use crate::record::poison::{Cause, Poison};

/// A dead letter that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter<'a> {
    /// The key of the cause.
    pub cause: &'a str,
    /// The event's position.
    pub position: EventPosition,
    /// The event's table, or the logical message's prefix.
    pub origin: &'a str,
    /// The record's value.
    pub value: Option<&'a [u8]>,
    /// Whether the value is the content of an unreadable logical message.
    pub is_unread: bool,
    /// When its transaction committed.
    pub commit_time: PgTimestamp,
    key: Option<&'a [u8]>,
    fields: Fields,
    columns: Fields,
    types: Option<Types>,
}

/// The data types of roles and of columns, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Types {
    roles: HashMap<String, DataType>,
    columns: HashMap<String, DataType>,
}

/// Values by name; `None` is NULL.
type Fields = HashMap<String, Option<Vec<u8>>>;

/// A header of a dead letter that is missing or invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its header {0} is missing or cannot be read")]
pub struct LetterFault(&'static str);

impl<'a> Letter<'a> {
    /// Parses the dead letter in a record with these parts; `None` if it is not a dead letter.
    pub fn read(
        key: Option<&'a [u8]>,
        value: Option<&'a [u8]>,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<Option<Self>, LetterFault> {
        let Some(fields) = header(FIELDS) else { return Ok(None) };
        let text = |name| {
            let value = header(name).and_then(|value| std::str::from_utf8(value).ok());
            value.ok_or(LetterFault(name))
        };
        let fields: Map<String, Value> =
            serde_json::from_slice(fields).map_err(|_| LetterFault(FIELDS))?;
        let of = |object: &Map<String, Value>| {
            let fields = object.iter().map(|(name, value)| Ok((name.clone(), field(value)?)));
            fields.collect::<Result<Fields, LetterFault>>()
        };
        let is_unread = fields.get(UNREAD) == Some(&Value::Bool(true));
        let columns = match fields.get(COLUMNS) {
            Some(Value::Object(columns)) => of(columns)?,
            _ => Fields::new(),
        };
        let types = fields.get(TYPES).map(Types::read).transpose()?;
        let of_roles = fields.into_iter();
        let of_roles = of_roles.filter(|(name, _)| ROLES.iter().any(|role| role.name() == name));
        let micros = text(COMMIT_TIME)?.parse().map_err(|_| LetterFault(COMMIT_TIME))?;
        Ok(Some(Self {
            cause: text(CAUSE)?,
            position: EventPosition::from_text(text(POSITION)?).ok_or(LetterFault(POSITION))?,
            origin: text(ORIGIN)?,
            value,
            is_unread,
            commit_time: PgTimestamp::from_unix_micros(micros),
            key,
            fields: of(&of_roles.collect())?,
            columns,
            types,
        }))
    }

    /// The event's id, if it has one.
    pub fn id(&self) -> Option<&[u8]> {
        self.fields.get(Role::Id.name())?.as_deref()
    }

    /// The event, with the additional columns of the current configuration; it is poison if the
    /// dead letter lacks one. `names` are the columns of the roles.
    pub fn event(&self, placed: &[String], names: &ColumnNames) -> Result<Event<'_>, Poison> {
        let mut event = Event::empty(self.position, self.commit_time, placed.len());
        for role in ROLES {
            event
                .put(FieldTarget::Role(role), value(&self.fields, role.name()).unwrap_or_default());
        }
        if let Some(key) = self.key {
            event.put(FieldTarget::Role(Role::AggregateId), Some(Cow::Borrowed(key)));
        }
        event.put(FieldTarget::Role(Role::Payload), self.value.map(Cow::Borrowed));
        for (index, column) in placed.iter().enumerate() {
            let of_role = || Some(event.field(role_of(names, column)?).clone());
            let found = value(&self.columns, column).or_else(of_role);
            let missing = || Cause::MissingField { field: column.clone() };
            let found = found.ok_or_else(|| Poison::new(missing(), &event))?;
            event.put(FieldTarget::Placed(index), found);
        }
        event.types = self.types.as_ref().map(|types| Arc::new(types.of(placed, names)));
        Ok(event)
    }
}

impl Types {
    fn read(value: &Value) -> Result<Self, LetterFault> {
        let mut roles = value.as_object().ok_or(LetterFault(FIELDS))?.clone();
        let columns = roles.remove(COLUMNS).unwrap_or_else(|| Value::Object(Map::new()));
        let of = |members: &Map<String, Value>| {
            let types = members.iter().map(|(name, text)| {
                let data_type = text.as_str().and_then(DataType::from_text);
                Ok((name.clone(), data_type.ok_or(LetterFault(FIELDS))?))
            });
            types.collect::<Result<HashMap<_, _>, LetterFault>>()
        };
        let columns = columns.as_object().ok_or(LetterFault(FIELDS))?;
        Ok(Self { roles: of(&roles)?, columns: of(columns)? })
    }

    fn of(&self, placed: &[String], names: &ColumnNames) -> FieldTypes {
        let of_role = |role: Role| self.roles.get(role.name()).copied();
        let placed = placed.iter().map(|column| {
            let role = || role_of(names, column).and_then(of_role);
            self.columns.get(column).copied().or_else(role)
        });
        FieldTypes::new(of_role, placed.collect())
    }
}

/// The role of the column.
fn role_of(names: &ColumnNames, column: &str) -> Option<Role> {
    Role::ALL.into_iter().find(|role| names.looked_for(*role).any(|name| name == column))
}

fn value<'a>(fields: &'a Fields, name: &str) -> Option<Field<'a>> {
    fields.get(name).map(|value| value.as_deref().map(Cow::Borrowed))
}

/// A field as written in the dead letter; fails if it is invalid.
fn field(value: &Value) -> Result<Option<Vec<u8>>, LetterFault> {
    let bytes = match value {
        Value::Null => return Ok(None),
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Object(object) => {
            let text = object.get(BASE64).and_then(Value::as_str);
            text.and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok())
        }
        _ => None,
    };
    bytes.map(Some).ok_or(LetterFault(FIELDS))
}

#[cfg(test)]
mod tests {
    use super::super::DeadLetter;
    use super::*;
    use crate::record::route::tests::event;
    use crate::record::{Headers, Record};
    use proptest::prelude::*;
    use smallvec::smallvec;

    fn letter<'a>(record: &'a Record<'_>) -> Result<Option<Letter<'a>>, LetterFault> {
        Letter::read(record.key, record.value, |name| {
            let header = record.headers.iter().find(|header| header.name == name);
            header.and_then(|header| header.value.as_deref())
        })
    }

    /// The event that is restored from the dead letter of `event`, with other additional columns.
    fn there_and_back(event: &Event<'_>, before: &[&str], now: &[&str]) -> Result<String, Poison> {
        let [before, now] =
            [before, now].map(|names| names.iter().copied().map(str::to_owned).collect::<Vec<_>>());
        let cause = Cause::MissingField { field: "x".to_owned() };
        let poison = Poison::new(cause, event);
        let letter_of = DeadLetter {
            topic: "d",
            poison: &poison,
            origin: "o",
            is_unread: false,
            placed: &before,
            is_untimed: false,
        };
        let record = letter_of.of(event);
        let letter = letter(&record).expect("it can be read").expect("it is one");
        assert_eq!((letter.cause, letter.origin, letter.is_unread), ("missing_field", "o", false));
        letter.event(&now, &ColumnNames::default()).map(|event| format!("{event:?}"))
    }

    proptest! {
        #[test]
        fn an_event_is_restored_unchanged(
            fields in prop::array::uniform10(any::<Option<Vec<u8>>>()),
            placed in prop::array::uniform2(any::<Option<Vec<u8>>>()),
            typed: bool,
            modifier in -1..i32::MAX,
            micros in -1_000_000_000_000_000_i64..1_000_000_000_000_000,
        ) {
            let mut event = event();
            event.commit_time = PgTimestamp::from_micros(micros);
            for (role, field) in Role::ALL.into_iter().zip(fields) {
                event.put(FieldTarget::Role(role), field.map(Cow::Owned));
            }
            event.placed = placed.into_iter().map(|field| field.map(Cow::Owned)).collect();
            let types = FieldTypes::new(
                |role| (role != Role::Timestamp).then_some(DataType::Builtin { oid: 25, modifier }),
                vec![Some(DataType::Hstore), None],
            );
            event.types = typed.then(|| Arc::new(types));
            let back = there_and_back(&event, &["columns", "b"], &["columns", "b"]);
            prop_assert_eq!(back, Ok(format!("{event:?}")));
        }

        #[test]
        fn any_fields_are_parsed_or_rejected(text in "[\\[\\]{}\",:a-z0-9 ]{0,40}") {
            let read = Letter::read(None, None, |name| match name {
                FIELDS => Some(text.as_bytes()),
                COMMIT_TIME => Some(b"1"),
                POSITION => Some(b"0000000000000007/00000001"),
                _ => Some(b"x"),
            });
            if let Ok(Some(letter)) = read {
                let _ = letter.event(&["a".to_owned()], &ColumnNames::default());
            }
        }
    }

    #[test]
    fn missing_columns_are_poison_unless_they_have_a_role() {
        let mut event = event();
        event.placed = vec![None, Some(b"Acme".as_slice().into())];
        let back = there_and_back(&event, &["region", "tenant"], &["tenant", "id", "region"]);
        event.placed = vec![Some(b"Acme".as_slice().into()), Some(b"42".as_slice().into()), None];
        assert_eq!(back, Ok(format!("{event:?}")));
        let poison = there_and_back(&event, &["a", "b", "c"], &["shop"]).expect_err("no column");
        assert_eq!(poison.cause, Cause::MissingField { field: "shop".to_owned() });
        assert_eq!((poison.position, poison.id.as_deref()), (event.position, Some("42")));
    }

    #[test]
    fn other_records_and_unreadable_dead_letters_are_distinguished() {
        let mut record = Record {
            topic: "d",
            partition: None,
            key: None,
            value: None,
            timestamp_ms: None,
            headers: Headers::new(),
        };
        assert_eq!(letter(&record), Ok(None));
        let header = |name: &'static str, value: &'static str| crate::record::Header {
            name: name.into(),
            value: Some(value.as_bytes().into()),
        };
        record.headers = smallvec![header(FIELDS, "{}")];
        assert_eq!(letter(&record), Err(LetterFault(COMMIT_TIME)));
        record.headers.extend([header(COMMIT_TIME, "1"), header(CAUSE, "c"), header(ORIGIN, "o")]);
        record.headers.push(header(POSITION, "16/B374D8"));
        assert_eq!(letter(&record), Err(LetterFault(POSITION)));
        record.headers.pop();
        record.headers.push(header(POSITION, "0000000000000007/00000001"));
        for fields in ["[]", "{\"id\": 1}", "{\"id\": {\"base64\": \"?\"}}"] {
            record.headers[0] = header(FIELDS, fields);
            assert_eq!(letter(&record), Err(LetterFault(FIELDS)), "{fields}");
        }
    }
}
