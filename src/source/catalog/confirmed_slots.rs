//! How far the logical slots of a database are confirmed, and what its publication sends: for what
//! deletes rows, which needs no right on any slot.
//!
//! A slot tells by itself which transactions its consumer has got. Every few seconds the server writes
//! the oldest transaction id that is still running to the WAL (`xl_running_xacts`). A slot takes that id
//! as its `catalog_xmin` once its consumer has confirmed the position of that record
//! (`LogicalIncreaseXminForSlot`, `LogicalConfirmReceivedLocation` in
//! [logical.c](https://github.com/postgres/postgres/blob/master/src/backend/replication/logical/logical.c)).
//! So every transaction with a lower id had ended there, and its commit record lies before what is
//! confirmed: a transaction stops running only after its commit record is in the WAL
//! ([transam/README](https://github.com/postgres/postgres/blob/master/src/backend/access/transam/README)).
//! That holds for savepoints and prepared transactions, and for a slot of a restored server: the slot
//! was restored with it.

use std::sync::Arc;

use tokio_postgres::Client;

use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::source::connection::connect::SqlClient;
use crate::source::connection::instance::Instance;
use crate::source::error::SourceError;
use crate::source::identity::publication_guard::Catalogs;
use crate::source::{PublicationFingerprint, SourceConfig};

/// The server. Its timeline is the one of the WAL that it writes
/// (<https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-BACKUP>).
const SERVER: &str = "
    SELECT (SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()),
           (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()),
           pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8),
           pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text";

/// Temporary slots end with their sessions, and nobody continues at their positions. A transaction id of
/// a slot has 32 bits; the end of the snapshot tells the others.
const SLOTS: &str = "
    SELECT slot_name::pg_catalog.text, confirmed_flush_lsn::pg_catalog.text,
           coalesce(wal_status = 'lost', false), active,
           catalog_xmin::pg_catalog.text::pg_catalog.int8,
           pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text::pg_catalog.int8
      FROM pg_catalog.pg_replication_slots
     WHERE slot_type = 'logical' AND NOT temporary
       AND database::pg_catalog.text = pg_catalog.current_database()::pg_catalog.text
     ORDER BY 1";

/// A logical slot of this database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfirmedSlot {
    /// The slot's name.
    pub(crate) name: String,
    /// `confirmed_flush_lsn`; `None` while it is created.
    pub(crate) confirmed: Option<Lsn>,
    /// The transactions with lower ids committed before `confirmed`, or were rolled back; 0 while that
    /// is not known.
    pub(crate) below: u64,
    /// Whether the server has invalidated it: nobody can read from it any more.
    pub(crate) is_lost: bool,
    /// Whether a consumer is connected.
    pub(crate) is_active: bool,
}

/// The transaction id with 64 bits whose lower ones are `xid`, given the id `near`: they are less than
/// 2^31 apart, as are all ids that PostgreSQL compares.
fn full_xid(xid: u32, near: u64) -> u64 {
    let low = u32::try_from(near & u64::from(u32::MAX)).unwrap_or_default();
    let apart = xid.wrapping_sub(low).cast_signed();
    near.saturating_add_signed(apart.into())
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
    /// The slots by name.
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
            let confirmed: Option<Lsn> = confirmed.and_then(|text| text.parse().ok());
            let xmin: Option<i64> = row.try_get(4).map_err(failed)?;
            let xmin =
                xmin.and_then(|xmin| u32::try_from(xmin).ok()).filter(|_| confirmed.is_some());
            let xmax: i64 = row.try_get(5).map_err(failed)?;
            let xmax = u64::try_from(xmax).unwrap_or_default();
            found.slots.push(ConfirmedSlot {
                name: row.try_get(0).map_err(failed)?,
                confirmed,
                below: xmin.map_or(0, |xmin| full_xid(xmin, xmax)),
                is_lost: row.try_get(2).map_err(failed)?,
                is_active: row.try_get(3).map_err(failed)?,
            });
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::full_xid;

    #[test]
    fn the_id_of_a_slot_is_the_one_that_is_nearest_to_the_end_of_the_snapshot() {
        const EPOCH: u64 = 1 << 32;
        for (xid, near, full) in [
            (700, 730, 700),
            // Assigned since the snapshot.
            (731, 730, 731),
            (u32::MAX, EPOCH + 5, EPOCH - 1),
            (3, EPOCH - 2, EPOCH + 3),
            (5, 3 * EPOCH + 5, 3 * EPOCH + 5),
            ((1 << 31) + 10, 2 * EPOCH + 3, EPOCH + (1 << 31) + 10),
        ] {
            assert_eq!(full_xid(xid, near), full, "{xid} near {near}");
        }
    }
}
