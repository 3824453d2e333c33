//! Reads from the catalogs the state of the slot, the publication and the outbox tables, and checks
//! that it is what a relay needs: a few small queries at each connect. The folder has single
//! questions to the catalogs, and the metrics, which are read regularly.

pub(super) mod confirmed_slots;
pub(super) mod locked_table;
pub(super) mod logical_decoding;
pub(super) mod membership;
pub(super) mod outbox_size;
pub(super) mod owners_code;
pub(super) mod slot_metrics;
pub(super) mod types;
pub(super) mod unsent_parts;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::SourceError;
use super::config::APPLICATION_NAME;
use super::error::HolderKind;
use super::slot_error::SlotError;
use crate::lsn::Lsn;
use crate::outbox::{FoundTable, TableName};
use crate::pgoutput::{Column, Relation};
use crate::source::catalog::logical_decoding::{ADD_PLUGIN, Lack, LogicalDecoding};
use crate::source::catalog::membership::{membership, sends};
use crate::source::catalog::unsent_parts::{UnsentPart, require_none, unsent_parts};
use crate::source::instances::advisory_lock::LockClass;
use crate::source::instances::halt_notice;

/// The server and the slot, as the catalogs show them.
#[derive(Debug, Clone)]
pub struct CatalogState {
    /// `server_version_num`, for instance 150018.
    pub version: i32,
    /// The database of this connection.
    pub database: String,
    /// The oid of the database.
    pub database_oid: u32,
    /// What the settings say of logical decoding.
    pub decoding: LogicalDecoding,
    /// `wal_sender_timeout` in milliseconds; 0 means no timeout.
    pub wal_sender_timeout_ms: i64,
    /// Whether the server is a standby.
    pub in_recovery: bool,
    /// WAL flushed so far (replayed, on a standby).
    pub flushed: Lsn,
    /// The slot; `None` if no slot has this name.
    pub slot: Option<Slot>,
    /// The server process of a walpost that used the slot and halted, so that an operator must act.
    pub halted_by: Option<i32>,
}

/// A row of `pg_replication_slots`.
#[allow(clippy::struct_excessive_bools, reason = "they are columns of it")]
#[derive(Debug, Clone)]
pub struct Slot {
    /// `physical` or `logical`.
    pub slot_type: String,
    /// The output plugin of a logical slot.
    pub plugin: Option<String>,
    /// The database of a logical slot.
    pub database: Option<String>,
    /// The server process that uses the slot.
    pub active_pid: Option<i32>,
    /// Whether that process serves a walpost, by its session's name; `None` if it has ended since.
    pub is_walposts: Option<bool>,
    /// The role of that walpost, if it differs from this session's.
    pub other_role: Option<String>,
    /// The position that its consumer has confirmed.
    pub confirmed_flush: Option<Lsn>,
    /// The position from which the server decodes for the slot.
    pub restart: Option<Lsn>,
    /// Whether a transaction that is still open keeps that there.
    pub restart_is_held: bool,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Why the slot was invalidated (PostgreSQL 17 and later).
    pub invalidation_reason: Option<String>,
    /// Whether it is synchronized from the primary to this standby (PostgreSQL 17 and later).
    pub synced: bool,
    /// Whether it is synchronized to standbys (PostgreSQL 17 and later). A copy of the slot is not.
    pub failover: bool,
    /// Whether it sends a transaction at PREPARE TRANSACTION instead of at commit.
    pub two_phase: bool,
}

impl Slot {
    /// The kind of client that holds the slot. `own` is the server process of this walpost's last
    /// session, which may take a while to end.
    pub(super) fn held_by(&self, own: Option<i32>) -> HolderKind {
        match self.is_walposts {
            _ if self.active_pid.is_none() || self.active_pid == own => HolderKind::Unknown,
            None => HolderKind::Unknown,
            Some(true) => HolderKind::Walpost,
            Some(false) => HolderKind::Other,
        }
    }
}

/// pgoutput has the option `messages` since PostgreSQL 14.
const LEAST_VERSION: i32 = 140_000;

