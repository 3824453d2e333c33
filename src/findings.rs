//! The findings of the preflight checks, each with its consequence and its fix.

use std::fmt::Write as _;

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// Not checked.
    Skipped,
    Warning,
    /// `run` would not start, or would fail.
    Error,
}

/// How to fix a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "fix_kind", content = "fix")]
pub(crate) enum Fix {
    /// Statements for psql.
    Sql(String),
    /// A shell command.
    Command(String),
    /// An instruction: it requires a decision, or a change outside of the database.
    Advice(String),
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// A stable identifier for scripts.
    pub(crate) code: &'static str,
    /// What was checked.
    pub(crate) subject: &'static str,
    /// The result.
    pub(crate) what: String,
    /// The consequence of the finding.
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

    /// Sets the consequence if it is not fixed.
    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(crate) fn fix(mut self, fix: Fix) -> Self {
        self.fix = Some(fix);
        self
    }

    /// Sets a fix for psql.
    pub(crate) fn sql(self, text: impl Into<String>) -> Self {
        self.fix(Fix::Sql(text.into()))
    }

    /// Sets a fix for the shell.
    pub(crate) fn command(self, text: impl Into<String>) -> Self {
        self.fix(Fix::Command(text.into()))
    }

    /// Sets a fix for psql, or an instruction if SQL cannot fix it.
    pub(crate) fn sql_or_advice(self, fix: Result<String, String>) -> Self {
        match fix {
            Ok(sql) => self.sql(sql),
            Err(advice) => self.advice(advice),
        }
    }

    /// Sets an instruction.
    pub(crate) fn advice(self, text: impl Into<String>) -> Self {
        self.fix(Fix::Advice(text.into()))
    }
}

/// The subject of a check, and the code of its finding.
pub(crate) type Name = (&'static str, &'static str);

/// All findings, in order.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    /// Adds all of the others.
    pub(crate) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }
}

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// The value of a successful query; a failed query becomes a finding.
    pub(crate) fn answer<T>(
        &mut self,
        name: Name,
        answer: Result<T, impl std::error::Error>,
    ) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                let mut text = error.to_string();
                // The database's own message is one level down.
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

    /// Changes each fix for the shell.
    pub(crate) fn map_commands(&mut self, change: impl Fn(&str) -> String) {
        for finding in &mut self.0 {
            if let Some(Fix::Command(text)) = &mut finding.fix {
                *text = change(text);
            }
        }
    }

    /// Changes each text but those of fixes, which are pasted.
    pub(crate) fn map_texts(&mut self, change: impl Fn(&str) -> String) {
        for Finding { what, why, .. } in &mut self.0 {
            for text in [Some(what), why.as_mut()].into_iter().flatten() {
                *text = change(text);
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

    /// Whether there is an error for that subject.
    pub(crate) fn has_error_of(&self, subject: &str) -> bool {
        self.0.iter().any(|one| one.level == Level::Error && one.subject == subject)
    }

    pub(crate) fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }
}
