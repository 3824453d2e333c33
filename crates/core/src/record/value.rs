//! The value: the payload as stored, or a JSON object around it.
//!
//! The payload's own text is inserted byte for byte, and only validated as JSON. A NULL payload is
//! a tombstone, a null value, in every format.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use crate::outbox::{Event, Field, Needs, Role, json};

use super::placement::Placement;
use super::poison::Cause;
use super::timestamp;
use super::types::{Header, Headers};

/// The format of a record's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValueFormat {
    /// The payload as stored.
    #[default]
    Payload,
    /// `{"eventId", "eventType", "schemaVersion", "occurredAt", "traceId", "data"}`, with the
    /// payload as `data`, and `null` for fields that the event lacks.
    Envelope,
    /// The payload, an object, with `type` and `idempotencyKey` before its own members.
    Merged,
    /// A `CloudEvent` in structured mode, the payload as its `data`.
    CloudEvents,
    /// A `CloudEvent` in binary mode: the payload as stored, the rest as headers.
    CloudEventsBinary,
}

impl ValueFormat {
    /// All formats, with their names in the configuration.
    pub const NAMES: [(&str, Self); 5] = [
        ("payload", Self::Payload),
        ("envelope", Self::Envelope),
        ("merged", Self::Merged),
        ("cloudevents", Self::CloudEvents),
        ("cloudevents-binary", Self::CloudEventsBinary),
    ];

    /// Whether the value is an object that walpost writes.
    pub fn is_object(self) -> bool {
        matches!(self, Self::Envelope | Self::Merged | Self::CloudEvents)
    }

    /// The roles that it contains.
    pub(super) fn needs(self, needs: Needs) -> Needs {
        let needs = needs.requiring([Role::Payload]);
        match self {
            Self::Payload => needs,
            Self::Envelope => needs.requiring([Role::Id]).using([
                Role::EventType,
                Role::SchemaVersion,
                Role::Traceparent,
                Role::Headers,
            ]),
            Self::Merged => needs.requiring([Role::Id]).using([Role::EventType]),
            // Required attributes of a `CloudEvent`.
            Self::CloudEvents | Self::CloudEventsBinary => needs
                .requiring([Role::Id, Role::EventType])
                .using([Role::AggregateId, Role::Traceparent, Role::Tracestate]),
        }
    }

    /// The names of the headers that the format itself defines.
    pub(super) fn header_names(self) -> impl Iterator<Item = &'static str> {
        let of_attributes: &[&str] = match self {
            Self::CloudEventsBinary => &CE_HEADERS,
            _ => &[],
        };
        let has_type = matches!(self, Self::CloudEvents | Self::CloudEventsBinary);
        of_attributes.iter().copied().chain(has_type.then_some(CONTENT_TYPE))
    }

    /// The format's name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }
}

/// The headers of a `CloudEvent` in binary mode, except those of its data.
const CE_HEADERS: [&str; 8] = [
    "ce_specversion",
    "ce_id",
    "ce_source",
    "ce_type",
    "ce_time",
    "ce_subject",
    "ce_traceparent",
    "ce_tracestate",
];

/// The header with the media type of the value.
pub const CONTENT_TYPE: &str = "content-type";

/// The inputs that are the same for all attributes of an event.
pub(super) struct Attributes<'a, 'e> {
    pub(super) event: &'a Event<'e>,
    pub(super) timestamp_ms: i64,
    /// The `source` of a `CloudEvent`.
    pub(super) source: &'a str,
    /// Additional columns in the value, with their index among the event's.
    pub(super) placed: &'a [(usize, Placement)],
}

impl Attributes<'_, '_> {
    /// Writes the value in that format to `out`; returns false if the value is the payload itself.
    pub(super) fn write(&self, format: ValueFormat, out: &mut Vec<u8>) -> Result<bool, Cause> {
        let Some(payload) = self.event.payload.as_deref() else { return Ok(false) };
        out.clear();
        match format {
            ValueFormat::Payload | ValueFormat::CloudEventsBinary => return Ok(false),
            ValueFormat::Envelope => self.envelope(payload, out)?,
            ValueFormat::Merged => self.merged(payload, out)?,
            ValueFormat::CloudEvents => self.cloud_event(payload, out)?,
        }
        Ok(true)
    }

