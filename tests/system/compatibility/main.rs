//! The walpost binary between a real PostgreSQL and brokers that are not Apache Kafka, verified by
//! the oracle on what a consumer of committed records read.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod at_least_once;
mod exactly_once;
mod preflight;

use walpost_bed::fixture::{Fixture, insert};
use walpost_bed::{Kfake, Major, Postgres};

/// The brokers are each test's own.
const STATE_TOPIC: &str = "walpost.state";

async fn fixture(kfake: &Kfake) -> Fixture {
    Fixture::with_brokers(Postgres::builder(Major::V15), &kfake.bootstrap()).await
}

/// Transactions of one row to some thousands.
async fn write_all_sizes(fixture: &Fixture) {
    for rows in [1, 3000, 20, 1, 300] {
        fixture.postgres.execute(&insert(rows, 7)).await;
        for _ in 0..5 {
            fixture.postgres.execute(&insert(1, 1)).await;
        }
    }
}
