//! Whether nothing speaks against the position of a slot that `init` has found or made.

use tokio_postgres::{Client, Error};

use crate::outbox::TableName;

/// A slot that `init` has found or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotUse {
    /// A slot that `init` has made just now.
    Created,
    /// A slot that was there, and has sent no transaction.
    Unused,
    /// A slot that has sent transactions, of which it is not known whether they are published.
    Sent,
    /// A slot that a client uses.
    InUse,
}

impl SlotUse {
    /// What became of the slot since it was made. The statistics do not tell after a crash
    /// (<https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-SLOTS-VIEW>).
    pub(crate) async fn of(client: &Client, slot: &str) -> Result<Self, Error> {
        let sql = "SELECT s.active, COALESCE(t.total_txns, 0) > 0
                     FROM pg_catalog.pg_replication_slots s
                     LEFT JOIN pg_catalog.pg_stat_replication_slots t ON t.slot_name = s.slot_name
                    WHERE s.slot_name = $1";
        let row = client.query_one(sql, &[&slot]).await?;
        Ok(match (row.try_get(0)?, row.try_get(1)?) {
            (true, _) => Self::InUse,
            (false, true) => Self::Sent,
            (false, false) => Self::Unused,
        })
    }
}

/// The first of the tables that may have rows from before a slot, which it does not send: any row may
/// be one. A transaction that was open when the slot was requested ends before the slot is made, and
/// is not sent. A table that may not be read may have some.
pub(crate) async fn former_rows<'a>(
    client: &Client,
    tables: &'a [TableName],
) -> Option<&'a TableName> {
    for table in tables {
        let sql = format!("SELECT EXISTS (SELECT FROM {table})");
        let has_rows = client.query_one(&sql, &[]).await.and_then(|row| row.try_get(0));
        if has_rows.unwrap_or(true) {
            return Some(table);
        }
    }
    None
}
