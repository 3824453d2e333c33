//! What befalls Kafka.

use walpost_bed::scene::Scene;
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres};

use crate::case::{Account, Case};

pub fn cases() -> Vec<Case> {
    vec![Case::new(13, "a_broker_that_is_killed_under_load_is_used_again", killed)]
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
