//! How an instance that halts for a person to decide keeps a standby instance from continuing.
//!
//! Exit code 3 means that the slot, the publication or the server is not what it was. An instance
//! that waits for the slot cannot see all that the active one saw: that somebody moved the slot, for
//! example. So the active one holds an advisory lock for some seconds before it lets go of the
//! slot. A standby instance looks at least once a second, finds that lock, and ends with code 3 too.

use std::time::Duration;

use tokio_postgres::Client;

use super::error::SourceError;

/// The first half of the lock's key: `walh`. The second is of the slot's name.
pub(super) const CLASS: i32 = 0x7761_6c68;

/// For how long it is held: a standby instance looks every second, and takes a while to connect.
pub(super) const ANNOUNCED_FOR: Duration = Duration::from_secs(4);

/// Several may halt at once.
const ANNOUNCE: &str = "SELECT pg_catalog.pg_try_advisory_lock_shared($1, pg_catalog.hashtext($2))";

/// Holds the lock as long as `client`'s session lasts.
pub(super) async fn announce(client: &Client, slot: &str) -> Result<(), SourceError> {
    let announced = client.query_one(ANNOUNCE, &[&CLASS, &slot]).await;
    announced
        .map(drop)
        .map_err(|error| SourceError::query("announcing that this instance halts", &error))
}

/// What an instance ends with that found the lock, held by server process `pid`.
pub(super) fn found(slot: &str, pid: i32) -> SourceError {
    SourceError::Slot(format!(
        "another walpost that worked with replication slot \"{slot}\" (server process {pid}) has \
         halted, and a person has to decide: see its log, then start walpost again"
    ))
}
