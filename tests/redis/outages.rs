//! Redis is away, frozen, or out of memory: walpost keeps its session, its position and its memory.

use std::time::Duration;

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Proxy, Redis};

use super::fixture::{RedisFixture, STREAM};

const RECOVERED: &str = "delivering to Redis again";

/// What memory may grow by once the budget is spent, in bytes.
const GROWTH: u64 = 16 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_keeps_session_position_and_memory() {
    let fixture = RedisFixture::new().await;
    fixture.inner.postgres.execute("ALTER SYSTEM SET wal_sender_timeout = '3s'").await;
    fixture.inner.postgres.execute("SELECT pg_reload_conf()").await;
    let walpost = fixture.command("run").args(["--in-flight-bytes", "1MiB"]).start();
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let (walsender, confirmed) =
        (fixture.inner.walsender().await, fixture.inner.confirmed_at_rest().await);
    fixture.redis.kill9().await;
    fixture.insert(20_000, 50).await;
    walpost.await_line("the state key cannot be used", SHORT_TIMEOUT).await;
    walpost.await_line("delivery failed; replaying", SHORT_TIMEOUT).await;
    let before = walpost.rss_bytes().expect("it runs");
    // Several times what the server waits for a client that does not answer.
    tokio::time::sleep(Duration::from_secs(10)).await;
    fixture.insert(20_000, 50).await;
    let after = walpost.rss_bytes().expect("it runs");
    assert!(after < before + GROWTH, "{before} {after}");
    assert_eq!(fixture.inner.confirmed_flush().await, confirmed, "nothing is confirmed");
    assert!(fixture.inner.walsender().await.is_some(), "it holds the slot");
    fixture.redis.start_again().await;
    fixture.assert_exact().await;
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    assert!(walsender.is_some());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_redis_is_used_again() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 200);
    writer.commits(50).await;
    fixture.redis.pause();
    // Longer than a connection without answers is kept.
    walpost.await_line("has not answered", LONG_TIMEOUT).await;
    fixture.redis.resume();
    writer.commits(50).await;
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_in_a_batch_repeats_nothing() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let mut fixture = RedisFixture::bare(redis).await;
    fixture.url = format!("redis://127.0.0.1:{}", proxy.port());
    fixture.adopt().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_stops_delivery_until_there_is_room() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let used: String = fixture.redis.command("INFO memory").await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a line");
    let limit = used.trim().parse::<u64>().expect("a number") + (2 << 20);
    let _: () = fixture.redis.command(&format!("CONFIG SET maxmemory {limit}")).await;
    fixture.insert(60_000, 50).await;
    let line = walpost.await_line("OOM", LONG_TIMEOUT).await;
    assert!(line.contains("raise maxmemory"), "{line}");
    let there = fixture.redis.entries(STREAM).await.len();
    assert!((100..60_100).contains(&there), "{there}");
    let _: () = fixture.redis.command("CONFIG SET maxmemory 0").await;
    fixture.assert_exact().await;
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_stop_delivery_until_they_are_there() {
    let fixture = RedisFixture::new().await.configured("[redis]\nwait_replicas = 1\n");
    let walpost = fixture.command("run").start();
    fixture.insert(100, 5).await;
    let line = walpost.await_line("0 of 1 replicas", LONG_TIMEOUT).await;
    assert!(line.contains("redis.wait_replicas"), "{line}");
    let primary = fixture.redis.port().to_string();
    let replica = Redis::builder().setting("replicaof", &format!("127.0.0.1 {primary}"));
    let replica = replica.start().await;
    fixture.assert_exact().await;
    // What is confirmed is on the replica.
    assert_eq!(replica.entries(STREAM).await.len(), 100);
    stop(walpost).await;
}
