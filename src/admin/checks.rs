//! Repeats `walpost check` while `run` delivers, for the page and `/status`: in a process of its own, so that
//! nothing that happens to it can end delivery.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::crash_points;
use crate::excerpt::at_most;

/// When it runs first: what a start causes, such as the election of a leader, is over.
const FIRST: Duration = Duration::from_secs(60);

/// How often it runs: it connects to PostgreSQL and to the destination, and reads the catalog.
const INTERVAL: Duration = Duration::from_secs(3600);

/// The same while it finds errors, which may be gone soon.
const INTERVAL_WITH_ERRORS: Duration = Duration::from_secs(300);

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Maximum number of findings shown, and maximum length of each text in characters.
const FINDINGS: usize = 50;
const TEXT: usize = 2000;

/// What is only about a start: the address of the endpoints is in use by this walpost, and the slot's position
/// moves on.
const OF_A_START: [&str; 3] =
    ["admin_listen", "admin_listen_in_use", "publication_newer_than_slot"];

/// A warning or an error of `walpost check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingStatus {
    /// `warning` or `error`.
    pub level: String,
    /// The stable identifier of the finding.
    pub code: String,
    /// What was checked.
    pub subject: String,
    /// The result; empty on an address that is no loopback one, as what follows.
    #[serde(default)]
    pub what: String,
    /// The consequence.
    #[serde(default)]
    pub why: Option<String>,
    /// Statements, a command or an instruction.
    #[serde(default)]
    pub fix: Option<String>,
}

impl FindingStatus {
    /// What may be shown to anybody.
    pub(super) fn for_anybody(self) -> Self {
        Self { what: String::new(), why: None, fix: None, ..self }
    }

    fn shortened(self) -> Self {
        let short = |text: String| at_most(TEXT, &text);
        let (why, fix) = (self.why.map(short), self.fix.map(short));
        Self { what: short(self.what), why, fix, ..self }
    }
}

/// What `walpost check --json` prints.
#[derive(Debug, Deserialize)]
struct Report {
    findings: Vec<FindingStatus>,
}

/// When the last check was, and its warnings and errors.
pub(super) type Last = (Option<SystemTime>, Vec<FindingStatus>);

/// The result of the last check.
#[derive(Debug, Clone, Default)]
pub(super) struct Checked(Arc<Mutex<Last>>);

impl Checked {
    pub(super) fn get(&self) -> Last {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, findings: Vec<FindingStatus>) {
        let last = (Some(SystemTime::now()), findings);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }
}

/// Repeats the check with these options until the process ends.
pub(super) async fn repeat(options: Vec<OsString>, checked: Checked) {
    let is_frequent = crash_points::is_armed("frequent_checks");
    let mut wait = FIRST;
    loop {
        sleep(if is_frequent { Duration::ZERO } else { wait }).await;
        let findings = check(&options).await.unwrap_or_else(|reason| {
            let [level, code, subject] = ["warning", "check_failed", "check"].map(str::to_owned);
            let what = format!("`walpost check` could not be run: {reason}");
            vec![FindingStatus { level, code, subject, what, why: None, fix: None }]
        });
        let has_errors = findings.iter().any(|finding| finding.level == "error");
        checked.set(findings);
        wait = if has_errors { INTERVAL_WITH_ERRORS } else { INTERVAL };
    }
}

/// Runs the check once.
async fn check(options: &[OsString]) -> Result<Vec<FindingStatus>, String> {
    let mut command = Command::new(program()?);
    command.args(["check", "--json"]).args(options);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(LIMIT, output).await.map_err(|_| format!("no result in {LIMIT:?}"))?;
    let output = output.map_err(|error| error.to_string())?;
    let report: Report = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("it ended with {} and no report", output.status))?;
    Ok(shown(report))
}

fn shown(report: Report) -> Vec<FindingStatus> {
    let is_shown = |finding: &FindingStatus| {
        matches!(finding.level.as_str(), "warning" | "error")
            && !OF_A_START.contains(&finding.code.as_str())
    };
    let found = report.findings.into_iter().filter(is_shown);
    found.take(FINDINGS).map(FindingStatus::shortened).collect()
}

/// This program, also after its file was replaced by another version.
fn program() -> Result<PathBuf, String> {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { Ok(own) } else { std::env::current_exe().map_err(|error| error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_read_without_what_is_about_a_start() {
        let finding = |level: &str, code: &str| {
            serde_json::json!({"level": level, "code": code, "subject": "slot", "what": "x",
                "fix_kind": "sql", "fix": "y".repeat(2 * TEXT)})
        };
        let findings = [
            finding("ok", "slot"),
            finding("error", "slot_missing"),
            finding("warning", "publication_newer_than_slot"),
            finding("skipped", "brokers"),
        ];
        let report = serde_json::json!({"ok": false, "findings": findings}).to_string();
        let shown = shown(serde_json::from_str(&report).expect("a report"));
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!((&*shown[0].code, &shown[0].why), ("slot_missing", &None));
        assert!(shown[0].fix.as_ref().is_some_and(|fix| fix.len() < TEXT + 100), "{shown:?}");
    }
}
