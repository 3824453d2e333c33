//! What befalls PostgreSQL.

mod access;
mod columns;
mod disk;
mod encoding;
mod events;
mod failover;
mod halts;
mod passed_over;
mod restarts;
mod shapes;
mod silence;
mod slot;
mod volume;

use std::collections::HashSet;

use walpost_bed::Consumed;
use walpost_bed::oracle::Row;
use walpost_bed::scene::Scene;

use crate::case::Case;

pub fn cases() -> Vec<Case> {
    let parts = [
        restarts::cases(),
        silence::cases(),
        slot::cases(),
        failover::cases(),
        halts::cases(),
        columns::cases(),
        events::cases(),
        shapes::cases(),
        passed_over::cases(),
        volume::cases(),
        disk::cases(),
        access::cases(),
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

/// Where the log ends now.
async fn end_of_log(scene: &Scene) -> String {
    scene.postgres.query_text("SELECT pg_current_wal_lsn()").await.expect("an LSN")
}

/// Whether the slot has confirmed up to there.
async fn covers(scene: &Scene, lsn: &str) -> bool {
    let query = format!(
        "SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots WHERE slot_name = 'walpost'"
    );
    scene.postgres.query_text(&query).await.expect("the slot") == "t"
}
