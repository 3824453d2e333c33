//! How a session is set up: settings, identity, position, and the checks before the first message.

use std::time::Duration;

use postgres_protocol::escape::escape_literal;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::conninfo::ConnInfo;
use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::source::catalog::CatalogState;
use crate::source::catchup::policy::StartPosition;
use crate::source::config::{APPLICATION_NAME, SourceConfig};
use crate::source::connection::connect;
use crate::source::connection::connect::Control;
use crate::source::connection::deadline::{OPENING_LIMIT, log_if_slow};
use crate::source::connection::error::ConnectError;
use crate::source::connection::instance;
use crate::source::connection::instance::Instance;
use crate::source::error::{Holder, Phase, SourceError};
use crate::source::identity::publication_fingerprint::PublicationFingerprint;
use crate::source::identity::publication_guard::{CatalogCheck, Catalogs};
use crate::source::identity::resume::{Resume, Waited};
use crate::source::identity::server_identity::ServerIdentity;
use crate::source::identity::timeline::Timelines;
use crate::source::instances::halt_notice;
use crate::source::instances::slot_lock::DEAD_CLIENT_SETTINGS;
use crate::source::slot_error::SlotError;
use crate::source::wire::{self, Replication, ReplicationSession, StreamSettings, WireError};

/// Session settings. The text format of values must not depend on the server's configuration, and
/// no timeout meant for clients may end the stream.
const SESSION_OPTIONS: &str = "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC \
     -c bytea_output=hex -c extra_float_digits=1 -c statement_timeout=0 -c lock_timeout=0 \
     -c idle_session_timeout=0";

/// How much of a transaction the server decodes in memory before it spills to disk; walpost raises
/// it unless the connection string's `options` set it.
const WORK_MEM: &str = "logical_decoding_work_mem";

/// The control connection may be idle for days and must remain open.
const CONTROL_SETTINGS: &str = "SET lock_timeout = 0; SET idle_session_timeout = 0";

/// When walpost gives up opening a session, its statements must not continue on the server.
fn statement_limit() -> String {
    format!("SET statement_timeout = {}", OPENING_LIMIT.as_millis())
}

/// Removes the statement timeout: once a session is open, each query has its own limit.
pub(in crate::source) async fn lift_statement_limit(client: &Client) -> Result<(), SourceError> {
    set(client, "SET statement_timeout = 0").await
}

/// Removes the limits that a role or a database has for the application's statements: a command of an
/// operator reads and waits for longer.
pub(crate) async fn lift_limits(client: &Client) -> Result<(), tokio_postgres::Error> {
    // `transaction_timeout` exists since PostgreSQL 17.
    let sql = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
                WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout',
                               'idle_in_transaction_session_timeout')";
    client.batch_execute(sql).await
}

/// Applies settings to the control connection.
async fn set(client: &Client, settings: &str) -> Result<(), SourceError> {
    let set = client.batch_execute(settings).await;
    set.map_err(|error| SourceError::query("preparing the control connection", &error))
}

/// What the catalogs contain at the start of a session.
pub(in crate::source) struct Found {
    /// The slot's `confirmed_flush_lsn`.
    pub(in crate::source) confirmed: Lsn,
    /// The tables with their columns.
    pub(in crate::source) tables: Vec<FoundTable>,
    /// The publication's fingerprint from before the tables were read.
    pub(in crate::source) fingerprint: PublicationFingerprint,
}

/// Prepares the control connection.
pub(in crate::source) async fn prepare(
    client: &Client,
    config: &SourceConfig,
) -> Result<(), SourceError> {
    let looks = format!("{DEAD_CLIENT_SETTINGS}; {}", halt_notice::lock_for_check(&config.slot));
    let looks = if config.temporary_slot { "" } else { &looks };
    set(client, &format!("{CONTROL_SETTINGS}; {}; {looks}", statement_limit())).await
}

