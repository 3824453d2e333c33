//! Decodes one message: bytes to [`Message`].
//!
//! Protocol version 1 as specified in
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>, without
//! streaming of in-progress transactions. Every message is read to its end and checked, even if
//! little of it is kept.

use bytes::Bytes;

use super::message::{
    Begin, Column, Commit, Insert, LogicalMessage, Message, Oid, Relation, Tuple, TypeName,
};
use super::reader::{DecodeError, Reader};

/// The minimum bytes of a column in a Relation: flags, the zero byte of its name, type and type
/// modifier.
const COLUMN_BYTES_MIN: usize = 1 + 1 + 4 + 4;

/// Decodes one message of the output plugin.
///
/// The result borrows nothing but shares `bytes`: a tuple and a logical message's content are
/// slices of it. Any input yields `Ok` or `Err`; memory is reserved for bytes that are present, not
/// for an announced count.
pub fn decode(bytes: &Bytes) -> Result<Message, DecodeError> {
    let mut reader = Reader::new(bytes);
    let message = match reader.u8()? {
        b'I' => Message::Insert(insert(bytes, &mut reader)?),
        b'B' => Message::Begin(begin(&mut reader)?),
        b'C' => Message::Commit(commit(&mut reader)?),
        b'R' => Message::Relation(relation(&mut reader)?),
        b'U' => Message::Update(update(&mut reader)?),
        b'D' => Message::Delete(delete(&mut reader)?),
        b'T' => Message::Truncate(truncate(&mut reader)?),
        b'M' => Message::Logical(logical(bytes, &mut reader)?),
        b'O' => {
            reader.lsn()?;
            reader.string()?;
            Message::Origin
        }
        b'Y' => {
            let oid = reader.u32()?;
            let base_schema = schema(reader.string()?).to_owned();
            Message::Type(TypeName { oid, base_schema, base_name: reader.string()?.to_owned() })
        }
        tag => return Err(DecodeError::UnknownTag(tag)),
    };
    reader.finish()?;
    Ok(message)
}

fn begin(reader: &mut Reader<'_>) -> Result<Begin, DecodeError> {
    Ok(Begin { commit_lsn: reader.lsn()?, commit_time: reader.timestamp()?, xid: reader.u32()? })
}

fn commit(reader: &mut Reader<'_>) -> Result<Commit, DecodeError> {
    reader.one_of(&[0], "the flags of a Commit")?;
    Ok(Commit {
        commit_lsn: reader.lsn()?,
        end_lsn: reader.lsn()?,
        commit_time: reader.timestamp()?,
    })
}

fn relation(reader: &mut Reader<'_>) -> Result<Relation, DecodeError> {
    let oid = reader.u32()?;
    let schema = schema(reader.string()?);
    let name = reader.string()?;
    reader.one_of(b"dnfi", "a replica identity")?;
    let count = usize::from(reader.u16()?);
    let mut columns = Vec::with_capacity(count.min(reader.left() / COLUMN_BYTES_MIN));
    for _ in 0..count {
        reader.one_of(&[0, 1], "the flags of a column")?;
        let name = reader.string()?.to_owned();
        let type_oid = reader.u32()?;
        let type_modifier = reader.u32()?.cast_signed();
        columns.push(Column { name, type_oid, type_modifier });
    }
    Ok(Relation { oid, schema: schema.to_owned(), name: name.to_owned(), columns })
}

/// A schema's name: PostgreSQL sends `pg_catalog` as an empty string.
fn schema(sent: &str) -> &str {
    if sent.is_empty() { "pg_catalog" } else { sent }
}

fn insert(bytes: &Bytes, reader: &mut Reader<'_>) -> Result<Insert, DecodeError> {
    let relation = reader.u32()?;
    reader.one_of(b"N", "the kind of an Insert's tuple")?;
    Ok(Insert { relation, tuple: Tuple::read(bytes, reader)? })
}

fn update(reader: &mut Reader<'_>) -> Result<Oid, DecodeError> {
    let relation = reader.u32()?;
    if reader.one_of(b"KON", "the kind of an Update's tuple")? != b'N' {
        Tuple::skip(reader)?;
        reader.one_of(b"N", "the kind of an Update's second tuple")?;
    }
    Tuple::skip(reader)?;
    Ok(relation)
}

fn delete(reader: &mut Reader<'_>) -> Result<Oid, DecodeError> {
    let relation = reader.u32()?;
    reader.one_of(b"KO", "the kind of a Delete's tuple")?;
    Tuple::skip(reader)?;
    Ok(relation)
}

fn truncate(reader: &mut Reader<'_>) -> Result<Vec<Oid>, DecodeError> {
    let count = reader.u32()? as usize;
    reader.one_of(&[0, 1, 2, 3], "the options of a Truncate")?;
    let mut relations = Vec::with_capacity(count.min(reader.left() / size_of::<Oid>()));
    for _ in 0..count {
        relations.push(reader.u32()?);
    }
    Ok(relations)
}

fn logical(bytes: &Bytes, reader: &mut Reader<'_>) -> Result<LogicalMessage, DecodeError> {
    let transactional = reader.one_of(&[0, 1], "the flags of a logical message")? == 1;
    let lsn = reader.lsn()?;
    let prefix = reader.string()?.to_owned();
    let content = bytes.slice_ref(reader.counted()?);
    Ok(LogicalMessage { transactional, lsn, prefix, content })
}

#[cfg(test)]
mod tests;
