//! Checks the server's version and settings, as far as the stream or the slot depend on them.

use tokio_postgres::Client;

use super::connection::APPLICATION_NAME;
use crate::config::Config;
use crate::findings::{Finding, Findings};
use crate::source::{ADD_PLUGIN, APPLICATION_NAME as RUN, CatalogState, Lack, SourceConfig};
use crate::tools::setup::Hosting;

/// One row; settings in their own units.
const SETTINGS: &str = "
    SELECT pg_catalog.current_setting('max_replication_slots')::pg_catalog.int8,
           (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots),
           pg_catalog.current_setting('max_wal_senders')::pg_catalog.int8,
           (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication WHERE application_name <> $1),
           (SELECT setting::pg_catalog.int8 FROM pg_catalog.pg_settings
             WHERE name = 'max_slot_wal_keep_size'),
           (SELECT setting::pg_catalog.int8 FROM pg_catalog.pg_settings WHERE name = 'max_wal_size'),
           pg_catalog.current_setting('synchronous_standby_names'),
           pg_catalog.current_setting('idle_replication_slot_timeout', true)";

/// The relevant settings.
struct Settings {
    slots: Room,
    senders: Room,
    /// The value of `max_slot_wal_keep_size` in MiB; negative means no limit.
    slot_keep: i64,
    /// The value of `max_wal_size` in MiB.
    wal_size: i64,
    synchronous: String,
    idle_timeout: Option<String>,
}

/// The capacity for objects of one kind, and its use.
struct Room {
    most: i64,
    used: i64,
}

impl Settings {
    async fn read(client: &Client) -> Result<Self, tokio_postgres::Error> {
        let row = client.query_one(SETTINGS, &[&APPLICATION_NAME]).await?;
        let room = |at| {
            Ok::<_, tokio_postgres::Error>(Room {
                most: row.try_get(at)?,
                used: row.try_get(at + 1)?,
            })
        };
        Ok(Self {
            slots: room(0)?,
            senders: room(2)?,
            slot_keep: row.try_get(4)?,
            wal_size: row.try_get(5)?,
            synchronous: row.try_get(6)?,
            idle_timeout: row.try_get(7)?,
        })
    }
}

/// Runs the checks for `run` with that source.
pub(crate) async fn check(
    client: &Client,
    facts: &CatalogState,
    service: Hosting,
    source: &SourceConfig,
    findings: &mut Findings,
) {
    let waits = source.wait_until_visible;
    check_version(facts, waits, findings);
    check_decoding(facts, service, findings);
    let settings = Settings::read(client).await;
    let Some(settings) = findings.answer(("server", "settings"), settings) else {
        return;
    };
    check_room(&settings, facts, service, findings);
    check_limit(&settings, service, findings);
    if let Some(limit) = settings.idle_timeout.as_deref().filter(|limit| *limit != "0") {
        let name = ("idle_replication_slot_timeout", "idle_replication_slot_timeout");
        findings.add(
            Finding::warning(name, format!("it is {limit}"))
                .why(
                    "PostgreSQL invalidates a slot that is not used for that long, for example \
                     while walpost is stopped, and undelivered events are lost with it",
                )
                .sql_or_advice(service.set("idle_replication_slot_timeout", "0")),
        );
    }
    if is_synchronous(&settings.synchronous, RUN) {
        findings.add(synchronous(&settings.synchronous, waits, RUN, service));
    }
}

/// Checks whether messages are published in another encoding than UTF-8.
pub(crate) async fn check_encoding(client: &Client, config: &Config, findings: &mut Findings) {
    if config.outbox.plain_message_prefix.is_none() {
        return;
    }
    let name = ("server", "message_encoding");
    let sql = "SELECT pg_catalog.current_setting('server_encoding')";
    let encoding = client.query_one(sql, &[]).await.and_then(|row| row.try_get::<_, String>(0));
    let Some(encoding) = findings.answer(name, encoding) else { return };
    if !matches!(encoding.as_str(), "UTF8" | "SQL_ASCII") {
        findings.add(
            Finding::warning(name, format!("the encoding of the database is {encoding}"))
                .why(
                    "outbox.plain_message_prefix publishes content byte for byte, so text is \
                     published in that encoding",
                )
                .advice("emit pg_catalog.convert_to(content, 'UTF8') instead of content"),
        );
    }
}

