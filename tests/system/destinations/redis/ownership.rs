//! A stream belongs to one walpost, server and slot, and nobody else writes to it.

use walpost_bed::fixture::{LONG_TIMEOUT, ended, stop};
use walpost_bed::{Redis, Walpost};

use super::fixture::{RedisFixture, STREAM};
use crate::position::Keeper as _;

/// A running walpost ends, since an operator has to decide.
async fn halted(walpost: &Walpost, part: &str) {
    let (code, said) = ended(walpost).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(part), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_stream_stops_delivery_until_an_operator_adopts_it() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.delete_stream().await;
    fixture.insert(5, 3).await;
    halted(&walpost, "does not exist any more").await;
    fixture.refused(3, "does not exist any more").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.length().await, 5);
    stop(walpost).await;
}

/// Its ids begin at 0 again: what walpost adds next would fit, and what is missing would not show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_deleted_and_made_again_stops_delivery() {
    for make in [
        format!("XGROUP CREATE {STREAM} readers $ MKSTREAM"),
        format!("XADD {STREAM} 5-1 topic foreign"),
    ] {
        let fixture = RedisFixture::new().await;
        let walpost = fixture.run().await;
        fixture.insert(10, 3).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        fixture.delete_stream().await;
        let _: redis::Value = fixture.redis.command(&make).await;
        fixture.insert(5, 3).await;
        halted(&walpost, "made again").await;
        fixture.refused(3, "made again").await;
        let before = fixture.length().await;
        fixture.adopt().await;
        let walpost = fixture.run().await;
        fixture.confirmed(LONG_TIMEOUT).await;
        assert_eq!(fixture.length().await, before + 5, "{make}");
        stop(walpost).await;
    }
}

/// No event comes: the next write of the position finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn position_is_not_written_for_a_stream_that_was_made_again() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.delete_stream().await;
    fixture.make_stream().await;
    fixture.inner.postgres.execute("SELECT pg_logical_emit_message(true, 'other', 'x')").await;
    halted(&walpost, "made again").await;
}

/// Ids have to be readable for clients with signed integers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_do_not_reach_two_to_the_63() {
    let fixture = RedisFixture::bare(Redis::start().await).await;
    let highest = 127_u64 << 56 | 1;
    let _: String = fixture.redis.command(&format!("XADD {STREAM} {highest}-1 a b")).await;
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("all 127 generations"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_another_type_is_named() {
    let fixture = RedisFixture::bare(Redis::start().await).await;
    let _: () = fixture.redis.command(&format!("SET {STREAM} x")).await;
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("is not a stream"), "{said}");
}
