//! Redis loses what it has acknowledged: walpost says so, and publishes again what PostgreSQL has.

use walpost_bed::fixture::{LONG_TIMEOUT, ended, stop};
use walpost_bed::writer::lsn;
use walpost_bed::{Redis, eventually};

use super::fixture::{KEY, RedisFixture, STREAM};
use crate::position::Keeper as _;
use crate::promise::Promise as _;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_with_the_state_key_is_not_started_from() {
    let fixture = RedisFixture::restorable().await;
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

/// What a machine that crashes has not written back is added again: PostgreSQL still has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_were_not_synced_are_added_again_after_a_crash() {
    let fixture = RedisFixture::with(Redis::builder().setting("appendfsync", "no")).await;
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    fixture.reaches(50).await;
    let log = fixture.redis.log_file();
    let synced = log.metadata().expect("the log").len();
    fixture.insert(50, 5).await;
    fixture.reaches(100).await;
    let end = fixture.inner.postgres.query_text("SELECT pg_current_wal_lsn()::text").await;
    let end = lsn(&end.expect("an LSN"));
    eventually(LONG_TIMEOUT, "the position is written", async || {
        let state: String = fixture.redis.command(&format!("HGET {KEY} state")).await;
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
    fixture.reaches(100).await;
    fixture.judge().await.assert_exact();
    stop(walpost).await;
}

/// A failover behind one address, for a client that does not see it: the claim is there, and the newest
/// entries are not. What a replica that was behind would have is put there by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn position_is_not_written_past_entries_that_were_lost() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 5).await;
    fixture.assert_exact().await;
    let field =
        async |name: &str| fixture.redis.command::<String>(&format!("HGET {KEY} {name}")).await;
    let (state, last, top) = (field("state").await, field("last").await, field("top").await);
    fixture.insert(5, 5).await;
    fixture.assert_exact().await;
    for entry in &fixture.redis.entries(STREAM).await[10..] {
        let _: u32 = fixture.redis.command(&format!("XDEL {STREAM} {}", entry.id)).await;
    }
    let _: String = fixture.redis.command(&format!("XSETID {STREAM} {top}")).await;
    assert!(!state.contains(' '), "one word");
    let set = format!("HSET {KEY} last {last} top {top} state {state}");
    let _: u32 = fixture.redis.command(&set).await;
    // No event: only the position is to be written.
    fixture.inner.postgres.execute("SELECT pg_logical_emit_message(true, 'other', 'x')").await;
    let (code, said) = ended(&walpost).await;
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("Redis has acknowledged") || said.contains("has lost"), "{said}");
    assert_eq!(field("state").await, state, "it was written past what was lost");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("Redis has lost its newest writes"), "{said}");
}
