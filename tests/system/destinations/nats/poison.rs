//! Events that NATS cannot have.

use serde_json::json;
use walpost_bed::Consumed;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::poison::{Poison, Poisonous, WITHOUT_KEY};
use crate::promise::Promise as _;

/// What is said of headers that JetStream does not take.
const HEADERS: &str = "its headers, with its key, have";

/// The subject of dead letters, which the stream has too.
const DEAD: &str = "orders.dead";

impl Poisonous for NatsFixture {
    const POISON: &[Poison] = &[
        Poison {
            row: "(aggregate_type, aggregate_id, event_type) VALUES ('order', '0', E'ba\nd')",
            cause: "refused",
            reason: "line break",
            has_own_key: false,
        },
        Poison {
            row: "(aggregate_type, aggregate_id, event_type) VALUES ('a..b', '0', 'bad')",
            cause: "refused",
            reason: "empty part",
            has_own_key: false,
        },
        WITHOUT_KEY,
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '0', 'bad', to_jsonb(repeat('x', 300000)))",
            cause: "too_large",
            reason: "max_msg_size of the stream",
            has_own_key: false,
        },
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, headers) \
                  VALUES ('order', '0', 'bad', jsonb_build_object('a', repeat('x', 66000)))",
            cause: "too_large",
            reason: HEADERS,
            has_own_key: false,
        },
        Poison {
            row: "(aggregate_type, aggregate_id, event_type) \
                  VALUES ('order', repeat('k', 66000), 'bad')",
            cause: "too_large",
            reason: HEADERS,
            has_own_key: true,
        },
    ];

    async fn letters(&self) -> Vec<Consumed> {
        let mut records = self.records().await;
        records.retain(|record| record.topic == DEAD);
        records
    }
}

impl NatsFixture {
    pub async fn poisoned() -> Self {
        let mut fixture = Self::new().await;
        fixture.configure_always(format!("poison.dead_letter_topic = '{DEAD}'\n"));
        fixture.nats.edit_stream(STREAM, SUBJECTS, &json!({ "max_msg_size": 200_000 })).await;
        fixture
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subject_that_the_stream_does_not_have_is_named_and_waited_for() {
    let toml = "[poison]\nmissing_topic = 'halt'\n";
    let fixture = NatsFixture::new().await.configured(toml);
    fixture.nats.edit_stream(STREAM, &["outbox.event.order"], &json!({})).await;
    let sql = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
               VALUES ('other', 'k', 'placed')";
    fixture.inner.postgres.execute(sql).await;
    // The stream takes this one.
    fixture.insert(1, 1).await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("does not take its subject `outbox.event.other`"), "{said}");
    let fixture = fixture.configured("");
    let walpost = fixture.run().await;
    let line = walpost.await_line("does not take its subject", LONG_TIMEOUT).await;
    assert!(line.contains("trying again until it can be delivered"), "{line}");
    assert!(line.contains("`outbox.event.other`"), "{line}");
    fixture.nats.edit_stream(STREAM, SUBJECTS, &json!({})).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}