/// Checks that the catalogs have everything that a session needs, and that nothing changed.
pub(in crate::source) async fn check_catalogs(
    config: &SourceConfig,
    facts: &CatalogState,
    resume: &Resume,
    catalogs: &Catalogs,
    check: CatalogCheck,
    identity: &ServerIdentity,
) -> Result<Found, SourceError> {
    facts.require_decoding()?;
    let before = match resume {
        Resume::At { fingerprint, .. }
        | Resume::AtSlot { waited: Some(Waited { fingerprint, .. }) } => Some(fingerprint),
        Resume::AtSlot { waited: None } => None,
    };
    // Checked before the slot's holder: the catalogs may show what made the other instance halt.
    if let Some(pid) = facts.halted_by {
        if let Some(before) = before {
            let confirmed = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush);
            catalogs.compare(&check, before, confirmed.unwrap_or_default()).await?;
        }
        return Err(halt_notice::found(&config.slot, pid));
    }
    let confirmed = if config.temporary_slot {
        facts.flushed
    } else {
        check_slot(config, facts, resume, &check.fingerprint, identity)?
    };
    match before {
        Some(before) => catalogs.compare(&check, before, confirmed).await?,
        None if !check.recent => {}
        None if catalogs.share_horizon().await? => tracing::info!(
            publication = %config.publication,
            "another slot of this server is as far behind, so it is not known whether the publication \
             is newer than the slot's position: rows that were committed without it are not sent"
        ),
        None => tracing::warn!(
            publication = %config.publication,
            "the publication may be newer than the slot's position: rows that were committed \
             without it are not sent"
        ),
    }
    let tables = catalogs.published_tables().await?;
    Ok(Found { confirmed, tables, fingerprint: check.fingerprint })
}

/// Returns the slot's `confirmed_flush_lsn`, after checking that slot and server are the ones this
/// process has used.
fn check_slot(
    config: &SourceConfig,
    facts: &CatalogState,
    resume: &Resume,
    fingerprint: &PublicationFingerprint,
    identity: &ServerIdentity,
) -> Result<Lsn, SourceError> {
    let confirmed = facts.require_slot(&config.slot)?;
    // Checked first, because a holder may advance the slot.
    if let Some(slot) = facts.slot.as_ref().filter(|slot| slot.active_pid.is_some()) {
        let kind = slot.held_by(own_process(resume, identity));
        let (fingerprint, identity) = (fingerprint.clone(), identity.clone());
        let flushed = facts.flushed;
        let other_role = slot.other_role.clone();
        let holder = Holder { kind, other_role, fingerprint, identity, confirmed, flushed };
        let (pid, holder) = (slot.active_pid, Some(Box::new(holder)));
        return Err(SourceError::InUse { slot: config.slot.clone(), pid, holder });
    }
    if is_advanced_by_unknown(facts, resume)
        && let Some(accounted) = resume.accounted()
    {
        return Err(advanced_error(&config.slot, resume, accounted, confirmed));
    }
    Ok(confirmed)
}

/// The error of an instance that finds the slot at `confirmed`, when only positions up to
/// `accounted` are known to be confirmed by a walpost.
pub(in crate::source) fn advanced_error(
    slot: &str,
    resume: &Resume,
    accounted: Lsn,
    confirmed: Lsn,
) -> SourceError {
    let slot = slot.to_owned();
    let (confirmed, found) = (accounted, confirmed);
    SourceError::Slot(match resume {
        Resume::At { .. } => SlotError::Advanced { slot, confirmed, found },
        Resume::AtSlot { .. } => SlotError::AdvancedWhileWaiting { slot, confirmed, found },
    })
}

/// Whether no client uses the slot, and it is ahead of what walposts are known to have confirmed.
pub(in crate::source) fn is_advanced_by_unknown(facts: &CatalogState, resume: &Resume) -> bool {
    let slot = facts.slot.as_ref().filter(|slot| slot.active_pid.is_none());
    let confirmed = slot.and_then(|slot| slot.confirmed_flush);
    resume.accounted().is_some_and(|accounted| confirmed > Some(accounted))
}

/// The server process of this process's last session, if the postmaster is still the same: after a
/// restart the process ID may be reused.
pub(in crate::source) fn own_process(resume: &Resume, found: &ServerIdentity) -> Option<i32> {
    match resume {
        Resume::At { walsender, identity, .. }
            if identity.postmaster_start == found.postmaster_start =>
        {
            *walsender
        }
        Resume::At { .. } | Resume::AtSlot { .. } => None,
    }
}

