//! Whether something speaks against the position of a slot that `init` has made or found.

use std::fmt;

use tokio_postgres::{Client, Error};

use crate::outbox::TableName;

/// Why a slot's position may not be the one to begin at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The slot may have sent events, of which nothing is known.
    Used,
    /// The table may have rows that the slot does not send.
    FormerRows(TableName),
}

impl Doubt {
    /// Why not to begin at the position of this slot, which nobody uses meanwhile. A slot that was made
    /// just now came after the rows of `former`.
    ///
    /// A slot that was found counts as new if it has sent no transaction, according to the statistics
    /// (<https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-SLOTS-VIEW>),
    /// and no outbox table has a row: a crash empties the statistics.
    pub(crate) async fn of(
        client: &Client,
        slot: &str,
        tables: &[TableName],
        is_created: bool,
        former: Option<TableName>,
    ) -> Result<Option<Self>, Error> {
        let sql = "SELECT COALESCE(bool_or(total_txns > 0 OR stats_reset IS NOT NULL), false)
                     FROM pg_catalog.pg_stat_replication_slots WHERE slot_name = $1";
        let is_used = client.query_one(sql, &[&slot]).await?.try_get(0)?;
        if is_used {
            return Ok(Some(Self::Used));
        }
        let former = if is_created { former } else { former_rows(client, tables).await.cloned() };
        Ok(former.map(Self::FormerRows))
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used => f.write_str(
                "the slot may have sent events, and it is not known what became of them: `walpost adopt \
                 --apply` accepts its position",
            ),
            Self::FormerRows(table) => write!(
                f,
                "{table} may have rows from before the slot, which it does not send; it sends those that were \
                 written since. If the others are published already, or not wanted, or there are none: \
                 `walpost adopt --apply`"
            ),
        }
    }
}

/// The first of the tables that may have rows from before a slot, which it does not send: any row may
/// be one. A transaction that was open when the slot was requested ends before the slot is made, and
/// is not sent. A table that may not be read may have some.
pub(crate) async fn former_rows<'a>(
    client: &Client,
    tables: &'a [TableName],
) -> Option<&'a TableName> {
    // Rows that a policy hides are an error then.
    if client.batch_execute("SET row_security = off").await.is_err() {
        return tables.first();
    }
    for table in tables {
        let sql = format!("SELECT EXISTS (SELECT FROM {table})");
        let has_rows = client.query_one(&sql, &[]).await.and_then(|row| row.try_get(0));
        if has_rows.unwrap_or(true) {
            return Some(table);
        }
    }
    None
}
