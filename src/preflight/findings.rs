//! The findings of the preflight checks, each with its consequence and its fix.

use std::fmt::Write as _;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// It was not looked at.
    Skipped,
    Warning,
    /// It stops `run`.
    Error,
}

/// What makes a finding go away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "fix_kind", content = "fix")]
pub(crate) enum Fix {
    /// Statements that psql takes as they are.
    Sql(String),
    /// A command for a shell.
    Command(String),
    /// Words for people: it takes a choice, or another place than the database.
    Advice(String),
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What scripts know it by; it never changes.
    pub(crate) code: &'static str,
    /// What was looked at.
    pub(crate) subject: &'static str,
    /// What was found.
    pub(crate) what: String,
    /// What comes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    #[serde(flatten)]
    pub(crate) fix: Option<Fix>,
}

impl Finding {
    fn new(level: Level, (subject, code): Name, what: impl Into<String>) -> Self {
        Self { level, code, subject, what: what.into(), why: None, fix: None }
    }

    pub(crate) fn ok(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Ok, name, what)
    }

    pub(crate) fn skipped(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Skipped, name, what)
    }

    pub(crate) fn warning(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Warning, name, what)
    }

    pub(crate) fn error(name: Name, what: impl Into<String>) -> Self {
        Self::new(Level::Error, name, what)
    }

    /// What comes of it where it stays.
    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(crate) fn fix(mut self, fix: Fix) -> Self {
        self.fix = Some(fix);
        self
    }

    /// The fix in psql.
    pub(crate) fn sql(self, text: impl Into<String>) -> Self {
        self.fix(Fix::Sql(text.into()))
    }

    /// The fix in a shell.
    pub(crate) fn command(self, text: impl Into<String>) -> Self {
        self.fix(Fix::Command(text.into()))
    }

    /// The fix in psql, or in words where it is not done by SQL.
    pub(crate) fn sql_or_advice(self, fix: Result<String, String>) -> Self {
        match fix {
            Ok(sql) => self.sql(sql),
            Err(advice) => self.advice(advice),
        }
    }

    /// The fix in words.
    pub(crate) fn advice(self, text: impl Into<String>) -> Self {
        self.fix(Fix::Advice(text.into()))
    }
}

/// What was looked at, and the code of the finding.
pub(crate) type Name = (&'static str, &'static str);

/// Everything that was looked at, in order.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// The value of a good answer; a query that failed is a finding.
    pub(crate) fn answer<T>(
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
                    Finding::error(name, text).why("the checks that depend on it were skipped"),
                );
                None
            }
        }
    }

    pub(crate) fn extend(&mut self, more: impl IntoIterator<Item = Finding>) {
        self.0.extend(more);
    }

    /// All findings, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter()
    }

    /// Whether something is wrong with that.
    pub(crate) fn has_error_of(&self, subject: &str) -> bool {
        self.0.iter().any(|one| one.level == Level::Error && one.subject == subject)
    }

    pub(crate) fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }
}
