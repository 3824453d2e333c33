//! Faults of walpost itself.

mod clock;
mod crashes;
mod resource_limits;
mod shutdown;
mod standby;

use walpost_bed::Consumed;

use crate::case::Case;

pub fn cases() -> Vec<Case> {
    [
        crashes::cases(),
        shutdown::cases(),
        standby::cases(),
        resource_limits::cases(),
        clock::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The LSN of the commit in a record's position.
fn commit_lsn(record: &Consumed) -> u64 {
    let position = record.header("walpost.position").expect("a position");
    let (commit, _) = position.split_once('/').expect("two parts");
    u64::from_str_radix(commit, 16).expect("an LSN")
}
