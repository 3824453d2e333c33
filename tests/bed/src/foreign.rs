//! Builds example programs in other languages, with these languages' own tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::repository;

/// Directories of an example's source and of its build results, given Cargo's directory for tests.
/// `suite` is the folder in `examples`.
pub fn places(results: &str, suite: &str, name: &str) -> (PathBuf, PathBuf) {
    let source = repository().join("examples").join(suite).join(name);
    let made = Path::new(results).join(suite).join(name);
    std::fs::create_dir_all(&made).unwrap_or_else(|error| panic!("{}: {error}", made.display()));
    (source, made)
}

/// Fetches the jars that a Maven project depends on.
pub fn jars(source: &Path, made: &Path) {
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "dependency:copy-dependencies"]);
    run(maven.arg(format!("-DoutputDirectory={}", made.display())).current_dir(source));
}

/// Runs a command to its end; panics with what it printed if it fails.
pub fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{command:?} failed:\n{printed}{said}");
}

/// The words of a command line.
pub fn line<'p>(words: impl IntoIterator<Item = &'p Path>) -> Vec<String> {
    words.into_iter().map(|word| word.to_str().expect("paths are UTF-8").to_owned()).collect()
}
