//! The columns of an outbox table, and their types.

use std::borrow::Cow;

/// A field of an event that has a column, or a member of a logical message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// The id of the event.
    Id,
    /// [`Event::AGGREGATE_TYPE`](crate::Event::AGGREGATE_TYPE).
    AggregateType,
    /// [`Event::aggregate_id`](crate::Event::aggregate_id).
    AggregateId,
    /// [`Event::EVENT_TYPE`](crate::Event::EVENT_TYPE).
    EventType,
    /// [`Event::payload`](crate::Event::payload).
    Payload,
    /// [`Event::headers`](crate::Event::headers).
    Headers,
    /// The header `traceparent`, with [`TraceContext::Columns`](crate::TraceContext::Columns).
    Traceparent,
    /// The header `tracestate`, with [`TraceContext::Columns`](crate::TraceContext::Columns).
    Tracestate,
}

impl Field {
    /// All, in the order of the statement's parameters.
    pub(crate) const ALL: [Self; 8] = [
        Self::Id,
        Self::AggregateType,
        Self::AggregateId,
        Self::EventType,
        Self::Payload,
        Self::Headers,
        Self::Traceparent,
        Self::Tracestate,
    ];
}

/// The type of a column. Every value is sent as text and converted to it by PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnType {
    /// `text`, `varchar` or `char`.
    Text,
    /// `uuid`.
    Uuid,
    /// `jsonb`.
    Jsonb,
    /// `json`, which keeps the text as it is.
    Json,
    /// `bytea`. JSON is stored as its UTF-8 bytes.
    Bytea,
    /// `bigint`; also for `integer` and `smallint`.
    Bigint,
    /// Any other, such as an enum.
    Other {
        /// The schema of the type.
        schema: String,
        /// The name of the type.
        name: String,
    },
}

impl ColumnType {
    /// What stands before and after a `text`, to convert it.
    pub(crate) fn conversion(&self) -> (&'static str, Cow<'static, str>) {
        match self {
            Self::Text => ("", "".into()),
            Self::Uuid => ("", "::pg_catalog.uuid".into()),
            Self::Jsonb => ("", "::pg_catalog.jsonb".into()),
            Self::Json => ("", "::pg_catalog.json".into()),
            Self::Bytea => ("pg_catalog.decode(", ", 'hex')".into()),
            Self::Bigint => ("", "::pg_catalog.int8".into()),
            Self::Other { schema, name } => {
                ("", format!("::{}.{}", quoted(schema), quoted(name)).into())
            }
        }
    }
}

/// A column of the table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) field: Field,
    pub(crate) name: String,
    pub(crate) r#type: ColumnType,
}

/// The columns of `sql/01-schema.sql`.
pub(crate) fn usual() -> Vec<Column> {
    [
        (Field::Id, "id", ColumnType::Uuid),
        (Field::AggregateType, "aggregate_type", ColumnType::Text),
        (Field::AggregateId, "aggregate_id", ColumnType::Text),
        (Field::EventType, "event_type", ColumnType::Text),
        (Field::Payload, "payload", ColumnType::Jsonb),
        (Field::Headers, "headers", ColumnType::Jsonb),
    ]
    .map(|(field, name, r#type)| Column { field, name: name.to_owned(), r#type })
    .into()
}

/// A name as a quoted identifier.
///
/// See <https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS>.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
