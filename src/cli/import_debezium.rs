//! `walpost import-debezium FILE`: converts a Debezium connector's configuration.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use super::{Exit, complain, print};
use crate::debezium_import;

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
    if file != Path::new("-") {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}
