//! The broker is killed, stopped, frozen, or lacks the topic.

use std::time::{Duration, Instant};

use walpost_bed::{Kafka, Major, Postgres};

use walpost_bed::scene::{LATER, SOON, Scene, insert};
use walpost_bed::writer::Writer;

/// A scene with a broker of its own.
async fn scene_with(kafka: &Kafka) -> Scene {
    Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await
}

/// What happens to a broker under load, and what becomes of the records.
async fn mishaps(rounds: u32, mishap: impl AsyncFn(&Kafka, &Writer)) {
    let kafka = Kafka::start().await;
    let scene = scene_with(&kafka).await;
    let walpost = scene.run().await;
    let writer = Writer::start(&scene.postgres, 200);
    for _ in 0..rounds {
        writer.commits(50).await;
        mishap(&kafka, &writer).await;
    }
    writer.commits(50).await;
    scene.judge_after(writer).await.assert_ok();
    assert_eq!(walpost.wait(Duration::ZERO).await, None, "the same walpost all along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_under_load_is_used_again() {
    mishaps(2, async |kafka, writer| {
        kafka.kill9().await;
        writer.commits(50).await;
        kafka.start_again().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_stopped_under_load_is_used_again() {
    mishaps(1, async |kafka, writer| {
        assert!(kafka.stop(LATER).await, "it stops");
        writer.commits(50).await;
        kafka.start_again().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_freezes_under_load_is_used_again() {
    mishaps(3, async |kafka, writer| {
        kafka.pause();
        writer.commits(200).await;
        kafka.resume();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_missing_is_named_and_used_once_it_is_there() {
    let kafka = Kafka::builder().property("auto.create.topics.enable", "false").start().await;
    let scene = scene_with(&kafka).await;
    let walpost = scene.run().await;
    let writer = Writer::start(&scene.postgres, 100);
    let begun = Instant::now();
    let topic = scene.topic("order");
    let advice = format!("kafka-topics.sh --create --topic {topic}");
    walpost.await_line(&advice, Duration::from_secs(15)).await;
    writer.commits(50).await;
    kafka.create_topic(&topic, 3).await;
    scene.judge_after(writer).await.assert_ok();
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(walpost.wait(Duration::ZERO).await, None, "the same walpost all along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_deleted_under_way_holds_back_what_follows() {
    let kafka = Kafka::builder().property("auto.create.topics.enable", "false").start().await;
    let scene = scene_with(&kafka).await;
    let topic = scene.topic("order");
    kafka.create_topic(&topic, 3).await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.assert_exact(SOON).await;
    kafka.delete_topic(&topic).await;
    scene.postgres.execute("DELETE FROM public.outbox").await;
    scene.postgres.execute(&insert(10, 3)).await;
    walpost.await_line(&format!("--create --topic {topic}"), Duration::from_secs(15)).await;
    kafka.create_topic(&topic, 3).await;
    scene.assert_ok(LATER).await;
    assert_eq!(walpost.wait(Duration::ZERO).await, None, "the same walpost all along");
}
