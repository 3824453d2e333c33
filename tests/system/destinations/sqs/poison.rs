//! Undeliverable events, with each policy.

use serde_json::json;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::{Consumed, QueuedMessage, eventually};

use super::fixture::SqsFixture;
use super::front::{Deed, Front, Received};
use crate::promise::Promise;

/// Events that SQS cannot have, or that the server in front rejects, with the cause and a part of the
/// reason of each.
const CAUSES: [(&str, &str, &str); 5] = [
    (
        "(aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'k', 'bad', '\"\u{ffff}\"')",
        "refused",
        "U+FFFF",
    ),
    (
        "(aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'k', 'bad', to_jsonb('single'::text))",
        "refused",
        "InvalidMessageContents",
    ),
    (
        "(aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'k', 'bad', to_jsonb('whole'::text))",
        "refused",
        "InvalidParameterValue",
    ),
    (
        "(aggregate_type, aggregate_id, event_type) VALUES ('order', NULL, 'bad')",
        "missing_field",
        "`aggregate_id` is NULL or empty",
    ),
    (
        "(aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'k', 'bad', to_jsonb(repeat('x', 1100000)))",
        "too_large",
        "MaximumMessageSize",
    ),
];

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

/// Three good events of several keys before, and after, each of these.
async fn staged(policy: &str, bad: &[&str]) -> (SqsFixture, Front) {
    let (fixture, front) = SqsFixture::behind_front().await;
    front.does(rejects);
    let too_large = if policy == "dead_letter" { "halt" } else { policy };
    let letters = fixture.url.replace(&fixture.queue, &fixture.letters);
    let toml = format!(
        "[sqs]\ndead_letter_queue_url = '{letters}'\n[poison]\nrefused = '{policy}'\n\
         missing_field = '{policy}'\ntoo_large = '{too_large}'\n"
    );
    let fixture = fixture.configured(&toml);
    let postgres = &fixture.inner.postgres;
    postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    let good = insert(3, 3).replace("(i % 3)::text", "(ARRAY['k', '1', '2'])[i]");
    postgres.execute(&good).await;
    for sql in bad {
        postgres.execute(&format!("INSERT INTO public.outbox {sql}")).await;
        postgres.execute(&good).await;
    }
    (fixture, front)
}

fn count(records: &[Consumed], key: &str) -> usize {
    records.iter().filter(|record| record.key_text() == Some(key)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_halt_stops_before_the_event_for_its_key() {
    for (sql, cause, reason) in CAUSES {
        let (fixture, front) = staged("halt", &[sql]).await;
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(4), "{cause}: {said}");
        assert!(said.contains(reason), "{cause}: {said}");
        // Nothing of the same key passed it.
        assert_eq!(count(&fixture.records().await, "k"), 1, "{reason}");
        front.assert_one_at_a_time();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_skip_delivers_the_others() {
    let (fixture, front) = staged("skip", &CAUSES.map(|(sql, _, _)| sql)).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    assert!(records.iter().all(|record| record.header("event_type") == Some("placed")));
    assert_eq!((records.len(), count(&records, "k")), (18, 6));
    front.assert_one_at_a_time();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_in_their_queue_once_also_under_kills() {
    let causes = CAUSES.iter().filter(|(_, cause, _)| *cause != "too_large");
    let bad: Vec<_> = causes.clone().map(|(sql, _, _)| *sql).collect();
    let (fixture, _front) = staged("dead_letter", &bad).await;
    for count in [1, 5, 9] {
        let action = format!("acknowledged={count}*off->return");
        let walpost = fixture.command("run").env("FAILPOINTS", action).start();
        walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.records().await.len(), 15);
    let letters = fixture.elasticmq.messages(&fixture.letters).await;
    let of = |letter: &QueuedMessage| letter.attribute("walpost.cause").map(str::to_owned);
    let mut found: Vec<_> = letters.iter().filter_map(of).collect();
    let mut expected: Vec<_> = causes.map(|(_, cause, _)| (*cause).to_owned()).collect();
    // Those of different keys have no order.
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{letters:?}");
    // Its payload is as it was.
    let encoded = letters.iter().find(|one| one.attribute("walpost.body") == Some("base64"));
    assert_eq!(encoded.expect("a letter").body, "Iu+/vyI=");
    stop(walpost).await;
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
    let (fixture, front) = SqsFixture::behind_front().await;
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
    let (fixture, front) = SqsFixture::behind_front().await;
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
