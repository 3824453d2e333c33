//! Makes partitions for the time to come.
//!
//! A partition is made as a table, and then attached: other than `CREATE TABLE … PARTITION OF`, that
//! does not lock the table against writers
//! (<https://www.postgresql.org/docs/current/ddl-partitioning.html>). It locks the default partition,
//! whose rows PostgreSQL reads, unless `exclusion` has proved that there are none of the period.
//!
//! With a default partition, only periods that have not begun are made: a writer that has chosen the
//! default partition for its row would get an error if another partition for it was attached
//! meanwhile. Rows of the other periods stay in the default partition. Whether a period has begun is
//! looked at once nobody can write to the default partition any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::exclusion;
use super::periods::{BEGUN, Period, Unmade, ZONE_AHEAD_S, missing, occupied};
use super::tree::{Kind, PartitionedTable};
use super::{IS_ANOTHER, raise_if};
use crate::outbox::TableName;
use crate::source::said;
use crate::tools::retention::error::{PruneError, database};
use crate::tools::retention::prune::{LOCK_ATTEMPTS, LOCK_PAUSE, pause};

/// How long PostgreSQL may read the rows of the default partition, during which it is locked.
const ATTACH_LIMIT: Duration = Duration::from_secs(1);

/// The SQLSTATE with which a period that has begun ends its transaction.
const HAS_BEGUN: &str = "WP001";

/// What became of a partition that was to be made.
#[derive(Debug)]
pub(crate) enum Made {
    /// A partition that was created, or would be.
    Partition(TableName),
    /// A partition that was not created.
    Not(TableName, Unmade),
}

/// Makes partitions, so that the time from now on for this long has some. `wait`: how long writers of
/// the default partition may wait. With `is_dry` none is made.
pub(crate) async fn make_ahead(
    client: &Client,
    table: &PartitionedTable,
    (ahead, wait): (Duration, Duration),
    is_dry: bool,
    is_stopped: &AtomicBool,
) -> Result<Vec<Made>, PruneError> {
    let Some(key) = &table.key else { return Ok(Vec::new()) };
    if ahead.is_zero() {
        return Ok(Vec::new());
    }
    let mut periods = missing(client, table, key, ahead).await?;
    let occupied = match occupied(client, table, key, &periods).await {
        Err(error) if error.is_locked() => {
            let first = periods.into_iter().take(1);
            return Ok(first.map(|one| Made::Not(one.name, Unmade::Locked)).collect());
        }
        occupied => occupied?,
    };
    let mut made = Vec::with_capacity(periods.len());
    let mut number = 0;
    periods.retain(|period| {
        number += 1;
        let is_free = !occupied.contains(&(number - 1));
        if !is_free {
            made.push(Made::Not(period.name.clone(), Unmade::Occupied));
        }
        is_free
    });
    if is_dry {
        made.extend(periods.into_iter().map(|period| Made::Partition(period.name)));
        return Ok(made);
    }
    let times = (wait, is_stopped);
    let mut soon = Vec::new();
    let both = (&mut periods, &mut soon);
    let excluded = exclusion::exclude(client, table, key, both, times).await?;
    made.extend(soon.into_iter().map(|one| Made::Not(one.name, Unmade::Soon)));
    let excluded = match excluded {
        Ok(excluded) => excluded,
        Err(why) => {
            made.extend(periods.into_iter().take(1).map(|one| Made::Not(one.name, why.clone())));
            return Ok(made);
        }
    };
    let ended = make_all(client, table, periods, times, &mut made).await;
    if let Some(exclusion) = excluded {
        exclusion.end(client, wait).await?;
    }
    ended.map(|()| made)
}

