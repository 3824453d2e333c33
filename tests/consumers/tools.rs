//! Builds the programs in other languages with their own tools. Downloads and build results are
//! stored in Cargo's directory for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::Program;

/// Compiled by `java` as it starts.
pub fn java() -> Program {
    let (source, made) = places("java");
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "dependency:copy-dependencies"]);
    run(maven.arg(format!("-DoutputDirectory={}", made.display())).current_dir(&source));
    let (libs, program) = (made.join("*"), source.join("Consumer.java"));
    Program::Command {
        line: line(["java".as_ref(), "-cp".as_ref(), &*libs, &*program]),
        scheme: "jdbc:postgresql",
    }
}

/// Built by `go`.
pub fn go() -> Program {
    let (source, made) = places("go");
    let program = made.join("consumer");
    let mut go = Command::new("go");
    go.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".").current_dir(&source);
    run(&mut go);
    Program::Command { line: line([&*program]), scheme: "postgres" }
}

/// Interpreted by `python3`.
pub fn python() -> Program {
    let (source, made) = places("python");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--upgrade", "--target"]).arg(&made);
    run(pip.args(["-r", "requirements.txt"]).current_dir(&source));
    let packages = format!("PYTHONPATH={}", made.display());
    let program = source.join("consumer.py");
    Program::Command {
        line: line([packages.as_ref(), "python3".as_ref(), "-B".as_ref(), &*program]),
        scheme: "postgres",
    }
}

/// Directories of its source and of its build results.
fn places(language: &str) -> (PathBuf, PathBuf) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/consumers").join(language);
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("consumers").join(language);
    std::fs::create_dir_all(&made).unwrap();
    (source, made)
}

fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{command:?} failed:\n{printed}{said}");
}

fn line<'p>(words: impl IntoIterator<Item = &'p Path>) -> Vec<String> {
    words.into_iter().map(|word| word.to_str().expect("paths are UTF-8").to_owned()).collect()
}
