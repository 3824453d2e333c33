//! `walpost import-debezium FILE`: converts a Debezium connector's configuration.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use super::{Exit, complain, print};
use crate::tools::debezium_import;

pub(super) fn command(file: &Path) -> Exit {
    let text = match read(file) {
        Ok(text) => text,
        Err(error) => {
            complain(&format!("cannot read {}: {error}", file.display()));
            return Exit::Failure;
        }
    };
    let import = match debezium_import::import(&text) {
        Ok(import) => import,
        Err(error) => {
            complain(&format!("{} is not a connector's configuration: {error}", file.display()));
            return Exit::Failure;
        }
    };
    let printed = print(&import.toml);
    // The full report is in the printed text; unsupported options must not be missed if that is
    // redirected to a file.
    for finding in import.refused() {
        complain(&format!("cannot be honoured: {}", debezium_import::line(finding)));
    }
    match import.refused().next() {
        Some(_) => Exit::Failure,
        None => printed,
    }
}

/// The file's content; `-` is standard input.
fn read(file: &Path) -> io::Result<String> {
    let bytes = if file == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes)?;
        bytes
    } else {
        fs::read(file)?
    };
    let (units, is_little_endian) = match &bytes[..] {
        [0xff, 0xfe, units @ ..] => (units, true),
        [0xfe, 0xff, units @ ..] => (units, false),
        _ => return String::from_utf8(bytes).map_err(io::Error::other),
    };
    // As PowerShell writes files.
    let (pairs, rest) = units.as_chunks();
    let read = if is_little_endian { u16::from_le_bytes } else { u16::from_be_bytes };
    let units: Vec<u16> = pairs.iter().map(|pair| read(*pair)).collect();
    if !rest.is_empty() {
        return Err(io::Error::other(
            "not UTF-16 as its byte-order mark says: half a character is left",
        ));
    }
    String::from_utf16(&units).map_err(io::Error::other)
}
