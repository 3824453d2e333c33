//! The request of a record.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Instant;

use bytes::Bytes;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST,
    HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::attempts::Sent;

/// The event's id: a receiver that has seen it ignores the request.
pub(super) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const TOPIC: HeaderName = HeaderName::from_static("walpost-topic");
const KEY: HeaderName = HeaderName::from_static("walpost-key");
const TIMESTAMP: HeaderName = HeaderName::from_static("walpost-timestamp");

/// The record's header from which [`WEBHOOK_ID`] is taken.
const ID: &str = "id";

/// What a request sets itself, or what is about the connection.
const OWN: [HeaderName; 14] = [
    AUTHORIZATION,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    EXPECT,
    HOST,
    KEY,
    TE,
    TIMESTAMP,
    TOPIC,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    WEBHOOK_ID,
];

/// Names with these beginnings are the request's own too.
const OWN_PREFIXES: [&str; 3] = ["proxy-", "webhook-", "keep-alive"];

/// A record on its way.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) sent: Sent,
    pub(super) id: HeaderValue,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
}

impl Delivery {
    /// Fails if the record has a header that a request cannot have.
    pub(super) fn new(
        (epoch, seq): (u64, Seq),
        position: EventPosition,
        record: &Record<'_>,
    ) -> Result<Self, Refusal> {
        let mut headers = Vec::with_capacity(record.headers.len() + 4);
        let mut id = None;
        let mut content_type = HeaderValue::from_static("application/json");
        for header in &record.headers {
            let Some(value) = &header.value else { continue };
            let name = name_of(&header.name)?;
            let value = value_of(value);
            if header.name == ID {
                id.get_or_insert_with(|| value.clone());
            }
            if name == CONTENT_TYPE { content_type = value } else { headers.push((name, value)) }
        }
        let id = id.unwrap_or_else(|| value_of(position.to_string().replace('/', "-").as_bytes()));
        headers.push((WEBHOOK_ID, id.clone()));
        headers.push((TOPIC, value_of(record.topic.as_bytes())));
        if let Some(key) = record.key {
            headers.push((KEY, value_of(key)));
        }
        if let Some(timestamp) = record.timestamp_ms {
            headers.push((TIMESTAMP, HeaderValue::from(timestamp)));
        }
        let body = record.value.unwrap_or_default();
        // A tombstone has no content.
        if record.value.is_some() {
            headers.push((CONTENT_TYPE, content_type));
        }
        let sent = Sent {
            epoch,
            seq,
            topic: record.topic.to_owned(),
            bytes: (record.key.map_or(0, <[u8]>::len) + body.len()) as u64,
            since: Instant::now(),
        };
        Ok(Self { sent, id, headers, body: Bytes::copy_from_slice(body) })
    }
}

/// A record's header as it is called in a request: with `-` for `_`, which many servers drop, so
/// that `ce_id` is `ce-id`
/// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md>).
fn name_of(name: &str) -> Result<HeaderName, Refusal> {
    let refused = |what: &str| {
        let name = crate::excerpt::excerpt(name);
        let reason = format!(
            "its header `{name}` {what}: call it otherwise, or leave headers of rows out by \
             record.headers"
        );
        Err(Refusal { ground: Ground::Other, may_pass: false, reason })
    };
    let Ok(found) = HeaderName::from_bytes(name.replace('_', "-").as_bytes()) else {
        return refused("cannot be the name of an HTTP header");
    };
    let is_own = |prefix: &str| found.as_str().starts_with(prefix);
    if OWN.contains(&found) || OWN_PREFIXES.iter().any(|prefix| is_own(prefix)) {
        return refused("has the name of one that walpost sets itself");
    }
    Ok(found)
}

/// A value in ASCII, all else percent-encoded.
fn value_of(bytes: &[u8]) -> HeaderValue {
    let is_plain = |byte: &u8| (b' '..=b'~').contains(byte);
    // Spaces at either end would be lost.
    let is_whole = bytes.first() != Some(&b' ') && bytes.last() != Some(&b' ');
    let text = if is_whole && bytes.iter().all(is_plain) {
        Cow::Borrowed(bytes)
    } else {
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            if byte.is_ascii_graphic() && *byte != b'%' {
                text.push(char::from(*byte));
            } else {
                let _ = write!(text, "%{byte:02X}");
            }
        }
        Cow::Owned(text.into_bytes())
    };
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::record::{Header, Headers};

    fn delivery(headers: &[(&'static str, &'static [u8])]) -> Result<Delivery, Refusal> {
        let headers: Headers<'_> = headers
            .iter()
            .map(|(name, value)| Header { name: (*name).into(), value: Some((*value).into()) })
            .collect();
        let record = Record {
            topic: "orders",
            partition: None,
            key: Some("k\u{e9}".as_bytes()),
            value: Some(b"{}"),
            timestamp_ms: Some(5),
            headers,
        };
        let position = EventPosition { commit_lsn: Lsn::new(255), ordinal: 1 };
        Delivery::new((1, Seq::new(2)), position, &record)
    }

    fn texts(delivery: &Delivery) -> Vec<String> {
        let text = |(name, value): &(HeaderName, HeaderValue)| {
            format!("{name}: {}", value.to_str().expect("ASCII"))
        };
        delivery.headers.iter().map(text).collect()
    }

    #[test]
    fn headers_are_those_of_http() {
        let headers: [(&str, &[u8]); 4] = [
            ("id", b"7"),
            ("ce_type", "\u{fc}".as_bytes()),
            ("baggage", b"a=b%20c"),
            ("content-type", b"application/cloudevents+json"),
        ];
        let delivery = delivery(&headers).expect("valid");
        assert_eq!(
            texts(&delivery),
            [
                "id: 7",
                "ce-type: %C3%BC",
                "baggage: a=b%20c",
                "webhook-id: 7",
                "walpost-topic: orders",
                "walpost-key: k%C3%A9",
                "walpost-timestamp: 5",
                "content-type: application/cloudevents+json",
            ]
        );
    }

    #[test]
    fn without_an_id_the_position_is_it() {
        let delivery = delivery(&[]).expect("valid");
        assert_eq!(delivery.id, "00000000000000FF-00000001");
        assert!(texts(&delivery).contains(&"content-type: application/json".to_owned()));
    }

    #[test]
    fn a_header_that_a_request_cannot_have_refuses_the_record() {
        for name in ["", "a b", "h\u{e9}", "Host", "content_length", "webhook-x", "authorization"] {
            let refusal = delivery(&[(name, b"x")]).expect_err(name);
            assert!(refusal.reason.contains("record.headers") && !refusal.may_pass, "{name}");
        }
    }

    #[test]
    fn values_stay_one_line_of_ascii() {
        for (value, expected) in [
            (&b"a b"[..], "a b"),
            (b"50%", "50%"),
            (b"a\r\nb", "a%0D%0Ab"),
            (b" a%", "%20a%25"),
            (b"\xff", "%FF"),
            (b"", ""),
        ] {
            assert_eq!(value_of(value), expected);
        }
    }
}
