//! The pages for operators agree with the code: settings, commands, log events, alerts with
//! runbooks, links.
//!
//! `make docs` regenerates the pages that are made from the code.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod alerts;
mod links;
mod logs;
mod reference;
mod sql;

use std::path::{Path, PathBuf};

/// The crate's directory.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below a folder of that extension, as paths from the crate's directory, in order.
fn files_below(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of ours can be read") {
            let path = entry.expect("a folder's entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path.strip_prefix(root()).expect("it lies below").to_owned());
            }
        }
    }
    found.sort();
    found
}
