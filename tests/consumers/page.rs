//! `docs/consumers.md` quotes programs that run, and SQL that stands in `sql/`.

const PAGE: &str = include_str!("../../docs/consumers.md");

/// The languages of the page's code, with the file that each block is a part of.
const QUOTED: [(&str, &str); 5] = [
    ("rust", include_str!("../../examples/consumers/rust/main.rs")),
    ("java", include_str!("../../examples/consumers/java/Consumer.java")),
    ("go", include_str!("../../examples/consumers/go/main.go")),
    ("python", include_str!("../../examples/consumers/python/consumer.py")),
    ("sql", include_str!("../../sql/consumer_dedupe.sql")),
];

#[test]
fn what_the_page_quotes_stands_in_the_programs() {
    let blocks = blocks(PAGE);
    for (language, program) in QUOTED {
        let program = if language == "sql" { uncommented(program) } else { program.to_owned() };
        let mut quoted = blocks.iter().filter(|(of, _)| of == language).peekable();
        assert!(quoted.peek().is_some(), "the page quotes nothing in {language}");
        for (_, block) in quoted {
            assert!(stands_in(block, &program), "not in the {language} program:\n{block}");
        }
    }
    let is_known = |of: &str| of == "sh" || QUOTED.iter().any(|(language, _)| of == *language);
    assert!(blocks.iter().all(|(of, _)| is_known(of)), "a block that nobody looks at");
}

#[test]
fn a_block_stands_in_a_program_whatever_its_indentation_and_not_if_a_word_differs() {
    let program = "class A {\n    if (x) {\n\n        y();\n    }\n}\n";
    assert!(stands_in("if (x) {\n\n    y();\n}", program));
    assert!(!stands_in("if (x) {\n\n    z();\n}", program));
    assert!(!stands_in("if (x) {\n\n  y();\n}", program));
}

/// Language and text of each fenced block of a page.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let parts: Vec<&str> = page.split("```").collect();
    assert!(parts.len() % 2 == 1, "a fence without its end");
    let fenced = parts.into_iter().skip(1).step_by(2);
    let block = |text: &str| {
        let (language, code) = text.split_once('\n').expect("a fence ends its line");
        (language.to_owned(), code.trim_end().to_owned())
    };
    fenced.map(block).collect()
}

/// Whether the block's lines follow each other in the program, all indented by as much.
fn stands_in(block: &str, program: &str) -> bool {
    let block: Vec<&str> = block.lines().collect();
    let program: Vec<&str> = program.lines().collect();
    program.windows(block.len()).any(|lines| {
        let indent = lines[0].len() - lines[0].trim_start().len();
        lines.iter().zip(&block).all(|(line, quoted)| {
            line.get(indent..).unwrap_or_default() == *quoted
                && line.chars().take(indent).all(char::is_whitespace)
        })
    })
}

/// Without what makes statements comments.
fn uncommented(sql: &str) -> String {
    let lines = sql.lines().map(|line| line.strip_prefix("--   ").unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
