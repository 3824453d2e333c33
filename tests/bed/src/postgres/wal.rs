//! Positions in the WAL, and what transactions have to do with them.

use std::time::Duration;

use super::{Postgres, spelled};
use crate::eventually::within;

impl Postgres {
    /// Where the WAL ends now, as far as it is written: behind the last commit.
    pub async fn wal_end(&self) -> String {
        self.query_text("SELECT pg_current_wal_lsn()").await.expect("an LSN")
    }

    /// Executes statements in one transaction; returns where the WAL ends behind its commit. A slot
    /// that has not confirmed the transaction is before that, wherever else its position moves.
    pub async fn commit(&self, sql: &str) -> String {
        self.execute(&format!("BEGIN; {sql}; COMMIT")).await;
        self.wal_end().await
    }

    /// Whether this slot has confirmed everything before this position; false without the slot.
    pub async fn has_confirmed(&self, slot: &str, lsn: &str) -> bool {
        let query = format!(
            "SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots \
              WHERE slot_name = '{slot}'"
        );
        self.query_text(&query).await.as_deref() == Some("t")
    }

    /// Awaits that this slot has confirmed everything that is committed now.
    pub async fn confirmed(&self, slot: &str, deadline: Duration) {
        let end = self.wal_end().await;
        crate::eventually(deadline, "the slot confirms what is committed", async || {
            self.has_confirmed(slot, &end).await
        })
        .await;
    }

    /// Awaits that the transactions which are under way now are over, while the server runs or comes
    /// back. A walsender reads a commit as soon as it is in the WAL; the session may be stopped just
    /// then, and others see its rows only later.
    pub async fn older_transactions_end(&self, deadline: Duration) -> Result<(), String> {
        let number = async |sql: &str| {
            let text = self.try_query_text(sql).await.map_err(|error| spelled(&error))?;
            let text = text.ok_or("no number")?;
            text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"))
        };
        let now = within(deadline, async || number("SELECT pg_current_xact_id()").await).await?;
        within(deadline, async || {
            let oldest = number("SELECT pg_snapshot_xmin(pg_current_snapshot())").await?;
            if oldest > now { Ok(()) } else { Err(format!("transaction {oldest} is not over")) }
        })
        .await
    }
}
