//! Makes partitions for the time to come.
//!
//! A partition is made as a table, and then attached: other than `CREATE TABLE … PARTITION OF`, that
//! does not lock the table against writers
//! (<https://www.postgresql.org/docs/current/ddl-partitioning.html>). It locks the default partition,
//! whose rows PostgreSQL reads.
//!
//! With a default partition, only periods that have not begun are made: a writer that has chosen the
//! default partition for its row would get an error if another partition for it was attached
//! meanwhile. Rows of the other periods stay in the default partition.

use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::tree::{PartitionedTable, TimeKey};
use crate::outbox::TableName;
use crate::retention::error::{PruneError, database};

/// How many partitions are made in one run.
const MADE_MAX: usize = 1_000;

/// How often a lock is tried, and the pause in between.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(300);

/// How long PostgreSQL may read the rows of the default partition, during which it is locked.
const ATTACH_LIMIT: Duration = Duration::from_secs(1);

/// As far as local times may be ahead of UTC, in seconds.
const ZONE_AHEAD_S: u32 = 15 * 3_600;

/// Bytes of a table's name before what is appended to it.
const BASE_BYTES: usize = 45;

/// The periods that follow the newest partition: as long as that one, months if it has whole months.
/// `$3`: whether there is a default partition; `$4`: seconds ahead; `$5`: seconds that local times may
/// be ahead.
const PERIODS: &str = "
    WITH bound AS (
        SELECT b.lower::pg_catalog.timestamptz AT TIME ZONE 'UTC' AS lower,
               b.upper::pg_catalog.timestamptz AT TIME ZONE 'UTC' AS upper
          FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]),
                          pg_catalog.unnest($2::pg_catalog.text[])) AS b (lower, upper)
    ), newest AS (
        SELECT upper, CASE WHEN lower = pg_catalog.date_trunc('month', lower)
                            AND upper = pg_catalog.date_trunc('month', upper)
                           THEN pg_catalog.make_interval(months =>
                                (12 * (pg_catalog.date_part('year', upper) - pg_catalog.date_part('year', lower))
                                 + pg_catalog.date_part('month', upper) - pg_catalog.date_part('month', lower))
                                ::pg_catalog.int4)
                           ELSE upper - lower END AS step
          FROM bound WHERE pg_catalog.isfinite(lower) AND pg_catalog.isfinite(upper)
         ORDER BY upper DESC LIMIT 1
    ), clock AS (
        SELECT (pg_catalog.now() AT TIME ZONE 'UTC') + $5::pg_catalog.float8 * '1 s'::pg_catalog.interval AS now
    ), count AS (
        SELECT least(100000, greatest(0, pg_catalog.ceil(
                   (pg_catalog.date_part('epoch', now - upper) + $4::pg_catalog.float8)
                   / pg_catalog.date_part('epoch', step))))::pg_catalog.int8 AS count
          FROM newest, clock
    ), period AS (
        SELECT n, upper + n * step AS lower, upper + (n + 1) * step AS upper
          FROM newest, count, pg_catalog.generate_series(0, count.count) AS n
    ), wanted AS (
        SELECT period.* FROM period, clock
         WHERE lower <= now + $4::pg_catalog.float8 * '1 s'::pg_catalog.interval
           AND CASE WHEN $3 THEN lower > now
                    ELSE upper > now - 2 * $5::pg_catalog.float8 * '1 s'::pg_catalog.interval END
    )
    SELECT lower::pg_catalog.text, upper::pg_catalog.text,
           pg_catalog.to_char(lower, CASE WHEN lower = pg_catalog.date_trunc('day', lower)
                                           AND upper = pg_catalog.date_trunc('day', upper)
                                          THEN 'YYYYMMDD' ELSE 'YYYYMMDD_HH24MISS' END)
      FROM wanted ORDER BY n LIMIT {limit}";

/// What became of a partition that was to be made.
#[derive(Debug)]
pub(crate) enum Made {
    /// It was made, or would be.
    Partition(TableName),
    /// It was not.
    Not(TableName, Unmade),
}

