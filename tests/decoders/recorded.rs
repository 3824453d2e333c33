//! The recorded pgoutput messages of each PostgreSQL major version.

use std::fs;
use std::path::Path;

use bytes::Bytes;

/// The major versions that there is a recording of.
pub(crate) const MAJORS: [u8; 5] = [14, 15, 16, 17, 18];

/// The messages of a major's recording, in their order.
pub(crate) fn of_major(major: u8) -> Vec<Bytes> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus/pgoutput")
        .join(format!("{major}.txt"));
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `make corpus`", path.display()));
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| from_hex(line).unwrap_or_else(|| panic!("{}: {line}", path.display())))
        .collect()
}

fn from_hex(line: &str) -> Option<Bytes> {
    let digit = |sign: u8| char::from(sign).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = line.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
    bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty()).map(Bytes::from)
}