fn check_version(facts: &CatalogState, waits: bool, findings: &mut Findings) {
    let text = format!("PostgreSQL {}, WAL flushed to {}", facts.version / 10_000, facts.flushed);
    findings.add(match facts.require_version() {
        Ok(()) => Finding::ok(("server", "server_version"), text),
        Err(error) => Finding::error(("server", "server_version"), error.to_string())
            .why("walpost needs the replication protocol of PostgreSQL 14 or later")
            .advice("upgrade PostgreSQL to version 14 or later"),
    });
    if !facts.in_recovery {
        return;
    }
    let has_own_slot = facts.slot.as_ref().is_some_and(|slot| !slot.synced);
    findings.add(if has_own_slot && waits {
        Finding::error(("server", "standby_wait_until_visible"), "the server is a standby")
            .why(
                "with delivery.wait_until_visible = true, `run` has to read from the primary: a \
                 standby cannot show what sessions on the primary see",
            )
            .advice("connect to the primary, or set delivery.wait_until_visible = false")
    } else if has_own_slot {
        Finding::ok(("server", "standby"), "the server is a standby, with a slot of its own")
    } else {
        Finding::warning(("server", "standby"), "the server is a standby")
            .why("the slot is on the primary: `run` waits until this server is promoted")
            .advice("list all hosts in --source and set target_session_attrs=primary")
    });
}

fn check_decoding(facts: &CatalogState, service: Hosting, findings: &mut Findings) {
    let name = ("wal_level", "wal_level");
    findings.add(match facts.decoding.lack() {
        None => Finding::ok(name, facts.decoding.wal_level.as_str()),
        Some(Lack::Plugin(plugins)) => {
            let name = ("output_plugin_libraries", "output_plugin_libraries");
            Finding::error(name, format!("it is \"{plugins}\""))
                .why("PostgreSQL does not load pgoutput for a replication slot")
                .advice(ADD_PLUGIN)
        }
        Some(Lack::WalLevel(level)) => {
            let finding = Finding::error(name, format!("it is {level}"))
                .why("logical decoding needs wal_level = logical");
            match service.logical_decoding() {
                Some(advice) => finding.advice(advice),
                None => finding.sql_or_advice(service.set_and_restart("wal_level", "logical")),
            }
        }
    });
}

fn check_room(
    settings: &Settings,
    facts: &CatalogState,
    service: Hosting,
    findings: &mut Findings,
) {
    let streams = facts.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some());
    for (name, room, needs_one) in [
        ("max_replication_slots", &settings.slots, facts.slot.is_none()),
        ("max_wal_senders", &settings.senders, !streams),
    ] {
        let text = format!("{} of {} used", room.used, room.most);
        let full = |finding: Finding| {
            let more = (room.most + 10).to_string();
            finding.sql_or_advice(service.set_and_restart(name, &more))
        };
        findings.add(match (room.used < room.most, needs_one) {
            (true, _) => Finding::ok((name, name), text),
            (false, true) => {
                full(Finding::error((name, name), text).why("`run` needs one, and all are in use"))
            }
            (false, false) => full(Finding::warning((name, name), text).why(
                "all are in use; `walpost tail` needs one more, and so does a migration to \
                 another slot",
            )),
        });
    }
}

