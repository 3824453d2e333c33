//! Events that Redis cannot have.

use walpost_bed::Consumed;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{RedisFixture, STREAM};
use crate::poison::{Poison, Poisonous, WITHOUT_KEY};
use crate::promise::Promise as _;

/// The stream of dead letters.
const DEAD: &str = "orders.dead";

impl Poisonous for RedisFixture {
    const POISON: &[Poison] = &[
        WITHOUT_KEY,
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '0', 'bad', to_jsonb(repeat('x', 1100000)))",
            cause: "too_large",
            reason: "proto-max-bulk-len",
            has_own_key: false,
        },
    ];

    async fn letters(&self) -> Vec<Consumed> {
        self.redis.records(DEAD).await
    }
}

impl RedisFixture {
    pub async fn poisoned() -> Self {
        let mut fixture = Self::new().await;
        fixture.configure_always(format!("poison.dead_letter_topic = '{DEAD}'\n"));
        let _: () = fixture.redis.command("CONFIG SET proto-max-bulk-len 1048576").await;
        fixture
    }
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
    let mut fixture = RedisFixture::of_user().await;
    let _: () = fixture.redis.command("CONFIG SET proto-max-bulk-len 1048576").await;
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
