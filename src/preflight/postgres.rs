//! Preflight checks of PostgreSQL, each after those on which it depends. They read the catalogs and
//! use nothing.

use super::findings::{Finding, Findings};
use super::{columns, connection, publication, server, slot};
use crate::config::Config;
use crate::conninfo::ConnInfo;
use crate::setup::Hosting;
use crate::source::{Control, Facts, Limit, Silent, SourceConfig};

/// Runs all checks whose preconditions hold.
pub(crate) async fn check(config: &Config, source: &SourceConfig, findings: &mut Findings) {
    let conninfo = source.conninfo.resolve();
    let Some(conninfo) = findings.answer(("connection", "connection_string"), conninfo) else {
        return;
    };
    let Some(control) = connection::control(&conninfo, findings).await else {
        return;
    };
    let mut limit = Limit::new(&conninfo, &control);
    let looked = match limit.first(Hosting::of(&control.client)).await {
        Ok(service) => {
            let service = service.unwrap_or(Hosting::Own);
            limit.on(beside(&control, &conninfo, service, config, source, findings)).await
        }
        Err(silent) => Err(silent),
    };
    if let Err(silent) = looked {
        findings.add(
            Finding::error(("server", "server_silent"), silent.what())
                .why("the checks that depend on it were skipped")
                .advice(Silent::ADVICE),
        );
    }
}

async fn beside(
    control: &Control,
    conninfo: &ConnInfo,
    service: Hosting,
    config: &Config,
    source: &SourceConfig,
    findings: &mut Findings,
) {
    let client = &control.client;
    if !connection::replication(conninfo, control, service, findings).await {
        return;
    }
    let facts = Facts::read(client, &source.slot).await;
    let Some(facts) = findings.answer(("server", "server"), facts) else {
        return;
    };
    server::check(client, &facts, service, source, findings).await;
    server::check_encoding(client, config, findings).await;
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