    fn envelope(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Cause> {
        let payload = json_text(payload)?;
        let mut object = Object::new(out);
        object.text_or_null("eventId", &self.event.id, Role::Id)?;
        object.text_or_null("eventType", &self.event.event_type, Role::EventType)?;
        object.name("schemaVersion");
        match self.event.schema_version.as_deref() {
            Some(version) if is_number(version) => object.raw(version),
            version => object.value(version, Role::SchemaVersion.name())?,
        }
        object.name("occurredAt");
        object.string(&self.time()?);
        object.name("traceId");
        let of_column = self.event.traceparent.as_deref().and_then(trace_id);
        let trace = of_column.map(Cow::Borrowed).or_else(|| self.row_trace().map(Cow::Owned));
        object.value(trace.as_deref(), "traceparent")?;
        self.placed(&mut object)?;
        object.name("data");
        object.raw(payload);
        object.end();
        Ok(())
    }

    fn time(&self) -> Result<String, Cause> {
        timestamp::rfc3339(self.timestamp_ms)
            .map_err(|why| Cause::undecodable(Role::Timestamp.name(), why))
    }

    fn merged(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Cause> {
        let payload = json_text(payload)?.trim_ascii_start();
        let Some(members) = payload.strip_prefix(b"{") else {
            let why = "is not a JSON object, into which something could be merged";
            return Err(Cause::undecodable(Role::Payload.name(), why));
        };
        let mut object = Object::new(out);
        object.text_or_null("type", &self.event.event_type, Role::EventType)?;
        object.text_or_null("idempotencyKey", &self.event.id, Role::Id)?;
        self.placed(&mut object)?;
        let members = members.trim_ascii_start();
        if !members.starts_with(b"}") {
            out.push(b',');
        }
        out.extend_from_slice(members);
        Ok(())
    }

    /// <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>
    fn cloud_event(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Cause> {
        let mut object = Object::new(out);
        for (name, value) in self.context()? {
            object.name(name);
            object.value(Some(&value), name)?;
        }
        self.placed(&mut object)?;
        if let Ok(payload) = json_text(payload) {
            object.name("datacontenttype");
            object.string(JSON);
            object.name("data");
            object.raw(payload);
        } else {
            object.name("data_base64");
            object.string(&base64(payload));
        }
        object.end();
        Ok(())
    }

    /// The context attributes of a `CloudEvent`, except those of its data
    /// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md>).
    pub(super) fn context(&self) -> Result<Vec<(&'static str, Vec<u8>)>, Cause> {
        let event = self.event;
        let required = |field: &Field<'_>, role: Role| match field.as_deref() {
            Some(value) if !value.is_empty() => Ok(value.to_vec()),
            _ => Err(Cause::MissingField { field: role.name().to_owned() }),
        };
        let mut attributes = vec![
            ("specversion", b"1.0".to_vec()),
            ("id", required(&event.id, Role::Id)?),
            ("source", self.source.as_bytes().to_vec()),
            ("type", required(&event.event_type, Role::EventType)?),
            ("time", self.time()?.into_bytes()),
        ];
        let optional = [
            ("subject", &event.aggregate_id),
            // The distributed tracing extension.
            ("traceparent", &event.traceparent),
            ("tracestate", &event.tracestate),
        ];
        let present = optional.into_iter().filter_map(|(name, field)| {
            field.as_deref().filter(|value| !value.is_empty()).map(|value| (name, value.to_vec()))
        });
        attributes.extend(present);
        Ok(attributes)
    }

    /// Appends the headers that the format itself defines
    /// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md>).
    pub(super) fn append_headers(
        &self,
        format: ValueFormat,
        headers: &mut Headers<'_>,
    ) -> Result<(), Cause> {
        let content_type = |value: &'static str| Header {
            name: Cow::Borrowed(CONTENT_TYPE),
            value: Some(Cow::Borrowed(value.as_bytes())),
        };
        let Some(payload) = self.event.payload.as_deref() else { return Ok(()) };
        match format {
            ValueFormat::CloudEvents => {
                headers.push(content_type("application/cloudevents+json; charset=UTF-8"));
            }
            ValueFormat::CloudEventsBinary => {
                let attribute = |(name, value): (&str, Vec<u8>)| Header {
                    name: Cow::Owned(format!("ce_{name}")),
                    value: Some(Cow::Owned(value)),
                };
                let attributes = self.context()?.into_iter().map(attribute);
                headers.extend(attributes.chain([content_type(media_type(payload))]));
            }
            _ => {}
        }
        Ok(())
    }

    fn placed(&self, object: &mut Object<'_>) -> Result<(), Cause> {
        for (index, placement) in self.placed {
            let field = self.event.placed.get(*index).and_then(Option::as_deref);
            object.name(placement.name());
            object.value(field, &placement.column)?;
        }
        Ok(())
    }

    /// The trace id from the row's own headers.
    fn row_trace(&self) -> Option<Vec<u8>> {
        let headers = self.event.headers.as_deref()?;
        let mut found = None;
        // Invalid headers are reported where they are sent.
        let _ = json::members(headers, |name, value| {
            if name == "traceparent" {
                found = json::text(value)?.as_deref().and_then(trace_id).map(<[u8]>::to_vec);
            }
            Ok(())
        });
        found
    }
}

const JSON: &str = "application/json";

/// The media type of a value that is JSON, or else any bytes.
pub fn media_type(value: &[u8]) -> &'static str {
    if json_text(value).is_ok() { JSON } else { "application/octet-stream" }
}

