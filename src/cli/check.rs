//! `walpost check`: prints the findings of the preflight checks, as lines or as JSON.

use std::fmt::Write as _;

use super::stdout::{complain, print, with_flags_of_this};
use super::{Exit, block_on, configuration};
use crate::assembly;
use crate::config::{self, Flags};
use crate::excerpt::at_most;
use crate::findings::{Finding, Findings, Fix, Level};
use crate::tools::check;

/// Maximum length of a displayed text in characters: it may contain a server's message.
const MOST: usize = 4000;

pub(super) fn command(flags: &Flags, offline: bool, json: bool) -> Exit {
    let config = match configuration(flags) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let parts = assembly::source(&config).and_then(|source| {
        let conninfo = assembly::conninfo(&config)?;
        assembly::core(&config)?;
        Ok((source, conninfo))
    });
    let (source, conninfo) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    let mut findings = if offline {
        block_on(check::check_offline(&config, &conninfo))
    } else {
        block_on(check::check(&config, &conninfo, &source))
    };
    findings.map_commands(with_flags_of_this);
    // Names of brokers may have logins, and reports are kept.
    findings.map_texts(config::without_logins);
    let printed = print(&if json { as_json(&findings) } else { as_text(&findings) });
    if findings.count(Level::Error) > 0 { Exit::Failure } else { printed }
}

/// One line per finding in columns, with its reason and fix below, then the totals. Control
/// characters from a server or in a name are escaped.
fn as_text(findings: &Findings) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { level, code, subject, what, why, fix } in findings.iter() {
        let (level, code) = match level {
            Level::Ok => ("ok", String::new()),
            Level::Skipped => ("skipped", String::new()),
            Level::Warning => ("warning", format!("  [{code}]")),
            Level::Error => ("error", format!("  [{code}]")),
        };
        let what = at_most(MOST, what);
        let _ = writeln!(text, "{level:<7}  {subject:<width$}  {what}{code}");
        let why = why.as_ref().map(|why| at_most(MOST, why));
        for (label, said) in [("why", why), ("fix", fix.as_ref().map(fix_text))] {
            if let Some(said) = said {
                let _ = writeln!(text, "{:9}{label:<3}  {said}", "");
            }
        }
    }
    text + &verdict(findings) + "\n"
}

/// One object: `ok`, the totals, and the findings.
fn as_json(findings: &Findings) -> String {
    let report = serde_json::json!({
        "ok": findings.count(Level::Error) == 0,
        "errors": findings.count(Level::Error),
        "warnings": findings.count(Level::Warning),
        "findings": findings,
    });
    format!("{report:#}\n")
}

fn verdict(findings: &Findings) -> String {
    let counted = |level, name: &str| match findings.count(level) {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    };
    format!("{}, {}", counted(Level::Error, "error"), counted(Level::Warning, "warning"))
}

/// A fix on one line. Commands to execute are never shortened.
fn fix_text(fix: &Fix) -> String {
    match fix {
        Fix::Sql(text) | Fix::Command(text) => at_most(usize::MAX, text),
        Fix::Advice(text) => at_most(MOST, text),
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
    fn the_lines_are_aligned_and_end_with_the_totals() {
        let expected = "ok       slot         stands\n\
                        warning  publication  is old  [publication_old]\n         \
                        why  it rots\n\
                        skipped  Kafka        left out\n\
                        error    role         is wrong  [role_replication]\n         \
                        why  none can\n         \
                        fix  ALTER ROLE a REPLICATION;\n\
                        1 error, 1 warning\n";
        assert_eq!(as_text(&findings()), expected);
        assert_eq!(as_text(&Findings::default()), "0 errors, 0 warnings\n");
    }

    #[test]
    fn a_servers_message_cannot_forge_lines() {
        let mut findings = Findings::default();
        let said = format!("no\nok       slot  stands\u{1b}[2K{}", "x".repeat(100_000));
        let wrong = Finding::error(("slot", "slot"), said).why("a\rb").sql("DROP TABLE \"a\nb\";");
        findings.add(wrong);
        findings.add(Finding::warning(("slot", "slot"), "is old").advice("a\nb"));
        let text = as_text(&findings);
        assert!(!text.replace('\n', "").contains(char::is_control), "{text}");
        assert!(text.contains(r"no\nok       slot  stands\u{1b}[2Kxxx"), "{text}");
        assert!(text.contains(r#"DROP TABLE "a\nb";"#), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.len() < 5000, "{text}");
        let long = "x".repeat(10_000);
        let mut findings = Findings::default();
        findings.add(Finding::error(("slot", "slot"), "a").sql(long.clone()));
        assert!(as_text(&findings).contains(&long));
    }

    #[test]
    fn the_json_tells_whether_run_can_start() {
        let report: serde_json::Value = serde_json::from_str(&as_json(&findings())).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!((&report["errors"], &report["warnings"]), (&1.into(), &1.into()));
        let expected = serde_json::json!({
            "level": "error", "code": "role_replication", "subject": "role", "what": "is wrong",
            "why": "none can", "fix_kind": "sql", "fix": "ALTER ROLE a REPLICATION;",
        });
        assert_eq!(report["findings"][3], expected);
        let expected = serde_json::json!({
            "level": "skipped", "code": "brokers", "subject": "Kafka", "what": "left out",
        });
        assert_eq!(report["findings"][2], expected);
    }
}
