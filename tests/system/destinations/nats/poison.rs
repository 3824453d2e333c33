//! Undeliverable events, with each policy.

use serde_json::json;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;

/// The subject of dead letters, which the stream has too.
const DEAD: &str = "orders.dead";

/// Events that NATS cannot have, with the cause and a part of the reason of each.
const CAUSES: [(&str, &str, &str); 6] = [
    (
        "(aggregate_type, aggregate_id, event_type) VALUES ('order', 'k', E'ba\nd')",
        "refused",
        "line break",
    ),
    (
        "(aggregate_type, aggregate_id, event_type) VALUES ('a..b', 'k', 'bad')",
        "refused",
        "empty part",
    ),
    (
        "(aggregate_type, aggregate_id, event_type) VALUES ('order', NULL, 'bad')",
        "missing_field",
        "`aggregate_id` is NULL or empty",
    ),
    (
        "(aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'k', 'bad', to_jsonb(repeat('x', 300000)))",
        "too_large",
        "max_msg_size of the stream",
    ),
    (
        "(aggregate_type, aggregate_id, event_type, headers) \
         VALUES ('order', 'k', 'bad', jsonb_build_object('a', repeat('x', 66000)))",
        "too_large",
        "its headers, with its key, have",
    ),
    (
        "(aggregate_type, aggregate_id, event_type) VALUES ('order', repeat('k', 66000), 'bad')",
        "too_large",
        "its headers, with its key, have",
    ),
];

async fn staged(policy: &str, bad: &[&str]) -> NatsFixture {
    let too_large = if policy == "dead_letter" { "halt" } else { policy };
    let toml = format!(
        "[poison]\nmissing_field = '{policy}'\nrefused = '{policy}'\ntoo_large = '{too_large}'\n\
         dead_letter_topic = '{DEAD}'\n"
    );
    let fixture = NatsFixture::new().await.configured(&toml);
    let size = json!({ "max_msg_size": 200_000 });
    fixture.nats.edit_stream(STREAM, SUBJECTS, &size).await;
    fixture.inner.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    for bad in bad {
        fixture.insert(3, 3).await;
        fixture.inner.postgres.execute(&format!("INSERT INTO public.outbox {bad}")).await;
    }
    fixture.insert(3, 3).await;
    fixture
}

fn types(records: &[walpost_bed::Consumed]) -> Vec<&str> {
    let events = records.iter().filter(|record| record.topic != DEAD);
    events.filter_map(|record| record.header("event_type")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_halt_stops_before_the_event() {
    for (sql, cause, reason) in CAUSES {
        let fixture = staged("halt", &[sql]).await;
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(4), "{cause}: {said}");
        assert!(said.contains(reason), "{cause}: {said}");
        assert_eq!(types(&fixture.records().await), ["placed"; 3]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_skip_delivers_the_others() {
    let fixture = staged("skip", &CAUSES.map(|(sql, _, _)| sql)).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(types(&fixture.records().await), ["placed"; 21]);
    assert_eq!(fixture.nats.last_sequence(STREAM).await, 21);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_in_the_stream_once_also_under_kills() {
    let causes = CAUSES.iter().filter(|(_, cause, _)| *cause != "too_large");
    let bad: Vec<_> = causes.clone().map(|(sql, _, _)| *sql).collect();
    let fixture = staged("dead_letter", &bad).await;
    for count in [1, 5, 9] {
        let action = format!("acknowledged={count}*off->return");
        let walpost = fixture.command("run").env("FAILPOINTS", action).start();
        walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(types(&records), ["placed"; 12]);
    let letters: Vec<_> = records.iter().filter(|record| record.topic == DEAD).collect();
    let found: Vec<_> = letters.iter().map(|letter| letter.header("walpost.cause")).collect();
    let expected: Vec<_> = causes.map(|(_, cause, _)| Some(*cause)).collect();
    assert_eq!(found, expected);
    // In commit order, between the events.
    assert_eq!(records[3].topic, DEAD);
    stop(walpost).await;
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
