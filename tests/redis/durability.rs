//! Redis loses what it has acknowledged: walpost says so, and publishes again what PostgreSQL has.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Proxy, Redis, eventually};

use super::fixture::{RedisFixture, STREAM};

/// A copy of the data, for a server that is to be set back.
async fn snapshot(fixture: &RedisFixture) {
    let _: () = fixture.redis.command("SAVE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_with_the_state_key_is_not_started_from() {
    let redis = Redis::builder().setting("appendonly", "no");
    let fixture = RedisFixture::with(redis).await;
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    fixture.redis.kill9().await;
    fixture.redis.start_again().await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("has no position for replication slot"), "{said}");
}

/// Set back to a snapshot, with a part of the entries: PostgreSQL does not have them any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_set_back_behind_what_is_confirmed_is_not_started_from() {
    let redis = Redis::builder().setting("appendonly", "no");
    let fixture = RedisFixture::with(redis).await;
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    snapshot(&fixture).await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    fixture.redis.kill9().await;
    fixture.redis.start_again().await;
    fixture.insert(1, 5).await;
    let (code, said) = ended(&walpost).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("Redis has lost records that it had acknowledged"), "{said}");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("may be missing in Redis"), "{said}");
    // As the message says: from the slot's position on, and the lost ones by their rows.
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.redis.entries(STREAM).await.len(), 51);
    stop(walpost).await;
}

/// Set back while nothing was confirmed since: everything is published once more, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_set_back_to_what_is_confirmed_gets_the_rest_again() {
    let redis = Redis::builder().setting("appendonly", "no").start().await;
    let mut fixture = RedisFixture::bare(redis).await;
    fixture.adopt().await;
    // PostgreSQL hears nothing of what follows.
    let proxy = Proxy::to(fixture.inner.postgres.port()).await;
    let direct = fixture.inner.source.clone();
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    snapshot(&fixture).await;
    fixture.inner.source = walpost_bed::fixture::proxied(&proxy);
    let point = "acknowledged=49*off->return";
    fixture.insert(50, 5).await;
    let walpost = fixture.command("run").env("FAILPOINTS", point).start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    eventually(SHORT_TIMEOUT, "all are there", async || {
        fixture.redis.entries(STREAM).await.len() == 100
    })
    .await;
    fixture.redis.kill9().await;
    fixture.redis.start_again().await;
    assert_eq!(fixture.redis.entries(STREAM).await.len(), 50, "the snapshot");
    fixture.inner.source = direct;
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// Written to the log once a second: what a killed process has acknowledged is in the kernel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_redis_that_syncs_once_a_second_loses_nothing() {
    let fixture = RedisFixture::with(Redis::builder().setting("appendfsync", "everysec")).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..3 {
        writer.commits(100).await;
        fixture.redis.kill9().await;
        fixture.redis.start_again().await;
    }
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}
