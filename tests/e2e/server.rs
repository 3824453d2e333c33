//! PostgreSQL goes away, ends connections, falls silent, or is not there yet.

use std::time::{Duration, Instant};

use walpost_bed::{Kafka, Major, Postgres, Proxy, Stop, eventually};

use walpost_bed::scene::{LATER, SOON, Scene, insert, proxied};
use walpost_bed::writer::Writer;

/// A server that was told to stop may take this long, walpost or not.
const PROMPT: Duration = Duration::from_secs(8);

async fn a_restart_under_load(how: Stop) {
    let scene = Scene::new().await;
    let writer = Writer::start(&scene.postgres, 200);
    let walpost = scene.run().await;
    for _ in 0..3 {
        writer.commits(30).await;
        let mark = walpost.mark();
        let stopped = scene.postgres.stop(how, PROMPT).await;
        assert!(stopped, "PostgreSQL does not stop:\n{}", scene.postgres.log_tail(10));
        scene.postgres.start_again().await;
        walpost.await_line_after(mark, "streaming from PostgreSQL", SOON).await;
    }
    writer.commits(30).await;
    scene.judge_after(writer).await.assert_ok();
    assert_eq!(walpost.wait(Duration::ZERO).await, None, "the same walpost all along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_restart_under_load_loses_nothing() {
    a_restart_under_load(Stop::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_immediate_restart_under_load_loses_nothing() {
    a_restart_under_load(Stop::Immediate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_can_stop_while_kafka_is_away() {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let walpost = scene.run_with(&["--in-flight-bytes", "1MiB"]).await;
    // To each partition, so that it is the budget which stops the reading.
    scene.postgres.execute(&insert(50, 50)).await;
    scene.confirmed(SOON).await;
    kafka.pause();
    // More than the budget: reading has stopped, and the walsender has more to send.
    scene.postgres.execute(&insert(50_000, 50)).await;
    let told = Instant::now();
    let stopped = scene.postgres.stop(Stop::Fast, PROMPT).await;
    assert!(stopped, "not within {:?}:\n{}", told.elapsed(), scene.postgres.log_tail(10));
    scene.postgres.start_again().await;
    kafka.resume();
    scene.assert_ok(LATER).await;
    assert_eq!(walpost.wait(Duration::ZERO).await, None, "the same walpost all along");
}

async fn ended_connections(whose: &str) {
    let scene = Scene::new().await;
    let writer = Writer::start(&scene.postgres, 200);
    let walpost = scene.run().await;
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name = 'walpost' AND backend_type = '{whose}'"
    );
    for _ in 0..5 {
        writer.commits(20).await;
        let mark = walpost.mark();
        assert_eq!(scene.postgres.query_text(&end).await, Some("t".into()));
        walpost.await_line_after(mark, "streaming from PostgreSQL", SOON).await;
    }
    scene.judge_after(writer).await.assert_ok();
    assert_eq!(walpost.wait(Duration::ZERO).await, None, "the same walpost all along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walsender_that_is_terminated_is_replaced() {
    ended_connections("walsender").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_connection_that_is_terminated_is_replaced() {
    ended_connections("client backend").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_wal_sender_timeout_is_kept_under_full_back_pressure() {
    let kafka = Kafka::start().await;
    let timeout = Duration::from_secs(1);
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(timeout);
    let scene = Scene::with_brokers(postgres, &kafka.bootstrap()).await;
    let _walpost = scene.run_with(&["--in-flight-bytes", "1MiB"]).await;
    // To each partition, so that it is the budget which stops the reading.
    scene.postgres.execute(&insert(50, 50)).await;
    scene.confirmed(SOON).await;
    let before = scene.walsender().await.expect("a session");
    kafka.pause();
    scene.postgres.execute(&insert(50_000, 50)).await;
    let paused = Instant::now();
    while paused.elapsed() < timeout * 5 {
        assert_eq!(scene.walsender().await.as_ref(), Some(&before), "after {:?}", paused.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    kafka.resume();
    scene.assert_exact(LATER).await;
    assert_eq!(scene.walsender().await, Some(before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_noticed_and_replaced() {
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(1));
    let mut scene = Scene::with(postgres).await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    scene.source = proxied(&proxy);
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    let mark = walpost.mark();
    proxy.blackhole();
    eventually(SOON, "the server gives the session up", async || scene.walsender().await.is_none())
        .await;
    walpost.await_line_after(mark, "nothing came from PostgreSQL for", SOON).await;
    scene.postgres.execute(&insert(10, 3)).await;
    proxy.restore();
    scene.assert_exact(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_yet_is_waited_for() {
    let scene = Scene::new().await;
    assert!(scene.postgres.stop(Stop::Fast, PROMPT).await);
    let walpost = scene.command("run").start();
    walpost.await_line("PostgreSQL cannot be used, trying again until it can", SOON).await;
    scene.postgres.start_again().await;
    walpost.await_line("streaming from PostgreSQL", SOON).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.assert_exact(SOON).await;
}
