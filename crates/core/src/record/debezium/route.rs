//! Builds records as the event router does.

use std::borrow::Cow;

use crate::outbox::{DataType, Event, Field, Role};
use crate::record::placement;
use crate::record::placement::{Placement, Target};
use crate::record::poison::{Cause, Poison};
use crate::record::topic::check_topic;
use crate::record::types::{Header, Headers, Record};

use super::connect_value::{ConnectValue, connect_value};
use super::convert::{Converter, convert};
use super::expand::{Expanded, expand};
use super::kind::{Kind, Shape, shape};
use super::time::Moment;
use super::topics::Topics;
use super::{Converters, Debezium};

const LEFT_OUT: &str = "has a data type that Debezium leaves out";

/// Builds records from events, one at a time.
#[derive(Debug)]
pub(in crate::record) struct DebeziumRouter {
    builder: Builder,
    topics: Topics,
    topic: String,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Builds each part of a record.
#[derive(Debug)]
struct Builder {
    config: Debezium,
    placed: Vec<String>,
    /// Each placement with its column's index among the event's.
    placements: Vec<(usize, Placement)>,
    key: Converter,
    value: Converter,
}

/// A field with its name and shape.
struct Typed<'a, 'e> {
    name: &'a str,
    field: &'a Field<'e>,
    shape: Shape,
    /// Whether the field is the decoded bytes of a `bytea`, not its text.
    is_decoded: bool,
}

impl DebeziumRouter {
    pub(in crate::record) fn new(config: Debezium) -> Self {
        let placed = config.placed();
        let index = |placement: &Placement| placed.iter().position(|it| *it == placement.column);
        let placements = config.options.placements.iter();
        let placements =
            placements.filter_map(|it| Some((index(it)?, it.clone()))).collect::<Vec<_>>();
        let (key, value) = match config.converters {
            Converters::String | Converters::Binary => (Converter::Java, Converter::Java),
            Converters::Json => (Converter::Json, Converter::Json),
            Converters::StringJson | Converters::BinaryJson => (Converter::Java, Converter::Json),
        };
        let builder = Builder { config, placed, placements, key, value };
        let (topics, topic) = (Topics::default(), String::new());
        Self { builder, topics, topic, key: Vec::new(), value: Vec::new() }
    }

    /// The additional columns: an event's `placed` fields must be these.
    pub(in crate::record) fn placed(&self) -> &[String] {
        &self.builder.placed
    }

    /// The record of `event`, or the reason why it is poison.
    pub(in crate::record) fn route<'a>(
        &'a mut self,
        event: &'a Event<'_>,
    ) -> Result<Record<'a>, Poison> {
        self.record(event).map_err(|cause| Poison::new(cause, event))
    }

    fn record<'a>(&'a mut self, event: &'a Event<'_>) -> Result<Record<'a>, Cause> {
        let Self { builder, topics, topic, key, value } = self;
        let route_by = routed_by(event)?;
        topic.clear();
        if let Some(known) = topics.of(route_by) {
            topic.push_str(known);
        } else {
            builder.write_topic(route_by, topic)?;
            topics.remember(route_by, topic);
        }
        Ok(Record {
            topic,
            key: held(builder.key(event)?, key),
            value: held(builder.value(event)?, value),
            timestamp_ms: builder.timestamp_ms(event)?.filter(|_| !builder.config.untimed),
            headers: builder.headers(event)?,
            partition: builder.partition(event)?,
        })
    }
}

impl Builder {
    fn key<'a>(&self, event: &'a Event<'_>) -> Result<Option<Cow<'a, [u8]>>, Cause> {
        let key = role_of(event, Role::AggregateId)?;
        Ok(match self.converted(&key, self.key)? {
            None if self.key == Converter::Json => Some(Cow::Borrowed(b"null")),
            key => key,
        })
    }

    /// Appends the topic for `route_by` to `topic`, which should be empty.
    fn write_topic(&self, route_by: &str, topic: &mut String) -> Result<(), Cause> {
        topic.push_str(route_by);
        self.config.rewrite.apply(topic);
        check_topic(topic)
            .map_err(|fault| Cause::InvalidTopic { topic: topic.clone(), why: fault.to_string() })
    }

