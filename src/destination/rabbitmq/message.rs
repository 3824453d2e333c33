//! A message: the frames of a record (<https://www.rabbitmq.com/amqp-0-9-1-reference>).
//!
//! Names in AMQP are short strings, of at most 255 bytes, and all properties have to fit into one
//! frame: what exceeds that cannot be sent.

use std::sync::Arc;
use std::time::Instant;

use super::routing_key::{RoutingKeyTemplate, SHORT_MAX};
use crate::destination::parts::attempts::order_at;
use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};
use crate::position::EventPosition;
use crate::record::{
    CONTENT_TYPE as TYPE, ID_HEADER, Names, POSITION_HEADER, Record, Spelling, media_type,
};

/// The channel of all messages.
pub(super) const CHANNEL: u16 = 1;

/// Frames (<https://www.rabbitmq.com/amqp-0-9-1-reference#constants>).
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xCE;

/// Bytes of a frame beside its payload.
const FRAME_BYTES: usize = 8;

/// `basic.publish`
const BASIC: u16 = 60;
const PUBLISH: u16 = 40;
/// The bit `mandatory`: a message that no queue takes is returned.
const MANDATORY: u8 = 1;

/// Which properties a message has, as bits.
const CONTENT_TYPE: u16 = 1 << 15;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;

/// The delivery mode of messages that survive a restart of the broker.
const PERSISTENT: u8 = 2;

const TOPIC: &str = "walpost.topic";
pub(super) const KEY: &str = "walpost.key";
const TIMESTAMP_MS: &str = "walpost.timestamp";
pub(super) const TOMBSTONE: &str = "walpost.tombstone";

/// Headers by which RabbitMQ, or a plugin of it, routes or delays a message, and those that it adds
/// itself, of which consumers read how often a message was delivered or why it was rejected
/// (<https://www.rabbitmq.com/docs/sender-selected>, <https://www.rabbitmq.com/docs/dlx>,
/// <https://www.rabbitmq.com/docs/streams>). From `id` and `content-type` walpost makes properties.
pub(crate) const NAMES: Names = Names {
    spelling: Spelling::AsIs,
    own: &[
        "bcc",
        "cc",
        "x-acquired-count",
        "x-bcc",
        "x-cc",
        "x-death",
        "x-delay",
        "x-delivery-count",
        "x-first-death-*",
        "x-last-death-*",
        "x-opt-*",
        "x-received-from",
        "x-shovelled*",
        "x-stream-*",
    ],
    guarded: &["content-type", "id"],
    may_repeat: false,
    can_be: |name| name.len() <= SHORT_MAX,
    value_can_be: |_| true,
};

/// A message that can be sent.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) seq: Seq,
    pub(super) position: EventPosition,
    /// That of the record's key.
    pub(super) order: u64,
    /// Everything that is sent.
    pub(super) frames: Vec<u8>,
    pub(super) topic: String,
    pub(super) routing_key: Arc<str>,
    /// The size of key and value, in bytes.
    pub(super) bytes: usize,
    pub(super) since: Instant,
    /// Whether it is a dead letter.
    pub(super) is_letter: bool,
    /// Whether the broker has refused it before.
    pub(super) is_retried: bool,
}

/// The exchange and the routing key.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) exchange: String,
    pub(super) template: RoutingKeyTemplate,
    /// The queue of dead letters, which the default exchange routes to.
    pub(super) dead_letters: String,
}

impl Target {
    /// The message of a record, for a connection with frames of that many bytes at most.
    pub(super) fn message(
        &self,
        (seq, position): (Seq, EventPosition),
        record: &Record<'_>,
        frame_max: usize,
    ) -> Result<Message, Refusal> {
        let refusal = |reason| Refusal { ground: Ground::Other, may_pass: false, reason };
        let (exchange, routing_key) = self.route(record).map_err(refusal)?;
        let frames = frames((exchange, &routing_key), position, record, frame_max);
        Ok(Message {
            seq,
            position,
            order: order_at(record, position),
            frames: frames.map_err(refusal)?,
            topic: record.topic.to_owned(),
            routing_key: routing_key.into(),
            bytes: record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len),
            since: Instant::now(),
            is_letter: self.is_letter(record),
            is_retried: false,
        })
    }

    fn is_letter(&self, record: &Record<'_>) -> bool {
        record.topic == self.dead_letters
    }

    /// Exchange and routing key.
    fn route(&self, record: &Record<'_>) -> Result<(&str, String), String> {
        if self.is_letter(record) {
            return Ok(("", record.topic.to_owned()));
        }
        Ok((&self.exchange, self.template.render(record.topic, record.key)?))
    }
}

