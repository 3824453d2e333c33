//! How far the logical slots of a database are confirmed, and what its publication sends: for what
//! deletes rows, which needs no right on any slot.

use std::sync::Arc;

use tokio_postgres::Client;

use super::connection::connect::SqlClient;
use super::connection::instance::Instance;
use super::error::SourceError;
use super::publication_guard::Catalogs;
use super::{PublicationFingerprint, SourceConfig};
use crate::lsn::Lsn;
use crate::outbox::FoundTable;

/// The server. Its timeline is the one of the WAL that it writes
/// (<https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-BACKUP>).
const SERVER: &str = "
    SELECT (SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()),
           (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()),
           pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8),
           pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text";

/// Temporary slots end with their sessions, and nobody continues at their positions.
const SLOTS: &str = "
    SELECT slot_name::pg_catalog.text, confirmed_flush_lsn::pg_catalog.text,
           coalesce(wal_status = 'lost', false)
      FROM pg_catalog.pg_replication_slots
     WHERE slot_type = 'logical' AND NOT temporary
       AND database::pg_catalog.text = pg_catalog.current_database()::pg_catalog.text
     ORDER BY 1";

/// A logical slot of this database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfirmedSlot {
    /// Its name.
    pub(crate) name: String,
    /// `confirmed_flush_lsn`; `None` while it is created.
    pub(crate) confirmed: Option<Lsn>,
    /// Whether the server has invalidated it: nobody can read from it any more.
    pub(crate) is_lost: bool,
}

/// The slots of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfirmedSlots {
    /// The server's.
    pub(crate) system_identifier: String,
    /// That of the database.
    pub(crate) database_oid: u32,
    /// The server's.
    pub(crate) timeline: u32,
    /// The end of its WAL.
    pub(crate) end: Lsn,
    /// When its postmaster was started, in microseconds since 1970.
    pub(crate) server_started: i64,
    /// By name.
    pub(crate) slots: Vec<ConfirmedSlot>,
}

/// The publication, and its tables among the configured ones; an error if one is missing.
pub(crate) async fn published(
    client: &Arc<SqlClient>,
    config: &SourceConfig,
) -> Result<(PublicationFingerprint, Vec<FoundTable>), SourceError> {
    let failed = |error| SourceError::query("asking for the server's version", &error);
    let sql = "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let version = row.try_get(0).map_err(failed)?;
    let (catalogs, check) = Catalogs::checked(Arc::clone(client), version, config).await?;
    Ok((check.fingerprint, catalogs.published_tables().await?))
}

impl ConfirmedSlots {
    /// The end of WAL now.
    pub(crate) async fn end(client: &Client) -> Result<Lsn, SourceError> {
        let failed = |error| SourceError::query("asking for the end of WAL", &error);
        let sql = "SELECT pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text";
        let row = client.query_one(sql, &[]).await.map_err(failed)?;
        let end: String = row.try_get(0).map_err(failed)?;
        end.parse().map_err(|_| SourceError::Lost(format!("the end of WAL cannot be read: {end}")))
    }

    /// Reads them. `None`: the server is a standby.
    pub(crate) async fn read(client: &Client) -> Result<Option<Self>, SourceError> {
        let failed = |error| SourceError::query("looking at the replication slots", &error);
        let row = client.query_one("SELECT pg_catalog.pg_is_in_recovery()", &[]).await;
        if row.and_then(|row| row.try_get(0)).map_err(failed)? {
            return Ok(None);
        }
        let row = client.query_one(SERVER, &[]).await.map_err(failed)?;
        let (timeline, end): (String, String) =
            (row.try_get(2).map_err(failed)?, row.try_get(3).map_err(failed)?);
        let unreadable = || SourceError::Lost("the server's position cannot be read".to_owned());
        let mut found = Self {
            system_identifier: row.try_get(0).map_err(failed)?,
            database_oid: row.try_get(1).map_err(failed)?,
            timeline: u32::from_str_radix(&timeline, 16).map_err(|_| unreadable())?,
            end: end.parse().map_err(|_| unreadable())?,
            server_started: Instance::of(client).await?.postmaster_start,
            slots: Vec::new(),
        };
        for row in client.query(SLOTS, &[]).await.map_err(failed)? {
            let confirmed: Option<String> = row.try_get(1).map_err(failed)?;
            found.slots.push(ConfirmedSlot {
                name: row.try_get(0).map_err(failed)?,
                confirmed: confirmed.and_then(|text| text.parse().ok()),
                is_lost: row.try_get(2).map_err(failed)?,
            });
        }
        Ok(Some(found))
    }
}