const STATE: &str = "
    SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4,
           pg_catalog.current_database()::pg_catalog.text,
           (SELECT d.oid FROM pg_catalog.pg_database d
             WHERE d.datname = pg_catalog.current_database()),
           (SELECT setting::pg_catalog.int8 FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
           (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                 ELSE pg_catalog.pg_current_wal_flush_lsn() END)::pg_catalog.text,
           s.slot_type, s.plugin::pg_catalog.text, s.database::pg_catalog.text, s.active_pid,
           s.confirmed_flush_lsn::pg_catalog.text, s.wal_status,
           pg_catalog.to_jsonb(s) ->> 'invalidation_reason'::pg_catalog.text,
           coalesce((pg_catalog.to_jsonb(s) ->> 'synced'::pg_catalog.text)::pg_catalog.bool, false),
           pg_catalog.pg_is_in_recovery(),
           (SELECT a.application_name = $2 FROM pg_catalog.pg_stat_activity a
             WHERE a.pid = s.active_pid),
           (SELECT a.usename::pg_catalog.text FROM pg_catalog.pg_stat_activity a
             WHERE a.pid = s.active_pid AND a.application_name = $2 AND a.usename <> session_user),
           coalesce((pg_catalog.to_jsonb(s) ->> 'failover'::pg_catalog.text)::pg_catalog.bool, false),
           -- Anybody may take such a lock, or such a name: only a walpost of the same role counts.
           (SELECT pg_catalog.min(a.pid) FROM pg_catalog.pg_stat_activity a
             WHERE a.usename = session_user AND a.datname = pg_catalog.current_database()
               AND (a.application_name = pg_catalog.concat($3, pg_catalog.hashtext($1))
                    OR a.application_name = $2 AND EXISTS (
                       SELECT FROM pg_catalog.pg_locks l
                        WHERE l.pid = a.pid AND l.granted AND {lock}))),
           coalesce((pg_catalog.to_jsonb(s) ->> 'two_phase'::pg_catalog.text)::pg_catalog.bool, false),
           s.restart_lsn::pg_catalog.text,
           -- A transaction that is open is as old as what the slot has to decode first.
           coalesce(pg_catalog.age(pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.xid)
                    >= pg_catalog.age(s.catalog_xmin), false),
           {decoding}
      FROM (SELECT) AS one
      LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = $1";

impl CatalogState {
    /// Reads them over an SQL connection.
    pub async fn read(client: &Client, slot: &str) -> Result<Self, SourceError> {
        let query = STATE.replace("{decoding}", logical_decoding::COLUMNS);
        let query = query.replace("{lock}", &LockClass::Halt.condition("$1"));
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&slot, Type::TEXT),
            (&APPLICATION_NAME, Type::TEXT),
            (&halt_notice::NAME, Type::TEXT),
        ];
        let row = client
            .query_typed_one(&query, &parameters)
            .await
            .map_err(|error| SourceError::query("reading the server's settings", &error))?;
        Self::from_row(&row).map_err(|error| SourceError::query("the server's settings", &error))
    }

    fn from_row(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let lsn = |text: Option<String>| text.and_then(|text| text.parse().ok());
        let slot_type: Option<String> = row.try_get(5)?;
        let slot = match slot_type {
            None => None,
            Some(slot_type) => Some(Slot {
                slot_type,
                plugin: row.try_get(6)?,
                database: row.try_get(7)?,
                active_pid: row.try_get(8)?,
                is_walposts: row.try_get(14)?,
                confirmed_flush: lsn(row.try_get(9)?),
                wal_status: row.try_get(10)?,
                invalidation_reason: row.try_get(11)?,
                synced: row.try_get(12)?,
                other_role: row.try_get(15)?,
                failover: row.try_get(16)?,
                two_phase: row.try_get(18)?,
                restart: lsn(row.try_get(19)?),
                restart_is_held: row.try_get(20)?,
            }),
        };
        Ok(Self {
            version: row.try_get(0)?,
            database: row.try_get(1)?,
            database_oid: row.try_get(2)?,
            decoding: LogicalDecoding::from_row(row, 21)?,
            wal_sender_timeout_ms: row.try_get::<_, Option<i64>>(3)?.unwrap_or(60_000),
            in_recovery: row.try_get(13)?,
            flushed: lsn(row.try_get(4)?).unwrap_or_default(),
            slot,
            halted_by: row.try_get(17)?,
        })
    }

    /// Requires a server version whose pgoutput options walpost can request.
    pub fn require_version(&self) -> Result<(), SourceError> {
        if self.version >= LEAST_VERSION {
            return Ok(());
        }
        Err(SourceError::Setup(format!(
            "the server is PostgreSQL {}, walpost needs 14 or later",
            self.version / 10_000
        )))
    }

    /// Requires that the server can decode logically.
    pub fn require_decoding(&self) -> Result<(), SourceError> {
        match self.decoding.lack() {
            None => Ok(()),
            Some(Lack::WalLevel(level)) => Err(SourceError::Setup(format!(
                "wal_level is {level}, logical decoding needs logical: ALTER SYSTEM SET wal_level = \
                 logical, then restart the server"
            ))),
            Some(Lack::Plugin(plugins)) => Err(SourceError::Setup(format!(
                "output_plugin_libraries is \"{plugins}\", without pgoutput: {ADD_PLUGIN}"
            ))),
        }
    }

    /// Returns the slot's `confirmed_flush_lsn`; fails if walpost cannot use the slot on this
    /// database.
    pub fn require_slot(&self, name: &str) -> Result<Lsn, SourceError> {
        let Some(slot) = self.slot.as_ref().filter(|slot| !(self.in_recovery && slot.synced))
        else {
            if self.in_recovery {
                return Err(SourceError::standby(name));
            }
            let (slot, database) = (name.to_owned(), self.database.clone());
            return Err(SourceError::Slot(SlotError::Missing { slot, database }));
        };
        let unsuitable = |reason: String| {
            Err(SourceError::Slot(SlotError::Unsuitable { slot: name.to_owned(), reason }))
        };
        if slot.slot_type != "logical" {
            return unsuitable("is a physical one; choose another name with --slot".into());
        }
        if slot.plugin.as_deref() != Some("pgoutput") {
            let plugin = slot.plugin.as_deref().unwrap_or("none");
            return unsuitable(format!(
                "uses the output plugin {plugin}, walpost reads pgoutput; choose another name with --slot"
            ));
        }
        if slot.database.as_deref() != Some(&self.database) {
            let theirs = slot.database.as_deref().unwrap_or("none");
            return unsuitable(format!(
                "belongs to database \"{theirs}\", this connection is to \"{}\"",
                self.database
            ));
        }
        if slot.wal_status.as_deref() == Some("lost") || slot.invalidation_reason.is_some() {
            let reason = slot.invalidation_reason.as_deref().unwrap_or("wal_status is lost");
            let (slot, reason) = (name.to_owned(), reason.to_owned());
            return Err(SourceError::Slot(SlotError::Invalidated { slot, reason }));
        }
        if slot.two_phase {
            return unsuitable(format!(
                "has two_phase enabled: it sends a transaction when it is prepared, and walpost reads \
                 committed transactions only; replace it with a copy, which has two_phase disabled and \
                 the same position: {}",
                disable_two_phase(name)
            ));
        }
        slot.confirmed_flush.ok_or_else(|| {
            SourceError::Lost(format!("replication slot \"{name}\" is still being created"))
        })
    }
}

