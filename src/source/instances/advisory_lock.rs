//! The advisory locks through which instances on the same slot see each other.
//!
//! A lock's key has two halves: what the lock is for, and the hash of the slot's name. Two slots
//! may have the same hash; their instances then wait for each other. `docs/design/instances.md`
//! lists who holds which lock, and when.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// What a lock is for: the first half of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(in crate::source) enum LockClass {
    /// The right to read from the slot (`walp`).
    Slot = 0x7761_6c70,
    /// The holder halts and needs an operator (`walh`).
    Halt = 0x7761_6c68,
    /// The holder checks whether another instance halts (`walw`).
    HaltCheck = 0x7761_6c77,
    /// The holder has delivered everything up to the slot's position (`walm`).
    Delivered = 0x7761_6c6d,
}

impl LockClass {
    /// The key's first half as PostgreSQL stores it.
    pub(in crate::source) fn key(self) -> i32 {
        self as i32
    }

    /// The condition that the row `l` of `pg_locks` is this class's lock, held or awaited, for the
    /// slot that the SQL expression `slot` names, in the session's own database.
    pub(in crate::source) fn condition(self, slot: &str) -> String {
        let class = self.key();
        // pg_locks shows the key's halves as oid, which has no sign. objsubid 2 means that the key
        // has two halves.
        format!(
            "(l.locktype = 'advisory' AND l.objsubid = 2
              AND l.classid::pg_catalog.int8 = {class}::pg_catalog.int8
              AND l.objid::pg_catalog.int8 =
                  pg_catalog.hashtext({slot})::pg_catalog.int8 & 4294967295
              AND l.database = (SELECT oid FROM pg_catalog.pg_database
                                 WHERE datname = pg_catalog.current_database()))"
        )
    }
}

/// Calls a lock function of PostgreSQL on the lock of `class` and `slot`, for the session of
/// `client`; its result.
async fn call(
    client: &Client,
    function: &str,
    class: LockClass,
    slot: &str,
) -> Result<bool, tokio_postgres::Error> {
    let query = format!("SELECT pg_catalog.{function}($1, pg_catalog.hashtext($2))");
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&class.key(), Type::INT4), (&slot, Type::TEXT)];
    client.query_typed_one(&query, &parameters).await?.try_get(0)
}

/// Takes the lock exclusively; false if another session holds it.
pub(in crate::source) async fn try_lock(
    client: &Client,
    class: LockClass,
    slot: &str,
) -> Result<bool, tokio_postgres::Error> {
    call(client, "pg_try_advisory_lock", class, slot).await
}

/// Takes the lock in share mode; false if another session holds it exclusively.
pub(in crate::source) async fn try_lock_shared(
    client: &Client,
    class: LockClass,
    slot: &str,
) -> Result<bool, tokio_postgres::Error> {
    call(client, "pg_try_advisory_lock_shared", class, slot).await
}

/// Releases a lock that this session holds exclusively.
pub(in crate::source) async fn unlock(
    client: &Client,
    class: LockClass,
    slot: &str,
) -> Result<(), tokio_postgres::Error> {
    call(client, "pg_advisory_unlock", class, slot).await.map(drop)
}

/// Releases a lock that this session holds in share mode.
pub(in crate::source) async fn unlock_shared(
    client: &Client,
    class: LockClass,
    slot: &str,
) -> Result<(), tokio_postgres::Error> {
    call(client, "pg_advisory_unlock_shared", class, slot).await.map(drop)
}

/// How to end a session that holds a lock which only a walpost should hold.
pub(in crate::source) fn end_session(pid: i32) -> String {
    format!(
        "end that session: SELECT pg_catalog.pg_terminate_backend({pid}); and let only trusted \
         roles connect to this database"
    )
}