/// Why a partition was not made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unmade {
    #[error(
        "the default partition has rows of its period, and keeps those to come: once they are deleted, \
         later periods are not affected"
    )]
    Occupied,
    #[error("other sessions keep the table, or its default partition, locked (see pg_locks)")]
    Locked,
    #[error(
        "the default partition has so many rows that looking for those of its period would block \
         writers for more than {} s: delete rows from it, with --delete-rows",
        ATTACH_LIMIT.as_secs()
    )]
    Slow,
    #[error("a relation with its name exists: rename it")]
    NameTaken,
}

/// A period without a partition.
struct Period {
    name: TableName,
    /// As literals.
    lower: String,
    upper: String,
}

/// Makes partitions, so that the time from now on for this long has some. `wait`: how long writers of the default partition may wait. With `is_dry` none
/// is made.
pub(crate) async fn make_ahead(
    client: &Client,
    table: &PartitionedTable,
    (ahead, wait): (Duration, Duration),
    is_dry: bool,
) -> Result<Vec<Made>, PruneError> {
    let Some(key) = &table.key else { return Ok(Vec::new()) };
    let periods = missing(client, table, key, ahead).await?;
    let occupied = occupied(client, table, key, &periods).await?;
    let mut made = Vec::with_capacity(periods.len());
    for (index, period) in periods.into_iter().enumerate() {
        let done = if occupied.contains(&index) {
            Err(Unmade::Occupied)
        } else if is_dry {
            Ok(())
        } else {
            make(client, table, &period, wait).await?
        };
        // The others would wait as long.
        let is_last = matches!(done, Err(Unmade::Locked | Unmade::Slow));
        made.push(match done {
            Ok(()) => Made::Partition(period.name),
            Err(why) => Made::Not(period.name, why),
        });
        if is_last {
            break;
        }
    }
    Ok(made)
}

async fn missing(
    client: &Client,
    table: &PartitionedTable,
    key: &TimeKey,
    ahead: Duration,
) -> Result<Vec<Period>, PruneError> {
    let failed = database(&table.name, "asking for the periods without partitions");
    let problem = |problem: String| PruneError::Table { table: table.name.clone(), problem };
    let ranges = table.partitions.iter().filter(|one| !one.is_default);
    // A range without an end has all times to come.
    let is_endless = |upper: &Option<String>| upper.as_ref().is_none_or(|end| end == "infinity");
    if ranges.clone().any(|one| is_endless(&one.upper)) {
        return Ok(Vec::new());
    }
    let bounds = ranges.filter_map(|one| Some((one.lower.as_deref()?, one.upper.as_deref()?)));
    let (lower, upper): (Vec<&str>, Vec<&str>) = bounds.unzip();
    if lower.is_empty() {
        return Err(problem(
            "it has no partition that shows how long a period is: create one, or leave it without, with \
             --partitions-ahead 0s"
                .to_owned(),
        ));
    }
    let zones_s = f64::from(if key.is_without_zone { ZONE_AHEAD_S } else { 0 });
    let sql = PERIODS.replace("{limit}", &(MADE_MAX + 1).to_string());
    let (has_default, ahead_s) = (table.default().is_some(), ahead.as_secs_f64());
    let parameters: [&(dyn ToSql + Sync); 5] = [&lower, &upper, &has_default, &ahead_s, &zones_s];
    let rows = client.query(&sql, &parameters).await.map_err(&failed)?;
    if rows.len() > MADE_MAX {
        return Err(problem(format!(
            "more than {MADE_MAX} partitions would be made: choose a shorter time with \
             --partitions-ahead"
        )));
    }
    let zone = if key.is_without_zone { "" } else { "+00" };
    let periods = rows.iter().map(|row| {
        let (lower, upper, suffix): (String, String, String) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        Ok(Period {
            name: TableName {
                schema: table.name.schema.clone(),
                name: format!("{}_p{suffix}", base(&table.name.name)),
            },
            lower: escape_literal(&format!("{lower}{zone}")),
            upper: escape_literal(&format!("{upper}{zone}")),
        })
    });
    periods.collect::<Result<_, tokio_postgres::Error>>().map_err(failed)
}

