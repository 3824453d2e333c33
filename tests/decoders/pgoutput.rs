//! The recorded messages: complete, truncated, and with changed bytes.

use std::collections::BTreeSet;
use walpost::position::EventPosition;

use allocation_counter::measure;
use bytes::Bytes;
use walpost::Lsn;
use walpost::outbox::Outbox;
use walpost::pgoutput::{Column, DecodeError, Message, PgTimestamp, Relation, Value, decode};
use walpost::record::Router;

use crate::fuzz::of_the_recording;
use crate::recorded;

/// Bytes of a column in a Relation message at least.
const COLUMN_BYTES_MIN: usize = 10;

/// Memory that a message may take next to its own bytes, in bytes.
const BASE_BYTES: u64 = 64;

#[test]
fn recordings_cover_every_message_and_value_kind() {
    for major in recorded::MAJORS {
        let messages = recorded::of_major(major);
        let tags: BTreeSet<u8> = messages.iter().map(|bytes| bytes[0]).collect();
        assert_eq!(tags, BTreeSet::from(*b"BCDIMORTUY"), "{major}");
        let tuples = |tag| -> BTreeSet<u8> {
            messages.iter().filter(|bytes| bytes[0] == tag).map(|bytes| bytes[5]).collect()
        };
        assert_eq!(tuples(b'U'), BTreeSet::from(*b"KNO"), "{major}");
        assert_eq!(tuples(b'D'), BTreeSet::from(*b"KO"), "{major}");
        let transactional: BTreeSet<u8> =
            messages.iter().filter(|bytes| bytes[0] == b'M').map(|bytes| bytes[1]).collect();
        assert_eq!(transactional, BTreeSet::from([0, 1]), "{major}");
        assert!(messages.iter().any(|bytes| bytes[0] == b'U' && bytes.last() == Some(&b'u')));

        let mut kinds = BTreeSet::new();
        let mut widest = 0;
        for bytes in &messages {
            if let Message::Insert(insert) = decoded(bytes) {
                kinds.extend(insert.tuple.iter().map(|value| match value {
                    Value::Null => "null",
                    Value::Unchanged => "unchanged",
                    Value::Text(b"") => "empty text",
                    Value::Text(_) => "text",
                    Value::Binary(b"") => "empty binary",
                    Value::Binary(_) => "binary",
                }));
                widest = widest.max(bytes.len());
            }
        }
        let all = ["binary", "empty binary", "empty text", "null", "text"];
        assert_eq!(kinds, BTreeSet::from(all), "{major}");
        assert!(widest > 2000, "{major}: {widest} bytes");
    }
}

#[test]
fn truncated_message_is_rejected() {
    for bytes in recorded::MAJORS.into_iter().flat_map(recorded::of_major) {
        for length in 0..bytes.len() {
            let cut = within_bounds(&bytes.slice(..length));
            assert!(
                matches!(cut, Err(DecodeError::Short { .. } | DecodeError::Unterminated { .. })),
                "{bytes:?} cut at {length}: {cut:?}"
            );
        }
        let longer = Bytes::from([&bytes[..], b"\0"].concat());
        assert!(matches!(within_bounds(&longer), Err(DecodeError::Trailing { left: 1, .. })));
    }
}

#[test]
fn message_with_a_changed_byte_gives_a_record_or_an_error() {
    let mut records = 0;
    for major in recorded::MAJORS {
        let mut rig = Rig::new();
        for bytes in recorded::of_major(major) {
            let mut changed = bytes.to_vec();
            for (at, &byte) in bytes.iter().enumerate() {
                let one_bit = 1 << (at % 7);
                for value in [
                    0,
                    0xFF,
                    byte.wrapping_add(1),
                    byte.wrapping_sub(1),
                    byte ^ 0x80,
                    byte ^ one_bit,
                ] {
                    changed[at] = value;
                    if let Ok(message) = within_bounds(&Bytes::copy_from_slice(&changed)) {
                        records += rig.publish(&message);
                    }
                }
                changed[at] = byte;
            }
            let message = decoded(&bytes);
            if let Message::Relation(relation) = &message {
                rig.relations.push(relation.clone());
            }
            rig.reset();
            rig.publish(&message);
        }
    }
    assert!(records > 10_000, "too few got as far as that: {records}");
}

fn decoded(bytes: &Bytes) -> Message {
    within_bounds(bytes).unwrap_or_else(|error| panic!("{bytes:?}: {error}"))
}

/// Decodes, and sees that it takes at no time more memory than the bytes that
/// are there account for: a Relation's columns more than stands on the wire.
fn within_bounds(bytes: &Bytes) -> Result<Message, DecodeError> {
    let mut decoded = None;
    let used = measure(|| decoded = Some(decode(bytes))).bytes_max;
    let mut allowed = bytes.len();
    if bytes.first() == Some(&b'R') {
        allowed += bytes.len() / COLUMN_BYTES_MIN * size_of::<Column>();
    }
    assert!(
        used <= allowed as u64 + BASE_BYTES,
        "{used} bytes for the {} of {bytes:?}",
        bytes.len()
    );
    decoded.expect("it was called")
}

/// An outbox and a router that know the relations that came.
struct Rig {
    relations: Vec<Relation>,
    outbox: Outbox,
    router: Router,
}

impl Rig {
    fn new() -> Self {
        let (outbox, router) = of_the_recording();
        Self { relations: Vec::new(), outbox, router }
    }

    /// Forgets the relations that were changed.
    fn reset(&mut self) {
        self.outbox.forget();
        for relation in &self.relations {
            self.outbox.relation(relation).expect("as PostgreSQL sent it, it serves");
        }
    }

    /// How many records came of the message: one or none.
    fn publish(&mut self, message: &Message) -> usize {
        let position = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
        let commit_time = PgTimestamp::default();
        let event = match message {
            Message::Relation(relation) => {
                let _ = self.outbox.relation(relation);
                None
            }
            Message::Insert(insert) => self.outbox.event(insert, position, commit_time),
            Message::Logical(logical) => self.outbox.message_event(logical, position, commit_time),
            _ => None,
        };
        let event = event.and_then(Result::ok);
        event.map_or(0, |event| usize::from(self.router.route(&event).is_ok()))
    }
}
