//! The decoder with hand-written bytes, with an encoder, and with random bytes.

use bytes::Bytes;
use proptest::prelude::*;

use super::super::encode;
use super::super::message::{PgTimestamp, Value};
use super::*;
use crate::lsn::Lsn;

/// One message of each kind, written by hand from the protocol's specification.
fn golden() -> Vec<(&'static [u8], Message)> {
    let commit_time = PgTimestamp::from_micros(0x0002_B5A1_0000_0001);
    vec![
        (
            b"B\0\0\0\x16\xB3\x74\xD8\x48\0\x02\xB5\xA1\0\0\0\x01\0\0\x02\xF1",
            Message::Begin(Begin { commit_lsn: Lsn::new(0x16_B374_D848), commit_time, xid: 753 }),
        ),
        (
            b"C\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD8\x78\0\x02\xB5\xA1\0\0\0\x01",
            Message::Commit(Commit {
                commit_lsn: Lsn::new(0x16_B374_D848),
                end_lsn: Lsn::new(0x16_B374_D878),
                commit_time,
            }),
        ),
        (b"O\0\0\0\0\0\0\0\x2Anode\0", Message::Origin),
        (b"Y\0\0\x40\x01public\0mood\0", type_name(0x4001, "public", "mood")),
        (b"Y\0\0\x40\x01\0bytea\0", type_name(0x4001, "pg_catalog", "bytea")),
        (
            b"R\0\0\x40\x02public\0outbox\0d\0\x02\
              \x01id\0\0\0\x0B\x86\xFF\xFF\xFF\xFF\0payload\0\0\0\x0E\xDA\0\0\0\x18",
            Message::Relation(Relation {
                oid: 0x4002,
                schema: "public".to_owned(),
                name: "outbox".to_owned(),
                columns: vec![
                    Column { name: "id".to_owned(), type_oid: 2950, type_modifier: -1 },
                    Column { name: "payload".to_owned(), type_oid: 3802, type_modifier: 24 },
                ],
            }),
        ),
        (
            b"I\0\0\x40\x02N\0\x03t\0\0\0\x0242nb\0\0\0\x01\xFF",
            Message::Insert(Insert {
                relation: 0x4002,
                tuple: encode::tuple(&[Value::Text(b"42"), Value::Null, Value::Binary(b"\xFF")]),
            }),
        ),
        (b"U\0\0\x40\x02N\0\x02t\0\0\0\x0242u", Message::Update(0x4002)),
        (b"U\0\0\x40\x02K\0\x01t\0\0\0\x0241N\0\x01t\0\0\0\x0242", Message::Update(0x4002)),
        (b"U\0\0\x40\x02O\0\x01nN\0\x01n", Message::Update(0x4002)),
        (b"D\0\0\x40\x02K\0\x01t\0\0\0\x0242", Message::Delete(0x4002)),
        (b"D\0\0\x40\x02O\0\x01n", Message::Delete(0x4002)),
        (b"T\0\0\0\x02\x03\0\0\x40\x02\0\0\x40\x03", Message::Truncate(vec![0x4002, 0x4003])),
        (
            b"M\x01\0\0\0\0\0\0\x01\x02outbox\0\0\0\0\x02{}",
            Message::Logical(LogicalMessage {
                transactional: true,
                lsn: Lsn::new(0x102),
                prefix: "outbox".to_owned(),
                content: Bytes::from_static(b"{}"),
            }),
        ),
    ]
}

#[test]
fn each_message_is_decoded_from_its_bytes() {
    for (bytes, message) in golden() {
        assert_eq!(decode(&Bytes::from_static(bytes)), Ok(message));
    }
}

#[test]
fn a_message_truncated_at_any_length_is_rejected() {
    for (bytes, message) in golden() {
        for length in 0..bytes.len() {
            let cut = decode(&Bytes::from_static(&bytes[..length]));
            assert!(
                matches!(cut, Err(DecodeError::Short { .. } | DecodeError::Unterminated { .. })),
                "{message:?} cut at {length}: {cut:?}"
            );
        }
    }
}

