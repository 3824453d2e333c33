//! The periods without a partition.

use std::time::Duration;

use postgres_protocol::escape::escape_literal;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::tree::{PartitionedTable, TimeKey};
use crate::outbox::TableName;
use crate::tools::retention::error::{PruneError, database};

/// How many partitions are made in one run.
const MADE_MAX: usize = 1_000;

/// A period that begins within this time has begun: attaching takes less.
pub(super) const BEGUN: Duration = Duration::from_secs(2);

/// The maximum by which local times may be ahead of UTC, in seconds.
pub(super) const ZONE_AHEAD_S: u32 = 15 * 3_600;

/// Bytes of a table's name before what is appended to it.
const BASE_BYTES: usize = 45;

/// The periods without a partition. They are as long as most of the five newest partitions, of the same
/// number the shorter ones: one partition of another length, such as a day on which the clocks change,
/// or one made by hand for years, changes nothing. They are counted from the partition that has begun
/// last, and shortened where another partition begins.
///
/// Days are counted in the time zone that is the default of the session, if most partitions are whole
/// days there, and in UTC otherwise. Months are months if they begin and end with one.
///
/// `$3`: whether there is a default partition; `$4`: seconds ahead; `$5`: seconds that local times may
/// be ahead or behind; `$6`: whether the times have a zone; `$7`: seconds within which a period has begun.
const PERIODS: &str = "
    WITH setting AS (
        SELECT reset_val AS zone FROM pg_catalog.pg_settings WHERE name = 'TimeZone'
    ), bound AS (
        SELECT b.lower::pg_catalog.timestamptz AS lower, b.upper::pg_catalog.timestamptz AS upper
          FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]),
                          pg_catalog.unnest($2::pg_catalog.text[])) AS b (lower, upper)
    ), newest AS (
        SELECT lower, upper FROM bound
         WHERE pg_catalog.isfinite(lower) AND pg_catalog.isfinite(upper) ORDER BY upper DESC LIMIT 5
    ), zone AS (
        SELECT CASE WHEN $6 AND pg_catalog.count(*) FILTER (
                             WHERE (lower AT TIME ZONE setting.zone)::pg_catalog.time = '0:00'
                               AND (upper AT TIME ZONE setting.zone)::pg_catalog.time = '0:00')
                         > pg_catalog.count(*) FILTER (
                             WHERE (lower AT TIME ZONE 'UTC')::pg_catalog.time = '0:00'
                               AND (upper AT TIME ZONE 'UTC')::pg_catalog.time = '0:00')
                    THEN pg_catalog.max(setting.zone) ELSE 'UTC' END AS zone
          FROM newest, setting
    ), clock AS (
        SELECT now - $5::pg_catalog.float8 * '1 s'::pg_catalog.interval AS earliest,
               now + $5::pg_catalog.float8 * '1 s'::pg_catalog.interval AS latest
          FROM (SELECT pg_catalog.clock_timestamp() AT TIME ZONE zone AS now FROM zone) AS local
    ), range AS (
        SELECT lower AT TIME ZONE zone AS lower, upper AT TIME ZONE zone AS upper FROM bound, zone
    ), step AS (
        SELECT step FROM (
            SELECT CASE WHEN lower = pg_catalog.date_trunc('month', lower)
                         AND upper = pg_catalog.date_trunc('month', upper)
                        THEN pg_catalog.make_interval(months =>
                             (12 * (pg_catalog.date_part('year', upper) - pg_catalog.date_part('year', lower))
                              + pg_catalog.date_part('month', upper) - pg_catalog.date_part('month', lower))
                             ::pg_catalog.int4)
                        -- Days of an unknown zone, where the clocks change.
                        WHEN $6 AND days >= 1 AND pg_catalog.abs(seconds - 86400 * days) = 3600
                        THEN pg_catalog.make_interval(days => days::pg_catalog.int4)
                        ELSE upper - lower END AS step
              FROM (SELECT local.*, pg_catalog.round(local.seconds / 86400) AS days
                      FROM (SELECT lower AT TIME ZONE zone AS lower, upper AT TIME ZONE zone AS upper,
                                   pg_catalog.date_part('epoch', (upper AT TIME ZONE zone) - (lower AT TIME ZONE zone))
                                       AS seconds
                              FROM newest, zone) AS local) AS local) AS length
         GROUP BY step ORDER BY pg_catalog.count(*) DESC, step LIMIT 1
    ), anchor AS (
        SELECT coalesce(pg_catalog.max(upper) FILTER (
                            WHERE pg_catalog.isfinite(upper) AND coalesce(lower <= earliest, true)),
                        pg_catalog.min(lower) FILTER (WHERE pg_catalog.isfinite(lower))) AS anchor
          FROM range, clock
    ), period AS (
        SELECT anchor + n * step AS lower, anchor + (n + 1) * step AS upper
          FROM anchor, step, clock, pg_catalog.generate_series(
                   - least(100000, greatest(0, 1 + pg_catalog.ceil(
                       pg_catalog.date_part('epoch', anchor - earliest)
                       / pg_catalog.date_part('epoch', step))))::pg_catalog.int8,
                   least(100000, greatest(0, 1 + pg_catalog.ceil(
                       (pg_catalog.date_part('epoch', latest - anchor) + $4::pg_catalog.float8)
                       / pg_catalog.date_part('epoch', step))))::pg_catalog.int8) AS n
    ), piece AS (
        SELECT pg_catalog.lower(free) AS lower, pg_catalog.upper(free) AS upper
          FROM period,
               (SELECT pg_catalog.range_agg(pg_catalog.tsrange(lower, upper)) AS ranges FROM range) AS taken,
               pg_catalog.unnest(pg_catalog.tsmultirange(pg_catalog.tsrange(period.lower, period.upper))
                                 - taken.ranges) AS free
    ), wanted AS (
        SELECT piece.*, lower AT TIME ZONE zone AT TIME ZONE 'UTC' AS begins,
               upper AT TIME ZONE zone AT TIME ZONE 'UTC' AS ends, latest
          FROM piece, clock, zone
         WHERE lower <= latest + $4::pg_catalog.float8 * '1 s'::pg_catalog.interval
           AND CASE WHEN $3 THEN lower > latest + $7::pg_catalog.float8 * '1 s'::pg_catalog.interval
                    ELSE upper > earliest END
    )
    SELECT begins::pg_catalog.text, ends::pg_catalog.text,
           pg_catalog.to_char(lower, CASE WHEN lower = pg_catalog.date_trunc('day', lower)
                                           AND upper = pg_catalog.date_trunc('day', upper)
                                          THEN 'YYYYMMDD' ELSE 'YYYYMMDD_HH24MISS' END),
           pg_catalog.date_part('epoch', lower - latest)
      FROM wanted WHERE begins < ends ORDER BY begins LIMIT {limit}";

