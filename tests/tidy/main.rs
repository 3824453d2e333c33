//! The code rules that a compiler does not check.
//!
//! Imports point down, what decides does no I/O and looks at no clock, files
//! stay short and say first what they are for. Judged by the text alone: it
//! catches slips, not ill will. `cycles` finds files that import each other.

mod cycles;
mod server_texts;

use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 600;

/// The folder of the core's crate: what decides, without I/O.
const CORE: &str = "crates/core/src/";

/// The modules of each crate from the bottom up, as its `lib.rs` lists them: a module imports only
/// modules that stand before it.
const CORE_ORDER: [&str; 10] = [
    "lsn", "excerpt", "property", "position", "pgoutput", "outbox", "record", "ledger", "outlet",
    "relay",
];
const ORDER: [&str; 24] = [
    "crash_points",
    "conninfo",
    "source",
    "metrics",
    "traces",
    "sink",
    "state",
    "relay",
    "config",
    "findings",
    "destination",
    "registry",
    "admin",
    "assembly",
    "embedded",
    "tools::dead_letters",
    "tools::debezium_import",
    "tools::setup",
    "tools::check",
    "tools::recovery",
    "tools::retention",
    "tools",
    "cli",
    "main",
];

/// Parts that may import less than what stands before them.
const IMPORTS: [(&str, &[&str]); 3] = [
    ("crates/core/src/ledger", &["lsn", "position", "pgoutput", "ledger", "property"]),
    ("src/config/", &["conninfo", "lsn", "outbox", "record", "config", "property"]),
    (
        "src/tools/debezium_import/",
        &["outbox", "config", "excerpt", "tools::debezium_import", "property"],
    ),
];

/// The parts beside the core that decide and do no I/O.
const PURE: [&str; 5] = [
    "src/source/catchup/cost.rs",
    "src/source/identity/history",
    "src/state/agreement",
    "src/state/layout.rs",
    "src/tools/debezium_import/",
];

/// What the pure parts do not even mention.
const IMPURE: [&str; 10] = [
    "tokio",
    "rdkafka::",
    "tracing::",
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "SystemTime",
    "Instant::now",
    "println!",
];

/// Of the pure parts, those that do not take a time either.
const TIMELESS: [&str; 5] = [
    "crates/core/src/pgoutput/",
    "crates/core/src/outbox/",
    "crates/core/src/record/",
    "crates/core/src/ledger",
    "src/source/catchup/cost.rs",
];

/// What no file has.
const UNFINISHED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// What a merge leaves in a text that nobody has looked at, at the beginning of a line.
const CONFLICTS: [&str; 2] = ["<<<<<<< ", ">>>>>>> "];

#[test]
fn every_file_follows_the_code_rules() {
    let files = rust_files();
    assert!(files.len() > 20, "too few files were found: {files:?}");
    let faults: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let text = fs::read_to_string(root().join(path)).expect("a source file can be read");
            judge(path, &text)
        })
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn pages_have_no_merge_conflicts() {
    let folders = ["docs", "packaging", "docker", "sql", ".github"];
    let pages = files_in(&folders, &["README.md", "CHANGELOG.md"]);
    assert!(pages.len() > 20, "too few files were found: {pages:?}");
    for page in pages {
        // What is not UTF-8 is a picture.
        let text = fs::read_to_string(&page).unwrap_or_default();
        let conflict = text.lines().find(|line| CONFLICTS.iter().any(|it| line.starts_with(it)));
        assert_eq!(conflict, None, "{}", page.display());
    }
}

#[test]
fn scripts_name_programs_that_exist() {
    let sources = files_in(&["src/bin", "tests/bed/src/bin"], &[]);
    let programs: Vec<String> = sources
        .iter()
        .flat_map(|path| path.iter().rev().take(2))
        .map(|name| name.to_string_lossy().trim_end_matches(".rs").to_owned())
        .chain(["walpost".to_owned()])
        .collect();
    let scripts = files_in(&["tests", "packaging", "docker"], &["Makefile", "README.md"]);
    let mut named = 0;
    for script in scripts.iter().filter(|path| path.extension().is_none_or(|it| it != "rs")) {
        let text = fs::read_to_string(script).unwrap_or_default();
        for rest in text.split("--bin ").skip(1) {
            let name = word(rest);
            assert!(programs.contains(&name), "{}: no program {name}", script.display());
            named += 1;
        }
    }
    assert!(named > 3, "too few were found");
}

/// The files in these folders, at any depth, and these files.
fn files_in(folders: &[&str], files: &[&str]) -> Vec<PathBuf> {
    let folders = folders.iter().map(|folder| root().join(folder));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
    let mut found: Vec<PathBuf> = files.iter().map(|file| root().join(file)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be read") {
            let path = entry.expect("a folder's entry can be read").path();
            if path.is_dir() { &mut folders } else { &mut found }.push(path);
        }
    }
    found
}

