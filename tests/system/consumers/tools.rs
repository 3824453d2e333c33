//! Builds the programs in other languages with their own tools. Downloads and build results are
//! stored in Cargo's directory for tests.

use std::path::PathBuf;
use std::process::Command;

use walpost_bed::foreign::{self, jars, line, run};

use crate::program::Program;

/// Compiled by `java` as it starts.
pub fn java() -> Program {
    let (source, made) = places("java");
    jars(&source, &made);
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
    foreign::places(env!("CARGO_TARGET_TMPDIR"), "consumers", language)
}
