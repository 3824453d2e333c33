//! `docs/consumers.md` quotes programs that run and SQL from `sql/`; the settings named on pages
//! exist.

use std::process::Command;

use walpost_bed::fixture::program;
use walpost_bed::page::{blocks, is_quoted};

const PAGE: &str = include_str!("../../../docs/consumers.md");

/// The languages of the page's code, with the file that each block is a part of.
const QUOTED: [(&str, &str); 5] = [
    ("rust", include_str!("../../../examples/consumers/rust/main.rs")),
    ("java", include_str!("../../../examples/consumers/java/Consumer.java")),
    ("go", include_str!("../../../examples/consumers/go/main.go")),
    ("python", include_str!("../../../examples/consumers/python/consumer.py")),
    ("sql", include_str!("../../../sql/consumer_dedupe.sql")),
];

#[test]
fn code_quoted_on_the_page_matches_the_programs() {
    let blocks = blocks(PAGE);
    for (language, program) in QUOTED {
        let program = if language == "sql" { uncommented(program) } else { program.to_owned() };
        let mut quoted = blocks.iter().filter(|(of, _)| of == language).peekable();
        assert!(quoted.peek().is_some(), "the page quotes nothing in {language}");
        for (_, block) in quoted {
            assert!(is_quoted(block, &program), "not in the {language} program:\n{block}");
        }
    }
    let is_known = |of: &str| of == "sh" || QUOTED.iter().any(|(language, _)| of == *language);
    assert!(blocks.iter().all(|(of, _)| is_known(of)), "a block that is not tested");
}

#[test]
fn settings_named_on_pages_exist_and_accept_the_shown_values() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("walpost.toml");
    let shown = walpost_config(&["--json"]).expect("the defaults are sound");
    let known: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let mut seen = 0;
    for page in [
        PAGE,
        include_str!("../../../docs/writing-events.md"),
        include_str!("../../../docs/from-polling.md"),
        include_str!("../../../docs/from-debezium.md"),
        include_str!("../../../docs/records.md"),
        include_str!("../../../docs/guarantee.md"),
        include_str!("../../../docs/operations.md"),
        include_str!("../../../docs/retention.md"),
        include_str!("../../../docs/recovery.md"),
    ] {
        for text in inline(page).filter(|text| SECTIONS.iter().any(|one| text.starts_with(one))) {
            let (name, value) = text.split_once(" = ").unzip();
            let name = name.unwrap_or(&*text);
            assert!(known.get(name).is_some(), "there is no setting {name}");
            if value.is_some() {
                // With the settings that some values require.
                let needed = ["outbox.columns.timestamp = \"at\"", "record.value = \"envelope\""];
                let beside = needed.iter().filter(|line| !line.starts_with(name));
                let lines: Vec<&str> = beside.copied().chain([&*text]).collect();
                std::fs::write(&file, lines.join("\n")).unwrap();
                let taken = walpost_config(&["--config", file.to_str().unwrap()]);
                assert!(taken.is_ok(), "{text}: {taken:?}");
            }
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} settings were found");
}

/// What names of settings begin with; `outbox.event` is a topic.
const SECTIONS: [&str; 7] =
    ["source.", "outbox.columns.", "outbox.table", "record.", "kafka.", "delivery.", "poison."];

fn walpost_config(arguments: &[&str]) -> Result<String, String> {
    let done = Command::new(program()).arg("config").args(arguments).output().unwrap();
    let [out, err] = [done.stdout, done.stderr].map(|said| String::from_utf8(said).unwrap());
    if done.status.success() { Ok(out) } else { Err(err) }
}

/// What is between single backticks, without what a table needs before a bar.
fn inline(page: &str) -> impl Iterator<Item = String> {
    let prose = page.split("```").step_by(2);
    let code = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    code.map(|text| text.replace("\\|", "|"))
}

/// SQL without the comment markers.
fn uncommented(sql: &str) -> String {
    let lines = sql.lines().map(|line| line.strip_prefix("--   ").unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
