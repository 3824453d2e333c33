//! Extracts all SQL of the pages and example programs from the files, so that later additions are
//! covered.

use std::fs;
use std::path::{Path, PathBuf};

use regex::{Captures, Regex};
use walpost_bed::repository;

use super::Trap;

/// What a statement may fail of here, by the page's name: it was read by then, and the names in it
/// were looked up.
const FAILS: [(&str, &str); 15] = [
    // Of PostgreSQL 16 or 17 and later.
    ("high-availability.md", r#"column "synced" does not exist"#),
    ("high-availability.md", r#"column "failover" does not exist"#),
    ("operations.md", "function pg_catalog.pg_log_standby_snapshot() does not exist"),
    // On a standby, where it is not there yet.
    ("operations.md", r#"replication slot "walpost" already exists"#),
    // The application's role, and another server.
    ("postgresql-upgrade.md", r#"role "app" does not exist"#),
    ("writing-events.md", r#"role "app" does not exist"#),
    ("postgresql-upgrade.md", "invalid connection string syntax"),
    ("postgresql-upgrade.md", r#"subscription "upgrade" does not exist"#),
    // Its role is there already, and a provider's is in no server of ours.
    ("managed-services.md", r#"role "walpost" already exists"#),
    ("managed-services.md", r#"role "rds_replication" does not exist"#),
    // Of PostgreSQL 17 and later, or before it.
    ("security.md", "function pg_catalog.pg_logical_emit_message(boolean, pg_catalog."),
    // A row filter, of PostgreSQL 15 and later.
    ("sizing.md", r#"syntax error at or near "WHERE""#),
    // A position in the page that the slot here is beyond.
    ("guarantee.md", "cannot advance replication slot to"),
    ("sizing.md", r#"replication slot "outbox_"#),
    ("sizing.md", r#"publication "outbox_"#),
];

/// What pages leave open, and the tables that they take for granted.
const FILLED: [(&str, &str); 4] = [
    (
        "('…', '…')",
        "('00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002')",
    ),
    ("> 'X'", "> '1000000'"),
    (">= 'L'", ">= 'FFFFFFFF/0'"),
    ("'debezium'", "'walpost'"),
];

impl Trap {
    /// Each block of SQL of each page, as a superuser pastes it.
    pub(super) async fn pages(&self, init: &str) {
        let pages = files("docs", "md").into_iter().chain(["README.md", "SECURITY.md"].map(at));
        let block = r"(?ms)^ *```sql\n(?<block>.*?)^ *```$|<<'SQL'\n(?<here>.*?)^SQL$";
        let block = Regex::new(block).expect("a pattern");
        self.execute(include_str!("../../../../examples/writers/shop.sql")).await;
        self.execute("ALTER TABLE public.orders ADD COLUMN state text").await;
        self.execute("CREATE PUBLICATION dbz_publication FOR TABLE public.outbox").await;
        let mut seen = 0;
        for page in pages {
            let text = fs::read_to_string(&page).expect("it is read");
            let name = page.file_name().expect("a name").to_string_lossy().into_owned();
            self.psql(init);
            for (number, found) in block.captures_iter(&text).enumerate() {
                let what = format!("{name}, block {}", number + 1);
                let found = found.name("block").or_else(|| found.name("here")).expect("either");
                let block = found.as_str().to_owned();
                let block =
                    FILLED.iter().fold(block, |block, (open, filled)| block.replace(open, filled));
                self.tolerant_psql(&block, &what, &name);
                self.untouched(&what).await;
                if block.contains("CREATE TABLE public.messages") {
                    let rows = "INSERT INTO public.messages (topic, message_key, event_type)
                                SELECT 't', i::text, 'e' FROM generate_series(1, 9) AS i";
                    self.execute(rows).await;
                }
                seen += 1;
            }
        }
        assert!(seen > 35, "only {seen} blocks were found");
    }

    /// What fails has to be known to.
    fn tolerant_psql(&self, sql: &str, what: &str, page: &str) {
        let said = self.psql_says(sql, "0");
        for line in said.lines().filter(|line| line.contains("ERROR:")) {
            let is_known = FAILS.iter().any(|(of, error)| *of == page && line.contains(error));
            assert!(is_known, "{what}:\n{sql}\n{said}");
        }
    }

    /// All statements of each program, in the order of its source: the first has to see to it that
    /// the others are safe.
    pub(super) async fn programs(&self) {
        self.consumers().await;
        self.writers().await;
    }

    async fn writers(&self) {
        let mut programs = 0;
        let directory = at("examples/writers");
        let kinds = ["rs", "java", "go", "py", "ts"];
        for file in kinds.into_iter().flat_map(|of| below(&directory, of)) {
            let source = fs::read_to_string(&file).expect("it is read");
            let what = file.display().to_string();
            let mut statements = statements(&source);
            if source.contains("\"-c search_path=pg_catalog,pg_temp\"") {
                statements.insert(0, "SET search_path = pg_catalog, pg_temp".to_owned());
            }
            let count = statements.len();
            assert!(count >= 4 || what.contains("sqlalchemy"), "{what}: {statements:#?}");
            self.execute("TRUNCATE public.orders").await;
            self.psql(&statements.join(";\n"));
            self.untouched(&what).await;
            programs += 1;
        }
        assert_eq!(programs, 7, "a program that is not tested");
    }

    async fn consumers(&self) {
        let mut programs = 0;
        let directory = at("examples/consumers");
        for file in
            ["sql", "rs", "java", "go", "py"].into_iter().flat_map(|of| below(&directory, of))
        {
            let source = fs::read_to_string(&file).expect("it is read");
            let what = file.display().to_string();
            if file.extension().is_some_and(|of| of == "sql") {
                self.psql(&source);
                self.untouched(&what).await;
                continue;
            }
            let statements = statements(&source);
            // Those of Kafka have one for each way to deduplicate; consumers of Redis and NATS keep the
            // id of the last entry or message, and the others that of each event.
            let is_of = |brokers: &[&str]| brokers.iter().any(|one| what.contains(one));
            let expected = if is_of(&["/http/", "/rabbitmq/", "/sqs/"]) {
                3
            } else if is_of(&["/redis/", "/nats/"]) {
                4
            } else {
                5
            };
            assert_eq!(statements.len(), expected, "{what}: {statements:#?}");
            // Twice, so that what they conflict with is there.
            self.psql(&[&statements[..], &statements[1..]].concat().join(";\n"));
            self.untouched(&what).await;
            programs += 1;
        }
        let languages = fs::read_dir(&directory).expect("it is read");
        let languages = languages.filter(|entry| entry.as_ref().is_ok_and(|it| it.path().is_dir()));
        assert_eq!(programs, languages.count(), "a language that is not tested");
    }
}

/// The literals of a source that are statements, with values in the place of parameters.
fn statements(source: &str) -> Vec<String> {
    let literal = r#"(?s)"""(.*?)"""|"((?:[^"\\\n]|\\.)*(?:\n(?:[^"\\]|\\.)*)?)"|`([^`]*)`"#;
    let literal = Regex::new(literal).expect("a pattern");
    let begins = Regex::new(r"^\s*(SET|SELECT|INSERT|UPDATE|DELETE|WITH|CALL|DO|CREATE)\s");
    let begins = begins.expect("a pattern");
    let parameter = Regex::new(r"(\$\d|%s|\?)(::text::jsonb)?").expect("a pattern");
    let texts =
        literal.captures_iter(source).filter_map(|found| found.iter().skip(1).flatten().next());
    let sql = texts.map(|text| text.as_str()).filter(|text| begins.is_match(text));
    let fill = |found: &Captures<'_>| match found.get(2) {
        Some(cast) => format!(r#"'{{"total": 1, "idempotencyKey": "k"}}'{}"#, cast.as_str()),
        None => "'1'".to_owned(),
    };
    sql.map(|sql| parameter.replace_all(sql, fill).into_owned()).collect()
}

fn at(path: &str) -> PathBuf {
    repository().join(path)
}

fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    below(&at(directory), extension)
}

/// All files of that kind in a directory and below it, in the order of their names.
fn below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("it is read") {
        let path = entry.expect("it is read").path();
        if path.is_dir() {
            found.extend(below(&path, extension));
        } else if path.extension().is_some_and(|of| of == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
