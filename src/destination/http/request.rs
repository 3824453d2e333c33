//! The request of a record.

use std::fmt::Write as _;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::names::NAMES;
use crate::destination::parts::attempts::Sent;
use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};
use crate::position::EventPosition;
use crate::record::{CONTENT_TYPE, Header, ID_HEADER, Record, dead_letter, media_type};

/// The event's id, that of [`ID_HEADER`]: a receiver that has seen it ignores the request.
pub(super) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const TOPIC: HeaderName = HeaderName::from_static("walpost-topic");
const KEY: HeaderName = HeaderName::from_static("walpost-key");
const TIMESTAMP: HeaderName = HeaderName::from_static("walpost-timestamp");

/// The prefix of `CloudEvents`' attributes.
const CLOUD_EVENT: &str = "ce-";

/// Headers whose format is that of their own specification, and has `%` in it
/// (<https://www.w3.org/TR/trace-context/>, <https://www.w3.org/TR/baggage/>).
const OF_HTTP: [&str; 4] = ["baggage", "content-type", "traceparent", "tracestate"];

/// A record in flight.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) sent: Sent,
    pub(super) id: HeaderValue,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
}

impl Outgoing {
    /// Fails if the record cannot be a request. `dead_letters` is the topic of dead letters.
    pub(super) fn new(
        (epoch, seq): (u64, Seq),
        position: EventPosition,
        record: &Record<'_>,
        dead_letters: &str,
    ) -> Result<Self, Refusal> {
        let letter = (record.topic == dead_letters).then(|| letter(record));
        let mut headers = Vec::with_capacity(record.headers.len() + 4);
        let mut id = None;
        let mut content_type = None;
        for header in &record.headers {
            let Some(value) = &header.value else { continue };
            // The body has them.
            if letter.is_some() && IN_BODY_ONLY.contains(&&*header.name) {
                continue;
            }
            let name = name_of(&header.name)?;
            if header.name == ID_HEADER {
                id = Some(id_of(value)?);
            }
            let value = value_of(value, Encoding::of(&name));
            if name == CONTENT_TYPE {
                content_type = Some(value);
            } else {
                headers.push((name, value));
            }
        }
        let of_position =
            || value_of(position.to_string().replace('/', "-").as_bytes(), Encoding::Text);
        let id = id.unwrap_or_else(of_position);
        headers.push((WEBHOOK_ID, id.clone()));
        headers.push((TOPIC, value_of(record.topic.as_bytes(), Encoding::Text)));
        if let Some(key) = record.key.filter(|_| letter.is_none()) {
            headers.push((KEY, value_of(key, Encoding::Text)));
        }
        if let Some(timestamp) = record.timestamp_ms {
            headers.push((TIMESTAMP, HeaderValue::from(timestamp)));
        }
        let body = match letter {
            Some(letter) => Some(Bytes::from(letter)),
            None => record.value.map(Bytes::copy_from_slice),
        };
        // A tombstone has no content.
        if let Some(body) = &body {
            let of_body = || HeaderValue::from_static(media_type(body));
            headers.push((
                HeaderName::from_static(CONTENT_TYPE),
                content_type.unwrap_or_else(of_body),
            ));
        }
        let body = body.unwrap_or_default();
        let sent = Sent {
            epoch,
            seq,
            topic: record.topic.to_owned(),
            bytes: (record.key.map_or(0, <[u8]>::len) + body.len()) as u64,
            since: Instant::now(),
        };
        Ok(Self { sent, id, headers, body })
    }
}

fn refused(reason: String) -> Refusal {
    Refusal { ground: Ground::Other, may_pass: false, reason }
}

/// A record's header as it is called in a request: with `-` for `_` and `.`, which many servers
/// drop, so that `ce_id` is `ce-id`
/// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md>,
/// <https://nginx.org/en/docs/http/ngx_http_core_module.html#ignore_invalid_headers>).
fn name_of(name: &str) -> Result<HeaderName, Refusal> {
    HeaderName::from_bytes(NAMES.spelt(name).as_bytes()).map_err(|_| {
        let name = crate::excerpt::excerpt(name);
        refused(format!(
            "its header `{name}` cannot be the name of an HTTP header: call it otherwise, or leave \
             headers of rows out by record.headers"
        ))
    })
}

/// How a value is written in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// A whole text: unchanged, or percent-encoded with all spaces.
    Text,
    /// A text with `.` encoded too, which separates the parts of what is signed.
    Id,
    /// An attribute of a `CloudEvent`: space, `"` and `%` are always encoded.
    CloudEvent,
    /// A header of HTTP itself, whose `%` is left alone.
    Http,
}

impl Encoding {
    fn of(name: &HeaderName) -> Self {
        let name = name.as_str();
        match name {
            _ if OF_HTTP.contains(&name) => Self::Http,
            _ if name.starts_with(CLOUD_EVENT) => Self::CloudEvent,
            _ => Self::Text,
        }
    }

