//! A record, ready to be produced at any destination.

use std::borrow::Cow;

use smallvec::SmallVec;

/// The record for the sink: borrows from the event and the router's buffers, and is valid until the
/// next event is routed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// The topic: validated as a name that Kafka accepts.
    pub topic: &'a str,
    /// The partition; `None` means that it is selected by key.
    pub partition: Option<i32>,
    /// Key. `None` is a null key.
    pub key: Option<&'a [u8]>,
    /// Value. `None` is a null value: a tombstone.
    pub value: Option<&'a [u8]>,
    /// Milliseconds since the Unix epoch; `None` means the time of production.
    pub timestamp_ms: Option<i64>,
    /// Headers, in the order in which they are sent.
    pub headers: Headers<'a>,
}

/// A record's headers; the usual number needs no heap allocation.
pub type Headers<'a> = SmallVec<[Header<'a>; 8]>;

/// One header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header<'a> {
    /// The header's name; names may repeat.
    pub name: Cow<'a, str>,
    /// The header's value. `None` is a null value.
    pub value: Option<Cow<'a, [u8]>>,
}

/// Memory of a header in addition to its name and value, here and in librdkafka, in bytes.
const HEADER_BYTES: usize = 80;

/// The number of headers that the fixed overhead of a record includes.
const HEADERS_INCLUDED: usize = 3;

impl Record<'_> {
    /// Bytes of topic, key, value and headers, plus a fixed overhead for each header beyond the
    /// first three: the record's weight in the in-flight budget, without the fixed overhead per
    /// record.
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
