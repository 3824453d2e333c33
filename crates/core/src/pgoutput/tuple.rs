//! A row's columns in wire format: checked once, then read without errors.
//!
//! A tuple keeps the received bytes; its values are slices of them. The relation's column plan
//! interprets the values.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::message::{Tuple, Value};
use super::reader::{DecodeError, Reader};

impl Tuple {
    /// A tuple of values in their text form; `None` is NULL.
    ///
    /// # Panics
    ///
    /// With more than 65,535 columns, or a value of 2 GiB; PostgreSQL has 1,600 and 1 GiB at most.
    pub fn of_texts<'a>(values: impl IntoIterator<Item = Option<&'a str>>) -> Self {
        let (mut columns, mut out) = (0, BytesMut::new());
        for value in values {
            columns += 1;
            match value {
                None => out.put_u8(b'n'),
                Some(text) => {
                    out.put_u8(b't');
                    out.put_u32(u32::try_from(text.len()).expect("a value has 1 GiB at most"));
                    out.put_slice(text.as_bytes());
                }
            }
        }
        Self { columns, bytes: out.freeze() }
    }

    /// Reads and checks a tuple; `reader` reads `message`.
    pub(super) fn read(message: &Bytes, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let columns = reader.u16()?;
        let start = reader.offset();
        for _ in 0..columns {
            value(reader)?;
        }
        Ok(Self { columns, bytes: message.slice(start..reader.offset()) })
    }

    /// Reads and checks a tuple, and discards it.
    pub(super) fn skip(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        for _ in 0..reader.u16()? {
            value(reader)?;
        }
        Ok(())
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.columns)
    }

    /// The size in wire format, in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no columns.
    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// The columns' values, in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'_>> {
        let mut reader = Reader::new(&self.bytes);
        // `read` has checked the same bytes, so each is a value.
        (0..self.columns).map_while(move |_| value(&mut reader).ok())
    }

    /// The value of the column at `index`, from 0. It skips over the columns before it: for more
    /// than one column use [`Tuple::iter`].
    pub fn get(&self, index: usize) -> Option<Value<'_>> {
        self.iter().nth(index)
    }
}

fn value<'a>(reader: &mut Reader<'a>) -> Result<Value<'a>, DecodeError> {
    let offset = reader.offset();
    match reader.u8()? {
        b't' => reader.counted().map(Value::Text),
        b'b' => reader.counted().map(Value::Binary),
        b'u' => Ok(Value::Unchanged),
        b'n' => Ok(Value::Null),
        found => {
            let what = "the kind of a column's value";
            Err(DecodeError::Unexpected { what, found, offset })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;

    #[test]
    fn values_are_read_in_order_and_by_index() {
        let values = [
            Value::Text(b"one"),
            Value::Null,
            Value::Binary(b""),
            Value::Unchanged,
            Value::Text(b""),
        ];
        let tuple = encode::tuple(&values);
        assert_eq!(tuple.len(), 5);
        assert!(!tuple.is_empty());
        assert_eq!(tuple.iter().collect::<Vec<_>>(), values);
        assert_eq!(tuple.get(2), Some(Value::Binary(b"")));
        assert_eq!(tuple.get(5), None);
    }

    #[test]
    fn a_value_is_a_slice_of_the_received_bytes() {
        let bytes = Bytes::from_static(b"\0\x01t\0\0\0\x03one");
        let mut reader = Reader::new(&bytes);
        let tuple = Tuple::read(&bytes, &mut reader).expect("a tuple of one column");
        let Some(Value::Text(text)) = tuple.get(0) else { panic!("{tuple:?}") };
        assert!(bytes.as_ptr_range().contains(&text.as_ptr()));
    }
}
