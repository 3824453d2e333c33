//! What an entry contains, and in which order entries stand.

use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{RedisFixture, STREAM};
use crate::promise::Promise;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_has_the_fields_of_the_record() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture
        .inner
        .postgres
        .execute(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
             VALUES ('order', 'A-7', 'placed', '{\"n\": 1}', '{\"tenant\": \"eu\"}'), \
                    ('order', 'A-7', 'gone', NULL, NULL)",
        )
        .await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let entries = fixture.redis.entries(STREAM).await;
    let [placed, gone] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!(placed.text("topic"), Some("outbox.event.order"));
    assert_eq!(placed.text("key"), Some("A-7"));
    assert_eq!(placed.text("value"), Some("{\"n\": 1}"));
    assert_eq!(placed.text("header:event_type"), Some("placed"));
    assert_eq!(placed.text("header:tenant"), Some("eu"));
    let age = "SELECT extract(epoch FROM created_at) * 1000 FROM public.outbox LIMIT 1";
    let created: f64 =
        fixture.inner.postgres.query_text(age).await.expect("a time").parse().unwrap();
    let timestamp: f64 = placed.text("timestamp").expect("a timestamp").parse().unwrap();
    assert!((timestamp - created).abs() < 60_000.0, "{timestamp} {created}");
    assert_eq!((gone.text("key"), gone.text("value")), (Some("A-7"), None), "a tombstone");
    // The id is the position, behind the generation.
    for entry in &entries {
        let position = entry.text("header:walpost.position").expect("a position");
        let (lsn, ordinal) = position.split_once('/').expect("two parts");
        let (lsn, ordinal) =
            (u64::from_str_radix(lsn, 16).unwrap(), u64::from_str_radix(ordinal, 16).unwrap());
        assert_eq!(entry.id, format!("{}-{}", (1 << 56) | lsn, ordinal + 1));
    }
    stop(walpost).await;
}

/// What was trimmed cannot be seen in the stream any more, and is still not added again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_adds_nothing_of_what_was_trimmed() {
    let fixture = RedisFixture::new().await.configured("[redis]\nmaxlen = 100\n");
    // One transaction: nothing of it is confirmed before the end, so that all of it is read again.
    fixture.insert(5000, 10).await;
    let dying = fixture.command("run").env("FAILPOINTS", "acknowledged=4000*off->return").start();
    dying.wait(LONG_TIMEOUT).await.expect("it dies");
    let there = fixture.redis.entries(STREAM).await;
    assert!((100..1000).contains(&there.len()), "{}", there.len());
    let walpost = fixture.run().await;
    fixture.insert(1, 1).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let info: Vec<redis::Value> = fixture.redis.command(&format!("XINFO STREAM {STREAM}")).await;
    let name = redis::Value::BulkString(b"entries-added".to_vec());
    let at = info.iter().position(|value| *value == name).expect("Redis 7 counts them");
    assert_eq!(info[at + 1], redis::Value::Int(5001));
    stop(walpost).await;
}
