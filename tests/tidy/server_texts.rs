//! What walpost decides about PostgreSQL depends on no text of the server, which is in the server's
//! language. A replication session's texts have a type that can only be displayed; here is what no
//! type tells: the other client's errors, and texts that were displayed already.

/// The parts that speak with PostgreSQL.
const PARTS: [&str; 5] = [
    "src/source",
    "src/tools/check",
    "src/tools/setup",
    "src/tools/recovery",
    "src/tools/retention",
];

/// Methods that look into a text.
const LOOKS: [&str; 8] = [
    ".contains(\"",
    ".starts_with(\"",
    ".ends_with(\"",
    ".find(\"",
    ".strip_prefix(\"",
    ".strip_suffix(\"",
    ".split_once(\"",
    ".matches(\"",
];

/// Texts that are not the server's, by file: of a library, of a setting, or walpost's own.
const OURS: [(&str, &[&str]); 4] = [
    (
        "src/source/connection/error.rs",
        &[
            "invalid configuration",
            "authentication error",
            "unexpected message",
            "error parsing",
            "error communicating",
            ": verification time ",
        ],
    ),
    ("src/source/identity/publication_fingerprint.rs", &["publication "]),
    ("src/tools/recovery/published.rs", &["compact"]),
    ("src/tools/retention/partitions/periods.rs", &["infinity"]),
];

/// Where the fields of an error are read, to be displayed; and a login's messages.
const DISPLAYS: [&str; 4] = [
    "src/source/error.rs",
    "src/source/connection/error.rs",
    "src/tools/retention/partitions/drop.rs",
    "src/source/wire/startup.rs",
];

/// What is wrong with a file, one line a fault.
pub(crate) fn judge(path: &str, text: &str) -> Vec<String> {
    if !PARTS.iter().any(|part| path.starts_with(part)) || path.ends_with("tests.rs") {
        return Vec::new();
    }
    let ours = OURS.iter().find(|(file, _)| *file == path).map_or(&[][..], |(_, texts)| texts);
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut faults = Vec::new();
    for (line, code) in super::code_lines(code) {
        for look in LOOKS {
            for rest in code.split(look).skip(1) {
                let literal = rest.split('"').next().unwrap_or_default();
                if literal.chars().filter(char::is_ascii_lowercase).count() > 3
                    && !ours.contains(&literal)
                {
                    faults.push(format!("{path}:{line}: looks for the text {literal:?}"));
                }
            }
        }
        let is_shown = DISPLAYS.contains(&path);
        let field = [".message()", ".detail()", ".hint()"].into_iter().find(|it| code.contains(it));
        if let Some(field) = field.filter(|_| !is_shown) {
            faults.push(format!("{path}:{line}: reads {field} of an error"));
        }
    }
    faults
}

#[test]
fn no_decision_depends_on_a_text_of_the_server() {
    let files = super::rust_files();
    let faults: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(super::root().join(path)).expect("a file");
            judge(path, &text)
        })
        .collect();
    assert!(faults.is_empty(), "use the SQLSTATE, or ask a catalog:\n{}", faults.join("\n"));
}

#[test]
fn each_look_at_a_text_is_reported() {
    for (path, text, fault) in [
        (
            "src/source/error.rs",
            "//! X.\nlet is_slot = text.contains(\"replication slot\");",
            ":2: looks for the text \"replication slot\"",
        ),
        ("src/tools/setup/x.rs", "if said.starts_with(\"role\") {}", "\"role\""),
        ("src/tools/check/x.rs", "let why = error.detail();", "reads .detail()"),
    ] {
        let faults = judge(path, text);
        assert_eq!(faults.len(), 1, "{path}: {text}: {faults:?}");
        assert!(faults[0].contains(fault), "{faults:?}");
    }
    for (path, text) in [
        ("src/destination/x.rs", "if said.starts_with(\"role\") {}"),
        ("src/source/x.rs", "if code.starts_with(\"57P0\") {}"),
        ("src/source/x.rs", "#[cfg(test)]\nmod tests {\n  text.contains(\"a text\");\n}"),
    ] {
        assert_eq!(judge(path, text), [""; 0], "{path}: {text}");
    }
}
