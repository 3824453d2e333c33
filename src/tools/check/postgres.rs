//! Preflight checks of PostgreSQL, each after those on which it depends. They read the catalogs and
//! use nothing.

use super::connection::Replication;
use super::{columns, connection, publication, server, slot};
use crate::config::Config;
use crate::conninfo::ConnInfo;
use crate::destination::parts::settings::layout;
use crate::destination::parts::stored::SlotAt;
use crate::findings::{Finding, Findings};
use crate::source::{
    self, CatalogState, Control, Instance, Limit, PublicationFingerprint, Silent, SourceConfig,
};
use crate::state::StateKey;
use crate::tools::setup::Hosting;

/// Runs all checks whose preconditions hold. Returns the slot, if `run` could use it.
pub(crate) async fn check(
    config: &Config,
    source: &SourceConfig,
    findings: &mut Findings,
) -> Option<SlotAt> {
    let conninfo = source.conninfo.resolve();
    let conninfo = findings.answer(("connection", "connection_string"), conninfo)?;
    let control = connection::control(&conninfo, findings).await?;
    let mut limit = Limit::new(&conninfo, &control);
    let looked = match limit.first(Hosting::of(&control.client)).await {
        Ok(service) => {
            let service = service.unwrap_or(Hosting::Own);
            limit.on(beside(&control, &conninfo, service, config, source, findings)).await
        }
        Err(silent) => Err(silent),
    };
    looked.unwrap_or_else(|silent| {
        findings.add(
            Finding::error(("server", "server_silent"), silent.what())
                .why("the checks that depend on it were skipped")
                .advice(Silent::ADVICE),
        );
        None
    })
}

async fn beside(
    control: &Control,
    conninfo: &ConnInfo,
    service: Hosting,
    config: &Config,
    source: &SourceConfig,
    findings: &mut Findings,
) -> Option<SlotAt> {
    let client = &control.client;
    let replication = connection::replication(conninfo, control, service, findings).await;
    if matches!(replication, Replication::Pooled) {
        return None;
    }
    let facts = CatalogState::read(client, &source.slot).await;
    let facts = findings.answer(("server", "server"), facts)?;
    server::check(client, &facts, service, source, findings).await;
    server::check_encoding(client, config, findings).await;
    let instance = findings.answer(("server", "server"), Instance::of(client).await)?;
    let fingerprint = source::publication_fingerprint(client, facts.version, source).await;
    let fingerprint = findings.answer(("publication", "publication"), fingerprint)?;
    let slot = slot_at(config, &facts, &instance, replication, &fingerprint);
    let published = publication::check(client, source, &facts, findings).await;
    let Some((has_publication, tables)) = published else { return slot };
    slot::check(client, &source.slot, &facts, has_publication, service, findings).await;
    if has_publication && facts.slot.is_some() && !facts.in_recovery {
        publication::check_age(client, source, &facts, findings).await;
    }
    columns::check(client, config, source, facts.version, &tables, findings).await;
    slot
}

/// The slot, as its owner's name at a destination has it.
fn slot_at(
    config: &Config,
    facts: &CatalogState,
    instance: &Instance,
    replication: Replication,
    fingerprint: &PublicationFingerprint,
) -> Option<SlotAt> {
    let Replication::Works { system_identifier, timeline } = replication else { return None };
    let slot = config.source.slot.clone();
    let confirmed = facts.require_slot(&slot).ok()?;
    let key = StateKey {
        delivery_id: config.delivery.id.clone(),
        system_identifier,
        database_oid: facts.database_oid,
        slot,
    };
    let (flushed, is_standby) = (facts.flushed, facts.in_recovery);
    let server_started = instance.postmaster_start;
    let layout = layout(config).with(fingerprint);
    let is_read = facts
        .slot
        .as_ref()
        .is_some_and(|slot| slot.active_pid.is_some() && slot.is_walposts == Some(true));
    Some(SlotAt { key, server_started, timeline, confirmed, flushed, is_standby, is_read, layout })
}
