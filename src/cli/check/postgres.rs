//! What `walpost check` looks at on PostgreSQL's side. It asks the catalogs and
//! uses nothing.

use tokio_postgres::Client;

use super::findings::{Findings, Level};
use crate::assembly;
use crate::config::Config;
use crate::outbox::TableName;
use crate::source::{self, APPLICATION_NAME, Facts, SourceConfig, SourceError};

/// Looks at all of it, as far as one thing allows the next.
pub(super) async fn check(config: &Config, source: &SourceConfig, findings: &mut Findings) {
    let conninfo = match source.conninfo.resolve() {
        Ok(conninfo) => conninfo,
        Err(error) => return findings.add(Level::Error, "PostgreSQL", error.to_string()),
    };
    let opened = source::control(&conninfo, "walpost check").await.map_err(SourceError::from);
    let Some(control) = findings.of("PostgreSQL", opened, |_| format!("connected to {conninfo}"))
    else {
        return;
    };
    let client = &control.client;
    let facts = Facts::read(client, &source.slot).await;
    let Some(facts) = findings.of("server", facts, |facts| {
        format!("version {}, WAL flushed to {}", facts.version / 10_000, facts.flushed)
    }) else {
        return;
    };
    if let Err(error) = facts.require_version() {
        findings.add(Level::Error, "server", error.to_string());
    }
    if facts.in_recovery {
        findings.add(
            Level::Warning,
            "server",
            "it is a standby, and `run` belongs on the primary: name all hosts and set \
             target_session_attrs=primary",
        );
    }
    findings.of("wal_level", facts.require_wal_level(), |()| "logical".into());
    check_role(client, findings).await;
    check_slot(source, &facts, findings);
    let name = conninfo.application_name.as_deref().unwrap_or(APPLICATION_NAME);
    check_settings(client, &facts, name, findings).await;
    check_tables(client, config, source, findings).await;
}

/// A role without REPLICATION is told so; one that only seems to lack it (a
/// managed service's own role) is given the benefit of the doubt.
async fn check_role(client: &Client, findings: &mut Findings) {
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

fn check_slot(source: &SourceConfig, facts: &Facts, findings: &mut Findings) {
    let name = &source.slot;
    let usable = findings.of("slot", facts.require_slot(name), |confirmed| {
        format!("\"{name}\" stands at {confirmed}")
    });
    let (Some(_), Some(slot)) = (usable, &facts.slot) else {
        return;
    };
    if let Some(pid) = slot.active_pid {
        let text =
            format!("\"{name}\" is in use by server process {pid}: `run` waits until it is free");
        findings.add(Level::Warning, "slot", text);
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        let text = format!(
            "\"{name}\" is about to be lost: more log than max_slot_wal_keep_size waits for it; raise \
             that (a reload is enough) and start `run` now"
        );
        findings.add(Level::Warning, "slot", text);
    }
}

const SETTINGS: &str = "
    SELECT current_setting('max_replication_slots')::int8,
           (SELECT count(*) FROM pg_catalog.pg_replication_slots),
           current_setting('max_wal_senders')::int8,
           (SELECT count(*) FROM pg_catalog.pg_stat_replication),
           current_setting('max_slot_wal_keep_size'),
           current_setting('synchronous_standby_names'),
           current_setting('idle_replication_slot_timeout', true)";

async fn check_settings(
    client: &Client,
    facts: &Facts,
    application_name: &str,
    findings: &mut Findings,
) {
    let row = match client.query_one(SETTINGS, &[]).await {
        Ok(row) => row,
        Err(error) => return findings.add(Level::Warning, "settings", error.to_string()),
    };
    let slot_is_there = facts.slot.is_some();
    let streams = facts.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some());
    for (setting, column, needs_one) in
        [("max_replication_slots", 0, !slot_is_there), ("max_wal_senders", 2, !streams)]
    {
        let (most, used): (i64, i64) = (row.get(column), row.get(column + 1));
        let (level, text) = room(most, used, needs_one);
        findings.add(level, setting, text);
    }
    let keep: String = row.get(4);
    let text = if keep == "-1" {
        "no limit: while `run` is away, log is kept until the disk is full; a limit saves the server \
         and loses the slot"
            .to_owned()
    } else {
        format!("{keep}: a slot that falls further behind is lost")
    };
    findings.add(Level::Ok, "max_slot_wal_keep_size", text);
    let names: String = row.get(5);
    if is_synchronous(&names, application_name) {
        let text = format!(
            "it matches walpost's application_name \"{application_name}\", and commits would wait for \
             Kafka: name the real standbys, or give walpost another application_name in --source"
        );
        findings.add(Level::Warning, "synchronous_standby_names", text);
    }
    if let Some(limit) = row.get::<_, Option<String>>(6).filter(|limit| limit != "0") {
        let text =
            format!("a slot that nobody uses for {limit} is lost: a longer stop needs it at 0");
        findings.add(Level::Warning, "idle_replication_slot_timeout", text);
    }
}

fn room(most: i64, used: i64, needs_one: bool) -> (Level, String) {
    let text = format!("{used} of {most} used");
    match (used < most, needs_one) {
        (true, _) => (Level::Ok, text),
        (false, true) => (Level::Error, format!("{text}: raise it and restart the server")),
        (false, false) => (Level::Warning, format!("{text}: `walpost tail` needs one more")),
    }
}

/// Whether `synchronous_standby_names` has that name, or `*`
/// (<https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES>).
fn is_synchronous(names: &str, application_name: &str) -> bool {
    let list =
        names.split_once('(').map_or(names, |(_, list)| list.trim_end().trim_end_matches(')'));
    list.split(',').map(str::trim).any(|name| {
        let plain = name.trim_matches('"').replace("\"\"", "\"");
        plain == "*" || plain.eq_ignore_ascii_case(application_name)
    })
}

async fn check_tables(
    client: &Client,
    config: &Config,
    source: &SourceConfig,
    findings: &mut Findings,
) {
    let tables = source::published_tables(client, &source.publication, &source.tables).await;
    let Some(found) = findings.of("publication", tables, |_| {
        let names: Vec<_> = source.tables.iter().map(ToString::to_string).collect();
        if names.is_empty() {
            format!("\"{}\" is there; messages need no table in it", source.publication)
        } else {
            format!("\"{}\" publishes the inserts of {}", source.publication, names.join(", "))
        }
    }) else {
        return;
    };
    let Ok(profile) = assembly::profile(config) else {
        return;
    };
    let mut outbox = assembly::outbox(config, &profile);
    for table in &found {
        findings.of("columns", outbox.expect(table), |()| {
            format!("{} has what an event needs", TableName::from(&table.relation))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walpost_among_the_synchronous_standbys_is_found_in_every_spelling() {
        for names in
            ["walpost", "*", "a, WalPost", "FIRST 1 (a, walpost)", "ANY 2 (\"walpost\",b)", "2 (*)"]
        {
            assert!(is_synchronous(names, "walpost"), "{names}");
        }
        for names in ["", "a", "walpost2", "FIRST 1 (a, b)", "\"first (walpost)\""] {
            assert!(!is_synchronous(names, "walpost"), "{names}");
        }
    }

    #[test]
    fn a_full_server_is_an_error_only_where_run_needs_a_place() {
        assert_eq!(room(10, 9, true).0, Level::Ok);
        assert_eq!(room(10, 10, true).0, Level::Error);
        assert_eq!(room(10, 10, false).0, Level::Warning);
    }
}
