//! Builds records in walpost's own profile.
//!
//! Key, value and header values borrow from the event if they are passed on unchanged. Everything
//! else (the topic, the position's text, an object around the payload) is written to reused
//! buffers.

use std::borrow::Cow;
use std::fmt::Write;

use crate::outbox::{Event, Needs, Role};

use super::headers::{Dropped, HeaderSet};
use super::key::KeyTemplate;
use super::names::Names;
use super::placement;
use super::placement::{Placement, Target};
use super::poison::{Cause, Poison};
use super::schema::{Encoder, ValueEncoding};
use super::timestamp;
use super::topic::TopicTemplate;
use super::types::{Header, Headers, Record};
use super::unrouted::Unrouted;
use super::value::{Attributes, ValueFormat};

/// The source of a record's timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimestampSource {
    /// The commit time of the event's transaction.
    #[default]
    Commit,
    /// The outbox's timestamp column.
    Column,
    /// None: the timestamp is the time of production. A time in the value is the commit time.
    None,
}

/// The format of records.
#[derive(Debug, Clone)]
pub struct RecordConfig {
    /// The topic.
    pub topic: TopicTemplate,
    /// The key.
    pub key: KeyTemplate,
    /// The value.
    pub value: ValueFormat,
    /// The headers.
    pub headers: HeaderSet,
    /// Additional columns.
    pub place: Vec<Placement>,
    /// The timestamp.
    pub timestamp: TimestampSource,
    /// The `source` attribute of a `CloudEvent`.
    pub cloudevents_source: String,
    /// How values get the prefix of their schema; `None`: they have none.
    pub encoding: Option<ValueEncoding>,
}

impl RecordConfig {
    /// The default format, for that topic.
    pub fn to(topic: TopicTemplate) -> Self {
        Self {
            topic,
            key: KeyTemplate::default(),
            value: ValueFormat::default(),
            headers: HeaderSet::default(),
            place: Vec::new(),
            timestamp: TimestampSource::default(),
            cloudevents_source: Self::CLOUDEVENTS_SOURCE.to_owned(),
            encoding: None,
        }
    }

    /// The default `source` of a `CloudEvent`.
    pub const CLOUDEVENTS_SOURCE: &str = "walpost";

    /// The additional columns that are named, without duplicates: an event's `placed` fields must
    /// be these, in this order.
    pub fn placed(&self) -> Vec<String> {
        let named = self.topic.placed().iter().chain(self.key.placed());
        let named = named.chain(self.place.iter().map(|placement| &placement.column));
        let named = named.chain(self.encoding.iter().flat_map(ValueEncoding::placed));
        let mut placed: Vec<String> = Vec::new();
        for column in named {
            if !placed.contains(column) {
                placed.push(column.clone());
            }
        }
        placed
    }
}

impl RecordConfig {
    /// The roles that records contain.
    pub fn needs(&self) -> Needs {
        let timestamp = (self.timestamp == TimestampSource::Column).then_some(Role::Timestamp);
        let needs = self.headers.needs(self.value.needs(Needs::NONE));
        let subject = self.encoding.iter().flat_map(ValueEncoding::roles);
        needs.requiring(self.topic.roles().chain(self.key.roles()).chain(subject).chain(timestamp))
    }
}

/// Builds records from events, one at a time.
#[derive(Debug)]
pub(super) struct OwnRouter {
    config: RecordConfig,
    /// Additional columns by target, each with its index among the event's.
    in_headers: Vec<(usize, Placement)>,
    /// The names of these headers, and others that rows do not set.
    names_in_headers: Vec<String>,
    in_value: Vec<(usize, Placement)>,
    partition: Option<(usize, Placement)>,
    topic: String,
    key: String,
    position: String,
    value: Vec<u8>,
    names: Names,
    dropped: Dropped,
    encoder: Option<Encoder>,
}

impl OwnRouter {
    pub(super) fn new(mut config: RecordConfig) -> Self {
        let placed = config.placed();
        config.topic.place(&placed);
        config.key.place(&placed);
        let encoder = config.encoding.take().map(|mut encoding| {
            encoding.place(&placed);
            Encoder::new(encoding)
        });
        let of = |target| -> Vec<(usize, Placement)> {
            let mine = config.place.iter().filter(|placement| placement.target == target);
            let index = |column: &str| placed.iter().position(|name| name == column);
            mine.filter_map(|placement| Some((index(&placement.column)?, placement.clone())))
                .collect()
        };
        let (in_headers, in_value) = (of(Target::Header), of(Target::Envelope));
        let partition = of(Target::Partition).into_iter().next();
        let names = in_headers.iter().map(|(_, placement)| placement.name().to_owned());
        Self {
            config,
            names_in_headers: names.collect(),
            in_headers,
            in_value,
            partition,
            topic: String::new(),
            key: String::new(),
            position: String::new(),
            value: Vec::new(),
            names: Names::KAFKA,
            dropped: Dropped::default(),
            encoder,
        }
    }

