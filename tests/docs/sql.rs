//! SQL that operators run as a superuser, and walpost's own, names PostgreSQL's objects with their
//! schema, so that `search_path` cannot substitute others. `tests/system/security/search_path.rs` checks
//! what is executed.

use regex::Regex;

use crate::{files_below, read};

/// A session's first statement after which plain names are PostgreSQL's own.
const PINNED: &str = "SET search_path = pg_catalog, pg_temp;";

#[test]
fn sql_for_users_is_schema_qualified() {
    let mut seen = 0;
    let pages =
        files_below("docs", "md").into_iter().chain(["README.md".into(), "SECURITY.md".into()]);
    let files = files_below("sql", "sql").into_iter().chain(files_below("docker", "sql"));
    let whole = files.chain(["packaging/debian/README.Debian".into()]);
    for (path, blocks) in pages
        .map(|page| (page.clone(), snippets(&read(&page))))
        .chain(whole.map(|file| (file.clone(), vec![read(&file)])))
    {
        for block in blocks {
            seen += 1;
            assert_eq!(unqualified(&block), None, "{}:\n{block}", path.display());
        }
    }
    assert!(seen > 60, "only {seen} pieces of SQL were found");
}

#[test]
fn sql_in_the_program_is_schema_qualified() {
    let call = Regex::new(r"(pg_catalog\.)?\bpg_[a-z_]+\(").expect("a pattern");
    let mut seen = 0;
    for path in files_below("src", "rs") {
        let text = read(&path);
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for found in call.find_iter(line) {
                seen += 1;
                let is_qualified = found.as_str().starts_with("pg_catalog.");
                assert!(is_qualified, "{}: {line}", path.display());
            }
        }
    }
    assert!(seen > 30, "only {seen} calls were found");
}

#[test]
fn unqualified_name_is_reported() {
    for sql in [
        "SELECT now();",
        "SELECT pg_catalog.count(*) FROM pg_roles;",
        "SELECT pg_catalog.now()\n  FROM x WHERE abs(y) = 1;",
        "CREATE TABLE x (y integer); SET search_path = pg_catalog, pg_temp; SELECT now();",
    ] {
        assert!(unqualified(sql).is_some(), "{sql}");
    }
    for sql in [
        "SET search_path = pg_catalog, pg_temp;\nSELECT now() FROM pg_roles;",
        "SELECT pg_catalog.now() FROM pg_catalog.pg_roles WHERE a OPERATOR(pg_catalog.=) 'b';",
        "-- now() of pg_roles\nSELECT 'pg_roles', public.f() FROM public.t;",
    ] {
        assert_eq!(unqualified(sql), None, "{sql}");
    }
}

/// The blocks of SQL, and the statements in the middle of a text.
fn snippets(page: &str) -> Vec<String> {
    let block = Regex::new(r"(?s)```sql\n(.*?)```").expect("a pattern");
    let inline =
        Regex::new(r"`((?:SELECT|ALTER|CREATE|DROP|GRANT|CALL) [^`\n]*)`").expect("a pattern");
    let blocks = block.captures_iter(page).chain(inline.captures_iter(page));
    blocks.map(|found| found[1].to_owned()).collect()
}

/// A function's or a system view's name without its schema.
fn unqualified(sql: &str) -> Option<String> {
    let comment = Regex::new(r"--[^\n]*").expect("a pattern");
    let sql = comment.replace_all(sql, "");
    if sql.trim_start().starts_with(PINNED) {
        return None;
    }
    let literal = Regex::new("'[^']*'").expect("a pattern");
    let sql = literal.replace_all(&sql, "''");
    let name = Regex::new(r"([\w.]*)\b(\w+\(|pg_\w+)").expect("a pattern");
    name.captures_iter(&sql).find_map(|found| {
        let (schema, object) = (&found[1], &found[2]);
        let is_free = schema.ends_with('.')
            || object == "OPERATOR("
            || object.starts_with("pg_catalog")
            || object.starts_with("pg_temp");
        (!is_free).then(|| format!("{schema}{object}"))
    })
}
