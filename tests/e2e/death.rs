//! Walpost's own death and its orderly end, under load.

use std::time::{Duration, Instant};

use walpost_bed::{Kafka, Major, Postgres};

use walpost_bed::scene::{SOON, Scene, insert};
use walpost_bed::writer::Writer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_loses_nothing_and_keeps_the_order() {
    let scene = Scene::new().await;
    let writer = Writer::start(&scene.postgres, 300);
    for kill in 0_u32..10 {
        let walpost = scene.command("run").start();
        // Some die while they connect, most while they stream.
        if kill % 5 != 0 {
            walpost.await_line("streaming from PostgreSQL", SOON).await;
        }
        writer.commits(u64::from(random(60))).await;
        walpost.kill9().await;
    }
    let _walpost = scene.run().await;
    let verdict = scene.judge_after(writer).await;
    verdict.assert_ok();
    assert!(verdict.expected > 100, "hardly any load: {verdict}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_under_load_drains_and_the_next_start_repeats_nothing() {
    let scene = Scene::new().await;
    let writer = Writer::start(&scene.postgres, 300);
    for round in 0..6 {
        let walpost = scene.run().await;
        writer.commits(u64::from(20 + random(60))).await;
        let told = Instant::now();
        if round % 2 == 0 {
            walpost.terminate();
        } else {
            walpost.interrupt();
        }
        let status = walpost.wait(SOON).await.expect("it stops");
        assert_eq!(status.code(), Some(0), "{:?}", walpost.stderr());
        assert!(told.elapsed() < Duration::from_secs(20), "{:?}", told.elapsed());
    }
    let _walpost = scene.run().await;
    scene.judge_after(writer).await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_within_a_large_transaction_repeats_nothing_of_it() {
    let scene = Scene::new().await;
    for _ in 0..3 {
        let walpost = scene.run_with(&["--in-flight-bytes", "1MiB"]).await;
        let before = scene.records().await.len();
        scene.postgres.execute(&insert(30_000, 100)).await;
        walpost_bed::eventually(SOON, "a part of it is published", async || {
            scene.records().await.len() > before
        })
        .await;
        walpost.terminate();
        let status = walpost.wait(SOON).await.expect("it stops");
        assert_eq!(status.code(), Some(0), "{:?}", walpost.stderr());
    }
    let _walpost = scene.run().await;
    scene.assert_exact(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_leaves_at_once_and_confirms_nothing_more() {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    kafka.pause();
    let before = scene.confirmed_flush().await;
    scene.postgres.execute(&insert(100, 3)).await;
    await_walsender_sent_all(&scene).await;
    walpost.terminate();
    walpost.await_line("stopping: delivering what is in flight", SOON).await;
    assert_eq!(walpost.wait(Duration::from_secs(1)).await, None, "it does not wait for Kafka");
    let told = Instant::now();
    walpost.interrupt();
    let status = walpost.wait(SOON).await.expect("it leaves");
    assert_eq!(status.code(), Some(1), "{:?}", walpost.stderr());
    assert!(told.elapsed() < Duration::from_secs(1), "{:?}", told.elapsed());
    assert_eq!(scene.confirmed_flush().await, before);
    kafka.resume();
    let _walpost = scene.run().await;
    scene.assert_ok(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_while_kafka_is_away_leaves_in_time_and_confirms_nothing_undelivered() {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let walpost = scene.run_with(&["--drain-timeout", "3s"]).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    kafka.kill9().await;
    let before = scene.confirmed_flush().await;
    scene.postgres.execute(&insert(100, 3)).await;
    await_walsender_sent_all(&scene).await;
    walpost.terminate();
    let told = Instant::now();
    let status = walpost.wait(SOON).await.expect("it stops");
    assert_eq!(status.code(), Some(0), "{:?}", walpost.stderr());
    assert!(told.elapsed() < Duration::from_secs(4), "{:?}", told.elapsed());
    assert!(walpost.said("undrained=100") || walpost.said(r#""undrained":100"#));
    assert_eq!(scene.confirmed_flush().await, before);
    kafka.start_again().await;
    let _walpost = scene.run().await;
    scene.assert_exact(SOON).await;
}

/// Awaits that the server has sent all that was committed.
async fn await_walsender_sent_all(scene: &Scene) {
    let query = "SELECT sent_lsn >= pg_current_wal_insert_lsn() FROM pg_stat_replication";
    walpost_bed::eventually(SOON, "the walsender has sent everything", async || {
        scene.postgres.query_text(query).await == Some("t".into())
    })
    .await;
}

/// A number below `limit`, another each time.
fn random(limit: u32) -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.subsec_micros()) % limit
}
