//! What a check found, as lines for people and as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

use crate::excerpt::at_most;

/// Characters of a text that are shown: a server's words may be in it.
const MOST: usize = 4000;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// It was not looked at.
    Skipped,
    Warning,
    /// It stops `run`.
    Error,
}

/// What makes a finding go away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "mend_kind", content = "mend")]
pub(super) enum Mend {
    /// Statements that psql takes as they are.
    Sql(String),
    /// A command for a shell.
    Command(String),
    /// Words for people: it takes a choice, or another place than the database.
    Advice(String),
}

impl Mend {
    /// As a line. What is to be run is never cut.
    fn text(&self) -> String {
        match self {
            Self::Sql(text) | Self::Command(text) => at_most(usize::MAX, text),
            Self::Advice(text) => at_most(MOST, text),
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    level: Level,
    /// What scripts know it by; it never changes.
    code: &'static str,
    /// What was looked at.
    subject: &'static str,
    /// What was found.
    what: String,
    /// What comes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(flatten)]
    mend: Option<Mend>,
}

impl Finding {
    fn new(level: Level, (subject, code): Name, what: impl Into<String>) -> Self {
        Self { level, code, subject, what: what.into(), why: None, mend: None }
    }

    pub(super) fn ok(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Ok, name, what)
    }

    pub(super) fn skipped(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Skipped, name, what)
    }

    pub(super) fn warning(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Warning, name, what)
    }

    pub(super) fn error(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Error, name, what)
    }

    /// What comes of it where it stays.
    pub(super) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(super) fn mend(mut self, mend: Mend) -> Self {
        self.mend = Some(mend);
        self
    }

    /// The mend in psql.
    pub(super) fn sql(self, text: impl Into<String>) -> Self {
        self.mend(Mend::Sql(text.into()))
    }

    /// The mend in a shell.
    pub(super) fn command(self, text: impl Into<String>) -> Self {
        self.mend(Mend::Command(text.into()))
    }

    /// The mend in psql, or in words where it is not done by SQL.
    pub(super) fn sql_or_advice(self, mend: Result<String, String>) -> Self {
        match mend {
            Ok(sql) => self.sql(sql),
            Err(advice) => self.advice(advice),
        }
    }

    /// The mend in words.
    pub(super) fn advice(self, text: impl Into<String>) -> Self {
        self.mend(Mend::Advice(text.into()))
    }
}

/// What was looked at, and the code of the finding.
pub(super) type Name = (&'static str, &'static str);

/// Everything that was looked at, in order.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// The value of a good answer; a query that failed is a finding.
    pub(super) fn answer<T>(
        &mut self,
        name: Name,
        answer: Result<T, impl std::error::Error>,
    ) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                let mut text = error.to_string();
                // A database's own words are one level down.
                if let Some(source) = error.source() {
                    let _ = write!(text, ": {source}");
                }
                self.add(
                    Finding::error(name, text).why("what comes after it could not be looked at"),
                );
                None
            }
        }
    }

    pub(super) fn extend(&mut self, more: impl IntoIterator<Item = Finding>) {
        self.0.extend(more);
    }

    /// Whether something is wrong with that.
    pub(super) fn has_error_of(&self, subject: &str) -> bool {
        self.0.iter().any(|one| one.level == Level::Error && one.subject == subject)
    }

    pub(super) fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    /// A line a finding in columns, why and mend under it, and the verdict. Walpost's own words
    /// have no control characters; in a server's, and in names, they are escaped.
    pub(super) fn as_text(&self) -> String {
        let width = self.0.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Finding { level, code, subject, what, why, mend } in &self.0 {
            let (level, code) = match level {
                Level::Ok => ("ok", String::new()),
                Level::Skipped => ("skipped", String::new()),
                Level::Warning => ("warning", format!("  [{code}]")),
                Level::Error => ("error", format!("  [{code}]")),
            };
            let what = at_most(MOST, what);
            let _ = writeln!(text, "{level:<7}  {subject:<width$}  {what}{code}");
            let why = why.as_ref().map(|why| at_most(MOST, why));
            for (label, said) in [("why", why), ("mend", mend.as_ref().map(Mend::text))] {
                if let Some(said) = said {
                    let _ = writeln!(text, "{:9}{label:<4}  {said}", "");
                }
            }
        }
        text + &self.verdict() + "\n"
    }

    /// One object: `ok`, the counts, and the findings.
    pub(super) fn as_json(&self) -> String {
        let report = serde_json::json!({
            "ok": self.count(Level::Error) == 0,
            "errors": self.count(Level::Error),
            "warnings": self.count(Level::Warning),
            "findings": self.0,
        });
        format!("{report:#}\n")
    }

    fn verdict(&self) -> String {
        let counted = |level, name: &str| match self.count(level) {
            1 => format!("1 {name}"),
            count => format!("{count} {name}s"),
        };
        format!("{}, {}", counted(Level::Error, "error"), counted(Level::Warning, "warning"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let mut findings = Findings::default();
        findings.add(Finding::ok(("slot", "slot"), "stands"));
        findings.add(Finding::warning(("publication", "publication_old"), "is old").why("it rots"));
        findings.add(Finding::skipped(("Kafka", "brokers"), "left out"));
        let wrong = Finding::error(("role", "role_replication"), "is wrong");
        findings.add(wrong.why("none can").sql("ALTER ROLE a REPLICATION;"));
        findings
    }

    #[test]
    fn the_lines_are_aligned_and_end_in_a_verdict() {
        let expected = "ok       slot         stands\n\
                        warning  publication  is old  [publication_old]\n         \
                        why   it rots\n\
                        skipped  Kafka        left out\n\
                        error    role         is wrong  [role_replication]\n         \
                        why   none can\n         \
                        mend  ALTER ROLE a REPLICATION;\n\
                        1 error, 1 warning\n";
        assert_eq!(findings().as_text(), expected);
        assert_eq!(Findings::default().as_text(), "0 errors, 0 warnings\n");
    }

    #[test]
    fn a_servers_words_forge_no_line() {
        let mut findings = Findings::default();
        let said = format!("no\nok       slot  stands\u{1b}[2K{}", "x".repeat(100_000));
        let wrong = Finding::error(("slot", "slot"), said).why("a\rb").sql("DROP TABLE \"a\nb\";");
        findings.add(wrong);
        findings.add(Finding::warning(("slot", "slot"), "is old").advice("a\nb"));
        let text = findings.as_text();
        assert!(!text.replace('\n', "").contains(char::is_control), "{text}");
        assert!(text.contains(r"no\nok       slot  stands\u{1b}[2Kxxx"), "{text}");
        assert!(text.contains(r#"DROP TABLE "a\nb";"#), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.len() < 5000, "{text}");
        let long = "x".repeat(10_000);
        let mut findings = Findings::default();
        findings.add(Finding::error(("slot", "slot"), "a").sql(long.clone()));
        assert!(findings.as_text().contains(&long));
    }

    #[test]
    fn the_json_says_whether_run_can_start() {
        let report: serde_json::Value = serde_json::from_str(&findings().as_json()).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!((&report["errors"], &report["warnings"]), (&1.into(), &1.into()));
        let expected = serde_json::json!({
            "level": "error", "code": "role_replication", "subject": "role", "what": "is wrong",
            "why": "none can", "mend_kind": "sql", "mend": "ALTER ROLE a REPLICATION;",
        });
        assert_eq!(report["findings"][3], expected);
        let expected = serde_json::json!({
            "level": "skipped", "code": "brokers", "subject": "Kafka", "what": "left out",
        });
        assert_eq!(report["findings"][2], expected);
    }
}