#[test]
fn a_byte_after_the_end_is_rejected() {
    for (bytes, _) in golden() {
        let longer: Bytes = bytes.iter().copied().chain([0]).collect();
        let trailing = DecodeError::Trailing { offset: bytes.len(), left: 1 };
        assert_eq!(decode(&longer), Err(trailing));
    }
}

#[test]
fn a_changed_byte_anywhere_yields_a_message_or_an_error() {
    for (bytes, _) in golden() {
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let mut changed = bytes.to_vec();
                changed[at] = value;
                read_all(&Bytes::from(changed));
            }
        }
    }
}

#[test]
fn an_unknown_tag_is_named() {
    // Stream Start: a message of protocol version 2.
    assert_eq!(decode(&Bytes::from_static(b"S\0\0\0\x01\x01")), Err(DecodeError::UnknownTag(b'S')));
    assert!(DecodeError::UnknownTag(b'S').to_string().contains("0x53"));
}

#[test]
fn bytes_that_the_protocol_does_not_allow_are_named() {
    let unexpected = |bytes: &'static [u8]| match decode(&Bytes::from_static(bytes)) {
        Err(DecodeError::Unexpected { found, offset, .. }) => (found, offset),
        other => panic!("{other:?}"),
    };
    assert_eq!(unexpected(b"I\0\0\0\x01O"), (b'O', 5));
    assert_eq!(unexpected(b"I\0\0\0\x01N\0\x01x"), (b'x', 8));
    assert_eq!(unexpected(b"D\0\0\0\x01N"), (b'N', 5));
    assert_eq!(unexpected(b"U\0\0\0\x01K\0\0K"), (b'K', 8));
    assert_eq!(unexpected(b"C\x01"), (1, 1));
}

#[test]
fn the_empty_schema_is_pg_catalog() {
    let message = decode(&Bytes::from_static(b"R\0\0\0\x01\0pg_class\0n\0\0"));
    assert!(
        matches!(message, Ok(Message::Relation(Relation { schema, .. })) if schema == "pg_catalog")
    );
}

#[test]
fn a_column_name_that_is_not_utf_8_is_rejected() {
    let bytes = b"R\0\0\0\x01s\0t\0d\0\x01\0\xFFd\0\0\0\0\x17\xFF\xFF\xFF\xFF";
    assert_eq!(decode(&Bytes::from_static(bytes)), Err(DecodeError::NotUtf8 { offset: 13 }));
}

#[test]
fn a_count_reserves_no_more_than_the_message_contains() {
    // 65,535 columns, four billion relations: and nothing after the counts.
    let relation = b"R\0\0\0\x01s\0t\0d\xFF\xFF\0a\0\0\0\0\x17\xFF\xFF\xFF\xFF";
    let truncate = b"T\xFF\xFF\xFF\xFF\0\0\0\0\x01";
    let insert = b"I\0\0\0\x01N\xFF\xFFn";
    for bytes in [&relation[..], truncate, insert] {
        let short = decode(&Bytes::copy_from_slice(bytes));
        assert!(matches!(short, Err(DecodeError::Short { .. })), "{short:?}");
    }
}

#[test]
fn postgresqls_timestamps_are_counted_from_2000() {
    assert_eq!(PgTimestamp::from_micros(0).unix_millis(), 946_684_800_000);
    assert_eq!(PgTimestamp::from_micros(-1).unix_millis(), 946_684_799_999);
    assert_eq!(PgTimestamp::from_micros(1_999).unix_millis(), 946_684_800_001);
    for extreme in [i64::MIN, i64::MAX] {
        PgTimestamp::from_micros(extreme).unix_millis();
    }
}

