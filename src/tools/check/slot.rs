//! Checks whether `run` can use the slot, and whether the slot would survive a failover.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::{Client, Row};

use super::connection::APPLICATION_NAME;
use super::{INIT, others};
use crate::findings::{Finding, Findings};
use crate::source::{CatalogState, SLOT_NAME_MAX, Slot, disable_two_phase};
use crate::tools::setup::Hosting;

const SUBJECT: &str = "slot";

/// Properties of the slot in addition to those that `run` reads.
const MORE: &str = "
    SELECT (SELECT a.application_name FROM pg_catalog.pg_stat_activity a WHERE a.pid = s.active_pid),
           (pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn) / 1048576::pg_catalog.numeric)::pg_catalog.int8,
           coalesce((pg_catalog.to_jsonb(s) ->> 'failover'::pg_catalog.text)::pg_catalog.bool, false)
      FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1";

/// Standbys, by their slots or their sessions. The activity of a session is only visible to its own
/// role or with `pg_read_all_stats`
/// (<https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-STATS-VIEWS>).
const STANDBYS: &str = "
    SELECT slot_name::pg_catalog.text, active, coalesce(wal_status, '') = 'lost', false
      FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary
     UNION ALL
    SELECT NULL, true, false, r.state IS NULL FROM pg_catalog.pg_stat_replication r
     WHERE r.application_name <> $1 AND coalesce(r.state IN ('streaming', 'catchup'), true)
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid)";

/// Checks the slot; `publication` tells whether there is a publication that it could see.
pub(crate) async fn check(
    client: &Client,
    name: &str,
    facts: &CatalogState,
    publication: bool,
    service: Hosting,
    findings: &mut Findings,
) {
    if facts.in_recovery {
        return on_standby(client, name, facts, service, findings).await;
    }
    let Some(slot) = &facts.slot else {
        return findings.add(missing(name, publication, &others(client, OTHER_SLOTS).await));
    };
    if let Some(finding) =
        foreign(name, slot, facts).or_else(|| lost(name, slot)).or_else(|| two_phase(name, slot))
    {
        return findings.add(finding);
    }
    let confirmed = match facts.require_slot(name) {
        Ok(confirmed) => confirmed,
        Err(error) => {
            let finding = Finding::error((SUBJECT, "slot_unfinished"), error.to_string())
                .why(
                    "PostgreSQL completes the slot only after the end of every transaction that \
                     was open when its creation began",
                )
                .advice(
                    "end the oldest transactions; to find them: SELECT pid, xact_start FROM \
                     pg_catalog.pg_stat_activity ORDER BY xact_start;",
                );
            return findings.add(finding);
        }
    };
    findings
        .add(Finding::ok((SUBJECT, "slot"), format!("\"{name}\" is confirmed up to {confirmed}")));
    let more = client.query_one(MORE, &[&name]).await;
    let more = more.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)));
    let Some(more) = findings.answer((SUBJECT, "slot"), more) else {
        return;
    };
    let (holder, retained, has_failover): (Option<String>, Option<i64>, bool) = more;
    if let Some(pid) = slot.active_pid {
        findings.add(active(name, pid, slot.is_walposts == Some(true), holder.as_deref()));
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        findings.add(unreserved(name, retained.unwrap_or_default(), service));
    }
    if facts.version >= 170_000 {
        failover(client, name, has_failover, service, findings).await;
    }
}

/// The database's other slots of pgoutput.
const OTHER_SLOTS: &str = "
    SELECT pg_catalog.quote_ident(slot_name) FROM pg_catalog.pg_replication_slots
     WHERE plugin = 'pgoutput' AND database = pg_catalog.current_database() AND NOT temporary
     ORDER BY 1 LIMIT 6";

fn missing(name: &str, publication: bool, hint: &str) -> Finding {
    let text = format!("replication slot \"{name}\" does not exist{hint}");
    let finding = Finding::error((SUBJECT, "slot_missing"), text).why(
        "PostgreSQL retains WAL for walpost only through its slot; if this slot existed before, \
         events committed since it was dropped are in no slot",
    );
    if publication {
        finding.sql(format!(
            "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput');",
            escape_literal(name).trim_start()
        ))
    } else {
        finding.command(INIT)
    }
}