/// `max_slot_wal_keep_size`: no limit is a risk for the server, a low one for the slot.
fn check_limit(settings: &Settings, service: Hosting, findings: &mut Findings) {
    let subject = "max_slot_wal_keep_size";
    let (keep, size) = (settings.slot_keep, settings.wal_size);
    // In whole GiB, and with room for more than the WAL that is kept in any case.
    let proposed = format!("{}GB", (size * 4 / 1024).max(10));
    let fix = service.set(subject, &proposed).map(|sql| {
        format!("{sql} -- less than the free disk space, more than the WAL of an outage")
    });
    findings.add(if keep < 0 {
        Finding::warning((subject, "max_slot_wal_keep_size"), "there is no limit")
            .why(
                "while walpost or the destination is down, PostgreSQL retains WAL until its disk is full, \
                 and then stops; with a limit it invalidates the slot instead and keeps running",
            )
            .sql_or_advice(fix)
    } else if keep < size {
        let text = format!("{keep} MB, less than max_wal_size ({size} MB)");
        Finding::warning((subject, "max_slot_wal_keep_size_small"), text)
            .why(
                "PostgreSQL keeps about that much WAL between two checkpoints anyway: the limit \
                 saves no space, and a short outage loses the slot",
            )
            .sql_or_advice(fix)
    } else {
        Finding::ok(
            (subject, "max_slot_wal_keep_size"),
            format!("{keep} MB: PostgreSQL invalidates a slot that needs more WAL"),
        )
    });
}

/// Whether `synchronous_standby_names` contains that name, or `*`
/// (<https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES>).
fn is_synchronous(names: &str, application_name: &str) -> bool {
    listed(names).1.iter().any(|name| matches(name, application_name))
}

/// The text before and after the list, and the list.
fn listed(names: &str) -> ((&str, &str), Vec<&str>) {
    // A list without a method contains only names, one of which may have a parenthesis in quotes.
    let is_counted = names.trim_start().starts_with(|c: char| c.is_ascii_alphanumeric());
    let split =
        names.split_once('(').filter(|(method, _)| is_counted && !method.contains(['"', ',']));
    let (before, list, after) = match split {
        Some((method, rest)) => (method, rest.trim_end().trim_end_matches(')'), ")"),
        None => ("", names, ""),
    };
    ((before, after), list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect())
}

fn matches(name: &str, application_name: &str) -> bool {
    let plain = name.trim_matches('"').replace("\"\"", "\"");
    plain == "*" || plain.eq_ignore_ascii_case(application_name)
}

fn synchronous(names: &str, waits: bool, application_name: &str, service: Hosting) -> Finding {
    let setting = "synchronous_standby_names";
    let text =
        format!("`{names}` includes walpost (application_name {application_name}) as a standby");
    let finding = if waits {
        Finding::error((setting, setting), text).why(
            "commits wait for walpost, and with delivery.wait_until_visible = true walpost waits \
             until they are visible: neither ever ends",
        )
    } else {
        Finding::warning((setting, setting), text).why(
            "while walpost streams, commits wait until the destination has acknowledged their events \
             (Redis and NATS: has synced them, by default minutes later with NATS), and a change of the outbox table waits forever",
        )
    };
    let ((before, after), list) = listed(names);
    let left: Vec<_> =
        list.iter().filter(|name| !matches(name, application_name)).copied().collect();
    if list.iter().any(|name| name.trim_matches('"') == "*") {
        return finding.advice(format!(
            "list only the real standbys in it, for example ALTER SYSTEM SET {setting} = 'FIRST 1 \
             (standby1)'; SELECT pg_catalog.pg_reload_conf();"
        ));
    }
    let value = match (left.is_empty(), after.is_empty()) {
        (true, _) => String::new(),
        (false, true) => left.join(", "),
        (false, false) => format!("{before}({}{after}", left.join(", ")),
    };
    finding.sql_or_advice(service.set(setting, &value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walpost_in_synchronous_standby_names_is_detected_in_every_notation() {
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
    fn the_fix_keeps_the_other_standbys() {
        for (names, value) in [
            ("walpost", "''"),
            ("a, walpost", "'a'"),
            ("FIRST 1 (a, walpost)", "'FIRST 1 (a)'"),
            ("ANY 2 (\"walpost\",b, \"C\")", "'ANY 2 (b, \"C\")'"),
        ] {
            let finding = serde_json::to_value(synchronous(names, false, "walpost", Hosting::Own));
            let finding = finding.expect("JSON");
            let fix = finding["fix"].as_str().expect("SQL");
            assert!(fix.contains(&format!("= {value};")), "{names}: {fix}");
        }
    }
}