    /// What encodes values.
    pub(super) fn encoder(&mut self) -> Option<&mut Encoder> {
        self.encoder.as_mut()
    }

    /// Drops headers of rows by the names of another destination. Where each name is there once,
    /// rows do not set the headers of the value's format either, though a tombstone has none.
    pub(super) fn name(&mut self, names: Names) {
        self.names = names;
        if !names.may_repeat {
            let of_format = self.config.value.header_names().map(str::to_owned);
            self.names_in_headers.extend(of_format);
        }
    }

    /// The dropped headers of the last event's row.
    pub(super) fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// The additional columns: an event's `placed` fields must be these.
    pub(super) fn placed(&self) -> &[String] {
        self.config.topic.placed()
    }

    /// The record of `event`, or the reason why it is poison. The same event has the same result
    /// each time.
    pub(super) fn route<'a>(&'a mut self, event: &'a Event<'_>) -> Result<Record<'a>, Unrouted> {
        self.dropped = Dropped::default();
        self.topic.clear();
        self.config.topic.render(event, &mut self.topic)?;
        self.position.clear();
        if self.config.headers.has_position() {
            write!(self.position, "{}", event.position).expect("a String takes every text");
        }
        let key = self.config.key.of(event, &mut self.key)?;
        let partition = self.partition.as_ref().map(|(index, placement)| {
            placement::partition(event.placed.get(*index).unwrap_or(&None), &placement.column)
        });
        let partition = partition.transpose().map_err(|cause| Poison::new(cause, event))?;
        let timestamp_ms = match self.config.timestamp {
            TimestampSource::Commit | TimestampSource::None => event.commit_time.unix_millis(),
            TimestampSource::Column => {
                column_millis(event).map_err(|cause| Poison::new(cause, event))?
            }
        };
        let format = self.config.value;
        let source = self.config.cloudevents_source.as_str();
        let attributes = Attributes { event, timestamp_ms, source, placed: &self.in_value };
        let is_written =
            attributes.write(format, &mut self.value).map_err(|cause| Poison::new(cause, event))?;
        let mut headers = Headers::new();
        attributes
            .append_headers(format, &mut headers)
            .map_err(|cause| Poison::new(cause, event))?;
        let sent = &self.config.headers;
        let names = (&self.names, self.names_in_headers.as_slice());
        self.dropped = sent.append_to(&mut headers, event, &self.position, names)?;
        for (index, placement) in &self.in_headers {
            let value = event.placed.get(*index).and_then(Option::as_deref).map(Cow::Borrowed);
            headers.push(Header { name: Cow::Borrowed(placement.name()), value });
        }
        let mut value =
            if is_written { Some(self.value.as_slice()) } else { event.payload.as_deref() };
        if let (Some(encoder), Some(plain)) = (&mut self.encoder, value) {
            let encoded = encoder.encode(plain, &self.topic, event);
            value = Some(encoded.map_err(|unencoded| Unrouted::of(unencoded, event))?);
        }
        let timestamp_ms = (self.config.timestamp != TimestampSource::None).then_some(timestamp_ms);
        Ok(Record { topic: &self.topic, partition, key, value, timestamp_ms, headers })
    }
}

/// The timestamp column's value; Kafka's timestamps start in 1970.
fn column_millis(event: &Event<'_>) -> Result<i64, Cause> {
    let undecodable = |why| Cause::undecodable(Role::Timestamp.name(), why);
    let bytes = event.timestamp.as_deref().filter(|text| !text.is_empty());
    let text = std::str::from_utf8(bytes.ok_or_else(|| missing(Role::Timestamp))?);
    let millis = text.map_err(|_| "is not UTF-8").and_then(timestamp::unix_millis);
    match millis.map_err(undecodable)? {
        millis @ 0.. => Ok(millis),
        _ => Err(undecodable("lies before 1970, where Kafka's timestamps begin")),
    }
}

fn missing(role: Role) -> Cause {
    Cause::MissingField { field: role.name().to_owned() }
}

