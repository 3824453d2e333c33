//! What an application publishes.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::headers::Headers;

/// Something that happened to one aggregate, such as an order.
///
/// `#[derive(Event)]` implements it for a struct that implements [`Serialize`]; see
/// [`derive@crate::Event`]. By hand it is:
///
/// ```
/// use walpost_outbox::{Event, Payload};
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced {
///     order: i64,
///     total_cents: i64,
/// }
///
/// impl Event for OrderPlaced {
///     const AGGREGATE_TYPE: &'static str = "order";
///     const EVENT_TYPE: &'static str = "order_placed";
///
///     fn aggregate_id(&self) -> String {
///         self.order.to_string()
///     }
///
///     fn payload(&self) -> Result<Payload, serde_json::Error> {
///         Payload::json(self)
///     }
/// }
/// ```
pub trait Event {
    /// The kind of thing that the event is about, such as `order`. By default it chooses the topic.
    const AGGREGATE_TYPE: &'static str;

    /// What happened, such as `order_placed`.
    const EVENT_TYPE: &'static str;

    /// Which aggregate it is about. Events with the same id stay in order, as the key of the
    /// record.
    fn aggregate_id(&self) -> String;

    /// The value of the record.
    fn payload(&self) -> Result<Payload, serde_json::Error>;

    /// Headers of the record, besides the ones that walpost adds.
    fn headers(&self) -> Headers {
        Headers::new()
    }
}

/// The value of a record: JSON, bytes, or none.
#[derive(Clone, Debug)]
pub struct Payload(pub(crate) Content);

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Json(Box<RawValue>),
    Bytes(Vec<u8>),
    Tombstone,
}

impl Payload {
    /// A value as JSON. What serializes to `null` is a tombstone, as in a logical message.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        let json = serde_json::value::to_raw_value(value)?;
        Ok(Self(if json.get() == "null" { Content::Tombstone } else { Content::Json(json) }))
    }

    /// Bytes, such as Avro or Protobuf. They need a payload column of type `bytea`
    /// ([`Outbox::column_type`](crate::Outbox::column_type)), and cannot be sent as a logical
    /// message.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Content::Bytes(bytes.into()))
    }

    /// No value: `NULL`, which becomes a record with a null value. A compacted topic forgets the
    /// key then.
    pub fn tombstone() -> Self {
        Self(Content::Tombstone)
    }
}
