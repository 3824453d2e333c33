//! The preflight checks: what `run` needs in PostgreSQL and in Kafka, each finding with its fix.
//!
//! They change nothing: the slot is examined, not used.

mod columns;
mod connection;
mod endpoints;
mod postgres;
mod publication;
mod server;
mod slot;

use tokio_postgres::Client;

pub(crate) use self::endpoints::is_status_of;
use crate::config::{self, Config, Origin, Setting};
use crate::conninfo::ConnInfo;
use crate::destination::{self, Check};
use crate::findings::{Finding, Findings};
use crate::registry;
use crate::source::{self, SourceConfig};

/// Creates what is missing.
const INIT: &str = "walpost init --apply";

/// walpost's own role need not be one.
const AS_OWNER: &str = "`init` needs a role that may create it";

/// What there is in place of a name that is not: one of them may be meant. `query` selects up to six.
async fn others(client: &Client, query: &str) -> String {
    // It is a hint: without it the finding stands.
    let rows = client.query(query, &[]).await.unwrap_or_default();
    let names: Vec<String> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
    match names.split_at_checked(5) {
        Some((first, [_, ..])) => format!("; this database has {} and others", first.join(", ")),
        _ if names.is_empty() => String::new(),
        _ => format!("; this database has {}", names.join(", ")),
    }
}

/// Checks the configuration alone; for `check --offline`.
pub(crate) async fn check_offline(config: &Config, conninfo: &ConnInfo) -> Findings {
    let mut findings = Findings::default();
    check_configuration(config, conninfo, &mut findings);
    endpoints::check_traces(&mut findings);
    let text = "whether the address is free was not checked";
    findings.add(Finding::skipped(("admin.listen", "admin_listen"), text));
    let text = "connection, server, role, publication, slot and columns were not checked";
    findings.add(Finding::skipped(("PostgreSQL", "postgresql"), text));
    registry::check(config, true, &mut findings).await;
    let check = Check { config, offline: true, slot: None };
    destination::of(config).check(check, &mut findings).await;
    findings
}

/// Checks the configuration, the server and the destination.
pub(crate) async fn check(config: &Config, conninfo: &ConnInfo, source: &SourceConfig) -> Findings {
    let mut findings = Findings::default();
    check_configuration(config, conninfo, &mut findings);
    endpoints::check_traces(&mut findings);
    endpoints::check(config, &mut findings).await;
    let slot = postgres::check(config, source, &mut findings).await;
    registry::check(config, false, &mut findings).await;
    let check = Check { config, offline: false, slot: slot.as_ref() };
    destination::of(config).check(check, &mut findings).await;
    findings
}

fn check_configuration(config: &Config, conninfo: &ConnInfo, findings: &mut Findings) {
    const SUBJECT: &str = "configuration";
    findings.add(Finding::ok((SUBJECT, "configuration"), "valid"));
    if conninfo.password_in_text() && matches!(config.origin(Setting::SOURCE_URL), Origin::Flag(_))
    {
        findings.add(
            Finding::warning((SUBJECT, "password_on_command_line"), "--source contains a password")
                .why("it is visible in the process list")
                .advice(
                    "set it in WALPOST_SOURCE_URL, WALPOST_SOURCE_URL_FILE, PGPASSWORD or a \
                     password file (~/.pgpass)",
                ),
        );
    }
    let topic_of_all = config::profile(config).map(|profile| profile.topic_of_all());
    if config.is_kafka()
        && config.record.topics_allowed.is_empty()
        && matches!(topic_of_all, Ok(None))
    {
        let text = "rows name their topics, and record.topics_allowed does not limit them";
        findings.add(
            Finding::warning((SUBJECT, "topics_not_limited"), text)
                .why(
                    "anyone who can write a row can publish to every topic that walpost may write \
                     to",
                )
                .advice(
                    "list the topics in record.topics_allowed, for example [\"outbox.event.*\"]; \
                     [\"*\"] allows every topic",
                ),
        );
    }
    let hosts = destination::exposed_hosts(config);
    if !hosts.is_empty() {
        let text = format!("credentials are sent without TLS to {}", hosts.join(", "));
        findings.add(
            Finding::warning((SUBJECT, "credentials_without_tls"), text)
                .why("whoever can read the network has them, and can answer in the destination's place")
                .advice("use TLS, and change the password or token"),
        );
    }
    for warning in conninfo.warnings() {
        findings.add(Finding::warning((SUBJECT, "connection_string"), warning));
    }
    if conninfo.application_name.as_ref().is_some_and(|name| name != source::APPLICATION_NAME) {
        let text = "the connection string, or PGAPPNAME, sets application_name, which is ignored";
        findings.add(
            Finding::warning((SUBJECT, "application_name"), text)
                .why(
                    "instances recognise each other by this name, so the sessions of `run` are \
                     always called walpost",
                )
                .advice("remove it from --source, or unset PGAPPNAME"),
        );
    }
}

/// Whether the outbox tables, as the publication sends them, have the columns that an event needs;
/// fails with the reason if not.
pub(crate) async fn columns(config: &Config, client: &Client) -> Result<(), String> {
    let profile = config::profile(config).map_err(|error| error.to_string())?;
    let mut outbox = config::outbox(config, &profile);
    let (publication, tables) = (&config.source.publication, &config.outbox.tables);
    let typed = config::is_typed(&profile);
    let found = source::published_tables(client, publication, tables, typed).await;
    for table in found.map_err(|error| error.to_string())? {
        outbox.expect(&table).map_err(|error| error.to_string())?;
    }
    Ok(())
}
