//! A message: the body, attributes, group and deduplication id of a record.
//!
//! Bodies and the values of attributes are text, of the characters that XML 1.0 has, and are never
//! empty. A message has ten attributes at most. So headers that cannot be attributes, and those
//! beyond the tenth, are in one attribute together
//! (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html>).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::config::QueueKind;
use crate::destination::parts::message_id::{Writer, hash, hexadecimal};
use crate::outlet::{Ground, Refusal};
use crate::position::EventPosition;
use crate::record::{Names, Record, Spelling};

/// Attributes by which Amazon's own client libraries tell what the body is: the place of a payload
/// in S3, or an object to deserialise
/// (<https://github.com/awslabs/amazon-sqs-java-extended-client-lib>,
/// <https://github.com/awslabs/amazon-sqs-java-messaging-lib>).
pub(crate) const NAMES: Names = Names {
    spelling: Spelling::AsIs,
    own: &["extendedpayloadsize", "jms_sqs*", "sqslargepayloadsize"],
    guarded: &[],
    may_repeat: false,
    // Others are not attributes.
    can_be: |_| true,
    value_can_be: |_| true,
};

/// How many attributes a message can have.
const ATTRIBUTES_MAX: usize = 10;

/// How long the name of an attribute, and of a group, can be.
const NAME_MAX: usize = 256;
const GROUP_MAX: usize = 128;

/// The type of all attributes: its name counts towards the size of a message.
pub(super) const TEXT_TYPE: &str = "String";

const TOPIC: &str = "walpost.topic";
pub(super) const KEY: &str = "walpost.key";
/// A key that is not text.
pub(super) const KEY_BASE64: &str = "walpost.key.base64";
const TIMESTAMP: &str = "walpost.timestamp";
/// What the value is, where the body is not the value itself.
pub(super) const BODY: &str = "walpost.body";
/// Headers that are not attributes: pairs of name and value, in JSON.
pub(super) const HEADERS: &str = "walpost.headers";

/// The body where there is no value, or an empty one.
const NO_VALUE: &str = "null";

/// A message that can be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) group: String,
    pub(super) deduplication_id: String,
    pub(super) body: String,
    /// The attributes by name.
    pub(super) attributes: Vec<(String, String)>,
    /// The size of body and attributes, as SQS counts it.
    pub(super) bytes: usize,
}

/// What a queue takes: the size of a message in bytes, its `MaximumMessageSize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) bytes: u64,
}

impl Message {
    /// The message of the record of the event at `position`.
    pub(super) fn new(
        record: &Record<'_>,
        position: EventPosition,
        writer: &Writer,
        kind: QueueKind,
    ) -> Result<Self, Refusal> {
        let refused = |reason| Refusal { ground: Ground::Other, may_pass: false, reason };
        let (body, stands_for) = body(record.value, kind).map_err(refused)?;
        let mut attributes = own_attributes(record);
        attributes.extend(stands_for.map(|text| (BODY.to_owned(), text.to_owned())));
        add_headers(record, kind, &mut attributes).map_err(refused)?;
        let size = |(name, value): &(String, String)| name.len() + TEXT_TYPE.len() + value.len();
        let bytes = body.len() + attributes.iter().map(size).sum::<usize>();
        let id = writer.id(position);
        let deduplication_id = format!("{id}-{}", content(&body, &attributes));
        let group = group(record.key, position);
        Ok(Self { group, deduplication_id, body: body.into_owned(), attributes, bytes })
    }
}

/// The group of a key: the key itself, if it can be one; else its hash. Events without a key have no
/// order among each other: each has a group of its own.
fn group(key: Option<&[u8]>, position: EventPosition) -> String {
    let Some(key) = key else { return format!("nokey-{position}") };
    let is_group = (1..=GROUP_MAX).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(key) {
        Ok(text) if is_group => text.to_owned(),
        _ => hexadecimal(&Sha256::digest(key)),
    }
}

/// A hash of all that a message says. A server that was restored can have another event at the same
/// position, and SQS would take its message for a duplicate.
fn content(body: &str, attributes: &[(String, String)]) -> String {
    let mut digest = Sha256::new();
    let texts = attributes.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
    for text in std::iter::once(body).chain(texts) {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    }
    hash(digest)
}