    fn headers<'a>(&'a self, event: &'a Event<'_>) -> Result<Headers<'a>, Cause> {
        let mut headers = Headers::with_capacity(1 + self.placements.len());
        let id = role_of(event, Role::Id)?;
        let value = self.converted(&id, Converter::Header)?;
        headers.push(Header { name: Cow::Borrowed("id"), value });
        for (index, placement) in self.placed_in(Target::Header) {
            if let Some(placed) = self.placed_field(event, *index)? {
                let value = self.converted(&placed, Converter::Header)?;
                headers.push(Header { name: Cow::Borrowed(placement.name()), value });
            }
        }
        Ok(headers)
    }

    fn value<'a>(&self, event: &'a Event<'_>) -> Result<Option<Cow<'a, [u8]>>, Cause> {
        let payload = role_of(event, Role::Payload)?;
        let is_blank = |text: &[u8]| text.iter().all(|byte| *byte <= b' ');
        let is_bytea = payload.shape == Shape::One(Kind::Bytea);
        let is_empty = payload.field.as_deref().is_none_or(|text| !is_bytea && is_blank(text));
        if is_empty && self.config.options.tombstones {
            return Ok(None);
        }
        let has_envelope = self.config.options.has_envelope();
        match self.config.converters {
            Converters::Binary | Converters::BinaryJson if is_bytea && !has_envelope => {
                return Ok(payload.field.as_deref().map(Cow::Borrowed));
            }
            Converters::Binary => {
                let why =
                    "is not bytea, which debezium-binary requires; debezium-binary-json accepts it";
                return Err(payload.undecodable(why));
            }
            _ => {}
        }
        if !has_envelope && !self.config.options.expand {
            return Ok(match self.converted(&payload, self.value)? {
                None if self.value == Converter::Json => Some(Cow::Borrowed(b"null")),
                value => value,
            });
        }
        let mut connect_value = self.expanded(&payload, has_envelope)?;
        if has_envelope {
            connect_value = self.envelope(event, connect_value)?;
        }
        if connect_value == ConnectValue::Null && self.value == Converter::Java {
            return Ok(None);
        }
        let mut text = String::new();
        convert(&connect_value, self.value, &mut text);
        Ok(Some(Cow::Owned(text.into_bytes())))
    }

    fn expanded<'a>(
        &self,
        payload: &Typed<'a, '_>,
        has_envelope: bool,
    ) -> Result<ConnectValue<'a>, Cause> {
        let connect_value = self.connect_value(payload)?;
        let ConnectValue::Text(text) = &connect_value else { return Ok(connect_value) };
        if !self.config.options.expand {
            return Ok(connect_value);
        }
        match expand(text, self.config.options.keep) {
            Expanded::Text => Ok(connect_value),
            Expanded::Object(object) => Ok(object),
            Expanded::TooLarge => Err(payload.undecodable(
                "is too large to be expanded, or gets too large by it: 16 MiB and 250,000 members \
                 and elements are the limit",
            )),
            // The StringConverter ignores the schema.
            Expanded::Misfit if self.value == Converter::Java && !has_envelope => Ok(connect_value),
            Expanded::Misfit => Err(payload.undecodable(
                "cannot be expanded as Debezium does it: an array at the top, an integer past the \
                 range of int8, or members of one name and two types",
            )),
        }
    }

    fn envelope<'a>(
        &'a self,
        event: &'a Event<'_>,
        payload: ConnectValue<'a>,
    ) -> Result<ConnectValue<'a>, Cause> {
        let version = self.config.options.schema_version.is_some();
        if version && role_of(event, Role::SchemaVersion)?.shape != Shape::One(Kind::Int4) {
            return Err(Cause::undecodable(Role::SchemaVersion.name(), "is not int4"));
        }
        let mut members = vec![(Cow::Borrowed("payload"), payload)];
        for (index, placement) in self.placed_in(Target::Envelope) {
            if let Some(placed) = self.placed_field(event, *index)? {
                members.push((Cow::Borrowed(placement.name()), self.connect_value(&placed)?));
            }
        }
        Ok(ConnectValue::Struct(members))
    }

    fn partition(&self, event: &Event<'_>) -> Result<Option<i32>, Cause> {
        let Some((index, _)) = self.placed_in(Target::Partition).next() else { return Ok(None) };
        let Some(placed) = self.placed_field(event, *index)? else { return Ok(None) };
        if placed.shape != Shape::One(Kind::Int4) {
            return Err(placed.undecodable("is not int4, as a partition number must be"));
        }
        // For NULL, the key selects the partition.
        placed.field.as_ref().map(|_| placement::partition(placed.field, placed.name)).transpose()
    }

    fn timestamp_ms(&self, event: &Event<'_>) -> Result<Option<i64>, Cause> {
        if self.config.options.timestamp.is_none() {
            return Ok(Some(event.commit_time.unix_millis()));
        }
        let timestamp = role_of(event, Role::Timestamp)?;
        let Shape::One(Kind::Timestamp(precision)) = timestamp.shape else {
            return Err(timestamp.undecodable("is not a timestamp without time zone"));
        };
        // Without a timestamp column, Debezium's record has the time at which Debezium read the
        // row; walpost's has the commit time.
        let Some(text) = timestamp.field.as_deref() else {
            return Ok(Some(event.commit_time.unix_millis()));
        };
        let text = std::str::from_utf8(text).map_err(|_| timestamp.undecodable("is not UTF-8"))?;
        let moment = Moment::read(text).map_err(|why| timestamp.undecodable(why))?;
        let millis = match precision {
            Some(0..=3) => moment.millis(),
            _ => moment.micros() / 1000,
        };
        match millis {
            millis @ 0.. => Ok(Some(millis)),
            _ => Err(timestamp.undecodable("lies before 1970, where Kafka's timestamps begin")),
        }
    }

    fn placed_in(&self, target: Target) -> impl Iterator<Item = &(usize, Placement)> {
        self.placements.iter().filter(move |(_, placement)| placement.target == target)
    }

    /// The additional field with that index; `None` if the table lacks it and may.
    fn placed_field<'a, 'e>(
        &'a self,
        event: &'a Event<'e>,
        index: usize,
    ) -> Result<Option<Typed<'a, 'e>>, Cause> {
        let name = self.placed.get(index).map_or("", String::as_str);
        let data_type = match &event.types {
            Some(types) => types.placed(index),
            None => Some(DataType::Text),
        };
        let typed = typed(name, event.placed.get(index).unwrap_or(&None), data_type)?;
        match typed.shape {
            Shape::Absent if self.config.options.missing_ignored => Ok(None),
            Shape::Absent => Err(typed.undecodable(LEFT_OUT)),
            _ => Ok(Some(typed)),
        }
    }

    fn connect_value<'a>(&self, typed: &Typed<'a, '_>) -> Result<ConnectValue<'a>, Cause> {
        let Some(text) = typed.field.as_deref() else { return Ok(ConnectValue::Null) };
        if typed.is_decoded {
            return Ok(super::connect_value::bytea(
                Cow::Borrowed(text),
                self.config.options.modes.binary,
            ));
        }
        connect_value(typed.shape, text, self.config.options.modes)
            .map_err(|why| typed.undecodable(why))
    }

    /// The field's bytes in a record; `None` if it is NULL.
    fn converted<'a>(
        &self,
        typed: &Typed<'a, '_>,
        converter: Converter,
    ) -> Result<Option<Cow<'a, [u8]>>, Cause> {
        let Some(text) = typed.field.as_deref() else { return Ok(None) };
        if typed.shape == Shape::One(Kind::Text) && converter != Converter::Json {
            return Ok(Some(Cow::Borrowed(text)));
        }
        let connect_value = self.connect_value(typed)?;
        if connect_value == ConnectValue::Null {
            return Ok(None);
        }
        let mut bytes = String::new();
        convert(&connect_value, converter, &mut bytes);
        Ok(Some(Cow::Owned(bytes.into_bytes())))
    }
}