/// A slot of that name that belongs to another application.
fn foreign(name: &str, slot: &Slot, facts: &CatalogState) -> Option<Finding> {
    let plugin = slot.plugin.as_deref().unwrap_or("none");
    let database = slot.database.as_deref().unwrap_or("none");
    let (code, text) = if slot.slot_type != "logical" {
        ("slot_physical", format!("\"{name}\" is a physical slot, used by a standby or a backup"))
    } else if plugin != "pgoutput" {
        (
            "slot_plugin",
            format!("\"{name}\" uses the output plugin {plugin}; walpost needs pgoutput"),
        )
    } else if database != facts.database {
        let text = format!(
            "\"{name}\" belongs to database \"{database}\"; walpost is connected to \"{}\"",
            facts.database
        );
        ("slot_database", text)
    } else {
        return None;
    };
    let finding = Finding::error((SUBJECT, code), text).why(
        "a slot name is unique on the whole server, and the type, plugin and database of a slot \
         cannot be changed",
    );
    let ours = alternative_name(name, &facts.database);
    Some(finding.command(format!(
        "walpost init --apply --slot {ours}  # and from then on source.slot = \"{ours}\""
    )))
}

/// Another slot name, for that database.
fn alternative_name(name: &str, database: &str) -> String {
    let sign = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let database: String = database.chars().take(20).map(sign).collect();
    let with = |end: String| {
        let begin: String = name.chars().take(SLOT_NAME_MAX - end.len()).collect();
        begin + &end
    };
    let ours = with(format!("_{database}"));
    if ours == name { with(format!("_{database}_2")) } else { ours }
}

fn lost(name: &str, slot: &Slot) -> Option<Finding> {
    if slot.wal_status.as_deref() != Some("lost") && slot.invalidation_reason.is_none() {
        return None;
    }
    let reason = slot.invalidation_reason.as_deref().unwrap_or("wal_status is lost");
    let quoted = escape_literal(name);
    let quoted = quoted.trim_start();
    let text = format!("\"{name}\" was invalidated ({reason}) and cannot be used again");
    let finding = Finding::error((SUBJECT, "slot_lost"), text)
        .why(
            "undelivered events are in no slot any more: publish them from the outbox table by \
             hand before you create a new slot",
        )
        .sql(format!(
            "SELECT pg_catalog.pg_drop_replication_slot({quoted}); SELECT \
             pg_catalog.pg_create_logical_replication_slot({quoted}, 'pgoutput');"
        ));
    Some(finding)
}

fn two_phase(name: &str, slot: &Slot) -> Option<Finding> {
    slot.two_phase.then(|| {
        Finding::error((SUBJECT, "slot_two_phase"), format!("\"{name}\" has two_phase enabled"))
            .why(
                "PostgreSQL sends a transaction when it is prepared, and `run` reads only \
                 committed transactions; the fix replaces the slot by a copy at the same \
                 position, with two_phase disabled",
            )
            .sql(disable_two_phase(name))
    })
}

fn active(name: &str, pid: i32, is_walposts: bool, holder: Option<&str>) -> Finding {
    if is_walposts {
        let text = format!(
            "\"{name}\" is in use by walpost (server process {pid}); another instance waits until \
             it is released"
        );
        return Finding::ok((SUBJECT, "slot_active"), text);
    }
    let holder = holder.filter(|name| !name.is_empty()).unwrap_or("(empty)");
    let text = format!("\"{name}\" is in use by server process {pid}, application_name {holder}");
    Finding::warning((SUBJECT, "slot_active"), text)
        .why(
            "`run` waits until the slot is released; walpost never receives the events that this \
             client confirms",
        )
        .advice(
            "stop that client (a connector that walpost replaces, or pg_recvlogical), or set \
             --slot to a slot of walpost's own",
        )
}

fn unreserved(name: &str, retained: i64, service: Hosting) -> Finding {
    let text = format!(
        "\"{name}\" is about to be lost: PostgreSQL retains {retained} MB of WAL for it, more \
         than max_slot_wal_keep_size"
    );
    let proposed = format!("{}GB", (retained * 3 / 1024).max(10));
    Finding::warning((SUBJECT, "slot_unreserved"), text)
        .why(
            "the next checkpoint may remove the WAL and invalidate the slot: start `run` now, or \
             raise the limit",
        )
        .sql_or_advice(service.set("max_slot_wal_keep_size", &proposed))
}

/// A row of [`STANDBYS`].
struct Standby {
    slot: Option<String>,
    is_active: bool,
    is_lost: bool,
    /// Whether walpost's role may not see its activity.
    is_hidden: bool,
}

