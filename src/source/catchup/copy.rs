//! Parses rows of one column from the binary format of COPY.
//!
//! Format: PostgreSQL's manual, COPY, "Binary Format".

use bytes::{Buf as _, Bytes, BytesMut};

use crate::source::wire::MESSAGE;

/// The first bytes of the output.
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";

/// The end of the rows, in place of the number of fields.
const TRAILER: i16 = -1;

/// Initial capacity of a row buffer.
const BLOCK: usize = 64 << 10;

/// Copies received rows into one buffer. A row of its own would keep the memory that it was received
/// in, and need a handle.
#[derive(Debug, Default)]
pub(crate) struct RowBuffer {
    bytes: Vec<u8>,
    rows: u64,
}

impl RowBuffer {
    /// Appends a row as COPY writes it: its length in four bytes, followed by its bytes.
    fn push(&mut self, row: &[u8]) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(BLOCK.max(row.len()));
        }
        self.bytes.extend_from_slice(row);
        self.rows += 1;
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the rows, in memory that is at most a third larger.
    pub(crate) fn take(&mut self) -> Rows {
        self.rows = 0;
        let is_full = self.bytes.len() >= self.bytes.capacity() / 4 * 3;
        if is_full {
            return Rows(std::mem::take(&mut self.bytes).into());
        }
        let rows = Rows(Bytes::copy_from_slice(&self.bytes));
        self.bytes.clear();
        rows
    }
}

/// Rows in the order received.
#[derive(Debug, Default)]
pub(crate) struct Rows(Bytes);

impl Rows {
    /// The size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }

    /// Whether none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Iterator for Rows {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.0.try_get_u32().ok()?).ok()?;
        Some(self.0.split_to(length))
    }
}

/// The bytes are not COPY's binary format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rows are not in the binary format of COPY, or one exceeds PostgreSQL's maximum size")]
pub(crate) struct CopyError;

/// Parses pieces of any size. The server sends one row per piece, but the protocol does not require
/// that.
#[derive(Debug, Default)]
pub(crate) struct CopyRows {
    /// An incomplete header or row.
    rest: BytesMut,
    has_header: bool,
    is_ended: bool,
}

impl CopyRows {
    /// Appends the rows that `piece` completes to `rows`.
    pub(crate) fn take(&mut self, piece: Bytes, rows: &mut RowBuffer) -> Result<(), CopyError> {
        let mut bytes = if self.rest.is_empty() {
            piece
        } else {
            self.rest.extend_from_slice(&piece);
            // Do not copy an incomplete row again for each piece.
            if !self.has_complete_part()? {
                return Ok(());
            }
            std::mem::take(&mut self.rest).freeze()
        };
        if !self.has_header {
            let Some(header) = header(&bytes)? else {
                self.rest.extend_from_slice(&bytes);
                return Ok(());
            };
            bytes.advance(header);
            self.has_header = true;
        }
        while !self.is_ended {
            match row(&bytes)? {
                Next::Row(to) => {
                    rows.push(&bytes[2..to]);
                    bytes.advance(to);
                }
                Next::More => break,
                Next::End => {
                    bytes.advance(2);
                    self.is_ended = true;
                }
            }
        }
        if self.is_ended && !bytes.is_empty() {
            return Err(CopyError);
        }
        self.rest.extend_from_slice(&bytes);
        Ok(())
    }

    /// Whether the received bytes start with a complete header or row.
    fn has_complete_part(&self) -> Result<bool, CopyError> {
        if !self.has_header {
            return Ok(header(&self.rest)?.is_some());
        }
        Ok(self.is_ended || !matches!(row(&self.rest)?, Next::More))
    }

    /// Whether the end was received.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }
}

/// What the next bytes are.
enum Next {
    /// A row that ends here: the number of its fields, the length of the only field, and the field.
    Row(usize),
    /// An incomplete row.
    More,
    End,
}

/// The length of the header, once it is complete.
fn header(bytes: &[u8]) -> Result<Option<usize>, CopyError> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Err(CopyError);
    }
    // The signature, the flags, the length of the extension, and the extension.
    let at = SIGNATURE.len() + 4;
    let Some(length) = bytes.get(at..at + 4) else { return Ok(None) };
    let whole = at + 4 + size(length)?;
    Ok((bytes.len() >= whole).then_some(whole))
}

fn row(bytes: &[u8]) -> Result<Next, CopyError> {
    let Some(fields) = bytes.first_chunk::<2>() else { return Ok(Next::More) };
    match i16::from_be_bytes(*fields) {
        TRAILER => return Ok(Next::End),
        1 => {}
        _ => return Err(CopyError),
    }
    let Some(length) = bytes.get(2..6) else { return Ok(Next::More) };
    // NULL has the length -1, which is an error: no message is NULL.
    let to = 6 + size(length)?;
    Ok(if bytes.len() < to { Next::More } else { Next::Row(to) })
}