/// Maximum length of a slot name in bytes: `NAMEDATALEN` minus one.
pub(crate) const SLOT_NAME_MAX: usize = 63;

/// The suffix of a copy's name.
const COPY: &str = "_copy";

/// The SQL that replaces a slot with a copy of its copy: copies have `two_phase` disabled.
pub(crate) fn disable_two_phase(slot: &str) -> String {
    let copy: String = slot.chars().take(SLOT_NAME_MAX - COPY.len()).chain(COPY.chars()).collect();
    let (slot, copy) = (escape_literal(slot), escape_literal(&copy));
    let (slot, copy) = (slot.trim_start(), copy.trim_start());
    format!(
        "SELECT pg_catalog.pg_copy_logical_replication_slot({slot}, {copy}); \
         SELECT pg_catalog.pg_drop_replication_slot({slot}); \
         SELECT pg_catalog.pg_copy_logical_replication_slot({copy}, {slot}); \
         SELECT pg_catalog.pg_drop_replication_slot({copy});"
    )
}

const PUBLICATION: &str =
    "SELECT pubinsert, pg_catalog.current_setting('server_version_num')::pg_catalog.int4
       FROM pg_catalog.pg_publication WHERE pubname::pg_catalog.text = $1";

/// A table's columns, and whether the publication sends them: all columns, or its column list.
const TABLE: &str = "
    SELECT c.oid, c.relkind::pg_catalog.text, a.attname::pg_catalog.text, a.atttypid,
           coalesce(m.published, false), {sends}, a.atttypmod
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN {membership} ON true
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2
     ORDER BY a.attnum";