fn frames(
    (exchange, routing_key): (&str, &str),
    position: EventPosition,
    record: &Record<'_>,
    frame_max: usize,
) -> Result<Vec<u8>, String> {
    let body = record.value.unwrap_or_default();
    let mut out = Vec::with_capacity(512 + body.len());
    frame(METHOD, &mut out, |out| {
        out.extend([BASIC, PUBLISH, 0].into_iter().flat_map(u16::to_be_bytes));
        short(exchange.as_bytes(), "the exchange", out)?;
        short(routing_key.as_bytes(), "its routing key", out)?;
        out.push(MANDATORY);
        Ok(())
    })?;
    let start = out.len();
    frame(HEADER, &mut out, |out| {
        out.extend([BASIC, 0].into_iter().flat_map(u16::to_be_bytes));
        out.extend((body.len() as u64).to_be_bytes());
        properties(position, record, out)
    })?;
    let size = out.len() - start;
    if size > frame_max {
        return Err(format!(
            "its headers have {size} bytes, and RabbitMQ accepts {frame_max} (frame_max): use fewer or \
             smaller headers"
        ));
    }
    for part in body.chunks(frame_max - FRAME_BYTES) {
        frame(BODY, &mut out, |out| {
            out.extend(part);
            Ok(())
        })?;
    }
    Ok(out)
}

/// Why a payload of so many bytes is not accepted.
pub(super) fn too_large(bytes: u64, max: u64) -> Option<Refusal> {
    let reason = || {
        format!(
            "its {bytes} bytes are more than RabbitMQ accepts ({max}): raise max_message_size, or \
             publish smaller events"
        )
    };
    let refusal = || Refusal { ground: Ground::Size, may_pass: false, reason: reason() };
    (bytes > max).then(refusal)
}

fn frame(
    kind: u8,
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), String>,
) -> Result<(), String> {
    out.push(kind);
    out.extend(CHANNEL.to_be_bytes());
    sized(out, fill)?;
    out.push(END);
    Ok(())
}

/// What `fill` adds, behind its length.
fn sized(
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), String>,
) -> Result<(), String> {
    let start = out.len();
    out.extend([0; 4]);
    fill(out)?;
    let length = u32::try_from(out.len() - start - 4);
    let length = length.map_err(|_| "it is larger than AMQP can express".to_owned())?;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// A short string.
fn short(text: &[u8], what: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let length = u8::try_from(text.len())
        .map_err(|_| format!("{what} has {} bytes, and AMQP allows {SHORT_MAX}", text.len()))?;
    out.push(length);
    out.extend(text);
    Ok(())
}

fn properties(
    position: EventPosition,
    record: &Record<'_>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let own = |name: &str| {
        let mut headers = record.headers.iter();
        headers.find(|header| header.name == name)?.value.as_deref()
    };
    let mut flags = HEADERS | DELIVERY_MODE | MESSAGE_ID;
    if record.value.is_some() {
        flags |= CONTENT_TYPE;
    }
    if record.timestamp_ms.is_some() {
        flags |= TIMESTAMP;
    }
    out.extend(flags.to_be_bytes());
    // A tombstone has no content.
    if let Some(value) = record.value {
        let content_type = own(TYPE);
        let content_type = content_type.unwrap_or_else(|| media_type(value).as_bytes());
        short(content_type, "its content type", out)?;
    }
    sized(out, |out| headers(position, record, out))?;
    out.push(PERSISTENT);
    let text;
    let id = if let Some(id) = own(ID_HEADER) {
        if id.is_empty() {
            let reason = "its id is empty, and a consumer could not tell it from others: give the \
                          event an id, or leave `id` out of record.headers";
            return Err(reason.to_owned());
        }
        id
    } else {
        text = position.to_string();
        text.as_bytes()
    };
    short(id, "its id", out)?;
    if let Some(timestamp) = record.timestamp_ms {
        out.extend((timestamp / 1000).to_be_bytes());
    }
    Ok(())
}

