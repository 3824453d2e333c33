//! NATS is away, frozen, or accepts nothing more: walpost keeps its session, its position and its
//! memory.

use std::time::Duration;

use serde_json::{Value, json};
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Nats, Proxy, eventually, long_outage};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;

const RECOVERED: &str = "delivering to NATS again";

/// What memory may grow by once the budget is spent, in bytes.
const GROWTH: u64 = 16 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_keeps_session_position_and_memory() {
    let fixture = NatsFixture::with(Nats::builder().sync_interval("2m")).await;
    fixture.inner.postgres.execute("ALTER SYSTEM SET wal_sender_timeout = '3s'").await;
    fixture.inner.postgres.execute("SELECT pg_reload_conf()").await;
    let walpost = fixture.command("run").args(["--in-flight-bytes", "1MiB"]).start();
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let walsender = fixture.inner.walsender().await;
    fixture.nats.kill9().await;
    let unconfirmed = fixture.inner.postgres.commit(&insert(20_000, 50)).await;
    // Whether the connection was idle when it was lost, or not.
    eventually(SHORT_TIMEOUT, "the outage is logged", async || {
        walpost.said("cannot deliver to NATS") || walpost.said("delivery failed; replaying")
    })
    .await;
    let before = walpost.rss_bytes().expect("it runs");
    // Several times what PostgreSQL waits for a client that does not answer.
    tokio::time::sleep(Duration::from_secs(15)).await;
    fixture.insert(20_000, 50).await;
    let after = walpost.rss_bytes().expect("it runs");
    assert!(after < before + GROWTH, "{before} {after}");
    fixture.inner.assert_unconfirmed(&unconfirmed).await;
    assert!(walsender.is_some() && fixture.inner.walsender().await.is_some(), "it holds the slot");
    fixture.nats.start_again().await;
    fixture.assert_exact().await;
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn outage_of_ten_minutes_under_load_loses_and_repeats_nothing() {
    let fixture = NatsFixture::new().await;
    let (begin, end) =
        (async || fixture.nats.kill9().await, async || fixture.nats.start_again().await);
    let outage = long_outage(&fixture, 100, begin, end).await;
    fixture.judge_with(&outage.rolled_back).await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_server_is_used_again() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 200);
    writer.commits(50).await;
    fixture.nats.pause();
    // Longer than a connection without answers is kept.
    walpost.await_line("delivery failed; replaying", LONG_TIMEOUT).await;
    fixture.nats.resume();
    writer.commits(50).await;
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_in_a_batch_repeats_nothing() {
    let mut fixture = NatsFixture::new().await;
    let proxy = Proxy::to(fixture.nats.port()).await;
    fixture.url = format!("nats://127.0.0.1:{}", proxy.port());
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 500);
    for _ in 0..10 {
        writer.commits(40).await;
        proxy.cut();
        proxy.restore();
    }
    writer.commits(20).await;
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}

/// A message that is refused in the middle of a window: none behind it may be stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_stream_stops_delivery_until_there_is_room() {
    let fixture = NatsFixture::new().await;
    let full = json!({ "max_msgs": 777, "discard": "new" });
    fixture.nats.edit_stream(STREAM, SUBJECTS, &full).await;
    let walpost = fixture.run().await;
    fixture.insert(2000, 50).await;
    let line = walpost.await_line("maximum messages exceeded", LONG_TIMEOUT).await;
    assert!(line.contains("limits"), "{line}");
    assert_eq!(fixture.nats.last_sequence(STREAM).await, 777);
    let room = json!({ "max_msgs": -1, "discard": "new" });
    fixture.nats.edit_stream(STREAM, SUBJECTS, &room).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_stream_is_awaited_and_named() {
    let fixture = NatsFixture::new().await;
    let deleted = fixture.nats.api(&format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    assert_eq!(deleted["success"], true, "{deleted}");
    fixture.insert(5, 3).await;
    let walpost = fixture.command("run").start();
    let line = walpost.await_line("stream orders does not exist", SHORT_TIMEOUT).await;
    assert!(line.contains("create it"), "{line}");
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}