/// The outbox tables, with the columns that the publication sends. Fails unless the publication
/// publishes the inserts of all of them, wherever they are stored. Without a table, the publication only
/// has to exist. `typed`: records depend on the columns' data types.
pub async fn published_tables(
    client: &Client,
    publication: &str,
    tables: &[TableName],
    typed: bool,
) -> Result<Vec<FoundTable>, SourceError> {
    let found = found_tables(client, publication, tables, typed).await?;
    for table in &found {
        require_none(&parts_of(client, table, tables).await?)?;
    }
    Ok(found)
}

/// The tables with rows of an outbox table that PostgreSQL does not send; `tables` are all outbox tables.
pub(super) async fn parts_of(
    client: &Client,
    table: &FoundTable,
    tables: &[TableName],
) -> Result<Vec<UnsentPart>, SourceError> {
    let (oid, name) = (table.relation.oid, TableName::from(&table.relation));
    let parts = unsent_parts(client, (oid, &name), tables).await;
    parts.map_err(|error| SourceError::query("looking for where rows are stored", &error))
}

/// The same, whether all rows are sent or not.
pub(super) async fn found_tables(
    client: &Client,
    publication: &str,
    tables: &[TableName],
    typed: bool,
) -> Result<Vec<FoundTable>, SourceError> {
    let row = client.query_opt(PUBLICATION, &[&publication]).await;
    let found: Option<(bool, i32)> = row
        .and_then(|row| row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose())
        .map_err(|error| SourceError::query("reading the publication", &error))?;
    let quoted = escape_identifier(publication);
    let Some((inserts, version)) = found else {
        return Err(SourceError::Setup(format!(
            "publication {quoted} does not exist in this database; for a new outbox run `walpost init \
             --apply`, which makes it before the slot; where the slot is there already, run the SQL that \
             `walpost init` prints for it (what was committed before stays out of the slot's reach)"
        )));
    };
    if !tables.is_empty() && !inserts {
        return Err(SourceError::Setup(format!(
            "publication {quoted} does not publish inserts: ALTER PUBLICATION {quoted} SET (publish = 'insert')"
        )));
    }
    let mut found = Vec::with_capacity(tables.len());
    if tables.is_empty() {
        return Ok(found);
    }
    let known = types::of(client, tables, typed).await?;
    for table in tables {
        let relation = published_table(client, version, publication, table).await?;
        found.push(FoundTable { relation, types: known.clone() });
    }
    Ok(found)
}

/// A row of [`TABLE`].
struct TableColumn {
    table: u32,
    table_kind: String,
    column: Column,
    /// Whether the publication has the table.
    is_published: bool,
    is_sent: bool,
}

impl TableColumn {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            table: row.try_get(0)?,
            table_kind: row.try_get(1)?,
            column: Column {
                name: row.try_get(2)?,
                type_oid: row.try_get(3)?,
                type_modifier: row.try_get(6)?,
            },
            is_published: row.try_get(4)?,
            is_sent: row.try_get(5)?,
        })
    }
}

async fn published_table(
    client: &Client,
    version: i32,
    publication: &str,
    table: &TableName,
) -> Result<Relation, SourceError> {
    let query = TABLE
        .replace("{sends}", &sends(version))
        .replace("{membership}", &membership(version, "$3"));
    let rows = client.query(&query, &[&table.schema, &table.name, &publication]).await;
    let rows: Vec<TableColumn> =
        rows.and_then(|rows| rows.iter().map(TableColumn::of).collect())
            .map_err(|error| SourceError::query("reading the outbox table's columns", &error))?;
    let Some(first) = rows.first() else {
        return Err(SourceError::Setup(format!(
            "there is no table {table} in this database; run `walpost init --apply` or name yours with --table"
        )));
    };
    let quoted = escape_identifier(publication);
    if !first.is_published {
        let partitioned = first.table_kind == "p";
        let fix = if partitioned {
            format!(
                "ALTER PUBLICATION {quoted} ADD TABLE {table} where it is missing, and ALTER PUBLICATION \
                 {quoted} SET (publish_via_partition_root = true), so that rows come under the table's own name"
            )
        } else {
            format!("ALTER PUBLICATION {quoted} ADD TABLE {table}")
        };
        return Err(SourceError::Setup(format!(
            "publication {quoted} does not publish table {table}: {fix}"
        )));
    }
    let oid = first.table;
    let columns = rows.into_iter().filter(|column| column.is_sent).map(|column| column.column);
    Ok(Relation {
        oid,
        schema: table.schema.clone(),
        name: table.name.clone(),
        columns: columns.collect(),
    })
}
