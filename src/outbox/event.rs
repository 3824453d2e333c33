//! An outbox event: what a row or a logical message says, before it is routed.
//!
//! Only the values; which of them a record needs is decided when it is routed.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::lsn::Lsn;
use crate::pgoutput::PgTimestamp;

use super::columns::Role;
use super::trace;
use super::types::FieldTypes;

/// The only identity of an event in the log: the LSN of its transaction's
/// commit record and its index among the transaction's outbox events.
///
/// Totally ordered, and equal after every replay with the same tables, prefix
/// and filters; of slots whose publications have different filters two events can have the same. Text form `0000001600B374D8/00000003`: 16 hexadecimal digits
/// and 8, so that texts sort as positions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// LSN of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// Index of the event inside its transaction, from 0.
    pub ordinal: u32,
}

impl Position {
    /// The position of that text form; `None`: it has another.
    pub fn from_text(text: &str) -> Option<Self> {
        let (lsn, ordinal) = text.split_once('/')?;
        let is_hexadecimal = text.bytes().all(|byte| byte == b'/' || byte.is_ascii_hexdigit());
        if !is_hexadecimal || (lsn.len(), ordinal.len()) != (16, 8) {
            return None;
        }
        let commit_lsn = Lsn::new(u64::from_str_radix(lsn, 16).ok()?);
        Some(Self { commit_lsn, ordinal: u32::from_str_radix(ordinal, 16).ok()? })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every record has one, and the formatter's digits would be a quarter of its cost.
        let mut text = [b'/'; 25];
        write_digits(self.commit_lsn.as_u64(), &mut text[..16]);
        write_digits(u64::from(self.ordinal), &mut text[17..]);
        f.write_str(std::str::from_utf8(&text).expect("hexadecimal digits are ASCII"))
    }
}

/// Fills `out` with the last hexadecimal digits of `number`.
fn write_digits(number: u64, out: &mut [u8]) {
    let mut rest = number;
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789ABCDEF"[(rest & 0xF) as usize];
        rest >>= 4;
    }
}

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
    pub position: Position,
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

/// Where a column's value goes in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Role(Role),
    /// Index in [`Event::placed`].
    Placed(usize),
    /// A trace as others write it: read once all columns are ([`Event::trace_by`]).
    Trace,
}

impl<'a> Event<'a> {
    /// An event without any value, with room for that many placed columns.
    pub(crate) fn empty(position: Position, commit_time: PgTimestamp, placed: usize) -> Self {
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
    pub(crate) fn put(&mut self, place: Place, value: Field<'a>) {
        let field = match place {
            Place::Role(Role::Id) => &mut self.id,
            Place::Role(Role::AggregateType) => &mut self.aggregate_type,
            Place::Role(Role::AggregateId) => &mut self.aggregate_id,
            Place::Role(Role::EventType) => &mut self.event_type,
            Place::Role(Role::Payload) => &mut self.payload,
            Place::Role(Role::Headers) => &mut self.headers,
            Place::Role(Role::Traceparent) => &mut self.traceparent,
            Place::Role(Role::Tracestate) => &mut self.tracestate,
            Place::Role(Role::Timestamp) => &mut self.timestamp,
            Place::Role(Role::SchemaVersion) => &mut self.schema_version,
            Place::Placed(index) => match self.placed.get_mut(index) {
                Some(field) => field,
                None => return,
            },
            Place::Trace => return,
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
    use proptest::prelude::*;

    fn position() -> impl Strategy<Value = Position> {
        (any::<u64>(), any::<u32>())
            .prop_map(|(lsn, ordinal)| Position { commit_lsn: Lsn::new(lsn), ordinal })
    }

    #[test]
    fn a_position_is_printed_with_16_and_8_digits() {
        let position = Position { commit_lsn: Lsn::new(0x16_00B3_74D8), ordinal: 3 };
        assert_eq!(position.to_string(), "0000001600B374D8/00000003");
        for wrong in ["", "16/B374D8", "0000001600B374D8/+0000003", "0000001600B374D800000003"] {
            assert_eq!(Position::from_text(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_position_is_read_back(position in position()) {
            prop_assert_eq!(Position::from_text(&position.to_string()), Some(position));
        }

        #[test]
        fn texts_of_positions_sort_as_positions_do(one in position(), other in position()) {
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
        }
    }
}
