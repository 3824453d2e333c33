//! Faults of Kafka.

mod authorization;
mod cluster;
mod latency;
mod record_limits;
mod topics;
mod transactions;
mod unavailable;

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually};

use crate::case::Case;

const KAFKA_UNAVAILABLE: &str = "cannot deliver to Kafka; retrying";
const KAFKA_RECOVERED: &str = "delivering to Kafka again";

pub fn cases() -> Vec<Case> {
    let parts = [
        authorization::cases(),
        unavailable::cases(),
        cluster::cases(),
        record_limits::cases(),
        latency::cases(),
        topics::cases(),
        transactions::cases(),
    ];
    parts.into_iter().flatten().collect()
}

/// A fixture with its own brokers.
async fn fixture_with(bootstrap: &str) -> Fixture {
    Fixture::with_brokers(Postgres::builder(Major::V15), bootstrap).await
}

/// A broker that does not create topics automatically, like most.
async fn strict_broker() -> Kafka {
    Kafka::builder().property("auto.create.topics.enable", "false").start().await
}

/// How many lines of standard error have this text.
fn times(walpost: &Walpost, text: &str) -> usize {
    walpost.stderr().iter().filter(|line| line.contains(text)).count()
}

/// Nothing of what the application writes from here on is confirmed while it keeps writing.
async fn confirms_nothing(fixture: &Fixture, writer: &Writer) {
    let unconfirmed = fixture.postgres.commit(&insert(1, 1)).await;
    writer.commits(100).await;
    fixture.assert_unconfirmed(&unconfirmed).await;
}

/// How often Kafka was reported as unavailable. A broker that comes back on a busy machine may be slow first,
/// which is another reason.
fn outages_reported(walpost: &Walpost) -> usize {
    times(walpost, KAFKA_UNAVAILABLE) - times(walpost, "have not acknowledged a record for")
}

/// One line reports that Kafka is unavailable and one that it is back, each this many times.
async fn outage_logged(walpost: &Walpost, outages: usize) {
    eventually(SHORT_TIMEOUT, "a line for each change", async || {
        let seen = (outages_reported(walpost), times(walpost, KAFKA_RECOVERED));
        if seen == (outages, outages) { Ok(()) } else { Err((seen, walpost.stderr())) }
    })
    .await;
}
