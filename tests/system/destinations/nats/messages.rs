//! What a message contains, and in which order messages stand.

use serde_json::json;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;

const TWO: &str = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
     VALUES ('order', 'A-7', 'placed', '{\"n\": 1}', '{\"tenant\": \"eu\"}'), \
            ('order', 'A-7', 'gone', NULL, NULL)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_has_subject_headers_and_payload_of_the_record() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.inner.postgres.execute(TWO).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.nats.messages(STREAM).await;
    let [placed, gone] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!((placed.sequence, gone.sequence), (1, 2));
    assert_eq!(placed.subject, "outbox.event.order");
    assert_eq!(placed.payload, b"{\"n\": 1}");
    for (name, value) in [
        ("walpost.key", Some("A-7")),
        ("walpost.topic", None),
        ("walpost.tombstone", None),
        ("event_type", Some("placed")),
        ("tenant", Some("eu")),
    ] {
        assert_eq!(placed.header(name), value, "{name}");
    }
    let created = "SELECT extract(epoch FROM created_at) * 1000 FROM public.outbox LIMIT 1";
    let created: f64 =
        fixture.inner.postgres.query_text(created).await.expect("a time").parse().unwrap();
    let timestamp: f64 = placed.header("walpost.timestamp").expect("one").parse().unwrap();
    assert!((timestamp - created).abs() < 60_000.0, "{timestamp} {created}");
    assert_eq!(
        (gone.payload.as_slice(), gone.header("walpost.tombstone")),
        (&[][..], Some("true"))
    );
    // The id is the position, behind the writer.
    for message in &messages {
        let position = message.header("walpost.position").expect("a position");
        let id = message.header("Nats-Msg-Id").expect("an id");
        assert!(id.ends_with(&format!("-{position}")), "{id} {position}");
    }
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subject_can_have_the_key() {
    let toml = "[nats]\nsubject = 'eu.{topic}.{key}'\n[poison]\ndead_letter_topic = 'eu.dead'\n";
    let fixture = NatsFixture::new().await.configured(toml);
    fixture.nats.edit_stream(STREAM, &["eu.>"], &json!({})).await;
    let sql = TWO.replace("'A-7'", "'A.7 *'");
    fixture.inner.postgres.execute(&sql).await;
    fixture.insert(20, 3).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.nats.messages(STREAM).await;
    assert_eq!(messages[0].subject, "eu.outbox.event.order.A%2E7%20%2A");
    assert_eq!(messages[0].header("walpost.key"), Some("A.7 *"));
    assert_eq!(messages[0].header("walpost.topic"), Some("outbox.event.order"));
    assert_eq!(messages.len(), 22);
    fixture.judge().await.assert_exact();
    stop(walpost).await;
}

/// The server has forgotten the ids of what is read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_beyond_the_duplicate_window_adds_nothing() {
    let fixture = NatsFixture::new().await;
    let window = json!({ "duplicate_window": 100_000_000 });
    fixture.nats.edit_stream(STREAM, SUBJECTS, &window).await;
    // One transaction: nothing of it is confirmed before the end, so that all of it is read again.
    fixture.insert(5000, 10).await;
    let dying = fixture.command("run").env("FAILPOINTS", "acknowledged=4000*off->return").start();
    dying.wait(LONG_TIMEOUT).await.expect("it dies");
    let there = fixture.nats.last_sequence(STREAM).await;
    // What was in flight is there too, perhaps all of it.
    assert!((4000..=5000).contains(&there), "{there}");
    // The window is over when an id can be used again.
    let first = fixture.nats.messages(STREAM).await.remove(0);
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", first.header("Nats-Msg-Id").expect("an id"));
    headers.insert("Nats-Expected-Last-Sequence", "0");
    walpost_bed::eventually(LONG_TIMEOUT, "the id is forgotten", async || {
        let client = fixture.nats.client().await;
        let asked = client.request_with_headers(first.subject.clone(), headers.clone(), "".into());
        let answer = asked.await.expect("an answer").payload;
        // Not a duplicate any more: it is refused because of the sequence number.
        String::from_utf8_lossy(&answer).contains("wrong last sequence")
    })
    .await;
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    assert_eq!(fixture.nats.last_sequence(STREAM).await, 5000);
    stop(walpost).await;
}

/// The last message is gone, and the state key tells which event it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purged_stream_is_continued_if_the_last_event_was_noted() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(20, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let purged =
        fixture.nats.api(&format!("STREAM.PURGE.{STREAM}"), &serde_json::Value::Null).await;
    assert_eq!(purged["purged"], 20, "{purged}");
    fixture.insert(3, 5).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.nats.messages(STREAM).await;
    let sequences: Vec<_> = messages.iter().map(|message| message.sequence).collect();
    assert_eq!(sequences, [21, 22, 23]);
    stop(walpost).await;
}
