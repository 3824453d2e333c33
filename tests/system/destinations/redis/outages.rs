//! Redis is out of memory, lacks replicas, or its replica is slow; idle connections are lost.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{Redis, eventually};

use super::fixture::{RedisFixture, STREAM};
use crate::promise::Promise;

const KEY: &str = "walpost:{orders}";

const RECOVERED: &str = "delivering to Redis again";

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

async fn claim(fixture: &RedisFixture) -> String {
    fixture.redis.command(&format!("HGET {KEY} claim")).await
}

/// How often Redis has executed a command.
async fn calls(fixture: &RedisFixture, command: &str) -> u64 {
    let stats: String = fixture.redis.command("INFO commandstats").await;
    let line =
        stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    let count = line.and_then(|line| line.split(',').next()).map(str::parse);
    count.map_or(0, |count| count.expect("a number"))
}

/// walpost fences itself with each new claim: what is in flight is produced again then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_replica_does_not_end_the_claim() {
    let fixture = RedisFixture::new().await;
    let primary = fixture.redis.port().to_string();
    let replica = Redis::builder().setting("replicaof", &format!("127.0.0.1 {primary}"));
    let replica = replica.start().await;
    let fixture = fixture.configured("[redis]\nwait_replicas = 1\n");
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let before = claim(&fixture).await;
    replica.pause();
    let (writes, waits) = (calls(&fixture, "evalsha").await, calls(&fixture, "wait").await);
    // The position advances, without an event.
    fixture.inner.postgres.execute("SELECT pg_logical_emit_message(true, 'other', 'x')").await;
    eventually(LONG_TIMEOUT, "the position waits for the replica for seconds", async || {
        calls(&fixture, "evalsha").await > writes && calls(&fixture, "wait").await > waits + 3
    })
    .await;
    replica.resume();
    fixture.insert(100, 5).await;
    fixture.assert_exact().await;
    assert_eq!(claim(&fixture).await, before);
    assert!(!walpost.said("the state key cannot be used"), "{:?}", walpost.stderr());
    stop(walpost).await;
}

/// As a firewall does with connections that are idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_idle_connections_do_not_end_the_claim() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let before = claim(&fixture).await;
    for _ in 0..3 {
        let _: u32 = fixture.redis.command("CLIENT KILL TYPE normal SKIPME yes").await;
        eventually(SHORT_TIMEOUT, "the sink is connected again", async || {
            let clients: String = fixture.redis.command("CLIENT LIST TYPE normal").await;
            clients.lines().count() > 1
        })
        .await;
        fixture.insert(100, 5).await;
        fixture.confirmed(LONG_TIMEOUT).await;
    }
    fixture.assert_exact().await;
    assert_eq!(claim(&fixture).await, before);
    assert!(!walpost.said("the state key cannot be used"), "{:?}", walpost.stderr());
    stop(walpost).await;
}