/// Decodes, and reads all parts of the result.
fn read_all(bytes: &Bytes) {
    if let Ok(Message::Insert(insert)) = decode(bytes) {
        assert_eq!(insert.tuple.iter().count(), insert.tuple.len());
    }
}

fn a_name() -> impl Strategy<Value = String> {
    "[^\0]{1,8}"
}

fn a_tuple() -> impl Strategy<Value = Tuple> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
    let value = prop_oneof![
        Just((b'n', Vec::new())),
        Just((b'u', Vec::new())),
        bytes().prop_map(|bytes| (b't', bytes)),
        bytes().prop_map(|bytes| (b'b', bytes)),
    ];
    proptest::collection::vec(value, 0..10).prop_map(|values| {
        let values: Vec<_> = values
            .iter()
            .map(|(kind, bytes)| match kind {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => Value::Text(bytes),
                _ => Value::Binary(bytes),
            })
            .collect();
        encode::tuple(&values)
    })
}

fn type_name(oid: Oid, base_schema: &str, base_name: &str) -> Message {
    let (base_schema, base_name) = (base_schema.to_owned(), base_name.to_owned());
    Message::Type(TypeName { oid, base_schema, base_name })
}

fn a_message() -> impl Strategy<Value = Message> {
    let column = (a_name(), any::<u32>(), any::<i32>())
        .prop_map(|(name, type_oid, type_modifier)| Column { name, type_oid, type_modifier });
    let columns = proptest::collection::vec(column, 0..6);
    prop_oneof![
        (any::<u64>(), any::<i64>(), any::<u32>()).prop_map(|(lsn, micros, xid)| {
            let commit_time = PgTimestamp::from_micros(micros);
            Message::Begin(Begin { commit_lsn: Lsn::new(lsn), commit_time, xid })
        }),
        (any::<u64>(), any::<u64>(), any::<i64>()).prop_map(|(commit, end, micros)| {
            Message::Commit(Commit {
                commit_lsn: Lsn::new(commit),
                end_lsn: Lsn::new(end),
                commit_time: PgTimestamp::from_micros(micros),
            })
        }),
        Just(Message::Origin),
        (any::<u32>(), a_name(), a_name())
            .prop_map(|(oid, schema, name)| type_name(oid, &schema, &name)),
        (any::<u32>(), a_name(), a_name(), columns).prop_map(|(oid, schema, name, columns)| {
            Message::Relation(Relation { oid, schema, name, columns })
        }),
        (any::<u32>(), a_tuple())
            .prop_map(|(relation, tuple)| Message::Insert(Insert { relation, tuple })),
        any::<u32>().prop_map(Message::Update),
        any::<u32>().prop_map(Message::Delete),
        proptest::collection::vec(any::<u32>(), 0..5).prop_map(Message::Truncate),
        (any::<bool>(), any::<u64>(), "[^\0]{0,8}", proptest::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(transactional, lsn, prefix, content)| {
                let (lsn, content) = (Lsn::new(lsn), Bytes::from(content));
                Message::Logical(LogicalMessage { transactional, lsn, prefix, content })
            }),
    ]
}

proptest! {
    #[test]
    fn an_encoded_message_is_decoded_to_the_same_message(message in a_message()) {
        prop_assert_eq!(decode(&encode::message(&message)), Ok(message));
    }

    #[test]
    fn any_bytes_yield_a_message_or_an_error(
        tag in proptest::sample::select(b"BCORYIUDTM\0S".to_vec()),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        read_all(&Bytes::from(bytes.clone()));
        read_all(&[vec![tag], bytes].concat().into());
    }

    #[test]
    fn a_partially_overwritten_message_yields_a_message_or_an_error(
        message in a_message(), at: prop::sample::Index, junk: [u8; 4],
    ) {
        let mut bytes = encode::message(&message).to_vec();
        let at = at.index(bytes.len());
        for (byte, junk) in bytes[at..].iter_mut().zip(junk) {
            *byte = junk;
        }
        read_all(&Bytes::from(bytes));
    }
}
