//! A message: the subject, headers and payload of a record.
//!
//! Headers of NATS are lines of text, so a name or a value that is none cannot be sent. Rows do not
//! give the names of [`NAMES`].

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::subject::SubjectTemplate;
use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};
use crate::record::{Names, Record, Spelling};

/// The id by which a server recognises a message that it has stored already.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The stream that has to store it.
const STREAM: &str = "Nats-Expected-Stream";
/// The sequence number that the stream has to end at.
const LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";
/// The id of the message that the stream has to end with. Without it, a message of somebody else in
/// the place of one that was refused would let the next one pass.
const LAST_ID: &str = "Nats-Expected-Last-Msg-Id";

/// Names that begin with `Nats-` are orders to the server, to replace all messages of a subject for
/// instance. `Status` and `Description` are what the server's own messages about a consumer have:
/// clients take a message with them for one of these, and drop it.
pub(crate) const NAMES: Names = Names {
    spelling: Spelling::AsIs,
    own: &["description", "nats-*", "status"],
    guarded: &[],
    may_repeat: false,
    can_be: |name| (1..HEADERS_MAX).contains(&name.len()) && name.parse::<HeaderName>().is_ok(),
    // A header is a line of text.
    value_can_be: |value| !value.iter().any(|byte| matches!(byte, b'\r' | b'\n')),
};

pub(super) const KEY: &str = "walpost.key";
/// A key that cannot be a header: no text, with line breaks, or with white space at an end, which
/// clients remove.
pub(super) const KEY_BASE64: &str = "walpost.key.base64";
pub(super) const TOPIC: &str = "walpost.topic";
pub(super) const TIMESTAMP: &str = "walpost.timestamp";
pub(super) const TOMBSTONE: &str = "walpost.tombstone";

/// Bytes of the first and the last line of headers, and of each header beside name and value.
const HEADERS_BYTES: usize = 12;
const HEADER_BYTES: usize = 4;

/// A message that can be sent.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) seq: Seq,
    pub(super) subject: String,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
    /// The size of headers and payload, in bytes.
    pub(super) bytes: usize,
}

/// The size of a message's headers that JetStream stores, in bytes.
const HEADERS_MAX: usize = 65_535;

/// What a stream takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    /// The size of a message with its headers, in bytes, and the setting that it is from.
    pub(super) bytes: u64,
    pub(super) from: &'static str,
    /// Patterns of its subjects.
    pub(super) subjects: Vec<String>,
    /// Subjects to which the server has not let the user publish.
    pub(super) denied: Vec<String>,
}

/// The sequence number of a message, and its id if it was sent over the same connection.
type Previous<'a> = (u64, Option<&'a str>);

/// The subject and its maximum.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) stream: String,
    pub(super) template: SubjectTemplate,
    pub(super) dead_letters: String,
}

/// The headers of a message, with their size.
struct Head {
    headers: HeaderMap,
    bytes: usize,
}

impl Head {
    fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        let shown = || name.chars().take(100).collect::<String>();
        let Ok(header) = name.parse::<HeaderName>() else {
            return Err(format!(
                "its header {:?} has a name that NATS cannot send: use ASCII letters, digits and signs \
                 other than the colon",
                shown()
            ));
        };
        let Ok(content) = value.parse::<HeaderValue>() else {
            return Err(format!(
                "its header {:?} has a line break, which a header of NATS cannot have: put the text \
                 into the payload, or leave the header out (record.headers)",
                shown()
            ));
        };
        self.headers.append(header, content);
        self.bytes += name.len() + value.len() + HEADER_BYTES;
        Ok(())
    }
}

