//! What a check found, as lines for people and as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

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

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// What was looked at.
    subject: &'static str,
    /// What was found, and what to do about it.
    text: String,
}

/// Everything that was looked at, in order.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, level: Level, subject: &'static str, text: impl Into<String>) {
        self.0.push(Finding { level, subject, text: text.into() });
    }

    /// The value of a good result, after a finding of what it is.
    pub(super) fn of<T, E: ToString>(
        &mut self,
        subject: &'static str,
        result: Result<T, E>,
        good: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        match result {
            Ok(value) => {
                self.add(Level::Ok, subject, good(&value));
                Some(value)
            }
            Err(error) => {
                self.add(Level::Error, subject, error.to_string());
                None
            }
        }
    }

    pub(super) fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    /// A line a finding in columns, and the verdict.
    pub(super) fn as_text(&self) -> String {
        let width = self.0.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Finding { level, subject, text: found } in &self.0 {
            let level = match level {
                Level::Ok => "ok",
                Level::Skipped => "skipped",
                Level::Warning => "warning",
                Level::Error => "error",
            };
            let _ = writeln!(text, "{level:<7}  {subject:<width$}  {found}");
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
        findings.add(Level::Ok, "slot", "stands");
        findings.add(Level::Warning, "publication", "is old");
        findings.add(Level::Skipped, "Kafka", "left out");
        findings.add(Level::Error, "role", "is wrong");
        findings
    }

    #[test]
    fn the_lines_are_aligned_and_end_in_a_verdict() {
        let expected = "ok       slot         stands\n\
                        warning  publication  is old\n\
                        skipped  Kafka        left out\n\
                        error    role         is wrong\n\
                        1 error, 1 warning\n";
        assert_eq!(findings().as_text(), expected);
        assert_eq!(Findings::default().as_text(), "0 errors, 0 warnings\n");
    }

    #[test]
    fn the_json_says_whether_run_can_start() {
        let report: serde_json::Value = serde_json::from_str(&findings().as_json()).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!((&report["errors"], &report["warnings"]), (&1.into(), &1.into()));
        assert_eq!(report["findings"][3]["level"], "error");
        assert_eq!(report["findings"][2]["subject"], "Kafka");
    }
}
