//! Creates missing objects on the server, and reports each step.
//!
//! Existing objects are neither altered nor dropped. The connection should be that of the
//! database's owner, or of a superuser.

use std::time::Duration;

use postgres_protocol::escape::escape_identifier;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::init_error::InitError;
use super::managed_service::Hosting;
use super::new_slot::former_rows;
use super::sql::{InitPlan, Object, Part};
use crate::outbox::TableName;
use crate::source::{
    self, DECODING_COLUMNS, Lack, Limit, LogicalDecoding, lift_limits, log_if_slow, said,
};

/// How long a statement may wait for locks.
const LOCK_LIMIT: Duration = Duration::from_secs(300);

/// The function as `to_regprocedure` finds it.
const PUBLISH_FUNCTION: &str = "outbox.publish(pg_catalog.text, pg_catalog.text, \
    pg_catalog.text, pg_catalog.jsonb, pg_catalog.jsonb, pg_catalog.uuid)";

/// The result for one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// The object.
    pub object: Object,
    /// Whether it was created; otherwise it already existed.
    pub created: bool,
    /// What is still to be done.
    pub note: Option<String>,
    /// A table with rows from before the slot, if the slot was created.
    pub former_rows: Option<TableName>,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, if self.created { "created" } else { "already there" })?;
        match &self.note {
            Some(note) => write!(f, " ({note})"),
            None => Ok(()),
        }
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Table(name) => write!(f, "table {name}"),
            Self::Function { .. } => f.write_str("function outbox.publish"),
            Self::Role(name) => write!(f, "role {name}"),
            Self::Publication(name) => write!(f, "publication {name}"),
            Self::Slot(name) => write!(f, "slot {name}"),
        }
    }
}

/// The alternative if the user may not create the object: on a managed service, rights are granted
/// by the service's own means.
fn instead(object: &Object, user: &str, service: Hosting) -> String {
    let on = service.name().map_or_else(String::new, |name| format!(" on {name}"));
    match object {
        Object::Role(role) => format!(
            "; --no-role leaves the role out. What it needs{on}: CREATE ROLE {} LOGIN; {}",
            escape_identifier(role),
            service.grant_replication(role)
        ),
        Object::Slot(_) => {
            format!("; what {user} lacks{on}: {}", service.grant_replication(user))
        }
        _ => String::new(),
    }
}

fn database(doing: &str) -> impl FnOnce(tokio_postgres::Error) -> InitError {
    let doing = doing.to_owned();
    |source| InitError::Database { doing, source }
}

/// Creates missing objects, each in its own transaction, and calls `report` after each step. If an
/// object waits long for other sessions, calls `waits`.
///
/// Running it again changes nothing. Dropping the future leaves what was created.
pub(crate) async fn apply(
    client: &Client,
    limit: &mut Limit,
    plan: &InitPlan,
    mut report: impl FnMut(Step),
    waits: impl Fn(&str),
) -> Result<(), InitError> {
    limit.first(lift_limits(client)).await?.map_err(database("preparing the session"))?;
    let service = limit.on(Hosting::of(client)).await?;
    let service = service.map_err(database("asking who runs the server"))?;
    let (user, version) = limit.on(server_is_ready(client, plan, service)).await??;
    limit.on(slot_is_usable_or_missing(client, plan)).await??;
    for Part { object, sql } in plan.parts() {
        let created = if limit.on(exists(client, &object)).await?? {
            false
        } else {
            let done = log_if_slow(|| waits(&awaited(&object)), client.batch_execute(&sql));
            let done = match &object {
                Object::Slot(_) => done.await,
                _ => limit.at_most(LOCK_LIMIT, done).await?,
            };
            limit.on(created(client, &object, done, &user, service)).await??
        };
        // Once the slot is made: what was committed while it waited shows too.
        let former = match object {
            Object::Slot(_) if created => {
                limit.on(former_rows(client, plan.tables())).await?.cloned()
            }
            _ => None,
        };
        match &object {
            Object::Table(table) if !created && plan.partition_by().is_some() => {
                limit.on(table_is_partitioned(client, table)).await??;
            }
            Object::Publication(name) if !created => {
                limit.on(publication_is_sufficient(client, version, name, plan.tables())).await??;
            }
            Object::Slot(_) if !created => {
                limit.on(slot_is_usable_or_missing(client, plan)).await??;
            }
            _ => {}
        }
        let note = match &object {
            Object::Role(_) if created => Some("it has no password yet".to_owned()),
            Object::Role(role) => limit.on(lacks(client, role, service)).await??,
            Object::Function { body } if !created => {
                limit.on(function_fault(client, body, plan.tables().first())).await??
            }
            _ => None,
        };
        report(Step { object, created, note, former_rows: former.filter(|_| created) });
    }
    Ok(())
}

