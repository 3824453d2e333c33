//! `walpost check`: whether `run` would find what it needs, on both ends.
//!
//! One line a finding, each with what to do about it. It changes nothing: the
//! slot is looked at, not used.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::stdout::print;
use super::{Exit, block_on, complain};
use crate::assembly;
use crate::config::{Config, Environment, Flags, Origin, Setting};
use crate::conninfo::ConnInfo;
use crate::sink::{self, ReachError};
use crate::source::{self, Facts, SourceConfig, SourceError};

/// How long a broker may take to answer.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(10);

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
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

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, subject: &'static str, text: impl Into<String>) {
        self.0.push(Finding { level, subject, text: text.into() });
    }

    /// The value of a good result, after a finding of what it is.
    fn of<T, E: ToString>(
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
}

pub(super) fn command(flags: &Flags, offline: bool, json: bool) -> Exit {
    let environment = Environment::of_process();
    let parts = Config::load(flags, &environment).and_then(|config| {
        let source = assembly::source(&config, &environment)?;
        assembly::core(&config)?;
        Ok((config, source))
    });
    let (config, source) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    let mut findings = Findings::default();
    check_configuration(&config, &source.conninfo, &mut findings);
    if !offline {
        block_on(check_source(&config, &source, &mut findings));
        check_kafka(&config, &mut findings);
    }
    let bad = findings.0.iter().any(|finding| finding.level == Level::Error);
    let printed = print(&if json { as_json(&findings) } else { as_text(&findings) });
    if bad { Exit::Failure } else { printed }
}

fn check_configuration(config: &Config, conninfo: &ConnInfo, findings: &mut Findings) {
    findings.add(Level::Ok, "configuration", "valid");
    if conninfo.password_in_text() && matches!(config.origin(Setting::SourceUrl), Origin::Flag(_)) {
        findings.add(
            Level::Warning,
            "configuration",
            "the password in --source shows in the process list: give it in WALPOST_SOURCE_URL, \
             WALPOST_SOURCE_URL_FILE, PGPASSWORD or a password file (~/.pgpass)",
        );
    }
    for warning in conninfo.warnings() {
        findings.add(Level::Warning, "configuration", warning);
    }
}

async fn check_source(config: &Config, source: &SourceConfig, findings: &mut Findings) {
    let opened = source::control(&source.conninfo, "walpost check").await;
    let opened = opened.map_err(SourceError::from);
    let Some(control) =
        findings.of("PostgreSQL", opened, |_| format!("connected to {}", source.conninfo))
    else {
        return;
    };
    let facts = Facts::read(&control.client, &source.slot).await;
    let Some(facts) = findings.of("server", facts, |facts| {
        format!("version {}, WAL flushed to {}", facts.version / 10_000, facts.flushed)
    }) else {
        return;
    };
    if facts.version < 140_000 {
        findings.add(Level::Error, "server", "walpost needs PostgreSQL 14 or later");
    }
    findings.of("wal_level", facts.require_wal_level(), |()| "logical".into());
    check_role(&control.client, findings).await;
    let slot = findings.of("slot", facts.require_slot(&source.slot), |confirmed| {
        format!("\"{}\" stands at {confirmed}", source.slot)
    });
    let used = facts.slot.as_ref().and_then(|slot| slot.active_pid);
    if let (Some(_), Some(pid)) = (slot, used) {
        let text = format!(
            "\"{}\" is in use by server process {pid}: `run` waits until it is free",
            source.slot
        );
        findings.add(Level::Warning, "slot", text);
    }
    let tables =
        source::published_tables(&control.client, &source.publication, &source.tables).await;
    let Some(relations) = findings.of("publication", tables, |_| {
        let names: Vec<_> = source.tables.iter().map(ToString::to_string).collect();
        format!("\"{}\" publishes the inserts of {}", source.publication, names.join(", "))
    }) else {
        return;
    };
    let Ok(topic) = assembly::topic(config) else {
        return;
    };
    let mut outbox = assembly::outbox(config, &topic);
    for relation in &relations {
        findings.of("columns", outbox.relation(relation), |()| {
            format!("{}.{} has what an event needs", relation.schema, relation.name)
        });
    }
}

/// A role without REPLICATION is told so; one that only seems to lack it (a
/// managed service's own role) is given the benefit of the doubt.
async fn check_role(client: &tokio_postgres::Client, findings: &mut Findings) {
    let query = "SELECT rolname::text, rolreplication OR rolsuper, \
                 EXISTS (SELECT FROM pg_catalog.pg_auth_members m \
                           JOIN pg_catalog.pg_roles g ON g.oid = m.roleid \
                          WHERE m.member = r.oid AND g.rolname LIKE '%replication%') \
                 FROM pg_catalog.pg_roles r WHERE rolname = current_user";
    let row = match client.query_one(query, &[]).await {
        Ok(row) => row,
        Err(error) => return findings.add(Level::Warning, "role", error.to_string()),
    };
    let name: String = row.get(0);
    match (row.get(1), row.get(2)) {
        (true, _) => findings.add(Level::Ok, "role", format!("{name} may replicate")),
        (false, true) => {
            let text = format!("{name} has no REPLICATION attribute; its group may stand for it");
            findings.add(Level::Warning, "role", text);
        }
        (false, false) => findings.add(
            Level::Error,
            "role",
            format!("{name} may not replicate: ALTER ROLE \"{name}\" REPLICATION"),
        ),
    }
}

fn check_kafka(config: &Config, findings: &mut Findings) {
    let servers = &config.kafka.bootstrap_servers;
    match sink::reach(&assembly::kafka(config), KAFKA_TIMEOUT) {
        Ok(brokers) => {
            let text = format!("{servers} answers for {brokers} broker(s)");
            findings.add(Level::Ok, "Kafka", text);
        }
        Err(ReachError::Sink(error)) => findings.add(Level::Error, "Kafka", error.to_string()),
        Err(ReachError::Unauthenticated(reason)) => {
            let text = format!(
                "{servers} refuses walpost's credentials: {reason}; check security.protocol and the \
                 sasl.* and ssl.* properties"
            );
            findings.add(Level::Error, "Kafka", text);
        }
        Err(ReachError::Unreachable(reason)) => {
            let text = format!(
                "{servers} cannot be reached: {reason}; check --bootstrap-servers and that the \
                 addresses which the brokers advertise can be reached from here"
            );
            findings.add(Level::Error, "Kafka", text);
        }
    }
}

fn as_text(findings: &Findings) -> String {
    let mut text = String::new();
    for Finding { level, subject, text: found } in &findings.0 {
        let level = match level {
            Level::Ok => "ok     ",
            Level::Warning => "warning",
            Level::Error => "error  ",
        };
        let _ = writeln!(text, "{level}  {subject}: {found}");
    }
    text
}

fn as_json(findings: &Findings) -> String {
    let ok = findings.0.iter().all(|finding| finding.level != Level::Error);
    let report = serde_json::json!({ "ok": ok, "findings": findings.0 });
    format!("{report:#}\n")
}
