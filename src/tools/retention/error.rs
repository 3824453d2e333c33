//! Why rows are not deleted.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::config::show_duration;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::source::{SourceError, said};
use crate::state::StateFailure;

/// Nothing was deleted, or nothing more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PruneError {
    /// The server.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An outbox of messages.
    #[error("the outbox has no tables: logical messages leave no rows")]
    NoTables,
    /// A standby.
    #[error("this server is a standby, where nothing can be deleted: connect to the primary")]
    Standby,
    /// No position is kept.
    #[error(
        "no position is kept beside the events: only the slot tells what is delivered. Nothing shows whether it was \
         made again (after a loss, a restore, a promotion), or moved by another client, or the publication was \
         changed, since a row was written: such a row may never have been published. And nothing shows which \
         events were skipped. If none of this has happened, or such rows were published since, delete by the slot \
         alone with --by-slot-alone; --dry-run counts"
    )]
    SlotAlone,
    /// `--by-slot-alone` where a position is kept.
    #[error("{0} tells what is delivered: leave --by-slot-alone out")]
    NotAlone(String),
    /// The position cannot be read.
    #[error(
        "{place} cannot be used: {failure} (`walpost prune` needs source, slot, delivery.id and destination of \
         `walpost run`)"
    )]
    State {
        /// The place of the position.
        place: String,
        /// The reason.
        failure: StateFailure,
    },
    /// No row is proved to be delivered.
    #[error("nothing proves which rows are delivered: {0}")]
    Unproved(Unproved),
    /// Skipped events have no record.
    #[error(
        "events may have been skipped by the walpost of replication slot \"{0}\", by a policy (poison.*), or by \
         `walpost skip` and without an id, and their rows are all that is left of them: `walpost prune` cannot \
         tell them from others. Keep the rows, or delete them too with --include-skipped; a slot of another \
         table can be named with --ignore-slot"
    )]
    Skips(String),
    /// A table lacks something.
    #[error("{table}: {problem}")]
    Table {
        /// The table.
        table: TableName,
        /// What it lacks.
        problem: String,
    },
    /// Other sessions are in the way, or have changed something.
    #[error("{table}: {problem}")]
    Changed {
        /// The table.
        table: TableName,
        /// What happened, and what to do.
        problem: String,
    },
    /// A trigger or a rule keeps rows.
    #[error(
        "{table}: only {deleted} of {chosen} rows were deleted that were to be: {keepers} of the table can \
         keep rows, or put others in their place. Let it delete rows that are old and delivered, or do \
         without `walpost prune`"
    )]
    Kept {
        /// The table.
        table: TableName,
        /// Rows that were to be deleted.
        chosen: u64,
        /// Rows that were.
        deleted: u64,
        /// The triggers and rules that can keep rows.
        keepers: String,
    },
    /// The archive command failed.
    #[error("{table}: the archive command {problem}; the rows that it was given were not deleted")]
    Command {
        /// The table.
        table: TableName,
        /// What happened.
        problem: String,
    },
    /// No slot of that name.
    #[error(
        "--ignore-slot {name}: this database has no logical slot of that name; it has {}",
        if .found.is_empty() { "none".to_owned() } else { .found.join(", ") }
    )]
    UnknownSlot {
        /// The name.
        name: String,
        /// The slots that exist.
        found: Vec<String>,
    },
    /// Another one works on the table.
    #[error(
        "{table}: another `walpost prune` works on it (process {pid} of the server): run this one again once \
         that has ended"
    )]
    InUse {
        /// The table.
        table: TableName,
        /// The server's process.
        pid: i32,
    },
    /// Writers could be cancelled.
    #[error(
        "--lock-timeout {}: it must be at most half of deadlock_timeout, which is {} on this server: PostgreSQL \
         could cancel a writer otherwise, to resolve a deadlock",
        show_duration(*.lock), show_duration(*.deadlock)
    )]
    LockTimeout {
        /// How long to wait for a lock.
        lock: Duration,
        /// After which time the server looks for deadlocks.
        deadlock: Duration,
    },
    /// The archive did not get every row.
    #[error(
        "{table}: the archive {archive} would get only {kept} of {deleted} rows: they were not deleted; see \
         its triggers and rules"
    )]
    NotArchived {
        /// The table.
        table: TableName,
        /// The archive.
        archive: TableName,
        /// Rows that were to be deleted.
        deleted: i64,
        /// Rows that were inserted.
        kept: i64,
    },
    /// Any other error of PostgreSQL.
    #[error("{table}: {doing}: {}{}", said(source), advice(source))]
    Database {
        /// The table.
        table: TableName,
        /// The operation.
        doing: &'static str,
        /// The error.
        source: tokio_postgres::Error,
    },
}