async fn table_is_partitioned(client: &Client, table: &TableName) -> Result<(), InitError> {
    let query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relkind = 'p' \
                 AND oid = pg_catalog.to_regclass($1)::pg_catalog.oid)";
    let row = client.query_one(query, &[&table.regclass_text()]).await;
    let is_partitioned: bool =
        row.and_then(|row| row.try_get(0)).map_err(database("looking at the table"))?;
    if is_partitioned { Ok(()) } else { Err(InitError::NotPartitioned(table.clone())) }
}

/// Why the creation of an object may take long.
fn awaited(object: &Object) -> String {
    match object {
        Object::Slot(_) => format!(
            "{object} waits for the end of all transactions that were open when it was requested \
             (pg_stat_activity.xact_start); from PostgreSQL 19 on also until effective_wal_level is logical"
        ),
        _ => format!(
            "{object} is not created yet: as a rule it waits for a lock \
             (pg_stat_activity.wait_event, pg_blocking_pids)"
        ),
    }
}

/// Whether `done` created the object; false if another session was faster: roles and slots belong
/// to the whole server, and several of its databases may be set up at the same time.
async fn created(
    client: &Client,
    object: &Object,
    done: Result<(), tokio_postgres::Error>,
    user: &str,
    service: Hosting,
) -> Result<bool, InitError> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if is_there_now(&error) && exists(client, object).await? => Ok(false),
        Err(error)
            if error.code() == Some(&SqlState::UNDEFINED_OBJECT)
                && !has_plpgsql(client).await? =>
        {
            Err(InitError::NoPlpgsql(Box::new(object.clone())))
        }
        Err(error) => Err(failed(error, object, user, service)),
    }
}

async fn has_plpgsql(client: &Client) -> Result<bool, InitError> {
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_language l WHERE l.lanname = 'plpgsql')";
    let row = client.query_one(sql, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(database("looking for plpgsql"))
}

/// A unique violation comes from the catalog's own index, if both sessions had checked before.
fn is_there_now(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::DUPLICATE_OBJECT, SqlState::DUPLICATE_TABLE, SqlState::UNIQUE_VIOLATION]
            .contains(code)
    })
}

/// What an existing role needs for replication.
async fn lacks(client: &Client, role: &str, service: Hosting) -> Result<Option<String>, InitError> {
    // A managed service permits replication to the members of its own role.
    let query = "SELECT r.rolcanlogin, r.rolreplication OR r.rolsuper OR EXISTS (
                     SELECT FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles g ON g.oid = m.roleid
                      WHERE m.member = r.oid AND g.rolname = 'rds_replication')
                 FROM pg_catalog.pg_roles r WHERE r.rolname = $1";
    let row = client.query_one(query, &[&role]).await;
    let rights = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    Ok(match rights.map_err(database("looking at the role"))? {
        (true, true) => None,
        (false, _) => {
            Some(format!("it may not log in: ALTER ROLE {} LOGIN;", escape_identifier(role)))
        }
        (true, false) => Some(format!("it may not replicate: {}", service.grant_replication(role))),
    })
}

/// What is wrong with the existing function: another owner could change it at any time.
async fn function_fault(
    client: &Client,
    body: &str,
    table: Option<&TableName>,
) -> Result<Option<String>, InitError> {
    let query = format!(
        "SELECT p.prosrc = $1, r.rolsuper OR r.rolname = current_user OR EXISTS (
             SELECT FROM pg_catalog.pg_class c WHERE c.relowner = r.oid
                AND c.oid = pg_catalog.to_regclass($2)::pg_catalog.oid), r.rolname::pg_catalog.text
         FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_roles r ON r.oid = p.proowner
         WHERE p.oid = pg_catalog.to_regprocedure('{PUBLISH_FUNCTION}')::pg_catalog.oid"
    );
    let table = table.map(TableName::regclass_text).unwrap_or_default();
    let row = client.query_one(&query, &[&body, &table]).await;
    let read = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)));
    let (is_same, is_trusted, owner): (bool, bool, String) =
        read.map_err(database("looking at the function"))?;
    if is_same && is_trusted {
        return overload(client, &table).await;
    }
    Ok(match (is_same, is_trusted) {
        (true, true) => None,
        (_, false) => Some(format!(
            "it belongs to role {}, who can change it: ALTER FUNCTION outbox.publish OWNER TO \
             CURRENT_USER;",
            escape_identifier(&owner)
        )),
        (false, true) => Some(
            "its body is another; this replaces it: walpost init --publish-function | psql"
                .to_owned(),
        ),
    })
}

