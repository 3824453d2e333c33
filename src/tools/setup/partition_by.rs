//! The period of an outbox table's partitions, and the SQL that creates such a table.

use std::fmt;
use std::str::FromStr;

/// The table by day; the other periods replace the words of [`PartitionBy::places`].
pub(super) const SCHEMA: &str = include_str!("../../../sql/01-schema-partitioned.sql");

/// The period of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionBy {
    /// An hour.
    Hour,
    /// A day, in UTC.
    Day,
    /// A month, in UTC.
    Month,
}

const PERIODS: [(&str, PartitionBy); 3] =
    [("hour", PartitionBy::Hour), ("day", PartitionBy::Day), ("month", PartitionBy::Month)];

/// A period that partitions cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not hour, day or month")]
pub(crate) struct NoPeriod(String);

impl fmt::Display for PartitionBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        })
    }
}

impl FromStr for PartitionBy {
    type Err = NoPeriod;

    fn from_str(text: &str) -> Result<Self, NoPeriod> {
        let found = PERIODS.iter().find(|(name, _)| *name == text);
        found.map(|(_, period)| *period).ok_or_else(|| NoPeriod(text.to_owned()))
    }
}

impl PartitionBy {
    /// What [`SCHEMA`] says instead of the words for a day, and with these columns, in SQL.
    pub(super) fn places(self, id: &str, time: &str) -> Vec<(String, String)> {
        let mut places = vec![
            ("PRIMARY KEY (id, created_at)".to_owned(), format!("PRIMARY KEY ({id}, {time})")),
            ("RANGE (created_at)".to_owned(), format!("RANGE ({time})")),
        ];
        if self != Self::Day {
            places.push(("'1 day'".to_owned(), format!("'1 {self}'")));
            places.push(("date_trunc('day'".to_owned(), format!("date_trunc('{self}'")));
        }
        if self == Self::Hour {
            places.push(("'YYYYMMDD'".to_owned(), "'YYYYMMDD_HH24MISS'".to_owned()));
        }
        places
    }
}
