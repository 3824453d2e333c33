//! Events that SQS cannot have, or that a server in front rejects.

use serde_json::json;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{Consumed, eventually};

use super::fixture::SqsFixture;
use super::front::{Deed, Received};
use crate::poison::{Poison, Poisonous, WITHOUT_KEY};
use crate::promise::Promise as _;

impl Poisonous for SqsFixture {
    const POISON: &[Poison] = &[
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '0', 'bad', '\"\u{ffff}\"')",
            cause: "refused",
            reason: "U+FFFF",
            has_own_key: false,
        },
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '0', 'bad', to_jsonb('single'::text))",
            cause: "refused",
            reason: "InvalidMessageContents",
            has_own_key: false,
        },
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '0', 'bad', to_jsonb('whole'::text))",
            cause: "refused",
            reason: "InvalidParameterValue",
            has_own_key: false,
        },
        WITHOUT_KEY,
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '0', 'bad', to_jsonb(repeat('x', 1100000)))",
            cause: "too_large",
            reason: "MaximumMessageSize",
            has_own_key: false,
        },
    ];

    const GIVES_OUT_LETTERS_BEHIND: bool = false;

    async fn letters(&self) -> Vec<Consumed> {
        self.elasticmq.records(&self.letters).await
    }
}

impl SqsFixture {
    /// Behind a server that rejects some messages.
    pub async fn poisoned() -> Self {
        let mut fixture = Self::behind_front().await;
        fixture.front().does(rejects);
        let letters = fixture.url.replace(&fixture.queue, &fixture.letters);
        fixture.configure_always(format!("sqs.dead_letter_queue_url = '{letters}'\n"));
        fixture
    }
}

/// Rejects one message, or the whole request for one of its messages.
fn rejects(request: &Received) -> Deed {
    if !request.is_batch() || request.body["QueueUrl"].as_str().unwrap_or("").contains("letters") {
        return Deed::Pass;
    }
    let entries = request.entries();
    let has = |body: &str| entries.iter().position(|entry| entry["MessageBody"] == body);
    if has("\"whole\"").is_some() {
        return Deed::Error(400, "InvalidParameterValue", "a parameter is wrong");
    }
    let single = has("\"single\"").map(|at| (at, "InvalidMessageContents", true));
    Deed::Fail(single.into_iter().collect())
}

/// A binary payload is not text; a table may have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_payload_is_undeliverable_unless_it_is_text() {
    let fixture = SqsFixture::new().await;
    let postgres = &fixture.inner.postgres;
    let alter = "ALTER TABLE outbox ALTER payload TYPE bytea USING NULL";
    postgres.execute(alter).await;
    let row = |payload: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('order', 'k', 'placed', {payload})"
        )
    };
    for payload in ["'text'", "''", "'\\xff00'"] {
        postgres.execute(&row(payload)).await;
    }
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("its payload is not text") && said.contains("base64"), "{said}");
    let records = fixture.records().await;
    let values: Vec<_> = records.iter().map(|record| record.value.clone()).collect();
    assert_eq!(values, [Some(b"text".to_vec()), Some(Vec::new())]);
}

/// A proxy in between accepts less than SQS, and does not say which message is at fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_that_is_too_large_for_a_proxy_is_sent_one_by_one() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    front.does(|request| match request.entries().len() {
        ..=1 => Deed::Pass,
        _ => Deed::Error(413, "TooMuch", "for a proxy"),
    });
    fixture.insert(20, 20).await;
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn raised_size_limit_is_noticed() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    let fixture = fixture.configured("[poison]\ntoo_large = 'skip'\n");
    front.does(|request| match request.action.as_str() {
        "GetQueueAttributes" => Deed::Answer(json!({
            "Attributes": { "FifoQueue": "true", "MaximumMessageSize": "2000" }
        })),
        _ => Deed::Pass,
    });
    let walpost = fixture.run().await;
    let large = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('order', 'k', 'placed', to_jsonb(repeat('x', 3000)))";
    fixture.inner.postgres.execute(large).await;
    walpost.await_line("MaximumMessageSize", SHORT_TIMEOUT).await;
    front.does(|_| Deed::Pass);
    eventually(LONG_TIMEOUT, "it is accepted", async || {
        fixture.inner.postgres.execute(large).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        !fixture.records().await.is_empty()
    })
    .await;
    stop(walpost).await;
}