    /// Whether a byte stays in a value that has no others.
    fn keeps(self, byte: u8) -> bool {
        match byte {
            b'%' => self == Self::Http,
            b' ' => matches!(self, Self::Text | Self::Http),
            b'"' => self != Self::CloudEvent,
            b'.' => self != Self::Id,
            _ => byte.is_ascii_graphic(),
        }
    }
}

/// The value of [`WEBHOOK_ID`].
fn id_of(id: &[u8]) -> Result<HeaderValue, Refusal> {
    if id.is_empty() {
        return Err(refused(
            "its id is empty, and a receiver could not tell it from others: give the event an id, \
             or leave `id` out of record.headers"
                .to_owned(),
        ));
    }
    Ok(value_of(id, Encoding::Id))
}

/// A value in printable ASCII, all else percent-encoded: a receiver that decodes it always has the
/// value.
fn value_of(bytes: &[u8], encoding: Encoding) -> HeaderValue {
    // Spaces at either end would be lost.
    let is_whole = bytes.first() != Some(&b' ') && bytes.last() != Some(&b' ');
    let value = if is_whole && bytes.iter().all(|byte| encoding.keeps(*byte)) {
        HeaderValue::from_bytes(bytes)
    } else {
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            if *byte != b' ' && encoding.keeps(*byte) {
                text.push(char::from(*byte));
            } else {
                let _ = write!(text, "%{byte:02X}");
            }
        }
        HeaderValue::try_from(text)
    };
    value.expect("printable ASCII is a value")
}

/// Headers of a dead letter that only its body has: they are long, and servers limit headers.
const IN_BODY_ONLY: [&str; 3] = [dead_letter::ERROR, dead_letter::FIELDS, dead_letter::ORIGIN];

/// The body of a dead letter: all that it is about, so that all is signed. Its members are those of
/// its headers, the key, the payload and the event's fields.
fn letter(record: &Record<'_>) -> Vec<u8> {
    let mut members = Map::new();
    for Header { name, value } in &record.headers {
        let Some(value) = value.as_deref() else { continue };
        if name == dead_letter::FIELDS {
            if let Ok(Value::Object(fields)) = serde_json::from_slice(value) {
                members.extend(fields);
            }
            continue;
        }
        let name = name.strip_prefix("walpost.").unwrap_or(name);
        members.insert(name.to_owned(), text(Some(value)));
    }
    members.insert("key".to_owned(), text(record.key));
    members.insert("payload".to_owned(), text(record.value));
    Value::Object(members).to_string().into_bytes()
}