/// A function of the same name whose owner could take the documented calls with it: PostgreSQL chooses
/// among such functions by the types of the arguments
/// (<https://www.postgresql.org/docs/current/typeconv-func.html>).
async fn overload(client: &Client, table: &str) -> Result<Option<String>, InitError> {
    let query = format!(
        "SELECT p.oid::pg_catalog.regprocedure::pg_catalog.text, r.rolname::pg_catalog.text
           FROM pg_catalog.pg_proc p
           JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
           JOIN pg_catalog.pg_roles r ON r.oid = p.proowner
          WHERE n.nspname = 'outbox' AND p.proname = 'publish'
            AND p.oid <> pg_catalog.to_regprocedure('{PUBLISH_FUNCTION}')::pg_catalog.oid
            AND NOT (r.rolsuper OR r.rolname = current_user OR EXISTS (
                SELECT FROM pg_catalog.pg_class c WHERE c.relowner = r.oid
                   AND c.oid = pg_catalog.to_regclass($1)::pg_catalog.oid))
          ORDER BY p.oid LIMIT 1"
    );
    let found = client.query_opt(&query, &[&table]).await;
    let read = found.and_then(|row| {
        row.map(|row| Ok::<(String, String), _>((row.try_get(0)?, row.try_get(1)?))).transpose()
    });
    Ok(read.map_err(database("looking for functions of the same name"))?.map(|(function, owner)| {
        let role = escape_identifier(&owner);
        format!(
            "role {role} has another function of this name, which may take calls: see what created \
             it, then DROP FUNCTION {function};"
        )
    }))
}

/// The connected user and the server's version, if the server can create such slots.
async fn server_is_ready(
    client: &Client,
    plan: &InitPlan,
    service: Hosting,
) -> Result<(String, i32), InitError> {
    let row = client
        .query_one(
            &format!(
                "SELECT pg_catalog.pg_is_in_recovery(), current_user::pg_catalog.text, \
                 pg_catalog.current_setting('server_version_num')::pg_catalog.int4, {DECODING_COLUMNS}"
            ),
            &[],
        )
        .await
        .and_then(|row| {
            let decoding = LogicalDecoding::from_row(&row, 3)?;
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, decoding))
        });
    let (in_recovery, user, version, decoding): (bool, String, i32, LogicalDecoding) =
        row.map_err(database("asking for the server's settings"))?;
    if in_recovery {
        return Err(InitError::Standby);
    }
    match decoding.lack() {
        None => {}
        Some(Lack::WalLevel(level)) => {
            let fix = service.logical_decoding().map_or_else(
                || "run ALTER SYSTEM SET wal_level = 'logical'; and restart PostgreSQL".to_owned(),
                str::to_owned,
            );
            return Err(InitError::WalLevel { level: level.to_owned(), fix });
        }
        Some(Lack::Plugin(plugins)) => return Err(InitError::Plugin(plugins.to_owned())),
    }
    if plan.failover() && version < 170_000 {
        return Err(InitError::NoFailover(version / 10_000));
    }
    Ok((user, version))
}

/// The existing slot of that name.
struct FoundSlot {
    plugin: String,
    database: String,
    wal_status: String,
    current_database: String,
    /// Whether the publication exists.
    has_publication: bool,
    has_failover: bool,
    is_unfinished: bool,
}

impl FoundSlot {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            plugin: row.try_get(0)?,
            database: row.try_get(1)?,
            wal_status: row.try_get(2)?,
            current_database: row.try_get(3)?,
            has_publication: row.try_get(4)?,
            has_failover: row.try_get(5)?,
            is_unfinished: row.try_get(6)?,
        })
    }
}