impl Standby {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            slot: row.try_get(0)?,
            is_active: row.try_get(1)?,
            is_lost: row.try_get(2)?,
            is_hidden: row.try_get(3)?,
        })
    }
}

/// Checks whether the slot continues after a failover, and whether it makes the stream wait for a
/// standby
/// (<https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS-SYNCHRONIZATION>).
async fn failover(
    client: &Client,
    name: &str,
    is_on: bool,
    service: Hosting,
    findings: &mut Findings,
) {
    let asked = async {
        let rows = client.query(STANDBYS, &[&APPLICATION_NAME]).await?;
        let slots = rows.iter().map(Standby::of).collect::<Result<Vec<_>, _>>()?;
        let query = "SELECT pg_catalog.current_setting('synchronized_standby_slots'), \
                     current_user::pg_catalog.text";
        let row = client.query_one(query, &[]).await?;
        let (awaited, role): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        Ok::<_, tokio_postgres::Error>((slots, awaited, role))
    };
    let Some((standbys, awaited, role)) =
        findings.answer(("failover", "slot_failover"), asked.await)
    else {
        return;
    };
    let slots: Vec<(String, bool, bool)> = standbys
        .iter()
        .filter_map(|standby| Some((standby.slot.clone()?, standby.is_active, standby.is_lost)))
        .collect();
    if !is_on {
        let hidden = standbys.iter().filter(|standby| standby.is_hidden).count();
        findings.add(if hidden > 0 && hidden == standbys.len() {
            unseen_standbys(hidden, &role)
        } else {
            without_failover(name, !standbys.is_empty())
        });
        return;
    }
    findings.add(Finding::ok(
        ("failover", "slot_failover"),
        "enabled: the slot is synchronized to standbys with sync_replication_slots = on",
    ));
    let names: Vec<&str> =
        awaited.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let subject = "synchronized_standby_slots";
    if names.is_empty() && !slots.is_empty() {
        let all: Vec<&str> = slots.iter().map(|(name, ..)| name.as_str()).collect();
        findings.add(
            Finding::warning((subject, "synchronized_standby_slots"), "it is empty")
                .why(
                    "the destination may have events whose transactions no standby has yet: a failover \
                     discards these transactions, and consumers keep the events",
                )
                .sql_or_advice(service.set(subject, &all.join(","))),
        );
    }
    for awaited in &names {
        let plain = awaited.trim_matches('"');
        let left: Vec<&str> = names.iter().filter(|name| *name != awaited).copied().collect();
        let fix = service.set(subject, &left.join(","));
        match slots.iter().find(|(name, ..)| name == plain) {
            Some((_, true, false)) => {}
            Some((_, false, false)) => findings.add(
                Finding::warning(
                    (subject, "synchronized_standby_slots_inactive"),
                    format!("no standby uses slot {plain}"),
                )
                .why(
                    "PostgreSQL sends no event that this standby does not have: delivery stops \
                     until the standby is back",
                )
                .sql_or_advice(fix),
            ),
            _ => findings.add(
                Finding::error(
                    (subject, "synchronized_standby_slots_missing"),
                    format!("{plain} is not a usable physical slot"),
                )
                .why("PostgreSQL waits for it, and sends nothing from a slot with failover enabled")
                .sql_or_advice(fix),
            ),
        }
    }
}

fn without_failover(name: &str, has_standbys: bool) -> Finding {
    let name_of = ("failover", "slot_failover");
    if !has_standbys {
        return Finding::ok(name_of, "disabled; the server has no standby");
    }
    Finding::warning(name_of, "disabled; the server has a standby")
        .why("after a failover the slot does not exist, and undelivered events are lost with it")
        // Only the replication protocol has this command; it keeps the slot's position.
        .command(format!(
            "psql \"$SOURCE_URL replication=database\" -c 'ALTER_REPLICATION_SLOT {name} \
             (FAILOVER true)'"
        ))
}

/// Sessions that may be standbys, but whose activity walpost's role may not see.
fn unseen_standbys(sessions: usize, role: &str) -> Finding {
    let text = format!(
        "disabled; role {role} may not see whether {sessions} replication session(s) without a \
         slot are standbys"
    );
    Finding::skipped(("failover", "slot_failover"), text)
        .why(
            "if one is a standby, the slot does not exist after a failover, and undelivered \
             events are lost with it",
        )
        .sql(format!("GRANT pg_read_all_stats TO {};", escape_identifier(role)))
}