/// Bytes as a member of a dead letter, as [`dead_letter::FIELDS`] has them.
fn text(bytes: Option<&[u8]>) -> Value {
    let Some(bytes) = bytes else { return Value::Null };
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Value::String(text.to_owned());
    }
    let encoded = Value::String(STANDARD.encode(bytes));
    Value::Object(Map::from_iter([("base64".to_owned(), encoded)]))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::destination::names_tests::{self, ReadBack, Sample};
    use crate::lsn::Lsn;
    use crate::record::Headers;

    const AT: EventPosition = EventPosition { commit_lsn: Lsn::new(255), ordinal: 1 };

    fn record<'a>(headers: &[(&'a str, &'a [u8])]) -> Record<'a> {
        let headers: Headers<'_> = headers
            .iter()
            .map(|(name, value)| Header { name: (*name).into(), value: Some((*value).into()) })
            .collect();
        Record {
            topic: "orders",
            partition: None,
            key: Some("k\u{e9}".as_bytes()),
            value: Some(b"{}"),
            timestamp_ms: Some(5),
            headers,
        }
    }

    fn delivery(headers: &[(&str, &[u8])]) -> Result<Outgoing, Refusal> {
        Outgoing::new((1, Seq::new(2)), AT, &record(headers), "dead")
    }

    fn texts(delivery: &Outgoing) -> Vec<String> {
        let text = |(name, value): &(HeaderName, HeaderValue)| {
            format!("{name}: {}", value.to_str().expect("ASCII"))
        };
        delivery.headers.iter().map(text).collect()
    }

    pub(crate) const SAMPLE: Sample = Sample {
        read_back,
        called: |name| name.to_ascii_lowercase().replace(['_', '.'], "-"),
        forbidden: &[
            "host",
            "cookie",
            "authorization",
            "content-type",
            "content-length",
            "transfer-encoding",
            "connection",
            "keep-alive",
            "upgrade",
            "te",
            "trailer",
            "expect",
            "user-agent",
            "proxy-authorization",
            "proxy-connection",
            "forwarded",
            "via",
            "origin",
            "range",
            "if-match",
            "x-forwarded-for",
            "x-http-method-override",
            "x-real-ip",
            "remote-user",
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "walpost-topic",
            "walpost-key",
            "walpost-position",
            "walpost-timestamp",
            "ce-id",
            "ce-type",
            "ce-source",
            "ce-specversion",
            "id",
        ],
        places: &[
            ["a:header:Host", "a:header:X-Tenant"],
            ["a:header:event-type", "a:header:content-type"],
        ],
    };

    /// A record's request as a receiver reads it.
    fn read_back(record: &Record<'_>) -> Result<ReadBack, Refusal> {
        let delivery = Outgoing::new((1, Seq::new(2)), names_tests::AT, record, "dead")?;
        let mut headers = Vec::new();
        for (name, value) in &delivery.headers {
            let text = value.to_str().expect("ASCII");
            assert_eq!(text.trim(), text, "a server would trim it");
            let value = match name.as_str() {
                "baggage" | "traceparent" | "tracestate" => text.as_bytes().to_vec(),
                _ => names_tests::percent_decoded(text),
            };
            headers.push((name.to_string(), value));
        }
        let find = |wanted: &str| {
            let found = headers.iter().find(|(name, _)| name == wanted)?;
            Some(found.1.clone())
        };
        let topic = String::from_utf8(find("walpost-topic").expect("a topic")).expect("text");
        let (key, id) = (find("walpost-key"), find("webhook-id"));
        assert!(!delivery.id.to_str().expect("ASCII").contains('.'), "{:?}", delivery.id);
        Ok(ReadBack { topic, key, id, headers })
    }

    #[test]
    fn headers_are_those_of_http() {
        let headers: [(&str, &[u8]); 6] = [
            ("id", b"7.1"),
            ("ce_type", "\u{fc}".as_bytes()),
            ("walpost.position", b"1/2"),
            ("discount", b"50% off"),
            ("baggage", b"a=b%20c"),
            ("content-type", b"application/cloudevents+json"),
        ];
        let delivery = delivery(&headers).expect("valid");
        assert_eq!(
            texts(&delivery),
            [
                "id: 7.1",
                "ce-type: %C3%BC",
                "walpost-position: 1/2",
                "discount: 50%25%20off",
                "baggage: a=b%20c",
                "webhook-id: 7%2E1",
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
    fn what_a_request_cannot_have_refuses_the_record() {
        for name in ["", "a b", "h\u{e9}"] {
            let refusal = delivery(&[(name, b"x")]).expect_err(name);
            assert!(refusal.reason.contains("record.headers") && !refusal.may_pass, "{name}");
        }
        let refusal = delivery(&[("id", b"")]).expect_err("no id");
        assert!(refusal.reason.contains("its id is empty"), "{}", refusal.reason);
    }

    #[test]
    fn content_type_is_that_of_the_payload() {
        let of = |value: &[u8]| {
            let record = Record { value: Some(value), ..record(&[]) };
            let delivery = Outgoing::new((1, Seq::new(2)), AT, &record, "dead").expect("valid");
            texts(&delivery).pop()
        };
        for (value, expected) in [
            (&b"{\"a\": 1}"[..], "application/json"),
            (b"\x00\xff", "application/octet-stream"),
            (b"", "application/octet-stream"),
        ] {
            assert_eq!(of(value), Some(format!("content-type: {expected}")));
        }
    }

    #[test]
    fn dead_letter_is_in_its_body() {
        let headers: [(&str, &[u8]); 4] = [
            ("walpost.cause", b"refused"),
            ("walpost.error", "caf\u{e9}".as_bytes()),
            ("walpost.position", b"1/2"),
            ("walpost.fields", br#"{"id":"7","event_type":"placed"}"#),
        ];
        let record = Record { topic: "dead", value: Some(b"\xff"), ..record(&headers) };
        let delivery = Outgoing::new((1, Seq::new(2)), AT, &record, "dead").expect("valid");
        let body: Value = serde_json::from_slice(&delivery.body).expect("JSON");
        let expected = serde_json::json!({
            "cause": "refused", "error": "caf\u{e9}", "position": "1/2", "id": "7",
            "event_type": "placed", "key": "k\u{e9}", "payload": {"base64": "/w=="},
        });
        assert_eq!(body, expected);
        assert_eq!(
            texts(&delivery),
            [
                "walpost-cause: refused",
                "walpost-position: 1/2",
                "webhook-id: 00000000000000FF-00000001",
                "walpost-topic: dead",
                "walpost-timestamp: 5",
                "content-type: application/json",
            ]
        );
    }

    #[test]
    fn values_stay_one_line_of_ascii() {
        use Encoding::{CloudEvent, Http, Id, Text};
        for (encoding, value, expected) in [
            (Text, &b"a b"[..], "a b"),
            (Text, b"50%", "50%25"),
            (Text, b"a\r\nb", "a%0D%0Ab"),
            (Text, b" a%", "%20a%25"),
            (Text, b"\xff", "%FF"),
            (Text, b"", ""),
            (Id, b"a.1 2", "a%2E1%202"),
            (CloudEvent, b"a \"%\".", "a%20%22%25%22."),
            (Http, b"a=b%20c; d", "a=b%20c; d"),
            (Http, b"\n%", "%0A%"),
        ] {
            assert_eq!(value_of(value, encoding), expected);
        }
    }
}