/// Checked before anything is created, because an operator must decide about it.
async fn slot_is_usable_or_missing(client: &Client, plan: &InitPlan) -> Result<(), InitError> {
    let query = "SELECT coalesce(plugin::pg_catalog.text, ''), \
                 coalesce(database::pg_catalog.text, ''), coalesce(wal_status, ''), \
                 pg_catalog.current_database()::pg_catalog.text, \
                 EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $2), \
                 coalesce((pg_catalog.to_jsonb(s) ->> 'failover'::pg_catalog.text)::pg_catalog.bool, \
                 false), confirmed_flush_lsn IS NULL \
                 FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1";
    let row = client
        .query_opt(query, &[&plan.slot(), &plan.publication()])
        .await
        .and_then(|row| row.as_ref().map(FoundSlot::of).transpose())
        .map_err(database("looking for the slot"))?;
    let Some(slot) = row else { return Ok(()) };
    let name = plan.slot().to_owned();
    if slot.plugin != "pgoutput" {
        let problem = match slot.plugin {
            none if none.is_empty() => "is for physical replication".to_owned(),
            plugin => format!("its plugin is {plugin}, not pgoutput"),
        };
        return Err(InitError::ForeignSlot { name, problem });
    }
    if slot.database != slot.current_database {
        let FoundSlot { database, current_database, .. } = slot;
        let problem = format!("belongs to database {database}, not {current_database}");
        return Err(InitError::ForeignSlot { name, problem });
    }
    if slot.wal_status == "lost" {
        return Err(InitError::LostSlot(name));
    }
    if slot.is_unfinished {
        return Err(InitError::UnfinishedSlot(name));
    }
    match (slot.has_publication, slot.has_failover || !plan.failover()) {
        (true, true) => Ok(()),
        (true, false) => Err(InitError::SlotWithoutFailover(name)),
        (false, _) => {
            let publication = plan.publication().to_owned();
            Err(InitError::SlotBeforePublication { slot: name, publication })
        }
    }
}

async fn exists(client: &Client, object: &Object) -> Result<bool, InitError> {
    let (query, name) = match object {
        Object::Table(table) => {
            ("SELECT pg_catalog.to_regclass($1) IS NOT NULL", table.regclass_text())
        }
        Object::Function { .. } => {
            ("SELECT pg_catalog.to_regprocedure($1) IS NOT NULL", PUBLISH_FUNCTION.to_owned())
        }
        Object::Role(name) => {
            ("SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)", name.clone())
        }
        Object::Publication(name) => (
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $1)",
            name.clone(),
        ),
        Object::Slot(name) => {
            let query =
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1)";
            (query, name.clone())
        }
    };
    let row = client.query_one(query, &[&name]).await;
    row.and_then(|row| row.try_get(0)).map_err(database(&format!("looking for {object}")))
}

fn failed(
    error: tokio_postgres::Error,
    object: &Object,
    user: &str,
    service: Hosting,
) -> InitError {
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => InitError::Denied {
            object: Box::new(object.clone()),
            user: user.to_owned(),
            message: said(&error),
            instead: instead(object, user, service),
        },
        Some(&SqlState::CONFIGURATION_LIMIT_EXCEEDED) => {
            InitError::NoFreeSlot(Box::new(object.clone()))
        }
        _ => database(&format!("creating {object}"))(error),
    }
}

/// Whether an existing publication publishes inserts into every table, and those into partitions
/// under the table's own name.
async fn publication_is_sufficient(
    client: &Client,
    version: i32,
    name: &str,
    tables: &[TableName],
) -> Result<(), InitError> {
    let quoted = postgres_protocol::escape::escape_identifier(name);
    let problem = |problem: String, fix: String| InitError::Publication {
        name: name.to_owned(),
        problem,
        fix,
    };
    for table in tables {
        let row = publication_row(client, version, name, table).await?;
        let read = |column: usize| {
            row.try_get::<_, bool>(column).map_err(database("looking at the publication"))
        };
        let (inserts, listed, partitioned, via_root) = (read(0)?, read(1)?, read(2)?, read(3)?);
        if !inserts {
            let fix = format!("ALTER PUBLICATION {quoted} SET (publish = 'insert');");
            return Err(problem("does not publish inserts".to_owned(), fix));
        }
        if partitioned && !via_root {
            let fix =
                format!("ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true);");
            let what = format!("publishes the partitions of {table} instead of {table} itself");
            return Err(problem(what, fix));
        }
        if !listed {
            let fix = format!("ALTER PUBLICATION {quoted} ADD TABLE {table};");
            return Err(problem(format!("does not have the table {table}"), fix));
        }
    }
    Ok(())
}

async fn publication_row(
    client: &Client,
    version: i32,
    name: &str,
    table: &TableName,
) -> Result<Row, InitError> {
    let query = format!(
        "SELECT p.pubinsert, coalesce(m.published, false), coalesce(c.relkind = 'p', false), \
         p.pubviaroot FROM pg_catalog.pg_publication p LEFT JOIN pg_catalog.pg_class c \
         ON c.oid = pg_catalog.to_regclass($2)::pg_catalog.oid LEFT JOIN {} ON true \
         WHERE p.pubname = $1",
        source::membership(version, "$1")
    );
    client
        .query_one(&query, &[&name, &table.regclass_text()])
        .await
        .map_err(database("looking at the publication"))
}
