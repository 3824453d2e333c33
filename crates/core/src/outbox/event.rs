//! An outbox event: the content of a row or a logical message, before routing.
//!
//! Only the values; routing decides which of them a record needs.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pgoutput::PgTimestamp;
use crate::position::EventPosition;

use super::columns::{FieldTarget, Role};
use super::trace;
use super::types::FieldTypes;

/// The table, and the value of a column, by which a row is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowId {
    /// The table, as SQL writes it.
    pub table: String,
    /// The column.
    pub column: String,
    /// The value, as PostgreSQL's text.
    pub id: String,
}

impl RowId {
    /// The longest id, in bytes.
    const ID_MAX: usize = 256;

    /// The row with this id in this column of the table.
    pub fn new(table: String, column: &str, id: &[u8]) -> Option<Self> {
        let id = str::from_utf8(id).ok().filter(|id| id.len() <= Self::ID_MAX)?;
        Some(Self { table, column: column.to_owned(), id: id.to_owned() })
    }
}

/// A field's value: the text that PostgreSQL sent, or bytes decoded from it. `None` is SQL NULL, or
/// a column that the table does not have.
pub type Field<'a> = Option<Cow<'a, [u8]>>;

/// The content of an outbox row or a logical message.
///
/// Fields borrow from the received bytes if they can be passed on unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// The event's position in the WAL.
    pub position: EventPosition,
    /// When its transaction committed.
    pub commit_time: PgTimestamp,
    /// The event's id, which consumers use to detect duplicates.
    pub id: Field<'a>,
    /// The type of the entity that the event is about; the topic is derived from it.
    pub aggregate_type: Field<'a>,
    /// The id of that entity; the key is derived from it.
    pub aggregate_id: Field<'a>,
    /// The type of the event.
    pub event_type: Field<'a>,
    /// The payload, byte for byte as stored (`bytea` decoded from its text form).
    pub payload: Field<'a>,
    /// Additional headers, as a JSON object.
    pub headers: Field<'a>,
    /// W3C trace context, from the column of that name.
    pub traceparent: Field<'a>,
    /// W3C trace state, from the column of that name.
    pub tracestate: Field<'a>,
    /// The configured timestamp column, in PostgreSQL's text form.
    pub timestamp: Field<'a>,
    /// The version of the payload's schema, from the column of that name.
    pub schema_version: Field<'a>,
    /// Additional columns that the record configuration names, in its order.
    pub placed: Vec<Field<'a>>,
    /// The fields' data types; `None` if all are text.
    pub types: Option<Arc<FieldTypes>>,
}

impl<'a> Event<'a> {
    /// An event without values, with room for `placed` additional columns.
    pub(crate) fn empty(position: EventPosition, commit_time: PgTimestamp, placed: usize) -> Self {
        Self {
            position,
            commit_time,
            id: None,
            aggregate_type: None,
            aggregate_id: None,
            event_type: None,
            payload: None,
            headers: None,
            traceparent: None,
            tracestate: None,
            timestamp: None,
            schema_version: None,
            placed: vec![None; placed],
            types: None,
        }
    }

    /// The field for `role`.
    pub fn field(&self, role: Role) -> &Field<'a> {
        match role {
            Role::Id => &self.id,
            Role::AggregateType => &self.aggregate_type,
            Role::AggregateId => &self.aggregate_id,
            Role::EventType => &self.event_type,
            Role::Payload => &self.payload,
            Role::Headers => &self.headers,
            Role::Traceparent => &self.traceparent,
            Role::Tracestate => &self.tracestate,
            Role::Timestamp => &self.timestamp,
            Role::SchemaVersion => &self.schema_version,
        }
    }

    /// Sets the value of one field; an index beyond [`Event::placed`] is ignored.
    pub(crate) fn put(&mut self, place: FieldTarget, value: Field<'a>) {
        let field = match place {
            FieldTarget::Role(Role::Id) => &mut self.id,
            FieldTarget::Role(Role::AggregateType) => &mut self.aggregate_type,
            FieldTarget::Role(Role::AggregateId) => &mut self.aggregate_id,
            FieldTarget::Role(Role::EventType) => &mut self.event_type,
            FieldTarget::Role(Role::Payload) => &mut self.payload,
            FieldTarget::Role(Role::Headers) => &mut self.headers,
            FieldTarget::Role(Role::Traceparent) => &mut self.traceparent,
            FieldTarget::Role(Role::Tracestate) => &mut self.tracestate,
            FieldTarget::Role(Role::Timestamp) => &mut self.timestamp,
            FieldTarget::Role(Role::SchemaVersion) => &mut self.schema_version,
            FieldTarget::Placed(index) => match self.placed.get_mut(index) {
                Some(field) => field,
                None => return,
            },
            FieldTarget::Trace => return,
        };
        *field = value;
    }

    /// Takes the trace from a text in a tracer's format, if no column provides one.
    pub(super) fn trace_by(&mut self, text: &Field<'_>) {
        let has = self.traceparent.as_deref().is_some_and(|trace| !trace.is_empty());
        if let Some(text) = text.as_deref().filter(|_| !has)
            && let Some(found) = trace::read(text)
        {
            self.traceparent = Some(found.parent.into_bytes().into());
            self.tracestate = found.state.map(|state| state.into_bytes().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use proptest::prelude::*;

    fn position() -> impl Strategy<Value = EventPosition> {
        (any::<u64>(), any::<u32>())
            .prop_map(|(lsn, ordinal)| EventPosition { commit_lsn: Lsn::new(lsn), ordinal })
    }

    #[test]
    fn a_position_is_printed_with_16_and_8_digits() {
        let position = EventPosition { commit_lsn: Lsn::new(0x16_00B3_74D8), ordinal: 3 };
        assert_eq!(position.to_string(), "0000001600B374D8/00000003");
        for wrong in ["", "16/B374D8", "0000001600B374D8/+0000003", "0000001600B374D800000003"] {
            assert_eq!(EventPosition::from_text(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_position_is_parsed_to_the_same_value(position in position()) {
            prop_assert_eq!(EventPosition::from_text(&position.to_string()), Some(position));
        }

        #[test]
        fn position_texts_sort_as_positions_do(one in position(), other in position()) {
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
        }
    }
}