/// The same for an SQL connection, as SET statements.
pub(in crate::source) fn session_settings(conninfo: &ConnInfo, version: i32) -> String {
    let settings = options(conninfo, version);
    let settings = settings.split("-c ").filter_map(|setting| setting.trim().split_once('='));
    let statement = |(name, value)| format!("SET {name} = {}", escape_literal(value));
    settings.map(statement).collect::<Vec<_>>().join("; ")
}

/// The settings of a session that decodes.
fn options(conninfo: &ConnInfo, version: i32) -> String {
    let own_options = conninfo.options.as_deref().unwrap_or_default();
    let memory =
        if own_options.contains(WORK_MEM) { "" } else { " -c logical_decoding_work_mem=256MB" };
    let timeout = if version < 170_000 { "" } else { " -c transaction_timeout=0" };
    format!("{SESSION_OPTIONS}{memory}{timeout}")
}

/// Opens the replication session next to `control`, without starting the stream.
pub(in crate::source) async fn connect_replication(
    conninfo: &ConnInfo,
    control: &Control,
    facts: &CatalogState,
) -> Result<ReplicationSession, WireError> {
    let mut options = options(conninfo, facts.version);
    if facts.wal_sender_timeout_ms == 0 {
        // With 0, the server sends no keepalives, so a dead connection would not be detected.
        options.push_str(" -c wal_sender_timeout=60s");
    }
    let endpoint = &control.endpoint;
    let login = connect::replication_login(conninfo, endpoint, APPLICATION_NAME, &options);
    wire::connect(endpoint, &conninfo.keepalive, &login).await
}

/// Identifies the server; fails if it is not the previous one.
pub(in crate::source) async fn identify(
    config: &SourceConfig,
    client: &mut ReplicationSession,
    control: &Control,
    facts: &CatalogState,
    resume: &Resume,
    reached: &Instance,
) -> Result<(ServerIdentity, Timelines), SourceError> {
    let host = control.endpoint.host.to_string();
    let failed =
        |error: WireError| SourceError::session(&error, Phase::Opening, &host, &config.slot);
    let system = client.identify().await.map_err(failed)?;
    let started = client.query_text(instance::STARTED).await.map_err(failed)?;
    let identity = ServerIdentity {
        system_identifier: system.identifier,
        timeline: system.timeline,
        postmaster_start: instance::postmaster_start(&started)?,
    };
    reached.require_identity(&identity)?;
    let timelines = timelines(client, identity.timeline).await.map_err(failed)?;
    let fork = known_server(resume)
        .filter(|known| identity.may_descend_from(known))
        .and_then(|known| timelines.end_of(known.timeline));
    check_identity(&identity, fork, system.flushed, facts, resume)?;
    // What this process has received from a standby that was promoted since, it has.
    let is_own =
        matches!(resume, Resume::At { identity: known, .. } if identity.is_promoted(known));
    Ok((identity, if is_own { Timelines(None) } else { timelines }))
}

/// The history of the server's timelines; the first one has none.
async fn timelines(client: &mut ReplicationSession, timeline: u32) -> Result<Timelines, WireError> {
    let history = if timeline > 1 { client.timeline_history(timeline).await? } else { None };
    Ok(Timelines(history))
}

/// The server to which the positions belong.
fn known_server(resume: &Resume) -> Option<&ServerIdentity> {
    match resume {
        Resume::At { identity, .. } => Some(identity),
        Resume::AtSlot { waited } => waited.as_ref().map(|waited| &waited.identity),
    }
}

/// Opens a replication session next to `control`, identifies the server, and closes the session:
/// all that `run` does before it uses its slot.
pub(crate) async fn identify_server(
    conninfo: &ConnInfo,
    control: &Control,
    application_name: &str,
) -> Result<(String, u32), ConnectError> {
    let (system_identifier, timeline, _) =
        server_history(conninfo, control, application_name).await?;
    Ok((system_identifier, timeline))
}

