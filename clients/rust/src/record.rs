//! An event as the parameters of a statement.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::columns::{ColumnType, Field};
use crate::error::Error;
use crate::event::{Content, Event, Payload};
use crate::event_id;
use crate::outbox::{Form, Ids, Outbox, TraceContext};
use crate::trace;

/// The parameters of [`Statements::one`](crate::sql::Statements), in their order.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: Uuid,
    pub(crate) values: Vec<Option<String>>,
}

impl Record {
    /// Bytes of its values.
    pub(crate) fn bytes(&self) -> usize {
        self.values.iter().flatten().map(String::len).sum()
    }
}

/// The fields of one event.
struct Fields {
    id: Uuid,
    aggregate_type: &'static str,
    aggregate_id: String,
    event_type: &'static str,
    payload: Content,
    headers: Option<String>,
    trace: Option<trace::TraceContext>,
}

impl Outbox {
    /// Serializes an event, and refuses what PostgreSQL or walpost could never accept.
    pub(crate) fn record<E: Event + ?Sized>(&self, event: &E) -> Result<Record, Error> {
        let fields = self.fields(event)?;
        let values = match &self.inner.form {
            Form::Row { .. } => self.row(&fields),
            Form::Message { prefix } => {
                let content = serde_json::to_string(&Message { outbox: self, fields: &fields });
                vec![Some(prefix.clone()), Some(content.map_err(serialize::<E>)?)]
            }
        };
        Ok(Record { id: fields.id, values })
    }

    fn fields<E: Event + ?Sized>(&self, event: &E) -> Result<Fields, Error> {
        const {
            assert!(!E::AGGREGATE_TYPE.is_empty(), "AGGREGATE_TYPE is empty");
            assert!(!E::EVENT_TYPE.is_empty(), "EVENT_TYPE is empty");
        }
        let Payload(payload) = event.payload().map_err(serialize::<E>)?;
        if matches!(payload, Content::Bytes(_)) && !self.accepts_bytes() {
            return Err(invalid::<E>("bytes need a payload column of type bytea"));
        }
        let aggregate_id = event.aggregate_id();
        if aggregate_id.is_empty() {
            return Err(invalid::<E>("its aggregate id is empty"));
        }
        if [E::AGGREGATE_TYPE, &aggregate_id, E::EVENT_TYPE].iter().any(|it| it.contains('\0')) {
            return Err(invalid::<E>("PostgreSQL stores no text with a NUL character"));
        }
        let mut headers = event.headers();
        if let Some(fault) = headers.fault() {
            return Err(invalid::<E>(fault));
        }
        let has_headers = self.inner.columns.iter().any(|it| it.field == Field::Headers);
        if !has_headers && !headers.is_empty() {
            return Err(invalid::<E>("it has headers, but the outbox has no column for them"));
        }
        let place = self.inner.trace;
        let mut trace = (place != TraceContext::Off).then(trace::current).flatten();
        if place == TraceContext::Headers
            && let Some(context) = trace.take()
            && has_headers
            && headers.value("traceparent").is_none()
        {
            headers.insert("traceparent", context.traceparent);
            context.tracestate.into_iter().for_each(|state| headers.insert("tracestate", state));
        }
        let headers = (!headers.is_empty()).then(|| serde_json::to_string(&headers)).transpose();
        let id = match self.inner.ids {
            Ids::Random => Uuid::now_v7(),
            Ids::FromContent(_) => event_id::from_content(
                E::AGGREGATE_TYPE,
                &aggregate_id,
                E::EVENT_TYPE,
                match &payload {
                    Content::Json(json) => Some(json.get().as_bytes()),
                    Content::Bytes(bytes) => Some(bytes),
                    Content::Tombstone => None,
                },
            ),
        };
        Ok(Fields {
            id,
            aggregate_type: E::AGGREGATE_TYPE,
            aggregate_id,
            event_type: E::EVENT_TYPE,
            payload,
            headers: headers.map_err(serialize::<E>)?,
            trace,
        })
    }

    fn row(&self, fields: &Fields) -> Vec<Option<String>> {
        let columns = self.inner.columns.iter();
        columns
            .map(|column| {
                if let (Field::Payload, Content::Bytes(bytes)) = (column.field, &fields.payload) {
                    return Some(hex(bytes));
                }
                let value = fields.text(column.field)?;
                Some(match column.r#type {
                    ColumnType::Bytea => hex(value.as_bytes()),
                    _ => value.into_owned(),
                })
            })
            .collect()
    }

    fn accepts_bytes(&self) -> bool {
        let payload = self.inner.columns.iter().find(|it| it.field == Field::Payload);
        matches!(self.inner.form, Form::Row { .. })
            && payload.is_none_or(|it| it.r#type == ColumnType::Bytea)
    }
}

impl Fields {
    /// A field as text; JSON as its text. Bytes have none.
    fn text(&self, field: Field) -> Option<Cow<'_, str>> {
        let trace = self.trace.as_ref();
        match field {
            Field::Id => Some(self.id.to_string().into()),
            Field::AggregateType => Some(self.aggregate_type.into()),
            Field::AggregateId => Some(self.aggregate_id.as_str().into()),
            Field::EventType => Some(self.event_type.into()),
            Field::Payload => match &self.payload {
                Content::Json(json) => Some(json.get().into()),
                Content::Bytes(_) | Content::Tombstone => None,
            },
            Field::Headers => self.headers.as_deref().map(Cow::from),
            Field::Traceparent => Some(trace?.traceparent.as_str().into()),
            Field::Tracestate => trace?.tracestate.as_deref().map(Cow::from),
        }
    }
}

/// The JSON object that walpost reads with `outbox.message_prefix`. A field that is none has no
/// member, which walpost treats as NULL.
struct Message<'a> {
    outbox: &'a Outbox,
    fields: &'a Fields,
}

impl Serialize for Message<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for column in &self.outbox.inner.columns {
            let Some(text) = self.fields.text(column.field) else { continue };
            if matches!(column.field, Field::Payload | Field::Headers) {
                let json: &RawValue =
                    serde_json::from_str(&text).map_err(serde::ser::Error::custom)?;
                map.serialize_entry(&column.name, json)?;
            } else {
                map.serialize_entry(&column.name, &text)?;
            }
        }
        map.end()
    }
}

fn serialize<E: Event + ?Sized>(source: serde_json::Error) -> Error {
    Error::Serialize { event_type: E::EVENT_TYPE, source }
}

fn invalid<E: Event + ?Sized>(reason: impl Into<Cow<'static, str>>) -> Error {
    Error::Invalid { event_type: E::EVENT_TYPE, reason: reason.into() }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a `String` does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests;
