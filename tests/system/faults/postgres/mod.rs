//! Faults of PostgreSQL.

mod columns;
mod credentials;
mod dead_connections;
mod disk;
mod encoding;
mod failover;
mod halts;
mod ignored_events;
mod invalid_events;
mod restarts;
mod slot;
mod transactions;
mod volume;

use std::collections::HashSet;

use walpost_bed::Consumed;
use walpost_bed::oracle::Row;

use crate::case::Case;

pub fn cases() -> Vec<Case> {
    let parts = [
        restarts::cases(),
        dead_connections::cases(),
        slot::cases(),
        failover::cases(),
        halts::cases(),
        columns::cases(),
        invalid_events::cases(),
        transactions::cases(),
        ignored_events::cases(),
        volume::cases(),
        disk::cases(),
        credentials::cases(),
        encoding::cases(),
    ];
    parts.into_iter().flatten().collect()
}

/// Leaves the rows that have a record.
fn retain_published(rows: &mut Vec<Row>, records: &[Consumed]) {
    let published: HashSet<_> = records.iter().filter_map(|record| record.header("id")).collect();
    rows.retain(|row| published.contains(row.id.as_str()));
}

/// How many transactions have a row that was published more than once.
fn repeated_transactions(records: &[Consumed]) -> usize {
    let mut seen = HashSet::new();
    let positions = records.iter().filter_map(|record| record.header("walpost.position"));
    let repeated = positions.filter(|position| !seen.insert(*position));
    let commits = repeated.filter_map(|position| position.split('/').next());
    commits.collect::<HashSet<_>>().len()
}
