//! What `check` finds.

use walpost_bed::fixture::SHORT_TIMEOUT;
use walpost_bed::{Redis, eventually};

use super::fixture::RedisFixture;
use crate::promise::{Destination as _, finding};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_what_would_lose_entries() {
    let mut fixture = RedisFixture::bare(Redis::start().await).await;
    fixture.assert_found("error", "redis_state_missing").await;
    fixture.adopt().await;
    let found = fixture.codes(&[]).await;
    for code in ["redis_server", "redis_durability", "redis_stream"] {
        assert!(found.contains(&finding("ok", code)), "{found:?}");
    }
    for (setting, level, code) in [
        ("maxmemory 1", "error", "redis_writes"),
        ("maxmemory 0", "ok", "redis_stream"),
        ("maxmemory-policy allkeys-lru", "error", "redis_eviction"),
        ("no-appendfsync-on-rewrite yes", "warning", "redis_rewrite"),
        ("appendfsync everysec", "warning", "redis_appendfsync"),
        ("appendonly no", "warning", "redis_appendonly"),
    ] {
        let _: () = fixture.redis.command(&format!("CONFIG SET {setting}")).await;
        fixture.assert_found(level, code).await;
    }
    let replica =
        Redis::builder().setting("replicaof", &format!("127.0.0.1 {}", fixture.redis.port()));
    let replica = replica.start().await;
    eventually(SHORT_TIMEOUT, "the replica is found", async || {
        fixture.codes(&[]).await.contains(&finding("warning", "redis_failover"))
    })
    .await;
    let primary = std::mem::replace(&mut fixture.url, replica.url());
    fixture.assert_found("error", "redis_replica").await;
    fixture.url = primary.replace("redis://", "redis://:wr0ng@");
    fixture.assert_found("error", "redis_credentials").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_cluster_is_refused() {
    let redis = Redis::builder().setting("cluster-enabled", "yes").start().await;
    // It has all slots, so that it accepts the stream for now.
    let _: String = redis.command("CLUSTER ADDSLOTSRANGE 0 16383").await;
    eventually(SHORT_TIMEOUT, "the cluster works", async || {
        redis.try_command::<String>("SET x y").await.is_ok()
    })
    .await;
    let fixture = RedisFixture::bare(redis).await;
    fixture.assert_found("error", "redis_unsupported").await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("Redis Cluster is not supported"), "{said}");
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("Redis Cluster is not supported"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_needs_no_further_rights_and_says_what_it_skips() {
    let mut fixture = RedisFixture::of_user().await;
    fixture.url = fixture.url.replace("redis://", "redis://walpost:s3cret@");
    fixture.adopt().await;
    let found = fixture.codes(&[]).await;
    for (level, code) in [
        ("ok", "redis_server"),
        ("ok", "redis_stream"),
        ("skipped", "redis_settings"),
        ("skipped", "redis_replicas"),
        ("skipped", "redis_stream_type"),
    ] {
        assert!(found.contains(&finding(level, code)), "{found:?}");
    }
}
