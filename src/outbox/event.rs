//! An outbox event: what a row or a logical message says, before it is routed.
//!
//! Only the values; which of them a record needs is decided when it is routed.

use crate::position::EventPosition;
use std::borrow::Cow;
use std::sync::Arc;

use crate::pgoutput::PgTimestamp;

use super::columns::FieldTarget;
use super::columns::Role;
use super::trace;
use super::types::FieldTypes;

/// A field's value: the text that PostgreSQL sent, or bytes decoded from it.
/// `None` is SQL NULL, or a column that the table does not have.
pub type Field<'a> = Option<Cow<'a, [u8]>>;

/// What one outbox row, or one logical message, says.
///
/// Fields borrow from the received bytes wherever they can be passed on as
/// they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// Where the event stands in the log.
    pub position: EventPosition,
    /// When its transaction committed.
    pub commit_time: PgTimestamp,
    /// The event's id, for consumers that remove duplicates.
    pub id: Field<'a>,
    /// What kind of thing the event is about; routes it.
    pub aggregate_type: Field<'a>,
    /// Which one of them; keys it.
    pub aggregate_id: Field<'a>,
    /// What happened.
    pub event_type: Field<'a>,
    /// The content, byte for byte as stored (`bytea` decoded from its text form).
    pub payload: Field<'a>,
    /// A JSON object of further headers.
    pub headers: Field<'a>,
    /// W3C trace context, from a column of that name.
    pub traceparent: Field<'a>,
    /// W3C trace state, from a column of that name.
    pub tracestate: Field<'a>,
    /// The configured timestamp column, in PostgreSQL's text form.
    pub timestamp: Field<'a>,
    /// The version of the payload's schema, from a column of that name.
    pub schema_version: Field<'a>,
    /// The columns that the record names beyond those above, in its order.
    pub placed: Vec<Field<'a>>,
    /// The fields' data types; `None`: all are texts.
    pub types: Option<Arc<FieldTypes>>,
}

impl<'a> Event<'a> {
    /// An event without any value, with room for that many placed columns.
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

    /// The field that plays that part.
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

    /// Gives a value to one field; a place beyond [`Event::placed`] has none.
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

    /// Takes the trace out of a text that a tracer left, where no column has one.
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
        fn a_position_is_read_back(position in position()) {
            prop_assert_eq!(EventPosition::from_text(&position.to_string()), Some(position));
        }

        #[test]
        fn texts_of_positions_sort_as_positions_do(one in position(), other in position()) {
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
        }
    }
}
