//! Builds the programs in other languages with their own tools. Downloads and build results are
//! stored in Cargo's directory for tests.

use std::path::PathBuf;
use std::process::Command;

use walpost_bed::foreign::{self, jars, line, run};

use crate::program::Program;

/// Compiled by `java` as it starts.
pub fn java_jdbc() -> Program {
    let (source, made) = places("java-jdbc");
    jars(&source, &made);
    let (libs, program) = (made.join("*"), source.join("Writer.java"));
    Program::Command {
        line: line(["java".as_ref(), "-cp".as_ref(), &*libs, &*program]),
        scheme: "jdbc:postgresql",
    }
}

/// Compiled by `javac`, since Spring makes classes beside those of the program.
pub fn java_spring() -> Program {
    let (source, made) = places("java-spring");
    jars(&source, &made);
    let classes = made.join("classes");
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(made.join("*")).arg("-d").arg(&classes).arg(source.join("Writer.java"));
    run(&mut javac);
    let path = format!("{}:{}", classes.display(), made.join("*").display());
    Program::Command {
        line: line(["java".as_ref(), "-cp".as_ref(), path.as_ref(), "Writer".as_ref()]),
        scheme: "jdbc:postgresql",
    }
}

/// Built by `go`.
pub fn go_pgx() -> Program {
    let (source, made) = places("go-pgx");
    let program = made.join("writer");
    let mut go = Command::new("go");
    go.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".").current_dir(&source);
    run(&mut go);
    Program::Command { line: line([&*program]), scheme: "postgres" }
}

/// Interpreted by `python3`. Each program has packages of its own, since tests run at once.
pub fn python(program: &str, scheme: &'static str) -> Program {
    let (source, _) = places("python");
    let made = places(program).1;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--upgrade", "--target"]).arg(&made);
    run(pip.args(["-r", "requirements.txt"]).current_dir(&source));
    let packages = format!("PYTHONPATH={}", made.display());
    let program = source.join(program);
    Program::Command {
        line: line([packages.as_ref(), "python3".as_ref(), "-B".as_ref(), &*program]),
        scheme,
    }
}

/// Compiled by `tsc` in a copy, since npm installs beside the program.
pub fn typescript() -> Program {
    let (source, made) = places("typescript");
    for file in ["package.json", "package-lock.json", "tsconfig.json", "writer.ts"] {
        std::fs::copy(source.join(file), made.join(file)).unwrap();
    }
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&made));
    run(Command::new("npx").arg("tsc").current_dir(&made));
    Program::Command { line: line(["node".as_ref(), &*made.join("writer.js")]), scheme: "postgres" }
}

/// Directories of its source and of its build results.
fn places(name: &str) -> (PathBuf, PathBuf) {
    foreign::places(env!("CARGO_TARGET_TMPDIR"), "writers", name)
}