fn headers(position: EventPosition, record: &Record<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    for header in &record.headers {
        let Some(value) = &header.value else { continue };
        if header.name == POSITION_HEADER || header.name == TYPE {
            continue;
        }
        text(&header.name, value, out)?;
    }
    // By this one a returned message is found.
    text(POSITION_HEADER, position.to_string().as_bytes(), out)?;
    text(TOPIC, record.topic.as_bytes(), out)?;
    if let Some(key) = record.key {
        text(KEY, key, out)?;
    }
    if record.value.is_none() {
        text(TOMBSTONE, b"true", out)?;
    }
    if let Some(timestamp) = record.timestamp_ms {
        short(TIMESTAMP_MS.as_bytes(), "", out)?;
        out.push(b'l');
        out.extend(timestamp.to_be_bytes());
    }
    Ok(())
}

/// A field whose value is a long string.
fn text(name: &str, value: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let shown: String = name.chars().take(40).collect();
    short(name.as_bytes(), &format!("the name of its header `{shown}…`"), out)?;
    out.push(b'S');
    sized(out, |out| {
        out.extend(value);
        Ok(())
    })
}

#[cfg(test)]
pub(super) mod tests {
    use amq_protocol::frame::{AMQPFrame, parse_frame};
    use amq_protocol::protocol::{AMQPClass, BasicProperties, basic};
    use amq_protocol::types::{AMQPValue, ShortString};

    use super::*;
    use crate::destination::names_tests::{self, ReadBack, Sample};
    use crate::lsn::Lsn;
    use crate::record::{Header, Headers};

    const AT: EventPosition = EventPosition { commit_lsn: Lsn::new(255), ordinal: 1 };

    fn record<'a>(headers: &[(&'a str, &'a [u8])]) -> Record<'a> {
        let header = |(name, value): &(&'a str, &'a [u8])| Header {
            name: (*name).into(),
            value: Some((*value).into()),
        };
        Record {
            topic: "orders",
            partition: None,
            key: Some(b"k"),
            value: Some(b"{\"a\":1}"),
            timestamp_ms: Some(7005),
            headers: headers.iter().map(header).collect::<Headers<'_>>(),
        }
    }

    fn message(record: &Record<'_>, frame_max: usize) -> Result<Message, Refusal> {
        let target = Target {
            exchange: "o".to_owned(),
            template: "{topic}.{key}".parse().expect("a template"),
            dead_letters: "dead".to_owned(),
        };
        target.message((Seq::new(1), AT), record, frame_max)
    }

