//! What `walpost check` looks at on PostgreSQL's side, in the order in which one thing
//! allows the next. It asks the catalogs and uses nothing.

use super::findings::Findings;
use super::{columns, connection, publication, server, slot};
use crate::cli::service::Service;
use crate::config::Config;
use crate::conninfo::ConnInfo;
use crate::source::{APPLICATION_NAME, Control, Facts, SourceConfig};

/// Looks at all of it, as far as one thing allows the next.
pub(super) async fn check(config: &Config, source: &SourceConfig, findings: &mut Findings) {
    let conninfo = source.conninfo.resolve();
    let Some(conninfo) = findings.answer(("connection", "connection_string"), conninfo) else {
        return;
    };
    if let Some(control) = connection::control(&conninfo, findings).await {
        beside(&control, &conninfo, config, source, findings).await;
    }
}

async fn beside(
    control: &Control,
    conninfo: &ConnInfo,
    config: &Config,
    source: &SourceConfig,
    findings: &mut Findings,
) {
    let client = &control.client;
    let service = Service::of(client).await.unwrap_or(Service::Own);
    if !connection::replication(conninfo, control, service, findings).await {
        return;
    }
    let facts = Facts::read(client, &source.slot).await;
    let Some(facts) = findings.answer(("server", "server"), facts) else {
        return;
    };
    let name = conninfo.application_name.as_deref().unwrap_or(APPLICATION_NAME);
    server::check(client, &facts, service, name, findings).await;
    let published = publication::check(client, source, &facts, findings).await;
    let Some((has_publication, tables)) = published else {
        return;
    };
    slot::check(client, &source.slot, &facts, has_publication, service, findings).await;
    if has_publication && facts.slot.is_some() && !facts.in_recovery {
        publication::check_age(client, source, &facts, findings).await;
    }
    columns::check(client, config, source, facts.version, &tables, findings).await;
}
