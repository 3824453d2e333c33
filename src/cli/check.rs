//! `walpost check`: whether `run` would find what it needs, on both ends.
//!
//! One line a finding, each with what to do about it. It changes nothing: the
//! slot is looked at, not used.

mod findings;
mod postgres;
mod topics;

use std::time::Duration;

use tokio_postgres::Client;

use self::findings::{Findings, Level};
use super::stdout::print;
use super::{Exit, block_on, complain};
use crate::assembly;
use crate::config::{Config, Environment, Flags, Origin, Setting};
use crate::conninfo::ConnInfo;
use crate::sink::{self, KafkaConfig, ReachError};
use crate::source;

/// How long a broker may take to answer.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(10);

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
    if offline {
        let text = "server, settings, role, slot, publication and columns were not looked at";
        findings.add(Level::Skipped, "PostgreSQL", text);
    } else {
        block_on(postgres::check(&config, &source, &mut findings));
    }
    check_kafka(&config, offline, &mut findings);
    let printed = print(&if json { findings.as_json() } else { findings.as_text() });
    if findings.count(Level::Error) > 0 { Exit::Failure } else { printed }
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

fn check_kafka(config: &Config, offline: bool, findings: &mut Findings) {
    let kafka = assembly::kafka(config);
    let accepted = findings.of("Kafka client", sink::accepts(&kafka), |()| {
        "this build has what the properties ask for".to_owned()
    });
    match accepted {
        None => {}
        Some(()) if offline => {
            let text = "brokers and credentials were not looked at";
            findings.add(Level::Skipped, "Kafka", text);
        }
        Some(()) => check_brokers(config, &kafka, findings),
    }
}

fn check_brokers(config: &Config, kafka: &KafkaConfig, findings: &mut Findings) {
    let servers = &kafka.bootstrap_servers;
    match sink::reach(kafka, KAFKA_TIMEOUT) {
        Ok(reached) => {
            let text = format!("{servers} answers for {} broker(s)", reached.brokers);
            findings.add(Level::Ok, "Kafka", text);
            topics::check(config, kafka, &reached, findings);
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

/// Whether the outbox tables, as the publication sends them, have the columns that
/// an event needs; else what is the matter.
pub(super) async fn columns(config: &Config, client: &Client) -> Result<(), String> {
    let profile = assembly::profile(config).map_err(|error| error.to_string())?;
    let mut outbox = assembly::outbox(config, &profile);
    let (publication, tables) = (&config.source.publication, &config.outbox.tables);
    let found = source::published_tables(client, publication, tables).await;
    for table in found.map_err(|error| error.to_string())? {
        outbox.expect(&table).map_err(|error| error.to_string())?;
    }
    Ok(())
}