/// Borrows the bytes, storing owned ones in `buffer`.
fn held<'a>(bytes: Option<Cow<'a, [u8]>>, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    match bytes? {
        Cow::Borrowed(bytes) => Some(bytes),
        Cow::Owned(bytes) => {
            *buffer = bytes;
            Some(buffer)
        }
    }
}

/// The text from which the topic is built.
fn routed_by<'a>(event: &'a Event<'_>) -> Result<&'a str, Cause> {
    let route_by = role_of(event, Role::AggregateType)?;
    if route_by.shape != Shape::One(Kind::Text) {
        return Err(route_by.undecodable("is not text, so it cannot be part of a topic"));
    }
    let text = route_by.field.as_deref().ok_or_else(|| route_by.missing())?;
    std::str::from_utf8(text).map_err(|_| route_by.undecodable("is not UTF-8"))
}

/// The field for `role`.
fn role_of<'a, 'e>(event: &'a Event<'e>, role: Role) -> Result<Typed<'a, 'e>, Cause> {
    let data_type = match &event.types {
        Some(types) => types.role(role),
        None => Some(DataType::Text),
    };
    let mut typed = typed(role.name(), event.field(role), data_type)?;
    if typed.shape == Shape::Absent {
        return Err(typed.undecodable(LEFT_OUT));
    }
    typed.is_decoded = role == Role::Payload && typed.shape == Shape::One(Kind::Bytea);
    Ok(typed)
}

fn typed<'a, 'e>(
    name: &'a str,
    field: &'a Field<'e>,
    data_type: Option<DataType>,
) -> Result<Typed<'a, 'e>, Cause> {
    let shape = data_type.map_or(Ok(Shape::Absent), shape);
    let shape = shape.map_err(|why| Cause::undecodable(name, why))?;
    Ok(Typed { name, field, shape, is_decoded: false })
}

impl Typed<'_, '_> {
    fn undecodable(&self, why: &str) -> Cause {
        Cause::undecodable(self.name, why)
    }

    fn missing(&self) -> Cause {
        Cause::MissingField { field: self.name.to_owned() }
    }
}