#[test]
fn each_violation_is_reported() {
    for (path, text, fault) in [
        ("pgoutput/x.rs", "//! X.\nuse crate::outbox::Event;", ":2: imports crate::outbox"),
        ("outbox/x.rs", "//! X.\nuse crate::{lsn::Lsn, record::Record};", "crate::record"),
        ("outbox/x.rs", "//! X.\nuse crate::{\n    lsn::{A,\n B},\n    relay,\n};", "crate::relay"),
        ("record/x.rs", "//! X.\nfn f(x: crate::ledger::Ledger) {}", "crate::ledger"),
        ("ledger.rs", "//! X.\npub use crate::outbox::Event;", "crate::outbox"),
        ("relay/x.rs", "//! X.\nlet now = Instant::now();", ":2: mentions Instant::now"),
        ("record/x.rs", "//! X.\nuse std::time::Instant;", "Instant"),
        ("outbox/x.rs", "//! X.\n    println!(\"x\");", "println"),
    ] {
        let path = format!("{CORE}{path}");
        let faults = judge(&path, text);
        assert_eq!(faults.len(), 1, "{path}: {text}: {faults:?}");
        assert!(faults[0].contains(fault), "{path}: {text}: {faults:?}");
    }
    for (path, text, fault) in [
        ("src/state/layout.rs", "//! X.\nasync fn f() { tokio::task::yield_now().await }", "tokio"),
        ("src/config/x.rs", "//! X.\nuse crate::sink::Sink;", "crate::sink"),
        ("src/config/x.rs", "//! X.\nuse walpost_core::relay::Core;", "crate::relay"),
        ("src/destination/x.rs", "// X.\nfn f() {}", "does not begin with a `//!`"),
        ("src/destination/x.rs", "//! X.\nfn f() { todo!() }", "todo!"),
        ("src/state/x.rs", "//! X.\nuse crate::relay::Relay;", "crate::relay, which stands above"),
        (
            "src/tools/setup/x.rs",
            "//! X.\nuse crate::tools::check::X;",
            "crate::tools::check, which",
        ),
        ("src/tools/check/x.rs", "//! X.\nuse crate::tools::{self, setup};", "crate::tools, which"),
        (
            "src/assembly.rs",
            "//! X.\nuse crate::{lsn, tools::setup::X};",
            "crate::tools::setup, which",
        ),
        ("tests/x.rs", "fn f() { dbg!(1); }", "dbg!"),
        ("tests/x.rs", &"\n".repeat(601), "601 lines"),
    ] {
        let faults = judge(path, text);
        assert_eq!(faults.len(), 1, "{path}: {text}: {faults:?}");
        assert!(faults[0].contains(fault), "{path}: {text}: {faults:?}");
    }
}

#[test]
fn valid_files_pass() {
    for (path, text) in [
        (
            "crates/core/src/record/x.rs",
            "//! X.\nuse crate::outbox::{Event, Role};\nuse crate::lsn::Lsn;",
        ),
        (
            "crates/core/src/record/x.rs",
            "//! Not by tokio, nor by crate::relay.\n// An Instant; crate::relay.\n",
        ),
        (
            "crates/core/src/outbox/x.rs",
            "//! X.\nuse crate::{\n    lsn::Lsn,\n    pgoutput::{Oid, decode},\n};",
        ),
        (
            "crates/core/src/relay.rs",
            "//! X.\nuse std::time::{Duration, Instant};\nuse crate::ledger::Ledger;",
        ),
        ("src/relay/driver.rs", "//! X.\nuse crate::sink::Sink;\nlet now = Instant::now();"),
        ("src/tools/recovery/x.rs", "//! X.\nuse crate::tools::setup::{A, b::C};"),
        ("src/cli/x.rs", "//! X.\nuse crate::tools::{check, setup};"),
        ("tests/x.rs", &"\n".repeat(600)),
    ] {
        assert_eq!(judge(path, text), [""; 0], "{path}: {text}");
    }
}