async fn make_all(
    client: &Client,
    table: &PartitionedTable,
    periods: Vec<Period>,
    times: (Duration, &AtomicBool),
    made: &mut Vec<Made>,
) -> Result<(), PruneError> {
    for period in periods {
        if times.1.load(Ordering::Relaxed) {
            break;
        }
        match make(client, table, &period, times).await? {
            Ok(()) => made.push(Made::Partition(period.name)),
            // As those are that had begun before.
            Err(Refused::Begun) => {}
            Err(Refused::Unmade(why)) => {
                // The others would wait as long.
                let is_last = !matches!(why, Unmade::Occupied | Unmade::NameTaken);
                made.push(Made::Not(period.name, why));
                if is_last {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Why a partition is not attached.
enum Refused {
    Unmade(Unmade),
    /// The partition's period has begun meanwhile.
    Begun,
}

/// Makes one, in a transaction of one round trip, so that no lock waits for this program.
async fn make(
    client: &Client,
    table: &PartitionedTable,
    period: &Period,
    (wait, is_stopped): (Duration, &AtomicBool),
) -> Result<Result<(), Refused>, PruneError> {
    let Period { name, lower, upper, .. } = period;
    let failed = database(name, "making the partition");
    let PartitionedTable { name: parent, owner, tablespace, .. } = table;
    let tablespace = tablespace
        .as_ref()
        .map_or_else(String::new, |name| format!(" TABLESPACE {}", escape_identifier(name)));
    // Nobody waits for the disk or for standbys while a lock is held. A writer of the default partition
    // has the weaker lock of the table already, so it cannot wait for this session's.
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {};
         SET LOCAL synchronous_commit = off;
         CREATE TABLE {name} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED
                                            INCLUDING STORAGE INCLUDING COMPRESSION){tablespace};
         ALTER TABLE {name} OWNER TO {};
         LOCK TABLE ONLY {parent} IN SHARE UPDATE EXCLUSIVE MODE; {}
         SET LOCAL statement_timeout = {};
         ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ({lower}) TO ({upper});
         {}; COMMIT",
        wait.as_millis(),
        (wait + ATTACH_LIMIT).as_millis(),
        escape_identifier(owner),
        require_future(table, period),
        ATTACH_LIMIT.as_millis(),
        require_attached(table, name),
    );
    for attempt in 0..LOCK_ATTEMPTS {
        if attempt > 0 && !pause(LOCK_PAUSE, is_stopped).await {
            break;
        }
        let Err(error) = client.batch_execute(&sql).await else { return Ok(Ok(())) };
        if error.code().is_some() {
            client.batch_execute("ROLLBACK").await.map_err(&failed)?;
        }
        let why = match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => continue,
            // Writers of the default partition have waited as long as they may.
            Some(&SqlState::QUERY_CANCELED) => Unmade::Slow,
            // A row that was written since they were looked for.
            Some(&SqlState::CHECK_VIOLATION) => Unmade::Occupied,
            Some(&SqlState::DUPLICATE_TABLE) => Unmade::NameTaken,
            Some(code) if code.code() == HAS_BEGUN => return Ok(Err(Refused::Begun)),
            Some(code) if code.code() == IS_ANOTHER => Unmade::Replaced,
            Some(&SqlState::UNDEFINED_TABLE) => Unmade::Replaced,
            Some(_) => Unmade::Refused(said(&error)),
            None => return Err(failed(error)),
        };
        return Ok(Err(Refused::Unmade(why)));
    }
    Ok(Err(Refused::Unmade(Unmade::Locked)))
}

/// Undoes the transaction if it has attached the partition to another table than this one.
fn require_attached(table: &PartitionedTable, name: &TableName) -> String {
    let is_not = format!(
        "NOT EXISTS (SELECT FROM pg_catalog.pg_inherits WHERE inhparent = {}
                        AND inhrelid = pg_catalog.to_regclass({})::pg_catalog.oid)",
        table.oid,
        escape_literal(&name.regclass_text()),
    );
    raise_if(&is_not, IS_ANOTHER)
}

/// Locks the default partition, and ends the transaction if a writer may have chosen it for a row of
/// the period: one that waits now, or has waited.
fn require_future(table: &PartitionedTable, Period { begins, .. }: &Period) -> String {
    let Some(default) = table.default() else { return String::new() };
    let lock = match default.kind {
        // It cannot be locked, and PostgreSQL does not write to most of them.
        Kind::Foreign => String::new(),
        Kind::Table | Kind::Partitioned => {
            format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE;", default.name)
        }
    };
    let zones_s = match &table.key {
        Some(key) if key.is_without_zone => ZONE_AHEAD_S,
        _ => 0,
    };
    let has_begun = format!(
        "{}::pg_catalog.timestamp <= (pg_catalog.clock_timestamp() AT TIME ZONE 'UTC') + '{} s'::pg_catalog.interval",
        escape_literal(begins),
        u64::from(zones_s) + BEGUN.as_secs(),
    );
    format!("{lock} {};", raise_if(&has_begun, HAS_BEGUN))
}
