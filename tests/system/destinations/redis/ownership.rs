//! A stream belongs to one walpost, server and slot, and nobody else writes to it.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::{Major, Postgres, Redis, Walpost, eventually};

use super::fixture::{RedisFixture, STREAM};
use crate::promise::Promise;

async fn refused(fixture: &RedisFixture, code: i32, part: &str) -> String {
    let before = fixture.redis.length(STREAM).await;
    let (ended, said) = fixture.ended("run", &[]).await;
    assert_eq!(ended, Some(code), "{said}");
    assert!(said.contains(part), "{said}");
    assert_eq!(fixture.redis.length(STREAM).await, before, "something was added");
    said
}

/// A running walpost ends, since an operator has to decide.
async fn halted(walpost: &Walpost, part: &str) {
    let (code, said) = ended(walpost).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(part), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_without_a_state_key_is_not_written_to() {
    let fixture = RedisFixture::bare(Redis::start().await).await;
    let said = refused(&fixture, 78, "walpost adopt --apply").await;
    assert!(said.contains("state key walpost:{orders}"), "{said}");
    let printed = fixture.adopt().await.join("\n");
    assert!(printed.contains("walpost:{orders}"), "{printed}");
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_makes_the_stream_walposts() {
    let fixture = RedisFixture::bare(Redis::start().await).await;
    let (code, said) = fixture.ended("init", &["--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// Its id is the one that walpost would use next: it must not count as walpost's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_another_writer_stop_delivery_until_an_operator_adopts_them() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let _: String = fixture.redis.command(&format!("XADD {STREAM} * topic foreign")).await;
    fixture.insert(10, 3).await;
    halted(&walpost, "another writer").await;
    assert_eq!(fixture.redis.entries(STREAM).await.len(), 11, "nothing is added behind it");
    refused(&fixture, 3, "another writer").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let entries = fixture.redis.entries(STREAM).await;
    assert_eq!(entries.len(), 21);
    let last: u64 = entries[20].id.split_once('-').expect("an id").0.parse().unwrap();
    assert_eq!(last >> 56, 2, "a new generation");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_stream_stops_delivery_until_an_operator_adopts_it() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let _: u32 = fixture.redis.command(&format!("DEL {STREAM}")).await;
    fixture.insert(5, 3).await;
    halted(&walpost, "does not exist any more").await;
    refused(&fixture, 3, "does not exist any more").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.redis.entries(STREAM).await.len(), 5);
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
        let _: redis::Value = fixture.redis.command(&format!("DEL {STREAM}")).await;
        let _: redis::Value = fixture.redis.command(&make).await;
        fixture.insert(5, 3).await;
        halted(&walpost, "made again").await;
        refused(&fixture, 3, "made again").await;
        let before = fixture.redis.length(STREAM).await;
        fixture.adopt().await;
        let walpost = fixture.run().await;
        fixture.confirmed(LONG_TIMEOUT).await;
        assert_eq!(fixture.redis.length(STREAM).await, before + 5, "{make}");
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
    let _: redis::Value = fixture.redis.command(&format!("DEL {STREAM}")).await;
    let make = format!("XGROUP CREATE {STREAM} readers $ MKSTREAM");
    let _: redis::Value = fixture.redis.command(&make).await;
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

/// The slot was created again while walpost was down: rows may be missing, so an operator decides.
/// Positions of the new slot may be those of events that are there already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_created_again_is_adopted_with_a_new_generation() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(20, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let postgres = &fixture.inner.postgres;
    postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    fixture.insert(7, 5).await;
    let create = "SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')";
    postgres.execute(create).await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("Redis has lost its newest writes"), "{said}");
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(9, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let entries = fixture.redis.entries(STREAM).await;
    let generation = |id: &str| id.split_once('-').unwrap().0.parse::<u64>().unwrap() >> 56;
    let generations: Vec<_> = entries.iter().map(|entry| generation(&entry.id)).collect();
    assert_eq!(generations, [vec![1; 20], vec![2; 9]].concat());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_of_another_server_is_refused() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let server = Postgres::builder(Major::V15).own_identity().start().await;
    let mut other = RedisFixture::over(server, Redis::start().await).await;
    other.url.clone_from(&fixture.url);
    for (name, arguments) in [("run", &[][..]), ("adopt", &["--apply"])] {
        let (code, said) = other.ended(name, arguments).await;
        assert_ne!(code, Some(0), "{said}");
        assert!(said.contains("belongs to another walpost"), "{said}");
    }
    assert_eq!(fixture.redis.entries(STREAM).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_skipped_by_order_is_not_added() {
    let fixture = RedisFixture::new().await;
    fixture.inner.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    fixture.insert(3, 3).await;
    let bad = "INSERT INTO public.outbox (aggregate_type, event_type) VALUES ('order', 'bad')";
    fixture.inner.postgres.execute(bad).await;
    fixture.insert(3, 3).await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    let (_, rest) = said.split_once("walpost skip --position ").expect("the command");
    let position = rest.split([' ', '`']).next().expect("a position");
    let (code, said) = fixture.ended("skip", &["--position", position, "--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("state key"), "{said}");
    let walpost = fixture.run().await;
    eventually(LONG_TIMEOUT, "the others are there", async || {
        fixture.redis.entries(STREAM).await.len() == 6
    })
    .await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
}

/// The entry is there, and a replay would count it as added: the order would have no effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_is_in_the_stream_cannot_be_skipped() {
    let fixture = RedisFixture::new().await;
    fixture.insert(10, 3).await;
    let walpost = fixture.command("run").env("FAILPOINTS", "acknowledged=9*off->return").start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    let entries = fixture.redis.entries(STREAM).await;
    let position = entries[9].text("header:walpost.position").expect("a position");
    let (code, said) = fixture.ended("skip", &["--position", position, "--apply"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is published already"), "{said}");
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// With other tables the events of a transaction have other ordinals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_tables_are_refused_while_events_are_not_confirmed() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.command("run").env("FAILPOINTS", "acknowledged=30*off->return").start();
    fixture.insert(60, 5).await;
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    let there = fixture.redis.entries(STREAM).await.len();
    assert!(there > 0, "{there}");
    fixture.inner.postgres.execute("CREATE TABLE more (LIKE public.outbox INCLUDING ALL)").await;
    fixture.inner.postgres.execute("ALTER PUBLICATION walpost ADD TABLE more").await;
    let more = ["--table", "public.outbox", "--table", "public.more"];
    let (code, said) = fixture.ended("run", &more).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("cannot tell which of its events"), "{said}");
}