/// What is wrong with a file, one line a fault.
fn judge(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        faults.push(format!("{path}: has {lines} lines, {LINES_MAX} are the most"));
    }
    if (path.starts_with("src/") || path.starts_with(CORE)) && !text.starts_with("//! ") {
        faults.push(format!("{path}: does not begin with a `//!` that says what it is for"));
    }
    let imports = IMPORTS.iter().find(|(part, _)| path.starts_with(part));
    if imports.is_none()
        && let Some((order, own)) = place_of(path)
    {
        let above = ours(text).into_iter().filter(|(_, module)| {
            order.iter().position(|one| one == module).is_some_and(|place| place > own)
        });
        faults.extend(above.map(|(line, module)| {
            format!("{path}:{line}: imports crate::{module}, which stands above it")
        }));
    }
    let is_timeless = TIMELESS.iter().any(|part| path.starts_with(part));
    for (line, code) in code_lines(text) {
        let mut mention = |word: &str| faults.push(format!("{path}:{line}: mentions {word}"));
        if path != "tests/tidy/main.rs" {
            UNFINISHED.into_iter().filter(|word| code.contains(word)).for_each(&mut mention);
        }
        let is_core = path.starts_with(CORE) && !path.ends_with("/property.rs");
        if is_core || PURE.iter().any(|part| path.starts_with(part)) {
            IMPURE.into_iter().filter(|word| code.contains(word)).for_each(&mut mention);
        }
        if is_timeless && code.contains("Instant") && !code.contains("Instant::now") {
            mention("Instant");
        }
    }
    if let Some((_, allowed)) = imports {
        let foreign =
            ours(text).into_iter().filter(|(_, module)| !allowed.contains(&module.as_str()));
        faults.extend(
            foreign.map(|(line, module)| format!("{path}:{line}: imports crate::{module}")),
        );
    }
    faults
}

/// The order of a file's crate, and where its top module stands there; every module has a place.
fn place_of(path: &str) -> Option<(&'static [&'static str], usize)> {
    let (order, path) = match path.strip_prefix(CORE) {
        Some(path) => (&CORE_ORDER[..], path),
        None => (&ORDER[..], path.strip_prefix("src/")?),
    };
    let top = path.split(['/', '.']).next()?;
    let top = top.strip_suffix("_tests").unwrap_or(top);
    if top == "lib" {
        return None;
    }
    let within = path.strip_prefix("tools/").and_then(|path| path.split_once('/'));
    let module = within.map_or_else(|| top.to_owned(), |(tool, _)| format!("{TOOLS}{tool}"));
    let place = order.iter().position(|one| *one == module);
    Some((order, place.unwrap_or_else(|| panic!("{path}: add the module to its crate's order"))))
}

/// What stands before the name of a tool: each has its own place in the order.
const TOOLS: &str = "tools::";

/// The lines that are not comments, counted from 1.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_code = |line: &str| !line.trim_start().starts_with("//");
    text.lines().enumerate().map(|(line, code)| (line + 1, code)).filter(move |it| is_code(it.1))
}

/// Our own modules that a file names, with the lines: `crate::a`, and each of
/// `crate::{a::…, b::…}`; also those of the core's crate.
fn ours(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // How deep inside the braces of a `crate::{…}` we are, over several lines.
    let mut depth = 0;
    for (line, code) in code_lines(text) {
        let code = code.replace("walpost_core::", "crate::");
        let mut rest = code.as_str();
        loop {
            if depth == 0 {
                let Some((_, after)) = rest.split_once("crate::") else { break };
                if let Some(inside) = after.strip_prefix('{') {
                    (depth, rest) = (1, inside);
                } else {
                    found.push((line, module(after)));
                    rest = after;
                }
                continue;
            }
            let first = rest.trim_start_matches([',', ' ']);
            if depth == 1 && !word(first).is_empty() {
                found.push((line, module(first)));
            }
            let Some(at) = first.find(if depth == 1 { ['{', '}', ','] } else { ['{', '}', '}'] })
            else {
                break;
            };
            match first.as_bytes()[at] {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            rest = &first[at + 1..];
        }
    }
    found
}

/// The module that a path in our crate begins with: the tool in `tools`, elsewhere the top module.
fn module(path: &str) -> String {
    match path.strip_prefix(TOOLS).map(word) {
        Some(tool) if !tool.is_empty() => format!("{TOOLS}{tool}"),
        _ => word(path),
    }
}

/// The identifier that `text` begins with.
fn word(text: &str) -> String {
    text.chars().take_while(|&sign| sign.is_ascii_alphanumeric() || sign == '_').collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files of ours, as paths from the crate's root.
fn rust_files() -> Vec<String> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = [
        "src",
        "crates",
        "tests",
        "benches",
        "clients",
        "examples",
        "fuzz/src",
        "fuzz/fuzz_targets",
    ]
    .map(|folder| root().join(folder))
    .into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a source folder can be read") {
            let path = entry.expect("a folder's entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let path = path.strip_prefix(root()).expect("it lies below the crate's root");
                files.push(path.to_str().expect("file names are UTF-8").replace('\\', "/"));
            }
        }
    }
    files.sort();
    files
}