/// The same, with the history of the server's timelines.
pub(in crate::source) async fn server_history(
    conninfo: &ConnInfo,
    control: &Control,
    application_name: &str,
) -> Result<(String, u32, Timelines), ConnectError> {
    let endpoint = &control.endpoint;
    let host = endpoint.host.to_string();
    let login = connect::replication_login(conninfo, endpoint, application_name, SESSION_OPTIONS);
    let asked = async {
        let mut client = wire::connect(endpoint, &conninfo.keepalive, &login).await?;
        let system = client.identify().await?;
        let timelines = timelines(&mut client, system.timeline).await?;
        Ok((system.identifier, system.timeline, timelines))
    };
    let after = conninfo.connect_timeout;
    match timeout(after, asked).await {
        Err(_) => Err(ConnectError::TimedOut { host, after }),
        Ok(Err(error)) => Err(ConnectError::of_wire(&host, &error)),
        Ok(Ok(history)) => Ok(history),
    }
}

/// Creates a slot that is dropped at the end of the session. Waits for the transactions that are
/// open.
pub(in crate::source) async fn create_temporary_slot(
    slot: &str,
    client: &mut ReplicationSession,
) -> Result<(), WireError> {
    let say = || {
        tracing::info!(
            slot,
            "waiting for all transactions that were open when the temporary slot was requested (pg_stat_activity.xact_start)"
        );
    };
    log_if_slow(say, client.create_temporary_slot(slot)).await
}

/// Starts replication on a session whose server is identified.
pub(in crate::source) async fn start_replication(
    config: &SourceConfig,
    client: ReplicationSession,
    facts: &CatalogState,
    start_position: StartPosition,
) -> Result<Replication, WireError> {
    let wal_sender_timeout = wal_sender_timeout(facts);
    let settings = StreamSettings {
        slot: config.slot.clone(),
        publication: config.publication.clone(),
        start: start_position.start,
        messages: config.messages,
        ack: start_position.ack,
        wal_sender_timeout,
        silence_limit: silence_limit(wal_sender_timeout),
    };
    client.start(&settings).await
}

/// Rejects another server at the same address, except one that was promoted at `fork`, behind
/// everything that was received.
fn check_identity(
    found: &ServerIdentity,
    fork: Option<Lsn>,
    flushed: Lsn,
    facts: &CatalogState,
    resume: &Resume,
) -> Result<(), SourceError> {
    let (identity, confirmed, start) = match resume {
        Resume::At { identity, confirmed, start, seen, .. } => {
            (identity, (*confirmed).max(*seen), (*start).max(*seen))
        }
        Resume::AtSlot { waited: Some(waited) } => {
            (&waited.identity, waited.confirmed, waited.confirmed)
        }
        Resume::AtSlot { waited: None } => return Ok(()),
    };
    // The same postmaster has the same history: a standby that it decodes on was promoted.
    if !identity.has_history_of(found) && !found.is_promoted(identity) {
        // After a replacement of the producer, reading begins before the end.
        let end = match resume {
            Resume::At { received, .. } => start.max(received.end()),
            Resume::AtSlot { .. } => start,
        };
        let (found, known) = (Box::new(found.clone()), Box::new(identity.clone()));
        match fork {
            Some(fork) if end <= fork => {}
            Some(fork) => {
                let (found, known) = (found.timeline, known.timeline);
                let error = SlotError::LostInFailover { found, known, fork, published: end };
                return Err(SourceError::Slot(error));
            }
            None => {
                return Err(SourceError::Slot(SlotError::OtherServer { found, known, confirmed }));
            }
        }
    }
    if start > flushed && facts.in_recovery {
        return Err(SourceError::Lost(format!(
            "this standby has replayed up to {flushed}, and walpost has published up to {start}"
        )));
    }
    if start > flushed {
        let database = facts.database.clone();
        return Err(SourceError::Slot(SlotError::WalBehind {
            flushed,
            database,
            published: start,
        }));
    }
    Ok(())
}

/// The session's `wal_sender_timeout`.
pub(in crate::source) fn wal_sender_timeout(facts: &CatalogState) -> Duration {
    match u64::try_from(facts.wal_sender_timeout_ms) {
        Ok(0) | Err(_) => Duration::from_secs(60),
        Ok(millis) => Duration::from_millis(millis),
    }
}

/// How long the server may send nothing. A silent server is asked for a reply after a third of
/// `wal_sender_timeout`; six times that does not time out a server that is only busy.
pub(in crate::source) fn silence_limit(wal_sender_timeout: Duration) -> Duration {
    wal_sender_timeout.saturating_mul(2).max(Duration::from_secs(10))
}

#[cfg(test)]
mod tests;
