//! What befalls Kafka.

use std::time::Duration;

use walpost_bed::scene::{LATER, Scene, insert};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres};

use crate::case::{Account, Case};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(13, "a_broker_that_is_killed_under_load_is_used_again", killed),
        Case::new(19, "a_producer_that_stays_stuck_is_replaced", stuck).long(),
    ]
}

async fn killed(account: Account) {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let walpost = scene.run().await;
    let writer = Writer::start(&scene.postgres, 200);
    for _ in 0..2 {
        writer.commits(50).await;
        kafka.kill9().await;
        writer.commits(50).await;
        kafka.start_again().await;
    }
    writer.commits(50).await;
    account.ok(&scene.judge_after(writer).await);
    account.goes_on(&walpost);
}

/// One acknowledgement never comes, though all is well with the broker.
async fn stuck(account: Account) {
    let scene = Scene::new().await;
    let walpost = scene.command("run").env("FAILPOINTS", "unacknowledged=20*off->1*return->off");
    let walpost = walpost.start();
    scene.postgres.execute(&insert(100, 5)).await;
    let told = "Kafka answers and does not acknowledge a record";
    walpost.await_line(told, Duration::from_secs(40)).await;
    walpost.await_line("no acknowledgement came for long", LATER).await;
    scene.confirmed(LATER).await;
    account.ok(&scene.judge().await);
    account.did("replaced the producer");
    account.goes_on(&walpost);
}
