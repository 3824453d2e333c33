//! What befalls walpost itself.

mod bounds;
mod clock;
mod death;
mod standby;
mod stop;

use walpost_bed::Consumed;

use crate::case::Case;

pub fn cases() -> Vec<Case> {
    [death::cases(), stop::cases(), standby::cases(), bounds::cases(), clock::cases()]
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