/// What the names of partitions begin with: PostgreSQL would cut off the end of a longer name.
fn base(name: &str) -> &str {
    let mut end = name.len().min(BASE_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// The periods of which the default partition has rows, by their index.
async fn occupied(
    client: &Client,
    table: &PartitionedTable,
    TimeKey { column, kind, .. }: &TimeKey,
    periods: &[Period],
) -> Result<Vec<usize>, PruneError> {
    let default = table.default().filter(|partition| partition.is_readable);
    let (Some(default), false) = (default, periods.is_empty()) else { return Ok(Vec::new()) };
    let failed = database(&default.name, "looking for rows that belong to other partitions");
    let values = periods.iter().enumerate().map(|(index, Period { lower, upper, .. })| {
        format!("({index}::pg_catalog.int8, {lower}::{kind}, {upper}::{kind})")
    });
    let sql = format!(
        "SELECT DISTINCT p.index FROM (VALUES {}) AS p (index, lower, upper)
           JOIN {} AS o ON o.{column} >= p.lower AND o.{column} < p.upper",
        values.collect::<Vec<_>>().join(", "),
        default.name
    );
    let rows = client.query(&sql, &[]).await.map_err(&failed)?;
    let found = rows.iter().map(|row| row.try_get::<_, i64>(0));
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    Ok(found.into_iter().filter_map(|index| usize::try_from(index).ok()).collect())
}

/// Makes one, in a transaction of one round trip, so that no lock waits for this program.
async fn make(
    client: &Client,
    table: &PartitionedTable,
    Period { name, lower, upper }: &Period,
    wait: Duration,
) -> Result<Result<(), Unmade>, PruneError> {
    let failed = database(name, "making the partition");
    let PartitionedTable { name: parent, owner, tablespace, .. } = table;
    let tablespace = tablespace
        .as_ref()
        .map_or_else(String::new, |name| format!(" TABLESPACE {}", escape_identifier(name)));
    // Nobody waits for the disk or for standbys while a lock is held.
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {};
         SET LOCAL synchronous_commit = off;
         CREATE TABLE {name} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED
                                            INCLUDING STORAGE INCLUDING COMPRESSION){tablespace};
         ALTER TABLE {name} OWNER TO {};
         ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ({lower}) TO ({upper});
         COMMIT",
        wait.as_millis(),
        (wait + ATTACH_LIMIT).as_millis(),
        escape_identifier(owner),
    );
    let mut why = Unmade::Locked;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let Err(error) = client.batch_execute(&sql).await else { return Ok(Ok(())) };
        if error.code().is_some() {
            client.batch_execute("ROLLBACK").await.map_err(&failed)?;
        }
        why = match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => {
                Unmade::Locked
            }
            // Writers of the default partition have waited as long as they may.
            Some(&SqlState::QUERY_CANCELED) => return Ok(Err(Unmade::Slow)),
            // A row that was written since they were looked for.
            Some(&SqlState::CHECK_VIOLATION) => return Ok(Err(Unmade::Occupied)),
            Some(&SqlState::DUPLICATE_TABLE) => return Ok(Err(Unmade::NameTaken)),
            _ => return Err(failed(error)),
        };
    }
    Ok(Err(why))
}

#[cfg(test)]
mod tests {
    use super::base;

    #[test]
    fn the_name_of_a_partition_has_at_most_63_bytes() {
        for (name, expected) in [
            ("outbox".to_owned(), "outbox".to_owned()),
            ("a".repeat(63), "a".repeat(45)),
            ("ä".repeat(31), "ä".repeat(22)),
        ] {
            assert_eq!(base(&name), expected);
        }
        assert!("_p20261126_140000".len() + 45 <= 63);
    }
}
