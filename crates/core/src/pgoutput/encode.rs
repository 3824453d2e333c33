//! The server's side of the protocol, for tests: messages to bytes.
//!
//! Fields that [`Message`] does not keep have plausible values.

use bytes::{BufMut, Bytes, BytesMut};

use super::message::{Message, Oid, Tuple, Value};

/// A tuple of these values.
pub fn tuple(values: &[Value<'_>]) -> Tuple {
    let mut out = BytesMut::new();
    for value in values {
        match value {
            Value::Null => out.put_u8(b'n'),
            Value::Unchanged => out.put_u8(b'u'),
            Value::Text(text) => counted(&mut out, b't', text),
            Value::Binary(bytes) => counted(&mut out, b'b', bytes),
        }
    }
    let columns = u16::try_from(values.len()).expect("tests make few columns");
    Tuple { columns, bytes: out.freeze() }
}

/// A tuple of texts; `None` is NULL.
pub fn texts(values: &[Option<&str>]) -> Tuple {
    Tuple::of_texts(values.iter().copied())
}

/// The bytes of a message, as PostgreSQL would send it.
pub fn message(message: &Message) -> Bytes {
    let mut out = BytesMut::new();
    match message {
        Message::Begin(begin) => {
            out.put_u8(b'B');
            out.put_u64(begin.commit_lsn.as_u64());
            out.put_i64(begin.commit_time.micros());
            out.put_u32(begin.xid);
        }
        Message::Commit(commit) => {
            out.put_slice(b"C\0");
            out.put_u64(commit.commit_lsn.as_u64());
            out.put_u64(commit.end_lsn.as_u64());
            out.put_i64(commit.commit_time.micros());
        }
        Message::Origin => out.put_slice(b"O\0\0\0\0\0\0\0\x01elsewhere\0"),
        Message::Type(found) => {
            out.put_u8(b'Y');
            out.put_u32(found.oid);
            string(&mut out, &found.base_schema);
            string(&mut out, &found.base_name);
        }
        Message::Relation(relation) => {
            out.put_u8(b'R');
            out.put_u32(relation.oid);
            string(&mut out, &relation.schema);
            string(&mut out, &relation.name);
            out.put_u8(b'd');
            out.put_u16(u16::try_from(relation.columns.len()).expect("tests make few columns"));
            for column in &relation.columns {
                out.put_u8(0);
                string(&mut out, &column.name);
                out.put_u32(column.type_oid);
                out.put_i32(column.type_modifier);
            }
        }
        Message::Insert(insert) => row(&mut out, b'I', insert.relation, &[(b'N', &insert.tuple)]),
        Message::Update(relation) => {
            let (old, new) = (texts(&[Some("1")]), texts(&[Some("1"), None]));
            row(&mut out, b'U', *relation, &[(b'K', &old), (b'N', &new)]);
        }
        Message::Delete(relation) => {
            row(&mut out, b'D', *relation, &[(b'O', &texts(&[Some("1")]))]);
        }
        Message::Truncate(relations) => {
            out.put_u8(b'T');
            out.put_u32(u32::try_from(relations.len()).expect("tests make few relations"));
            out.put_u8(0);
            for &relation in relations {
                out.put_u32(relation);
            }
        }
        Message::Logical(message) => {
            out.put_slice(&[b'M', u8::from(message.transactional)]);
            out.put_u64(message.lsn.as_u64());
            string(&mut out, &message.prefix);
            out.put_u32(u32::try_from(message.content.len()).expect("tests make small messages"));
            out.put_slice(&message.content);
        }
    }
    out.freeze()
}

fn row(out: &mut BytesMut, tag: u8, relation: Oid, tuples: &[(u8, &Tuple)]) {
    out.put_u8(tag);
    out.put_u32(relation);
    for (kind, tuple) in tuples {
        out.put_u8(*kind);
        out.put_u16(tuple.columns);
        out.put_slice(&tuple.bytes);
    }
}

fn counted(out: &mut BytesMut, tag: u8, bytes: &[u8]) {
    out.put_u8(tag);
    out.put_u32(u32::try_from(bytes.len()).expect("tests make small values"));
    out.put_slice(bytes);
}

fn string(out: &mut BytesMut, text: &str) {
    out.put_slice(text.as_bytes());
    out.put_u8(0);
}