impl Target {
    /// The message of a record with this id, behind the stream's message `last`. `None`: behind whatever
    /// the stream has.
    pub(super) fn message(
        &self,
        (seq, record): (Seq, &Record<'_>),
        id: Option<&str>,
        last: Option<Previous<'_>>,
        limits: &Limits,
    ) -> Result<Message, Refusal> {
        let other = |reason| Refusal { ground: Ground::Other, may_pass: false, reason };
        let subject = self.subject(record).map_err(other)?;
        self.check_subject(&subject, limits)?;
        let mut head = Head { headers: HeaderMap::new(), bytes: HEADERS_BYTES };
        self.own_headers(record, (id, last, &subject), &mut head).map_err(other)?;
        let is_letter = record.topic == self.dead_letters;
        for header in &record.headers {
            let Some(value) = &header.value else { continue };
            let added = if is_letter {
                letter_header(&header.name, value, &mut head)
            } else {
                row_header(&header.name, value, &mut head)
            };
            added.map_err(other)?;
        }
        let payload = record.value.map_or_else(Bytes::new, Bytes::copy_from_slice);
        let bytes = head.bytes + payload.len();
        let refusal = headers_too_large(head.bytes).or_else(|| too_large(bytes as u64, limits));
        match refusal {
            Some(refusal) => Err(refusal),
            None => Ok(Message { seq, subject, headers: head.headers, payload, bytes }),
        }
    }

    /// Whether the stream has the subject, and the user may publish to it.
    fn check_subject(&self, subject: &str, limits: &Limits) -> Result<(), Refusal> {
        let reason = if !limits.subjects.iter().any(|pattern| super::covers(pattern, subject)) {
            format!(
                "stream {} does not take its subject `{subject}`: add it to the subjects of the \
                 stream (nats stream edit --subjects)",
                self.stream
            )
        } else if limits.denied.iter().any(|denied| denied == subject) {
            return Err(not_allowed(subject));
        } else {
            return Ok(());
        };
        Err(Refusal { ground: Ground::MissingTopic, may_pass: false, reason })
    }

    /// Dead letters have a subject of their own: the events in them may have no key.
    pub(super) fn subject(&self, record: &Record<'_>) -> Result<String, String> {
        if record.topic == self.dead_letters {
            return Ok(record.topic.to_owned());
        }
        self.template.render(record.topic, record.key)
    }

    fn own_headers(
        &self,
        record: &Record<'_>,
        (id, last, subject): (Option<&str>, Option<Previous<'_>>, &str),
        head: &mut Head,
    ) -> Result<(), String> {
        if let Some(id) = id {
            head.add(MESSAGE_ID, id)?;
        }
        head.add(STREAM, &self.stream)?;
        if let Some((seq, previous)) = last {
            head.add(LAST_SEQUENCE, &seq.to_string())?;
            if let Some(previous) = previous {
                head.add(LAST_ID, previous)?;
            }
        }
        if let Some(key) = record.key {
            match std::str::from_utf8(key) {
                Ok(text) if is_line(text) => head.add(KEY, text)?,
                _ => head.add(KEY_BASE64, &STANDARD.encode(key))?,
            }
        }
        if record.topic != subject {
            head.add(TOPIC, record.topic)?;
        }
        if record.value.is_none() {
            head.add(TOMBSTONE, "true")?;
        }
        if let Some(timestamp) = record.timestamp_ms {
            head.add(TIMESTAMP, &timestamp.to_string())?;
        }
        Ok(())
    }
}

fn row_header(name: &str, value: &[u8], head: &mut Head) -> Result<(), String> {
    if name.is_empty() {
        return Err("it has a header without a name".to_owned());
    }
    let text = std::str::from_utf8(value).map_err(|_| {
        let shown: String = name.chars().take(100).collect();
        format!("its header {shown:?} is not text, and cannot be a header of NATS")
    })?;
    head.add(name, text)
}

/// A header of a dead letter: all are walpost's own. What they quote of an event may have line
/// breaks, for which spaces stand.
fn letter_header(name: &str, value: &[u8], head: &mut Head) -> Result<(), String> {
    let text = String::from_utf8_lossy(value).replace(['\r', '\n'], " ");
    head.add(name, &text)
}

/// Whether a header has this text, and clients return it unchanged.
fn is_line(text: &str) -> bool {
    !text.contains(['\r', '\n']) && text.trim_ascii() == text
}

/// Why the user's rights keep a message out.
pub(super) fn not_allowed(subject: &str) -> Refusal {
    let reason = format!(
        "walpost's user may not publish to its subject `{subject}`: allow it in the permissions of \
         the user"
    );
    Refusal { ground: Ground::MissingTopic, may_pass: false, reason }
}

/// Why a message with so many bytes of headers cannot be stored.
fn headers_too_large(bytes: usize) -> Option<Refusal> {
    let reason = format!(
        "its headers, with its key, have {bytes} bytes, and NATS accepts {HEADERS_MAX}: shorten them, \
         or send fewer (record.headers)"
    );
    let refusal = Refusal { ground: Ground::Size, may_pass: false, reason };
    (bytes > HEADERS_MAX).then_some(refusal)
}

/// Why a message of so many bytes cannot be stored.
pub(super) fn too_large(bytes: u64, limits: &Limits) -> Option<Refusal> {
    let reason = || {
        format!(
            "its {bytes} bytes, with headers, are more than NATS accepts ({} by {}): raise that, or \
             publish smaller events",
            limits.bytes, limits.from
        )
    };
    let refusal = || Refusal { ground: Ground::Size, may_pass: false, reason: reason() };
    (bytes > limits.bytes).then(refusal)
}

#[cfg(test)]
pub(super) mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::destination::names_tests::{self, ReadBack, Sample};
    use crate::record::{Header, Headers};

    fn target(template: &str) -> Target {
        Target {
            stream: "s".to_owned(),
            template: template.parse().expect(template),
            dead_letters: "dead".to_owned(),
        }
    }

    fn limits() -> Limits {
        let subjects = vec!["shop.>".to_owned(), "dead".to_owned()];
        let denied = vec!["shop.secret".to_owned()];
        Limits { bytes: 400, from: "max_payload", subjects, denied }
    }

    fn record<'a>(topic: &'a str, headers: &[(&'a str, &'a [u8])]) -> Record<'a> {
        let header = |(name, value): &(&'a str, &'a [u8])| Header {
            name: Cow::Borrowed(*name),
            value: Some(Cow::Borrowed(*value)),
        };
        Record {
            topic,
            partition: None,
            key: Some(b"k"),
            value: Some(b"v"),
            timestamp_ms: Some(5),
            headers: headers.iter().map(header).collect::<Headers<'_>>(),
        }
    }

    fn message(template: &str, record: &Record<'_>) -> Result<Message, Refusal> {
        let of = target(template);
        of.message((Seq::new(1), record), Some("id"), Some((41, Some("di"))), &limits())
    }

    #[test]
    fn subject_that_cannot_be_published_to_is_a_missing_topic() {
        for topic in ["other", "shop.secret"] {
            let refusal = message("{topic}", &record(topic, &[])).expect_err(topic);
            assert_eq!(refusal.ground, Ground::MissingTopic, "{refusal:?}");
        }
    }

    #[test]
    fn headers_and_key_have_a_limit_of_their_own() {
        let limits = Limits { bytes: 1 << 20, ..limits() };
        let of = |length: usize| {
            let long = vec![b'x'; length];
            let record = record("shop.order", &[("a", &long)]);
            let built = target("{topic}").message(
                (Seq::new(1), &record),
                Some("id"),
                Some((41, None)),
                &limits,
            );
            built.map(|message| message.bytes)
        };
        let spare = HEADERS_MAX - of(0).expect("a message") + 1;
        assert_eq!(of(spare), Ok(HEADERS_MAX + 1), "with a payload of one byte");
        let refused = of(spare + 1);
        assert_eq!(refused.map_err(|refusal| refusal.ground), Err(Ground::Size));
    }

    pub(crate) const SAMPLE: Sample = Sample {
        read_back,
        called: names_tests::as_it_is,
        forbidden: &[
            "status",
            "description",
            "nats-msg-id",
            "nats-rollup",
            "nats-ttl",
            "nats-expected-stream",
            "walpost.key",
            "walpost.topic",
            "walpost.tombstone",
        ],
        places: &[["status:header", "status:header:state"]],
    };

    /// A record's message as a client reads it.
    fn read_back(record: &Record<'_>) -> Result<ReadBack, Refusal> {
        let subjects = vec!["eu.>".to_owned()];
        let limits = Limits { bytes: 1 << 20, from: "max_payload", subjects, denied: Vec::new() };
        let target = target("eu.{topic}");
        let message =
            target.message((Seq::new(1), record), Some("id"), Some((41, None)), &limits)?;
        let mut headers = Vec::new();
        for (name, values) in message.headers.iter() {
            for value in values {
                let value = value.as_str().trim();
                headers.push((name.to_string(), value.as_bytes().to_vec()));
            }
        }
        let find = |wanted: &str| {
            let found = headers.iter().find(|(name, _)| name == wanted)?;
            Some(found.1.clone())
        };
        let encoded = find(KEY_BASE64).map(|text| STANDARD.decode(text).expect("base64"));
        let topic = String::from_utf8(find(TOPIC).expect("a topic")).expect("text");
        Ok(ReadBack { topic, key: find(KEY).or(encoded), id: None, headers })
    }

    fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
        message.headers.get(name).map(HeaderValue::as_str)
    }

    #[test]
    fn message_has_key_timestamp_and_what_the_server_checks() {
        let built =
            message("{topic}.{key}", &record("shop.order", &[("a", b"1")])).expect("a message");
        assert_eq!((built.subject.as_str(), &*built.payload), ("shop.order.k", &b"v"[..]));
        for (name, value) in [
            ("Nats-Msg-Id", Some("id")),
            ("Nats-Expected-Stream", Some("s")),
            ("Nats-Expected-Last-Sequence", Some("41")),
            ("Nats-Expected-Last-Msg-Id", Some("di")),
            ("walpost.key", Some("k")),
            ("walpost.topic", Some("shop.order")),
            ("walpost.timestamp", Some("5")),
            ("walpost.tombstone", None),
            ("a", Some("1")),
        ] {
            assert_eq!(header(&built, name), value, "{name}");
        }
        let gone = Record { value: None, ..record("shop.order", &[]) };
        let built = message("{topic}", &gone).expect("a message");
        assert_eq!(header(&built, "walpost.tombstone"), Some("true"));
        assert_eq!(header(&built, "walpost.topic"), None, "it is the subject");
        for key in [&b"a\nb"[..], b" a", b"\xff"] {
            let record = Record { key: Some(key), ..record("shop.order", &[]) };
            let built = message("{topic}", &record).expect("a message");
            let encoded = STANDARD.encode(key);
            assert_eq!(header(&built, "walpost.key.base64"), Some(encoded.as_str()));
            assert_eq!(header(&built, "walpost.key"), None);
        }
        let broken = record("dead", &[("walpost.error", b"a\r\nb")]);
        let built = message("{topic}", &broken).expect("a letter");
        assert_eq!(header(&built, "walpost.error"), Some("a  b"));
        let letter = Record { key: None, ..record("dead", &[]) };
        assert_eq!(message("{topic}.{key}", &letter).expect("a letter").subject, "dead");
    }

    #[test]
    fn what_nats_cannot_send_is_refused_with_a_reason() {
        for (headers, part) in [
            (&[("a", &b"x\ny"[..])], "line break"),
            (&[("a", b"x\r")], "line break"),
            (&[("a", b"\xff")], "not text"),
            (&[("a b", b"")], "name that NATS cannot send"),
            (&[("a:b", b"")], "name that NATS cannot send"),
            (&[("\u{e9}", b"")], "name that NATS cannot send"),
            (&[("", b"")], "without a name"),
        ] {
            let refused = message("{topic}", &record("shop.order", headers)).expect_err(part);
            assert!(refused.reason.contains(part), "{}", refused.reason);
            assert_eq!(refused.ground, Ground::Other);
        }
        let other = message("{topic}", &record("other", &[])).expect_err("another stream's");
        assert!(other.reason.contains("does not take its subject `other`"), "{}", other.reason);
        let large = Record { value: Some(&[b'x'; 300]), ..record("shop.order", &[]) };
        let refused = message("{topic}", &large).expect_err("too large");
        assert_eq!(refused.ground, Ground::Size, "{}", refused.reason);
    }
}
