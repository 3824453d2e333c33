//! Code blocks of documentation pages, for tests that execute them or compare them with programs.

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

/// Whether the block's lines follow each other in the program, with the same extra indentation.
pub fn is_quoted(block: &str, program: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::is_quoted;

    #[test]
    fn quoted_code_matches_regardless_of_indentation() {
        let program = "class A {\n    if (x) {\n\n        y();\n    }\n}\n";
        assert!(is_quoted("if (x) {\n\n    y();\n}", program));
        assert!(!is_quoted("if (x) {\n\n    z();\n}", program));
        assert!(!is_quoted("if (x) {\n\n  y();\n}", program));
    }
}
