//! What befalls Kafka.

mod access;
mod away;
mod cluster;
mod limits;
mod slow;
mod topics;

use walpost_bed::scene::{SOON, Scene};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually};

use crate::case::Case;

const AWAY: &str = "cannot deliver to Kafka; retrying";
const BACK: &str = "delivering to Kafka again";

pub fn cases() -> Vec<Case> {
    let parts = [
        access::cases(),
        away::cases(),
        cluster::cases(),
        limits::cases(),
        slow::cases(),
        topics::cases(),
    ];
    parts.into_iter().flatten().collect()
}

/// A scene with brokers of its own.
async fn scene_with(bootstrap: &str) -> Scene {
    Scene::with_brokers(Postgres::builder(Major::V15), bootstrap).await
}

/// A broker that makes no topics by itself, as most are.
async fn strict_broker() -> Kafka {
    Kafka::builder().property("auto.create.topics.enable", "false").start().await
}

/// How many lines of standard error have this text.
fn times(walpost: &Walpost, text: &str) -> usize {
    walpost.stderr().iter().filter(|line| line.contains(text)).count()
}

/// The slot's position stands still while the application goes on to write.
async fn confirms_nothing(scene: &Scene, writer: &Writer) {
    let position = scene.confirmed_at_rest().await;
    writer.commits(100).await;
    assert_eq!(scene.confirmed_flush().await, position, "nothing is confirmed");
}

/// One line tells that Kafka is away and one that it is back, each so many times.
async fn told(walpost: &Walpost, outages: usize) {
    eventually(SOON, "a line for each change", async || {
        let seen = (times(walpost, AWAY), times(walpost, BACK));
        if seen == (outages, outages) { Ok(()) } else { Err(seen) }
    })
    .await;
}