/// The body, and what the value is if the body is not the value.
fn body(
    value: Option<&[u8]>,
    kind: QueueKind,
) -> Result<(Cow<'_, str>, Option<&'static str>), String> {
    let value = match value {
        None => return Ok((NO_VALUE.into(), Some("tombstone"))),
        Some(b"") => return Ok((NO_VALUE.into(), Some("empty"))),
        Some(value) => value,
    };
    let reason = match std::str::from_utf8(value) {
        Err(_) => "its payload is not text".to_owned(),
        Ok(text) => match text.chars().find(|sign| !is_allowed(*sign)) {
            None => return Ok((text.into(), None)),
            Some(sign) => format!("its payload has the character U+{:04X}", u32::from(sign)),
        },
    };
    // A dead letter has the payload of its event, whatever that is.
    if kind == QueueKind::DeadLetters {
        return Ok((STANDARD.encode(value).into(), Some("base64")));
    }
    Err(format!(
        "{reason}, which a message of SQS cannot have: let the writer encode the payload, for \
         instance in base64"
    ))
}

/// Whether text of SQS can have it: `#x9 | #xA | #xD | #x20-#xD7FF | #xE000-#xFFFD | #x10000-#x10FFFF`.
fn is_allowed(sign: char) -> bool {
    !matches!(sign, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

fn own_attributes(record: &Record<'_>) -> Vec<(String, String)> {
    let mut attributes = Vec::with_capacity(ATTRIBUTES_MAX);
    attributes.push((TOPIC.to_owned(), record.topic.to_owned()));
    // No attribute can be empty.
    if let Some(key) = record.key.filter(|key| !key.is_empty()) {
        attributes.push(match std::str::from_utf8(key) {
            Ok(text) if text.chars().all(is_allowed) => (KEY.to_owned(), text.to_owned()),
            _ => (KEY_BASE64.to_owned(), STANDARD.encode(key)),
        });
    }
    if let Some(timestamp) = record.timestamp_ms {
        attributes.push((TIMESTAMP.to_owned(), timestamp.to_string()));
    }
    attributes
}

/// Adds the headers: as attributes those that can be, while there is room; the others together.
fn add_headers(
    record: &Record<'_>,
    kind: QueueKind,
    attributes: &mut Vec<(String, String)>,
) -> Result<(), String> {
    let mut headers = Vec::with_capacity(record.headers.len());
    for header in &record.headers {
        let Some(value) = &header.value else { continue };
        let value = String::from_utf8_lossy(value);
        // Those of a dead letter quote the event.
        if matches!(value, Cow::Owned(_)) && kind == QueueKind::Events {
            let name = crate::excerpt::excerpt(&header.name);
            return Err(format!(
                "its header `{name}` is not text, and SQS takes no other: let the writer encode it, \
                 or leave headers out by record.headers"
            ));
        }
        headers.push((&*header.name, value));
    }
    let is_repeated = |at: usize| headers[..at].iter().any(|(name, _)| *name == headers[at].0);
    let can_be: Vec<bool> = headers
        .iter()
        .enumerate()
        .map(|(at, (name, value))| is_attribute(name, value) && !is_repeated(at))
        .collect();
    let room = ATTRIBUTES_MAX - attributes.len();
    let is_all = headers.len() <= room && can_be.iter().all(|can_be| *can_be);
    // The others need one.
    let mut room = if is_all { room } else { room - 1 };
    let mut others = Vec::new();
    for (header, can_be) in headers.iter().zip(can_be) {
        if can_be && room > 0 {
            attributes.push((header.0.to_owned(), header.1.clone().into_owned()));
            room -= 1;
        } else {
            others.push(header);
        }
    }
    if !others.is_empty() {
        let text = serde_json::to_string(&others).map_err(|error| error.to_string())?;
        // JSON escapes the other characters that are not allowed.
        let text = text.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff");
        attributes.push((HEADERS.to_owned(), text));
    }
    Ok(())
}

/// Whether SQS accepts a header as an attribute that no one else has.
fn is_attribute(name: &str, value: &str) -> bool {
    let is_sign = |sign: u8| sign.is_ascii_alphanumeric() || b"_-.".contains(&sign);
    let lower = name.to_ascii_lowercase();
    let is_reserved = ["aws.", "amazon."].iter().any(|prefix| lower.starts_with(prefix))
        || [TOPIC, KEY, KEY_BASE64, TIMESTAMP, BODY, HEADERS].contains(&name);
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(is_sign)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !is_reserved
        && !value.is_empty()
        && value.chars().all(is_allowed)
}

/// Why a message of so many bytes cannot be sent.
pub(super) fn too_large(bytes: u64, limits: Limits) -> Option<Refusal> {
    let reason = || {
        format!(
            "its {bytes} bytes, with attributes, are more than the queue accepts ({} by \
             MaximumMessageSize): raise that, or publish smaller events",
            limits.bytes
        )
    };
    let refusal = || Refusal { ground: Ground::Size, may_pass: false, reason: reason() };
    (bytes > limits.bytes).then(refusal)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::destination::names_tests::{self, ReadBack, Sample};
    use crate::lsn::Lsn;
    use crate::record::{Header, Headers};

    const AT: EventPosition = EventPosition { commit_lsn: Lsn::new(0x1F), ordinal: 2 };

    fn record<'a>(key: &'a [u8], value: &'a [u8], headers: &[(&'a str, &'a [u8])]) -> Record<'a> {
        let header = |(name, value): &(&'a str, &'a [u8])| Header {
            name: Cow::Borrowed(*name),
            value: Some(Cow::Borrowed(*value)),
        };
        Record {
            topic: "t",
            partition: None,
            key: Some(key),
            value: Some(value),
            timestamp_ms: Some(5),
            headers: headers.iter().map(header).collect::<Headers<'_>>(),
        }
    }

    fn of(record: &Record<'_>, kind: QueueKind) -> Result<Message, Refusal> {
        Message::new(record, AT, &Writer::without_generation("o"), kind)
    }

    fn event(record: &Record<'_>) -> Message {
        of(record, QueueKind::Events).expect("a message")
    }

    pub(crate) const SAMPLE: Sample = Sample {
        read_back,
        called: names_tests::as_it_is,
        forbidden: &[
            "extendedpayloadsize",
            "sqslargepayloadsize",
            "jms_sqsmessagetype",
            "walpost.key",
            "walpost.topic",
            "walpost.body",
            "walpost.headers",
        ],
        places: &[["a:header:JMS_SQSMessageType", "a:header:AWS.x"]],
    };

    /// A record's message as a client reads it.
    fn read_back(record: &Record<'_>) -> Result<ReadBack, Refusal> {
        let message = of(record, QueueKind::Events)?;
        let others: Vec<(String, String)> = attribute(&message, HEADERS)
            .map_or_else(Vec::new, |text| serde_json::from_str(text).expect("pairs"));
        let topic = attribute(&message, TOPIC).expect("a topic").to_owned();
        let encoded = attribute(&message, KEY_BASE64).map(|text| STANDARD.decode(text));
        let key = attribute(&message, KEY).map(|text| text.as_bytes().to_vec());
        let key = key.or(encoded.map(|key| key.expect("base64")));
        let all = message.attributes.into_iter().filter(|(name, _)| name != HEADERS).chain(others);
        let headers = all.map(|(name, value)| (name, value.into_bytes())).collect();
        Ok(ReadBack { topic, key, id: None, headers })
    }

    fn attribute<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
        let found = message.attributes.iter().find(|(one, _)| one == name);
        found.map(|(_, value)| value.as_str())
    }

    #[test]
    fn message_has_key_topic_timestamp_and_headers() {
        let built = event(&record(b"k", b"{}", &[("id", b"7"), ("event_type", b"placed")]));
        let expected = [
            ("walpost.topic", "t"),
            ("walpost.key", "k"),
            ("walpost.timestamp", "5"),
            ("id", "7"),
            ("event_type", "placed"),
        ];
        let found: Vec<_> =
            built.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected);
        let size: usize = expected.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
        assert_eq!((built.group.as_str(), built.body.as_str(), built.bytes), ("k", "{}", size + 2));
        assert!(built.deduplication_id.contains("-000000000000001F/00000002-"));
    }

    #[test]
    fn group_is_the_key_or_its_hash() {
        let long = vec![b'x'; 129];
        for key in [&b"a b"[..], b"\xff", "\u{e9}".as_bytes(), b"", &long] {
            let built = event(&record(key, b"1", &[]));
            assert_eq!(built.group, hexadecimal(&Sha256::digest(key)), "{key:?}");
        }
        assert_eq!(event(&record(&long[..128], b"1", &[])).group.len(), 128);
        assert_eq!(attribute(&event(&record(b"\xff", b"1", &[])), KEY_BASE64), Some("/w=="));
        assert_eq!(
            attribute(&event(&record("a b\u{e9}".as_bytes(), b"1", &[])), KEY),
            Some("a bé")
        );
        let without = Record { key: None, ..record(b"", b"1", &[]) };
        assert_eq!(event(&without).group, "nokey-000000000000001F/00000002");
    }

    #[test]
    fn what_sqs_takes_no_body_of_is_refused_and_in_a_dead_letter_encoded() {
        for (value, part) in [
            (&b"\xff"[..], "not text"),
            (b"a\0", "U+0000"),
            (b"\x1b[0m", "U+001B"),
            ("\u{ffff}".as_bytes(), "U+FFFF"),
        ] {
            let record = record(b"k", value, &[]);
            let refused = of(&record, QueueKind::Events).expect_err(part);
            assert!(refused.reason.contains(part), "{}", refused.reason);
            let letter = of(&record, QueueKind::DeadLetters).expect("a letter");
            assert_eq!(letter.body, STANDARD.encode(value));
            assert_eq!(attribute(&letter, BODY), Some("base64"));
        }
        for (value, stands_for) in [(None, "tombstone"), (Some(&b""[..]), "empty")] {
            let built = event(&Record { value, ..record(b"k", b"", &[]) });
            assert_eq!((built.body.as_str(), attribute(&built, BODY)), ("null", Some(stands_for)));
        }
        let with_header = record(b"k", b"1", &[("h", b"\xff")]);
        let refused = of(&with_header, QueueKind::Events).expect_err("no text");
        assert!(refused.reason.contains("header `h`"), "{}", refused.reason);
        let letter = of(&with_header, QueueKind::DeadLetters).expect("a letter");
        assert_eq!(attribute(&letter, "h"), Some("\u{fffd}"));
    }

    #[test]
    fn headers_that_are_no_attributes_are_in_one_attribute() {
        let odd: [(&str, &[u8]); 8] = [
            ("a b", b"1"),
            ("AWS.x", b"2"),
            (".x", b"3"),
            ("x..y", b"4"),
            ("empty", b""),
            ("control", b"\x01"),
            ("none", "\u{fffe}".as_bytes()),
            ("walpost.key", b"5"),
        ];
        let built = event(&record(b"k", b"1", &[odd.as_slice(), &[("good", b"6")]].concat()));
        assert_eq!(attribute(&built, "good"), Some("6"));
        let others = attribute(&built, HEADERS).expect("the others");
        assert!(others.chars().all(is_allowed), "{others}");
        let pairs: Vec<(String, String)> = serde_json::from_str(others).expect("JSON");
        let expected = odd.map(|(name, value)| {
            (name.to_owned(), String::from_utf8(value.to_vec()).expect("text"))
        });
        assert_eq!(pairs, expected);
        let twice = event(&record(b"k", b"1", &[("h", b"1"), ("h", b"2")]));
        assert_eq!(attribute(&twice, "h"), Some("1"));
        assert_eq!(attribute(&twice, HEADERS), Some(r#"[["h","2"]]"#));
    }

    #[test]
    fn ten_attributes_are_all_and_more_are_in_the_tenth() {
        let names: Vec<String> = (0..9).map(|number| format!("h{number}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), &b"1"[..])).collect();
        let seven = event(&record(b"k", b"1", &headers[..7]));
        assert_eq!((seven.attributes.len(), attribute(&seven, HEADERS)), (10, None));
        let eight = event(&record(b"k", b"1", &headers[..8]));
        assert_eq!(eight.attributes.len(), 10);
        assert_eq!(attribute(&eight, HEADERS), Some(r#"[["h6","1"],["h7","1"]]"#));
    }

    #[test]
    fn deduplication_id_tells_other_contents_at_the_same_position_apart() {
        let id = |value: &[u8], headers| event(&record(b"k", value, headers)).deduplication_id;
        let first = id(b"1", &[("id", b"7")]);
        assert_eq!(id(b"1", &[("id", b"7")]), first);
        assert_ne!(id(b"2", &[("id", b"7")]), first);
        assert_ne!(id(b"1", &[("id", b"8")]), first);
        assert_ne!(id(b"1", &[("i", b"d7")]), first);
        assert!(first.len() <= 128 && first.bytes().all(|byte| byte.is_ascii_graphic()));
    }

    #[test]
    fn size_is_limited_by_the_queue() {
        let limits = Limits { bytes: 10 };
        assert_eq!(too_large(10, limits), None);
        let refusal = too_large(11, limits).expect("too large");
        assert_eq!(refusal.ground, Ground::Size);
        assert!(refusal.reason.contains("11 bytes") && refusal.reason.contains("(10 by"));
    }

    proptest! {
        /// Whatever a record has, SQS accepts its message, or it is refused.
        #[test]
        fn a_message_has_only_what_sqs_accepts(
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..150)),
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
            headers in prop::collection::vec((any::<String>(), any::<String>()), 0..14),
            is_letter in any::<bool>(),
        ) {
            let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
            let base = record(b"", b"", &headers);
            let record = Record { key: key.as_deref(), value: value.as_deref(), ..base };
            let kind = if is_letter { QueueKind::DeadLetters } else { QueueKind::Events };
            let Ok(built) = of(&record, kind) else {
                prop_assert!(!is_letter);
                return Ok(());
            };
            let is_text = |text: &str| !text.is_empty() && text.chars().all(is_allowed);
            prop_assert!(is_text(&built.body));
            prop_assert!(built.attributes.len() <= 10);
            prop_assert!(built.attributes.iter().all(|(_, value)| is_text(value)));
            let mut names: Vec<_> = built.attributes.iter().map(|(name, _)| name).collect();
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), built.attributes.len());
            prop_assert!((1..=128).contains(&built.group.len()));
            prop_assert!(built.group.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
