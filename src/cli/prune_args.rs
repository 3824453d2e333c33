//! The options of `walpost prune`.

#![allow(clippy::doc_markdown, reason = "help is printed as it stands, without backticks")]

use std::time::Duration;

use clap::Args;

use super::help::{CONFIGURATION, EXIT_CODES, PRUNE_ACTS, PRUNE_EXAMPLES};
use super::options::Options;
use crate::config::{duration, parse_bytes};
use crate::outbox::TableName;

/// `walpost prune`
#[derive(Args)]
#[command(
    after_help = format!("{PRUNE_ACTS}\n\n{PRUNE_EXAMPLES}"),
    after_long_help =
        format!("{PRUNE_ACTS}\n\n{PRUNE_EXAMPLES}\n\n{CONFIGURATION}\n\n{EXIT_CODES}"),
)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct PruneArguments {
    /// Keep rows that are younger than this
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = years)]
    pub older_than: Duration,
    /// Count the rows, and delete none
    #[arg(long)]
    pub dry_run: bool,
    /// Insert the rows into this table, which has their columns, in the transaction that deletes them
    #[arg(long, value_name = "TABLE")]
    pub archive_to: Option<TableName>,
    /// Write the rows of a transaction as lines of JSON to the standard input of this shell command,
    /// and delete them once it has ended with 0. WALPOST_TABLE is the table. Killed in between, rows are
    /// archived again
    #[arg(long, value_name = "COMMAND", conflicts_with = "archive_to", value_parser = command)]
    pub archive_command: Option<String>,
    /// Column with the time at which a row was written, which no update changes [default: outbox.columns.timestamp, or
    /// created_at]
    #[arg(long, value_name = "COLUMN")]
    pub time_column: Option<String>,
    /// How many rows to delete in a transaction at most
    #[arg(long, value_name = "ROWS", default_value = "2000", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub batch: u64,
    /// The pause after each transaction, and each partition that is dropped: at most 1d
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = pause)]
    pub sleep: Duration,
    /// Stop after this time; the next run begins again [default: none]
    #[arg(long, value_name = "DURATION", value_parser = years)]
    pub max_duration: Option<Duration>,
    /// Stop while the slot is further behind than this
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = bytes)]
    pub max_lag: u64,
    /// Partitioned table: make partitions for this long ahead; 0s makes none
    #[arg(long, value_name = "DURATION", default_value = "3d", value_parser = years)]
    pub partitions_ahead: Duration,
    /// Partitioned table: how long writers may wait for a lock at once; at most half of the server's
    /// deadlock_timeout
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = lock_timeout)]
    pub lock_timeout: Duration,
    /// Partitioned table: also delete rows one by one, from the partitions that are not dropped
    #[arg(long)]
    pub delete_rows: bool,
    /// Do not wait for the consumer of this replication slot, which needs no rows. Can be repeated
    #[arg(long, value_name = "SLOT")]
    pub ignore_slot: Vec<String>,
    /// Delete rows from before the slot too, and from before the last change of publication or outbox
    /// configuration, of which nothing proves that they are delivered
    #[arg(long)]
    pub include_before_slot: bool,
    /// Where no position is kept beside the events: delete all rows that the slot has confirmed, also
    /// from before it, and of skipped events, which nothing tells from others
    #[arg(long)]
    pub by_slot_alone: bool,
    /// Delete the rows of skipped events too, of which nothing else is left
    #[arg(long)]
    pub include_skipped: bool,
    /// Options of the configuration.
    #[command(flatten)]
    pub options: Options,
}

fn within(text: &str, (least, most): (&str, &str)) -> Result<Duration, String> {
    let [value, from, to] = [text, least, most].map(duration);
    let value = value?;
    if (from?..=to?).contains(&value) {
        Ok(value)
    } else {
        Err(format!("it is not from {least} to {most}"))
    }
}

fn years(text: &str) -> Result<Duration, String> {
    within(text, ("0s", "36500d"))
}

fn command(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    Ok(text.to_owned())
}

fn pause(text: &str) -> Result<Duration, String> {
    within(text, ("0s", "1d"))
}

fn lock_timeout(text: &str) -> Result<Duration, String> {
    within(text, ("1ms", "60s"))
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}