/// A length of four bytes.
fn size(length: &[u8]) -> Result<usize, CopyError> {
    let length = length.first_chunk().map_or(-1, |four| i32::from_be_bytes(*four));
    match usize::try_from(length) {
        Ok(size) if size <= MESSAGE as usize => Ok(size),
        _ => Err(CopyError),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::property;

    fn written(rows: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([0; 4]);
        bytes.extend(3_i32.to_be_bytes());
        bytes.extend(b"ext");
        for row in rows {
            bytes.extend(1_i16.to_be_bytes());
            bytes.extend(i32::try_from(row.len()).expect("small").to_be_bytes());
            bytes.extend(row);
        }
        bytes.extend(TRAILER.to_be_bytes());
        bytes
    }

    #[test]
    fn rows_are_parsed_from_pieces_of_any_size() {
        let rows = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9);
        let cases = (rows, prop::collection::vec(1..20_usize, 1..9));
        let name = "rows_are_parsed_from_pieces_of_any_size";
        property::holds(name, 1000, &cases, |(rows, pieces)| {
            let bytes = written(&rows);
            let (mut copy, mut buffer) = (CopyRows::default(), RowBuffer::default());
            let mut found = Vec::new();
            let (mut rest, mut lengths) = (&bytes[..], pieces.iter().cycle());
            while !rest.is_empty() {
                assert!(!copy.is_ended(), "before the end");
                let (piece, after) = rest.split_at(rest.len().min(*lengths.next().expect("one")));
                copy.take(Bytes::copy_from_slice(piece), &mut buffer).expect("sound");
                if after.len() % 2 == 0 {
                    let (expected, rows) = (buffer.rows(), buffer.take());
                    let before = found.len();
                    found.extend(rows);
                    assert_eq!((found.len() - before) as u64, expected);
                }
                rest = after;
            }
            assert!(copy.is_ended());
            found.extend(buffer.take());
            assert_eq!(found, rows);
        });
    }

    #[test]
    fn arbitrary_bytes_are_rows_or_an_error() {
        let cases = (prop::collection::vec(any::<u8>(), 0..40), any::<bool>());
        property::holds("arbitrary_bytes_are_rows_or_an_error", 2000, &cases, |(bytes, header)| {
            let mut all = if header { written(&[])[..22].to_vec() } else { Vec::new() };
            all.extend(bytes);
            let _ = CopyRows::default().take(Bytes::from(all), &mut RowBuffer::default());
        });
        for wrong in [&[0, 2][..], &[0, 1, 255, 255, 255, 255], &[255, 255, 0]] {
            let bytes = [&written(&[])[..22], wrong].concat();
            let taken = CopyRows::default().take(Bytes::from(bytes), &mut RowBuffer::default());
            assert_eq!(taken, Err(CopyError), "{wrong:?}");
        }
    }

    #[test]
    fn too_large_row_is_rejected_once_its_length_is_known() {
        let header = written(&[])[..22].to_vec();
        let row = |length: i32| [&[0, 1][..], &length.to_be_bytes()].concat();
        let taken = |bytes: Vec<u8>| {
            CopyRows::default().take(Bytes::from(bytes), &mut RowBuffer::default())
        };
        assert_eq!(taken([&header[..], &row(1 << 30)].concat()), Ok(()));
        for length in [(1 << 30) + 1, i32::MAX] {
            assert_eq!(taken([&header[..], &row(length)].concat()), Err(CopyError), "{length}");
            let extension = [SIGNATURE, &[0; 4], &length.to_be_bytes()].concat();
            assert_eq!(taken(extension), Err(CopyError), "an extension of {length}");
        }
    }

    /// If each piece copied all bytes received before it, this would take minutes.
    #[test]
    fn row_of_many_pieces_is_copied_once() {
        let value: Vec<u8> = (0..32 << 20).map(|byte: u32| byte.to_be_bytes()[2]).collect();
        let rows = [value, vec![7; 100]];
        let bytes = Bytes::from(written(&rows));
        let (mut copy, mut buffer) = (CopyRows::default(), RowBuffer::default());
        let began = Instant::now();
        for at in (0..bytes.len()).step_by(1000) {
            let piece = bytes.slice(at..bytes.len().min(at + 1000));
            copy.take(piece, &mut buffer).expect("sound");
            assert!(began.elapsed() < Duration::from_secs(20), "{at} of {} bytes", bytes.len());
        }
        assert!(copy.is_ended());
        let found: Vec<Bytes> = buffer.take().collect();
        assert!(found == rows, "{} rows", found.len());
    }
}
