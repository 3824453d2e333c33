//! `walpost check`: whether `run` would find what it needs, on both ends.
//!
//! One line a finding, each with what to do about it. It changes nothing: the
//! slot is looked at, not used.

mod brokers;
mod columns;
mod connection;
mod endpoints;
mod findings;
mod postgres;
mod publication;
mod server;
mod slot;
mod topics;

use tokio_postgres::Client;

use self::findings::{Finding, Findings, Level};
use super::stdout::print;
use super::{Exit, block_on, complain};
use crate::assembly;
use crate::config::{Config, Environment, Flags, Origin, Setting};
use crate::conninfo::ConnInfo;
use crate::source;

pub(super) fn command(flags: &Flags, offline: bool, json: bool) -> Exit {
    let environment = Environment::of_process();
    let parts = Config::load(flags, &environment).and_then(|config| {
        let source = assembly::source(&config, &environment)?;
        let conninfo = assembly::conninfo(&config, &environment)?;
        assembly::core(&config)?;
        Ok((config, source, conninfo))
    });
    let (config, source, conninfo) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            complain(&error.to_string());
            return Exit::Config;
        }
    };
    let mut findings = Findings::default();
    check_configuration(&config, &conninfo, &mut findings);
    endpoints::check_traces(&mut findings);
    if offline {
        let text = "whether the address is free was not looked at";
        findings.add(Finding::skipped(("admin.listen", "admin_listen"), text));
        let text = "connection, server, role, publication, slot and columns were not looked at";
        findings.add(Finding::skipped(("PostgreSQL", "postgresql"), text));
    } else {
        block_on(async {
            endpoints::check(&config, &mut findings).await;
            postgres::check(&config, &source, &mut findings).await;
        });
    }
    brokers::check(&config, offline, &mut findings);
    let printed = print(&if json { findings.as_json() } else { findings.as_text() });
    if findings.count(Level::Error) > 0 { Exit::Failure } else { printed }
}

fn check_configuration(config: &Config, conninfo: &ConnInfo, findings: &mut Findings) {
    const SUBJECT: &str = "configuration";
    findings.add(Finding::ok((SUBJECT, "configuration"), "valid"));
    if conninfo.password_in_text() && matches!(config.origin(Setting::SourceUrl), Origin::Flag(_)) {
        findings.add(
            Finding::warning((SUBJECT, "password_on_command_line"), "--source has a password")
                .why("it shows in the process list")
                .advice(
                    "give it in WALPOST_SOURCE_URL, WALPOST_SOURCE_URL_FILE, PGPASSWORD or a \
                     password file (~/.pgpass)",
                ),
        );
    }
    let topic_of_all = assembly::profile(config).map(|profile| profile.topic_of_all());
    if config.record.topics_allowed.is_empty() && matches!(topic_of_all, Ok(None)) {
        let text = "rows choose their topics, and record.topics_allowed does not limit which";
        findings.add(
            Finding::warning((SUBJECT, "topics_not_limited"), text)
                .why("whoever may write a row may write to each topic that walpost may write to")
                .advice(
                    "list the topics in record.topics_allowed, such as [\"outbox.event.*\"]; [\"*\"] \
                     says that all are meant",
                ),
        );
    }
    for warning in conninfo.warnings() {
        findings.add(Finding::warning((SUBJECT, "connection_string"), warning));
    }
}

/// Whether the outbox tables, as the publication sends them, have the columns that
/// an event needs; else what is the matter.
pub(super) async fn columns(config: &Config, client: &Client) -> Result<(), String> {
    let profile = assembly::profile(config).map_err(|error| error.to_string())?;
    let mut outbox = assembly::outbox(config, &profile);
    let (publication, tables) = (&config.source.publication, &config.outbox.tables);
    let typed = assembly::is_typed(&profile);
    let found = source::published_tables(client, publication, tables, typed).await;
    for table in found.map_err(|error| error.to_string())? {
        outbox.expect(&table).map_err(|error| error.to_string())?;
    }
    Ok(())
}
