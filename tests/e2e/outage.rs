//! The brokers are away for a long time while the application goes on writing.

use std::time::{Duration, Instant};

use walpost_bed::{Kafka, Major, Postgres};

use walpost_bed::scene::{SOON, Scene, insert};
use walpost_bed::writer::Writer;

/// How long they are away.
const OUTAGE: Duration = Duration::from_secs(60);

/// What memory may grow by once the budget is spent, in bytes.
const GROWTH: u64 = 16 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_kafka_keeps_the_session_the_position_and_the_memory() {
    let kafka = Kafka::start().await;
    let timeout = Duration::from_secs(5);
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(timeout);
    let scene = Scene::with_brokers(postgres, &kafka.bootstrap()).await;
    let walpost = scene.run_with(&["--in-flight-bytes", "4MiB"]).await;
    let writer = Writer::start(&scene.postgres, 100);
    writer.commits(100).await;
    let session = scene.walsender().await.expect("a session");
    kafka.kill9().await;
    let away = Instant::now();
    walpost.await_line("Kafka cannot be used, trying again until it can", SOON).await;
    // Spends the budget at once.
    scene.postgres.execute(&insert(20_000, 50)).await;
    let position = scene.confirmed_flush().await;
    let mut settled = None;
    while away.elapsed() < OUTAGE {
        let now = scene.walsender().await;
        assert_eq!(now.as_ref(), Some(&session), "after {:?}", away.elapsed());
        assert_eq!(scene.confirmed_flush().await, position, "after {:?}", away.elapsed());
        if away.elapsed() > OUTAGE / 4 {
            let rss = walpost.rss_bytes().expect("it runs");
            let settled = *settled.get_or_insert(rss);
            assert!(rss < settled + GROWTH, "{settled} bytes grew to {rss}");
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    kafka.start_again().await;
    scene.judge_after(writer).await.assert_ok();
    assert_eq!(scene.walsender().await, Some(session));
}