/// The requirements for decoding on a standby
/// (<https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS>).
async fn own_slot_of_standby(
    client: &Client,
    name: &str,
    slot: &Slot,
    facts: &CatalogState,
    service: Hosting,
    findings: &mut Findings,
) {
    if let Some(finding) =
        foreign(name, slot, facts).or_else(|| lost(name, slot)).or_else(|| two_phase(name, slot))
    {
        return findings.add(finding);
    }
    let confirmed = slot.confirmed_flush.unwrap_or_default();
    findings.add(Finding::ok(
        (SUBJECT, "slot"),
        format!("\"{name}\" is a slot of this standby, confirmed up to {confirmed}"),
    ));
    let query = "SELECT pg_catalog.current_setting('hot_standby_feedback') = 'on',
                        pg_catalog.current_setting('primary_slot_name') <> ''";
    let row = client.query_one(query, &[]).await;
    let settings = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let Some(settings) = findings.answer((SUBJECT, "standby_settings"), settings) else {
        return;
    };
    let (feedback, has_slot): (bool, bool) = settings;
    let why = "VACUUM on the primary can remove catalog rows that decoding here still needs, and \
               PostgreSQL then invalidates the slot";
    if !feedback {
        let text = "hot_standby_feedback is off on this standby, which decodes";
        let finding = Finding::error((SUBJECT, "standby_feedback"), text).why(why);
        findings.add(finding.sql_or_advice(service.set("hot_standby_feedback", "on")));
    }
    if !has_slot {
        let text = "primary_slot_name is not set on this standby, which decodes";
        let finding = Finding::warning((SUBJECT, "standby_primary_slot"), text)
            .why(format!("while the standby is not connected, {why}"));
        findings.add(finding.advice(
            "create a physical slot on the primary (pg_create_physical_replication_slot) and name it \
             in primary_slot_name here",
        ));
    }
}

/// The requirements for a standby to take over.
async fn on_standby(
    client: &Client,
    name: &str,
    facts: &CatalogState,
    service: Hosting,
    findings: &mut Findings,
) {
    match &facts.slot {
        Some(slot) if !slot.synced => {
            return own_slot_of_standby(client, name, slot, facts, service, findings).await;
        }
        Some(_) => {
            findings.add(Finding::ok(
                (SUBJECT, "slot"),
                format!("\"{name}\" is synchronized from the primary"),
            ));
        }
        None => findings.add(
            Finding::warning(
                (SUBJECT, "slot_not_synced"),
                format!("\"{name}\" does not exist on this standby"),
            )
            .why("if this server is promoted, undelivered events are in no slot")
            .advice(
                "on PostgreSQL 17 and later, create the slot with failover enabled and set \
                 sync_replication_slots = on here; on earlier versions, create the slot again \
                 after a promotion",
            ),
        ),
    }
    if facts.version < 170_000 {
        return;
    }
    let query = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN \
                 ('sync_replication_slots', 'hot_standby_feedback') AND setting <> 'on' ORDER BY \
                 name";
    let rows = client.query(query, &[]).await;
    let settings: Result<Vec<String>, _> =
        rows.and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect());
    for setting in findings.answer(("failover", "settings"), settings).unwrap_or_default() {
        let code = match setting.as_str() {
            "hot_standby_feedback" => "hot_standby_feedback",
            _ => "sync_replication_slots",
        };
        findings.add(
            Finding::warning(("failover", code), format!("{setting} is off on this standby"))
                .why(
                    "without it the primary's slots are not synchronized to this server (which \
                     also needs primary_slot_name, and a dbname in primary_conninfo)",
                )
                .sql_or_advice(service.set(&setting, "on")),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proposed_name_differs_and_is_not_too_long() {
        for (name, database, ours) in [
            ("walpost", "shop", "walpost_shop".to_owned()),
            ("walpost", "Große Läden", "walpost_gro_e_l_den".to_owned()),
            (&"a".repeat(63), "shop", "a".repeat(58) + "_shop"),
            (&("a".repeat(58) + "_shop"), "shop", "a".repeat(56) + "_shop_2"),
        ] {
            assert_eq!(alternative_name(name, database), ours);
            assert!(ours.len() <= SLOT_NAME_MAX && ours != name);
        }
    }
}