    /// Exchange and routing key, properties and body, as another implementation reads them.
    fn read(frames: &[u8]) -> ((String, String), BasicProperties, Vec<Vec<u8>>) {
        let (mut rest, mut properties, mut bodies) = (frames, None, Vec::new());
        let mut target = None;
        while !rest.is_empty() {
            let (after, frame) = parse_frame(rest).expect("a frame");
            rest = after;
            match frame {
                AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Publish(publish))) => {
                    assert!(publish.mandatory && !publish.immediate);
                    target = Some((publish.exchange.to_string(), publish.routing_key.to_string()));
                }
                AMQPFrame::Header(1, header) => properties = Some(header.properties),
                AMQPFrame::Body(1, body) => bodies.push(body),
                other => panic!("{other:?}"),
            }
        }
        (target.expect("a target"), properties.expect("properties"), bodies)
    }

    pub(crate) const SAMPLE: Sample = Sample {
        read_back,
        called: names_tests::as_it_is,
        forbidden: &[
            "cc",
            "bcc",
            "x-death",
            "x-delay",
            "x-delivery-count",
            "id",
            "content-type",
            "walpost.key",
            "walpost.topic",
            "walpost.tombstone",
        ],
        places: &[["a:header:CC", "a:header:x-tenant"]],
    };

    /// A record's message as a client reads it.
    fn read_back(record: &Record<'_>) -> Result<ReadBack, Refusal> {
        let target = Target {
            exchange: "o".to_owned(),
            template: "{topic}".parse().expect("a template"),
            dead_letters: "dead".to_owned(),
        };
        let message = target.message((Seq::new(1), names_tests::AT), record, 1 << 17)?;
        let (_, properties, _) = read(&message.frames);
        let table = properties.headers().as_ref().expect("headers").inner();
        let mut headers = Vec::new();
        for (name, value) in table {
            if let AMQPValue::LongString(text) = value {
                headers.push((name.to_string(), text.as_bytes().to_vec()));
            }
        }
        // It is a property, which a record has as a header.
        let property = properties.content_type().as_ref().map(ShortString::as_str);
        if let Some(property) = property {
            headers.push((TYPE.to_owned(), property.as_bytes().to_vec()));
        }
        let find = |wanted: &str| {
            let found = headers.iter().find(|(name, _)| name == wanted)?;
            Some(found.1.clone())
        };
        let id = properties.message_id().as_ref().map(|id| id.as_str().as_bytes().to_vec());
        let topic = String::from_utf8(find(TOPIC).expect("a topic")).expect("text");
        Ok(ReadBack { topic, key: find(KEY), id, headers })
    }

    #[test]
    fn message_has_the_record_and_its_position() {
        let record = record(&[("id", b"e-7"), ("a", b"\xff"), ("content-type", b"x/y")]);
        let built = message(&record, 4096).expect("a message");
        let ((exchange, routing_key), properties, bodies) = read(&built.frames);
        assert_eq!((exchange.as_str(), routing_key.as_str()), ("o", "orders.k"));
        assert_eq!(properties.content_type().as_ref().map(ShortString::as_str), Some("x/y"));
        assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some("e-7"));
        assert_eq!((*properties.delivery_mode(), *properties.timestamp()), (Some(2), Some(7)));
        assert_eq!(bodies, [b"{\"a\":1}"]);
        let headers = properties.headers().as_ref().expect("headers").inner();
        let header = |name: &str| headers.get(name).cloned();
        let text = |bytes: &[u8]| Some(AMQPValue::LongString(bytes.to_vec().into()));
        assert_eq!(header("a"), text(b"\xff"));
        assert_eq!(header("walpost.position"), text(b"00000000000000FF/00000001"));
        assert_eq!((header("walpost.topic"), header("walpost.key")), (text(b"orders"), text(b"k")));
        assert_eq!(header("walpost.timestamp"), Some(AMQPValue::LongLongInt(7005)));
        assert_eq!((header("walpost.tombstone"), header("content-type")), (None, None));
    }

    #[test]
    fn tombstone_has_no_content_and_letters_go_to_their_queue() {
        let gone = Record { value: None, key: None, topic: "dead", ..record(&[]) };
        let built = message(&gone, 4096).expect("a message");
        let ((exchange, routing_key), properties, bodies) = read(&built.frames);
        assert_eq!((exchange.as_str(), routing_key.as_str()), ("", "dead"));
        assert!(built.is_letter && bodies.is_empty() && properties.content_type().is_none());
        let id = properties.message_id().as_ref().map(|it| it.as_str().to_owned());
        assert_eq!(id.as_deref(), Some("00000000000000FF/00000001"));
    }

    #[test]
    fn large_payload_is_sent_in_several_frames() {
        let value = vec![b'x'; 10_000];
        let large = Record { value: Some(&value), ..record(&[]) };
        let (_, _, bodies) = read(&message(&large, 4096).expect("a message").frames);
        assert_eq!(bodies.iter().map(Vec::len).collect::<Vec<_>>(), [4088, 4088, 1824]);
        assert_eq!(bodies.concat(), value);
    }

    #[test]
    fn what_amqp_cannot_express_is_refused_with_a_reason() {
        let long = "n".repeat(256);
        for (headers, part) in [
            (vec![("id", &b""[..])], "its id is empty"),
            (vec![(long.as_str(), b"x")], "256 bytes, and AMQP allows 255"),
            (vec![("id", long.as_bytes())], "its id has 256 bytes"),
            (vec![("a", &[b'x'; 5000])], "frame_max"),
        ] {
            let refused = message(&record(&headers), 4096).expect_err(part);
            assert!(refused.reason.contains(part), "{}", refused.reason);
            assert_eq!(refused.ground, Ground::Other);
        }
        let refused = message(&Record { key: None, ..record(&[]) }, 4096).expect_err("no key");
        assert!(refused.reason.contains("has no key"), "{}", refused.reason);
        assert_eq!(too_large(7, 6).map(|refusal| refusal.ground), Some(Ground::Size));
        assert_eq!(too_large(6, 6), None);
    }
}