/// Why no row is proved to be delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unproved {
    #[error("replication slot \"{0}\" does not exist")]
    NoSlot(String),
    #[error(
        "nobody uses replication slot \"{0}\", and only the slot tells what is delivered: rows are deleted while \
         `walpost run` works"
    )]
    NotAtWork(String),
    #[error("replication slot \"{0}\" is lost: see the runbook on lost slots")]
    LostSlot(String),
    #[error(
        "`walpost run` has not compared this server with its own position since it was started: it does when \
         it connects, and notes that with the next position that it writes"
    )]
    NotCompared,
    #[error(
        "the slot is confirmed up to {confirmed}, and walpost's own position is {acked}: the slot was \
         made again, or advanced by another client; see what `walpost run` says"
    )]
    SlotAhead { confirmed: Lsn, acked: Lsn },
    #[error(
        "the publication or the outbox's configuration (outbox.*, source.publication) is not that with \
         which `walpost run` has published: use its configuration; after a change, wait until it has \
         written its next position"
    )]
    OtherLayout,
    #[error(
        "{0} does not exist: create it with `walpost adopt --apply`, and let `walpost run` use it \
         (delivery.state_topic)"
    )]
    NoPlace(String),
    #[error(
        "{place} was written by a walpost that publishes to Kafka cluster {published}, and this is \
         cluster {found}: connect to the cluster with the events (kafka.bootstrap_servers)"
    )]
    OtherCluster { place: String, published: String, found: String },
    #[error(
        "{place} has no position for this slot, server and delivery.id: `walpost run` writes it"
    )]
    NoPosition { place: String },
    #[error("rows that the slot does not send are being published: `walpost recover` goes first")]
    UnfinishedRows,
    #[error(
        "walpost's own position is of timeline {published}, and this server is on timeline {server}: `walpost \
         run` has published nothing from here yet"
    )]
    OtherTimeline { published: u32, server: u32 },
    #[error(
        "walpost's own position is {acked}, and this server's WAL ends at {end}: it is not the \
         server that `walpost run` publishes from"
    )]
    OtherHistory { acked: Lsn, end: Lsn },
    #[error(
        "`walpost run` has not noted yet which rows are its own: it does when it writes its next position"
    )]
    NotNoted,
    #[error(
        "replication slot \"{slot}\" has not confirmed as much ({confirmed}): its consumer is behind, or \
         gone. If that slot need not see the rows, name it with --ignore-slot, or drop it"
    )]
    HeldBack { slot: String, confirmed: Lsn },
    #[error(
        "replication slot \"{slot}\" is lost (wal_status), and had not confirmed as much ({confirmed}): its \
         consumer may have to get what it missed from the rows. Once it has that, drop the slot, or name \
         it with --ignore-slot"
    )]
    HeldBackByLost { slot: String, confirmed: Lsn },
}

const SESSION_ENDED: &str = ". The server has ended the session, as it does before a restart, or if this program \
    was frozen for some seconds. Transactions that were reported are committed: run this again for the rest";

/// Whether the server ends the session with this error
/// (<https://www.postgresql.org/docs/current/errcodes-appendix.html>): shutdowns, and time-outs of the
/// session or of a transaction.
pub(super) fn ends_session(code: &SqlState) -> bool {
    ["57P01", "57P02", "57P03", "57P05", "25P03", "25P04"].contains(&code.code())
}

fn advice(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        None if error.is_closed() => SESSION_ENDED,
        Some(code) if ends_session(code) => SESSION_ENDED,
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            ". SELECT and DELETE on the table and UPDATE on one of its columns are needed, and with \
             --archive-to INSERT on the archive, and USAGE on the sequences of its defaults"
        }
        Some(&SqlState::PROGRAM_LIMIT_EXCEEDED) => {
            ". A row may be too large to be written as JSON: --archive-to has no such limit"
        }
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            ". Other sessions keep it, or a table that belongs to it, locked (pg_blocking_pids): run this again \
             once it is free"
        }
        Some(&SqlState::CHECK_VIOLATION) => {
            ". The archive has no partition for the rows, or a constraint that they do not meet"
        }
        Some(&SqlState::FOREIGN_KEY_VIOLATION) => {
            ". Rows that others refer to cannot be deleted: delete those first"
        }
        _ => "",
    }
}

impl PruneError {
    /// Whether a statement has waited in vain for a lock.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self, Self::Database { source, .. }
            if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }
}

/// An error of a query on that table.
pub(super) fn database(
    table: &TableName,
    doing: &'static str,
) -> impl Fn(tokio_postgres::Error) -> PruneError + use<> {
    let table = table.clone();
    move |source| PruneError::Database { table: table.clone(), doing, source }
}