/// Why a partition was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unmade {
    #[error(
        "the default partition has rows of its period, and keeps those to come: once they are deleted, \
         later periods are not affected"
    )]
    Occupied,
    #[error(
        "other sessions keep the table, its default partition, or a table to which its foreign keys refer, \
         locked (see pg_locks)"
    )]
    Locked,
    #[error(
        "it begins within two hours, and the default partition is large: its rows come into the default \
         partition, and are delivered and deleted as others. Run prune more often, or with longer \
         --partitions-ahead"
    )]
    Soon,
    #[error(
        "PostgreSQL took too long to read the default partition, to see that it has no rows of the period"
    )]
    Slow,
    #[error("a relation with its name exists: rename it")]
    NameTaken,
    #[error("the table, or its default partition, was replaced by another one meanwhile")]
    Replaced,
    #[error("PostgreSQL does not make it: {0}")]
    Refused(String),
}

/// A period without a partition.
pub(super) struct Period {
    pub(super) name: TableName,
    /// The bounds as literals.
    pub(super) lower: String,
    pub(super) upper: String,
    /// When it begins, in UTC, without a zone; or in local times that may be ahead.
    pub(super) begins: String,
    /// The time until the period begins, in seconds.
    pub(super) begins_in: f64,
}

/// The periods without a partition, for this long from now on.
pub(super) async fn missing(
    client: &Client,
    table: &PartitionedTable,
    key: &TimeKey,
    ahead: Duration,
) -> Result<Vec<Period>, PruneError> {
    let failed = database(&table.name, "asking for the periods without partitions");
    let problem = |problem: String| PruneError::Table { table: table.name.clone(), problem };
    let ranges = table.partitions.iter().filter(|one| !one.is_default);
    let (lower, upper): (Vec<_>, Vec<_>) =
        ranges.map(|one| (one.lower.as_deref(), one.upper.as_deref())).unzip();
    let is_finite = |end: Option<&str>| end.is_some_and(|end| !end.ends_with("infinity"));
    if !lower.iter().zip(&upper).any(|(lower, upper)| is_finite(*lower) && is_finite(*upper)) {
        // A range without an end has all times to come.
        if upper.iter().any(|upper| !is_finite(*upper)) {
            return Ok(Vec::new());
        }
        return Err(problem(
            "it has no partition that shows how long a period is: create one, or leave it without, with \
             --partitions-ahead 0s"
                .to_owned(),
        ));
    }
    let zones_s = f64::from(if key.is_without_zone { ZONE_AHEAD_S } else { 0 });
    let sql = PERIODS.replace("{limit}", &(MADE_MAX + 1).to_string());
    let (has_default, ahead_s) = (table.default().is_some(), ahead.as_secs_f64());
    // It takes some time until they are made.
    let (has_zone, begun_s) = (!key.is_without_zone, BEGUN.as_secs_f64() + 1.0);
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&lower, &upper, &has_default, &ahead_s, &zones_s, &has_zone, &begun_s];
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
        let begins_in = row.try_get(3)?;
        Ok(Period {
            name: TableName {
                schema: table.name.schema.clone(),
                name: format!("{}_p{suffix}", base(&table.name.name)),
            },
            lower: escape_literal(&format!("{lower}{zone}")),
            upper: escape_literal(&format!("{upper}{zone}")),
            begins: lower,
            begins_in,
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
pub(super) async fn occupied(
    client: &Client,
    table: &PartitionedTable,
    TimeKey { column, kind, .. }: &TimeKey,
    periods: &[Period],
) -> Result<Vec<usize>, PruneError> {
    let default = table.default().filter(|partition| partition.is_readable);
    let (Some(default), Some(first)) = (default, periods.first()) else { return Ok(Vec::new()) };
    let failed = database(&default.name, "looking for rows that belong to other partitions");
    let values = periods.iter().enumerate().map(|(index, Period { lower, upper, .. })| {
        format!("({index}::pg_catalog.int8, {lower}::{kind}, {upper}::{kind})")
    });
    let sql = format!(
        "SELECT DISTINCT p.index FROM (VALUES {}) AS p (index, lower, upper)
           JOIN {} AS o ON o.{column} >= p.lower AND o.{column} < p.upper
          WHERE o.{column} >= {}::{kind}",
        values.collect::<Vec<_>>().join(", "),
        default.name,
        // The first one begins with it: most rows are older, and need not be compared with all.
        first.lower,
    );
    let rows = client.query(&sql, &[]).await.map_err(&failed)?;
    let found = rows.iter().map(|row| row.try_get::<_, i64>(0));
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    Ok(found.into_iter().filter_map(|index| usize::try_from(index).ok()).collect())
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
