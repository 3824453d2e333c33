//! Redis loses what it has acknowledged: walpost says so, and publishes again what PostgreSQL has.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::writer::{Writer, lsn};
use walpost_bed::{Major, Postgres, Proxy, Redis, Stop, eventually};

use super::fixture::{RedisFixture, STREAM};
use crate::promise::Promise;
use crate::restored;

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
    assert_eq!(code, Some(78), "{said}");
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
    // The next event shows it, or the next position, which PostgreSQL's own WAL moves at any time: the
    // key is opened again then, and compared with the slot.
    let (lost, missing) =
        ("Redis has lost records that it had acknowledged", "may be missing in Redis");
    let (code, said) = ended(&walpost).await;
    let (seen, other) =
        (code == Some(1) && said.contains(lost), code == Some(3) && said.contains(missing));
    assert!(seen || other, "{code:?}: {said}");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(missing), "{said}");
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

/// What a machine that crashes has not written back is added again: PostgreSQL still has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_were_not_synced_are_added_again_after_a_crash() {
    let fixture = RedisFixture::with(Redis::builder().setting("appendfsync", "no")).await;
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    added(&fixture, 50).await;
    let log = fixture.redis.log_file();
    let synced = log.metadata().expect("the log").len();
    fixture.insert(50, 5).await;
    added(&fixture, 100).await;
    let end = fixture.inner.postgres.query_text("SELECT pg_current_wal_lsn()::text").await;
    let end = lsn(&end.expect("an LSN"));
    eventually(LONG_TIMEOUT, "the position is written", async || {
        let state: String = fixture.redis.command("HGET walpost:{orders} state").await;
        let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
        lsn(state["acked_upto"].as_str().expect("a text")) >= end
    })
    .await;
    fixture.redis.kill9().await;
    let file = std::fs::OpenOptions::new().write(true).open(&log).expect("the log");
    file.set_len(synced).expect("it can be cut");
    fixture.redis.start_again().await;
    let (code, said) = ended(&walpost).await;
    assert_eq!(code, Some(1), "{said}");
    let walpost = fixture.run().await;
    added(&fixture, 100).await;
    fixture.judge().await.assert_exact();
    stop(walpost).await;
}

async fn added(fixture: &RedisFixture, count: usize) {
    eventually(LONG_TIMEOUT, "all are there", async || fixture.redis.length(STREAM).await == count)
        .await;
}

/// Events in the stream lie between the position and the end of WAL of a promoted server: its own events
/// at these positions are others, and would count as added.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_server_without_events_of_the_stream_is_refused() {
    let server = Postgres::builder(Major::V15).own_identity().start().await;
    let fixture = RedisFixture::over(server, Redis::start().await).await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let postgres = &fixture.inner.postgres;
    assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
    let saved = postgres.snapshot_data();
    postgres.start_again().await;
    fixture.insert(50, 5).await;
    // Dies before it writes the position.
    let walpost = fixture.command("run").env("FAILPOINTS", "acknowledged=49*off->return").start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    assert_eq!(fixture.redis.length(STREAM).await, 60);
    assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
    postgres.restore_data(&saved);
    postgres.make_standby();
    postgres.start_again().await;
    postgres.promote().await;
    // Its WAL passes the last event of the stream.
    for _ in 0..10 {
        fixture.insert(100, 5).await;
    }
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("the server was promoted from timeline 1 to 2"), "{said}");
    assert!(!said.contains("walpost recover"), "Redis has no such command: {said}");
    assert_eq!(fixture.redis.length(STREAM).await, 60);
    // The advice of the message.
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    // What came before the slot's position on this server may be there once more.
    assert!(fixture.redis.length(STREAM).await >= 1060);
    stop(walpost).await;
}

/// The server has other events at positions that the stream has, and the comparison does not depend on
/// what numbers the events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_server_is_refused_whatever_was_published_last() {
    let server = Postgres::builder(Major::V15).own_identity().start().await;
    let fixture = RedisFixture::over(server, Redis::start().await).await;
    fixture.adopt().await;
    restored::is_refused(&fixture, async || fixture.redis.length(STREAM).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_a_slot_that_was_made_again_on_a_restored_server() {
    let server = Postgres::builder(Major::V15).own_identity().start().await;
    let fixture = RedisFixture::over(server, Redis::start().await).await;
    fixture.adopt().await;
    restored::is_found_by_check(&fixture, "redis_position").await;
}

/// A failover behind one address, for a client that does not see it: the claim is there, and the newest
/// entries are not. What a replica that was behind would have is put there by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn position_is_not_written_past_entries_that_were_lost() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 5).await;
    fixture.assert_exact().await;
    let key = format!("walpost:{{{STREAM}}}");
    let field =
        async |name: &str| fixture.redis.command::<String>(&format!("HGET {key} {name}")).await;
    let (state, last, top) = (field("state").await, field("last").await, field("top").await);
    fixture.insert(5, 5).await;
    fixture.assert_exact().await;
    for entry in &fixture.redis.entries(STREAM).await[10..] {
        let _: u32 = fixture.redis.command(&format!("XDEL {STREAM} {}", entry.id)).await;
    }
    let _: String = fixture.redis.command(&format!("XSETID {STREAM} {top}")).await;
    assert!(!state.contains(' '), "one word");
    let set = format!("HSET {key} last {last} top {top} state {state}");
    let _: u32 = fixture.redis.command(&set).await;
    // No event: only the position is to be written.
    fixture.inner.postgres.execute("SELECT pg_logical_emit_message(true, 'other', 'x')").await;
    let (code, said) = ended(&walpost).await;
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("Redis has acknowledged") || said.contains("has lost"), "{said}");
    assert_eq!(field("state").await, state, "it was written past what was lost");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("may be missing in Redis"), "{said}");
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
