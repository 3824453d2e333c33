//! From event to record, for the `walpost` profile.
//!
//! Key, value and the headers' values are borrowed from the event; the topic
//! and the position's text are written into buffers that are used again.

use std::fmt::Write;

use crate::outbox::{Event, Role};

use super::headers::HeaderSet;
use super::poison::{Cause, Poison};
use super::timestamp;
use super::topic::TopicTemplate;
use super::types::Record;

/// Where a record's timestamp comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimestampSource {
    /// The commit time of the event's transaction.
    #[default]
    Commit,
    /// The outbox's timestamp column.
    Column,
}

/// What records look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordConfig {
    /// The topic.
    pub topic: TopicTemplate,
    /// The headers.
    pub headers: HeaderSet,
    /// The timestamp.
    pub timestamp: TimestampSource,
}

/// Makes records of events, one at a time.
#[derive(Debug)]
pub struct Router {
    config: RecordConfig,
    topic: String,
    position: String,
}

impl Router {
    /// A router for records of that look.
    pub fn new(config: RecordConfig) -> Self {
        Self { config, topic: String::new(), position: String::new() }
    }

    /// The record of `event`; an event that has none is poison. The same event
    /// gives the same record or the same poison each time.
    pub fn route<'a>(&'a mut self, event: &'a Event<'_>) -> Result<Record<'a>, Poison> {
        self.topic.clear();
        self.config.topic.render(event, &mut self.topic)?;
        self.position.clear();
        if self.config.headers.has_position() {
            write!(self.position, "{}", event.position).expect("a String takes every text");
        }
        let key = event
            .aggregate_id
            .as_deref()
            .filter(|key| !key.is_empty())
            .ok_or_else(|| Poison::new(missing(Role::AggregateId), event))?;
        let timestamp_ms = match self.config.timestamp {
            TimestampSource::Commit => event.commit_time.unix_millis(),
            TimestampSource::Column => {
                column_millis(event).map_err(|cause| Poison::new(cause, event))?
            }
        };
        Ok(Record {
            topic: &self.topic,
            key: Some(key),
            value: event.payload.as_deref(),
            timestamp_ms,
            headers: self.config.headers.of(event, &self.position)?,
        })
    }
}

/// The timestamp column's value; Kafka's timestamps begin with 1970.
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
    use crate::outbox::{Field, Position};
    use crate::pgoutput::PgTimestamp;
    use proptest::prelude::*;

    /// An event with what every record needs.
    pub(in crate::record) fn event() -> Event<'static> {
        let field = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
        Event {
            position: Position { commit_lsn: Lsn::new(0x16_00B3_74D8), ordinal: 3 },
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
            placed: Vec::new(),
        }
    }

    fn router(timestamp: TimestampSource) -> Router {
        let topic = "outbox.event.{aggregate_type}".parse().expect("a template");
        Router::new(RecordConfig { topic, headers: HeaderSet::default(), timestamp })
    }

    fn field(text: Option<&'static str>) -> Field<'static> {
        text.map(|text| Cow::Borrowed(text.as_bytes()))
    }

    #[test]
    fn an_event_becomes_a_record_as_the_contract_says() {
        let mut router = router(TimestampSource::Commit);
        let event = event();
        let record = router.route(&event).expect("a record");
        assert_eq!(record.topic, "outbox.event.Order");
        assert_eq!(record.key, Some(b"7".as_slice()));
        assert_eq!(record.value, Some(b"{\"a\":  1}".as_slice()));
        assert_eq!(record.timestamp_ms, 946_684_800_001);
        let last = record.headers.last().expect("the position");
        assert_eq!(last.name, "walpost.position");
        assert_eq!(last.value.as_deref(), Some(b"0000001600B374D8/00000003".as_slice()));
    }

    #[test]
    fn nothing_of_one_event_is_left_for_the_next() {
        let mut router = router(TimestampSource::Commit);
        let mut other = event();
        other.aggregate_type = field(Some("a b"));
        router.route(&other).expect_err("a blank in the topic");
        let event = event();
        let again = router.route(&event).expect("a record");
        assert_eq!((again.topic, again.headers.len()), ("outbox.event.Order", 2));
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
            let poison = router.route(&keyless).expect_err("no key");
            assert_eq!(poison.cause, Cause::MissingField { field: "aggregate_id".to_owned() });
            assert_eq!((poison.position, poison.id.as_deref()), (keyless.position, Some("42")));
            let mut topicless = event();
            topicless.aggregate_type = field(missing);
            let poison = router.route(&topicless).expect_err("no topic");
            assert_eq!(poison.cause, Cause::MissingField { field: "aggregate_type".to_owned() });
        }
    }

    #[test]
    fn a_column_may_give_the_timestamp() {
        let mut router = router(TimestampSource::Column);
        let mut event = event();
        event.timestamp = field(Some("2026-11-21 14:55:01.123456+00"));
        assert_eq!(router.route(&event).expect("a record").timestamp_ms, 1_795_272_901_123);
        for wrong in ["infinity", "yesterday", "1969-12-31 23:59:59+00", "0044-03-15 BC"] {
            event.timestamp = field(Some(wrong));
            let poison = router.route(&event).expect_err(wrong);
            assert_eq!(poison.cause.key(), "undecodable", "{wrong}");
        }
        event.timestamp = None;
        assert_eq!(router.route(&event).expect_err("NULL").cause.key(), "missing_field");
    }

    proptest! {
        #[test]
        fn any_fields_give_a_record_or_poison(fields in prop::array::uniform7(any::<Option<Vec<u8>>>())) {
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