/// The payload, validated as JSON.
fn json_text(payload: &[u8]) -> Result<&[u8], Cause> {
    match serde_json::from_slice::<IgnoredAny>(payload) {
        Ok(_) if std::str::from_utf8(payload).is_ok() => Ok(payload),
        Ok(_) => Err(Cause::undecodable(Role::Payload.name(), "is not UTF-8, as JSON must be")),
        Err(error) => {
            let why = format!("is not JSON, as this value format needs it: {error}");
            Err(Cause::undecodable(Role::Payload.name(), why))
        }
    }
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty()
        && text.len() < 16
        && text.iter().all(u8::is_ascii_digit)
        && (text == b"0" || !text.starts_with(b"0"))
}

/// The trace id of a `traceparent` (<https://www.w3.org/TR/trace-context/>).
fn trace_id(traceparent: &[u8]) -> Option<&[u8]> {
    let id = traceparent.get(3..35)?;
    let is_one = traceparent.get(2) == Some(&b'-') && traceparent.get(35) == Some(&b'-');
    (is_one && id.iter().all(u8::is_ascii_hexdigit)).then_some(id)
}

/// Writes a JSON object, member by member.
struct Object<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> Object<'o> {
    fn new(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out }
    }

    fn name(&mut self, name: &str) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        self.string(name);
        self.out.push(b':');
    }

    fn string(&mut self, text: &str) {
        serde_json::to_writer(&mut *self.out, text).expect("a Vec takes every text");
    }

    fn raw(&mut self, json: &[u8]) {
        self.out.extend_from_slice(json);
    }

    /// Writes a string or `null`; `field` is the name for errors.
    fn value(&mut self, value: Option<&[u8]>, field: &str) -> Result<(), Cause> {
        match value.map(std::str::from_utf8) {
            None => self.raw(b"null"),
            Some(Ok(text)) => self.string(text),
            Some(Err(_)) => return Err(Cause::undecodable(field, "is not UTF-8, as JSON must be")),
        }
        Ok(())
    }

    fn text_or_null(&mut self, name: &str, field: &Field<'_>, role: Role) -> Result<(), Cause> {
        self.name(name);
        self.value(field.as_deref(), role.name())
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

/// Base64 with padding (<https://www.rfc-editor.org/rfc/rfc4648#section-4>).
pub(super) fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests;