#[cfg(test)]
pub(super) mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::lsn::Lsn;
    use crate::outbox::Field;
    use crate::pgoutput::PgTimestamp;
    use crate::position::EventPosition;
    use proptest::prelude::*;

    /// An event with the fields that every record needs.
    pub(in crate::record) fn event() -> Event<'static> {
        let field = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
        Event {
            position: EventPosition { commit_lsn: Lsn::new(0x16_00B3_74D8), ordinal: 3 },
            commit_time: PgTimestamp::from_micros(1_999),
            id: field("42"),
            aggregate_type: field("Order"),
            aggregate_id: field("7"),
            event_type: None,
            payload: field("{\"a\":  1}"),
            headers: None,
            traceparent: None,
            tracestate: None,
            timestamp: None,
            schema_version: None,
            placed: Vec::new(),
            types: None,
        }
    }

    fn router(timestamp: TimestampSource) -> OwnRouter {
        let topic = "outbox.event.{aggregate_type}".parse().expect("a template");
        OwnRouter::new(RecordConfig { timestamp, ..RecordConfig::to(topic) })
    }

    fn field(text: Option<&'static str>) -> Field<'static> {
        text.map(|text| Cow::Borrowed(text.as_bytes()))
    }

    #[test]
    fn an_event_becomes_a_record_by_the_contract() {
        let mut router = router(TimestampSource::Commit);
        let event = event();
        let record = router.route(&event).expect("a record");
        assert_eq!(record.topic, "outbox.event.Order");
        assert_eq!(record.key, Some(b"7".as_slice()));
        assert_eq!(record.value, Some(b"{\"a\":  1}".as_slice()));
        assert_eq!(record.timestamp_ms, Some(946_684_800_001));
        let last = record.headers.last().expect("the position");
        assert_eq!(last.name, "walpost.position");
        assert_eq!(last.value.as_deref(), Some(b"0000001600B374D8/00000003".as_slice()));
    }

    #[test]
    fn no_data_of_one_event_is_left_for_the_next() {
        let mut router = router(TimestampSource::Commit);
        let mut other = event();
        other.aggregate_type = field(Some("a b"));
        router.route(&other).expect_err("a blank in the topic").poison().expect("poison");
        let event = event();
        let again = router.route(&event).expect("a record");
        assert_eq!((again.topic, again.headers.len()), ("outbox.event.Order", 2));
    }

    #[test]
    fn a_rows_headers_do_not_duplicate_walposts_own() {
        let topic = "t".parse().expect("a template");
        let place = vec!["shop:header:ce_shop".parse().expect("a placement")];
        let value = crate::record::ValueFormat::CloudEventsBinary;
        let mut router = OwnRouter::new(RecordConfig { value, place, ..RecordConfig::to(topic) });
        let mut event = event();
        event.event_type = field(Some("OrderPlaced"));
        event.placed = vec![field(Some("7"))];
        event.headers = field(Some(
            r#"{"walpost.position": "F", "CE_ID": "F", "content-type": "F", "ce_shop": "F", "own": "1"}"#,
        ));
        let record = router.route(&event).expect("a record");
        for forged in ["walpost.position", "ce_id", "content-type", "ce_shop"] {
            let named = record.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(forged));
            let values: Vec<_> = named.map(|header| header.value.as_deref()).collect();
            assert!(values.len() == 1 && values != [Some(b"F".as_slice())], "{forged}: {values:?}");
        }
        assert!(record.headers.iter().any(|header| header.name == "own"));
        drop(record);
        assert_eq!(router.dropped().count, 4);
    }

    #[test]
    fn a_null_payload_is_a_tombstone_and_an_empty_one_is_not() {
        let mut router = router(TimestampSource::Commit);
        let mut event = event();
        event.payload = None;
        assert_eq!(router.route(&event).expect("a record").value, None);
        event.payload = field(Some(""));
        assert_eq!(router.route(&event).expect("a record").value, Some(b"".as_slice()));
    }

    #[test]
    fn a_null_or_empty_key_or_topic_field_is_poison() {
        let mut router = router(TimestampSource::Commit);
        for missing in [None, Some("")] {
            let mut keyless = event();
            keyless.aggregate_id = field(missing);
            let poison = router.route(&keyless).expect_err("no key").poison().expect("poison");
            assert_eq!(poison.cause, Cause::MissingField { field: "aggregate_id".to_owned() });
            assert_eq!((poison.position, poison.id.as_deref()), (keyless.position, Some("42")));
            let mut topicless = event();
            topicless.aggregate_type = field(missing);
            let poison = router.route(&topicless).expect_err("no topic").poison().expect("poison");
            assert_eq!(poison.cause, Cause::MissingField { field: "aggregate_type".to_owned() });
        }
    }

    #[test]
    fn a_column_may_provide_the_timestamp() {
        let mut router = router(TimestampSource::Column);
        let mut event = event();
        event.timestamp = field(Some("2026-11-21 14:55:01.123456+00"));
        assert_eq!(router.route(&event).expect("a record").timestamp_ms, Some(1_795_272_901_123));
        for wrong in ["infinity", "yesterday", "1969-12-31 23:59:59+00", "0044-03-15 BC"] {
            event.timestamp = field(Some(wrong));
            let poison = router.route(&event).expect_err(wrong).poison().expect("poison");
            assert_eq!(poison.cause.key(), "undecodable", "{wrong}");
        }
        event.timestamp = None;
        assert_eq!(
            router.route(&event).expect_err("NULL").poison().expect("poison").cause.key(),
            "missing_field"
        );
    }

    #[test]
    fn a_record_without_a_timestamp_has_the_commit_time_in_its_value() {
        let topic = "t".parse().expect("a template");
        let (timestamp, value) = (TimestampSource::None, ValueFormat::Envelope);
        let mut router =
            OwnRouter::new(RecordConfig { value, timestamp, ..RecordConfig::to(topic) });
        let event = event();
        let record = router.route(&event).expect("a record");
        assert_eq!(record.timestamp_ms, None);
        let value = String::from_utf8_lossy(record.value.expect("a value")).into_owned();
        assert!(value.contains(r#""occurredAt":"2000-01-01T00:00:00.001Z""#), "{value}");
    }

    #[test]
    fn a_column_may_provide_the_partition() {
        let topic = "t".parse().expect("a template");
        let place = vec!["shard:partition".parse().expect("a placement")];
        let mut router = OwnRouter::new(RecordConfig { place, ..RecordConfig::to(topic) });
        assert_eq!(router.placed(), ["shard"]);
        let mut event = event();
        for (text, partition) in [("0", 0), ("007", 7), ("2147483647", i32::MAX)] {
            event.placed = vec![field(Some(text))];
            let record = router.route(&event).expect("a record");
            assert_eq!((record.partition, record.key), (Some(partition), Some(b"7".as_slice())));
        }
        for wrong in ["-1", "+1", "2147483648", "1.0", "one", " 1", "\u{0661}"] {
            event.placed = vec![field(Some(wrong))];
            let poison = router.route(&event).expect_err(wrong).poison().expect("poison");
            assert_eq!(poison.cause.key(), "undecodable", "{wrong}");
            assert!(poison.to_string().contains("`shard`"), "{poison}");
        }
        for missing in [None, Some("")] {
            event.placed = vec![field(missing)];
            let cause =
                router.route(&event).expect_err("no partition").poison().expect("poison").cause;
            assert_eq!(cause, Cause::MissingField { field: "shard".to_owned() });
        }
    }

    #[test]
    fn a_column_is_required_if_topic_key_headers_or_value_use_it() {
        use Role::{AggregateId, AggregateType, EventType, Id, Payload};
        let config = |topic: &str, key: &str| RecordConfig {
            key: key.parse().expect("a template"),
            ..RecordConfig::to(topic.parse().expect("a template"))
        };
        let required = |config: &RecordConfig| -> Vec<_> {
            let needs = config.needs();
            Role::ALL.into_iter().filter(|role| needs.required.contains(*role)).collect()
        };
        let usual = config("{aggregate_type}", "{aggregate_id}");
        assert_eq!(required(&usual), [Id, AggregateType, AggregateId, Payload]);
        assert!(!usual.needs().used.contains(Role::SchemaVersion));
        let by_type = config("{event_type|kebab}", "{id}");
        assert_eq!(required(&by_type), [Id, EventType, Payload]);
        let headers = HeaderSet::from_names(&["headers"]).expect("a list of headers");
        let bare = RecordConfig { headers, ..config("all", "{tenant}") };
        assert_eq!(required(&bare), [Payload]);
        let value = ValueFormat::CloudEvents;
        assert_eq!(required(&RecordConfig { value, ..bare }), [Id, EventType, Payload]);
    }

    proptest! {
        #[test]
        fn any_fields_yield_a_record_or_poison(fields in prop::array::uniform7(any::<Option<Vec<u8>>>())) {
            let [id, kind, key, what, payload, headers, timestamp] =
                fields.map(|field| field.map(Cow::Owned));
            let event = Event {
                id, aggregate_type: kind, aggregate_id: key, event_type: what, payload, headers, timestamp,
                ..event()
            };
            for source in [TimestampSource::Commit, TimestampSource::Column] {
                let mut router = router(source);
                if let Ok(record) = router.route(&event) {
                    prop_assert_eq!(super::super::check_topic(record.topic), Ok(()));
                    prop_assert!(record.key.is_some_and(|key| !key.is_empty()));
                }
            }
        }
    }
}
