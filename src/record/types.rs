//! A Kafka record, ready to be produced.

use std::borrow::Cow;

use smallvec::SmallVec;

/// What is handed to the sink: borrowed from the event and the router's own
/// buffers, valid until the next one is routed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// Topic: checked to be a name that Kafka accepts.
    pub topic: &'a str,
    /// The partition that it goes to. `None`: the key chooses one.
    pub partition: Option<i32>,
    /// Key. `None` is a null key.
    pub key: Option<&'a [u8]>,
    /// Value. `None` is a null value: a tombstone.
    pub value: Option<&'a [u8]>,
    /// Milliseconds since the Unix epoch. `None`: when the record is produced.
    pub timestamp_ms: Option<i64>,
    /// Headers, in the order in which they are sent.
    pub headers: Headers<'a>,
}

/// A record's headers: as many as most have take no memory of their own.
pub type Headers<'a> = SmallVec<[Header<'a>; 8]>;

/// One header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name; names may repeat.
    pub name: Cow<'a, str>,
    /// Its value. `None` is a null value.
    pub value: Option<Cow<'a, [u8]>>,
}

/// Memory that a header takes beside its name and value, here and in librdkafka, in bytes.
const HEADER_BYTES: usize = 80;

/// So many headers are in the fixed cost of a record.
const HEADERS_INCLUDED: usize = 3;

impl Record<'_> {
    /// Bytes of topic, key, value and headers, with a fixed cost for each header beyond the first
    /// three: what the record weighs in the in-flight budget, beside a fixed cost a record.
    pub fn bytes(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|header| header.name.len() + header.value.as_ref().map_or(0, |value| value.len()))
            .sum();
        self.topic.len()
            + self.key.map_or(0, <[u8]>::len)
            + self.value.map_or(0, <[u8]>::len)
            + headers
            + self.headers.len().saturating_sub(HEADERS_INCLUDED) * HEADER_BYTES
    }
}
