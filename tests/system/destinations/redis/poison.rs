//! Undeliverable events, with each policy.

use walpost_bed::Redis;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use super::fixture::{RedisFixture, STREAM};
use crate::promise::Promise;

/// A key that is missing, a payload that Redis would not take, and a dead-letter stream.
const DEAD: &str = "orders.dead";

async fn staged(policy: &str) -> RedisFixture {
    let toml = format!(
        "[poison]\nmissing_field = '{policy}'\ntoo_large = '{policy}'\ndead_letter_topic = '{DEAD}'\n"
    );
    let fixture = RedisFixture::new().await.configured(&toml);
    let _: () = fixture.redis.command("CONFIG SET proto-max-bulk-len 1048576").await;
    fixture.inner.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    fixture.insert(3, 3).await;
    let without_key =
        "INSERT INTO public.outbox (aggregate_type, event_type) VALUES ('order', 'no key')";
    let large = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('order', 'k', 'large', to_jsonb(repeat('x', 1100000)))";
    fixture.inner.postgres.execute(&format!("BEGIN; {without_key}; {large}; COMMIT")).await;
    fixture.insert(3, 3).await;
    fixture
}

fn types(records: &[walpost_bed::Consumed]) -> Vec<&str> {
    records.iter().filter_map(|record| record.header("event_type")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_halt_stops_before_the_event() {
    let fixture = staged("halt").await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("`aggregate_id` is NULL or empty"), "{said}");
    assert_eq!(types(&fixture.records().await), ["placed"; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_skip_delivers_the_others() {
    let fixture = staged("skip").await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(types(&fixture.records().await), ["placed"; 6]);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_to_their_stream_once_also_under_kills() {
    // The large event as a dead letter is larger still, so it halts: the other one alone.
    let fixture = RedisFixture::new().await;
    let toml = format!("[poison]\nmissing_field = 'dead_letter'\ndead_letter_topic = '{DEAD}'\n");
    let fixture = fixture.configured(&toml);
    fixture.inner.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    let bad = "INSERT INTO public.outbox (aggregate_type, event_type) VALUES ('order', 'no key')";
    for count in [1, 3, 20] {
        for _ in 0..5 {
            fixture.insert(3, 3).await;
            fixture.inner.postgres.execute(bad).await;
        }
        let action = format!("acknowledged={count}*off->return");
        let walpost = fixture.command("run").env("FAILPOINTS", action).start();
        walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(types(&fixture.records().await), ["placed"; 45]);
    let letters = fixture.redis.records(DEAD).await;
    assert_eq!(letters.len(), 15);
    assert!(letters.iter().all(|letter| letter.topic == DEAD));
    let causes = letters.iter().map(|letter| letter.header("walpost.cause"));
    let causes: Vec<_> = causes.collect();
    assert!(causes.iter().all(|cause| *cause == Some("missing_field")), "{:?}", letters[0].headers);
    stop(walpost).await;
}

/// It would be among the dead letters, and look like one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_names_the_stream_of_dead_letters_is_undeliverable() {
    let toml = "[poison]\ndead_letter_topic = 'outbox.event.dead'\n";
    let fixture = RedisFixture::new().await.configured(toml);
    fixture.insert(3, 3).await;
    let row = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
               VALUES ('dead', 'k', 'placed')";
    fixture.inner.postgres.execute(row).await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("outbox.event.dead"), "{said}");
    assert_eq!(fixture.redis.length(STREAM).await, 3);
    assert_eq!(fixture.redis.length("outbox.event.dead").await, 0);
}

/// Without the right to read the limit, Redis' own reply tells of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_event_is_found_without_the_right_to_see_the_limit() {
    let user = format!("walpost {}", super::security::RULES);
    let redis = Redis::builder().setting("user", &user).setting("proto-max-bulk-len", "1048576");
    let mut fixture = RedisFixture::bare(redis.start().await).await;
    fixture.url = fixture.url.replace("redis://", "redis://walpost:s3cret@");
    fixture.adopt().await;
    let large = |size: u32| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('order', 'k', 'large', to_jsonb(repeat('x', {size})))"
        )
    };
    fixture.insert(3, 3).await;
    // Just below the limit, and above it.
    for size in [1_048_000, 1_100_000, 3_000_000, 1_100_000] {
        fixture.inner.postgres.execute(&large(size)).await;
        fixture.insert(3, 3).await;
    }
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("proto-max-bulk-len"), "{said}");
    assert_eq!(fixture.redis.length(STREAM).await, 7);
    let fixture = fixture.configured("[poison]\ntoo_large = 'skip'\n");
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.redis.length(STREAM).await, 16);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_redis_would_not_take_is_named_before_it_is_sent() {
    let fixture = staged("halt").await;
    fixture.inner.postgres.execute("DELETE FROM outbox WHERE event_type = 'no key'").await;
    let toml = "[poison]\nmissing_field = 'skip'\n";
    let fixture = fixture.configured(toml);
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("proto-max-bulk-len"), "{said}");
    assert_eq!(fixture.redis.entries(STREAM).await.len(), 3);
}
