//! A stream belongs to one walpost, server and slot, and nobody else publishes to it.

use serde_json::{Value, json};
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{Major, Nats, Postgres, eventually};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;

async fn refused(fixture: &NatsFixture, code: i32, part: &str) -> String {
    let before = fixture.nats.last_sequence(STREAM).await;
    let (ended, said) = fixture.ended("run", &[]).await;
    assert_eq!(ended, Some(code), "{said}");
    assert!(said.contains(part), "{said}");
    assert_eq!(fixture.nats.last_sequence(STREAM).await, before, "something was published");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_makes_the_stream_walposts() {
    let fixture = NatsFixture::bare(Nats::start().await).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    let (code, said) = fixture.ended("init", &["--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_without_a_state_key_is_not_published_to() {
    let fixture = NatsFixture::bare(Nats::start().await).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    let said = refused(&fixture, 78, "walpost adopt --apply").await;
    assert!(said.contains("walpost_orders"), "{said}");
    let printed = fixture.adopt().await.join("\n");
    assert!(printed.contains("walpost_orders"), "{printed}");
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_another_publisher_stop_delivery_until_an_operator_adopts_them() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.nats.publish("outbox.event.order", "foreign").await;
    fixture.insert(10, 3).await;
    let line = walpost.await_line("messages of another publisher", SHORT_TIMEOUT).await;
    assert!(line.contains("message 11"), "{line}");
    assert_eq!(fixture.nats.last_sequence(STREAM).await, 11, "nothing is published behind it");
    walpost.kill9().await;
    refused(&fixture, 3, "messages of another publisher").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.nats.messages(STREAM).await;
    assert_eq!(messages.len(), 21);
    let writer = |index: usize| {
        let id = messages[index].header("Nats-Msg-Id").expect("an id");
        id.rsplit_once('-').expect("a position").0.to_owned()
    };
    assert_ne!(writer(0), writer(20), "a new generation");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_stream_stops_delivery_until_an_operator_adopts_the_new_one() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.nats.api(&format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    fixture.insert(5, 3).await;
    walpost.await_line("stream orders does not exist", LONG_TIMEOUT).await;
    walpost.kill9().await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    refused(&fixture, 3, "was deleted, replaced or restored").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.nats.messages(STREAM).await.len(), 5);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_that_would_break_the_promise_is_refused() {
    let fixture = NatsFixture::bare(Nats::start().await).await;
    for (settings, part) in
        [(json!({ "retention": "workqueue" }), "retention"), (json!({ "no_ack": true }), "no_ack")]
    {
        fixture.nats.add_stream(STREAM, SUBJECTS, &settings).await;
        let (code, said) = fixture.ended("adopt", &["--apply"]).await;
        assert_ne!(code, Some(0), "{said}");
        assert!(said.contains(part), "{said}");
        fixture.nats.api(&format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    }
}

/// The slot was created again while walpost was down: rows may be missing, so an operator decides.
/// Positions of the new slot may be those of events that are there already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_created_again_is_adopted_with_a_new_generation() {
    let fixture = NatsFixture::new().await;
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
    assert!(said.contains("NATS has lost its newest writes"), "{said}");
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(9, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.nats.messages(STREAM).await.len(), 29);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_of_another_server_is_refused() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let server = Postgres::builder(Major::V15).own_identity().start().await;
    let mut other = NatsFixture::over(server, Nats::start().await).await;
    other.url.clone_from(&fixture.url);
    for (name, arguments) in [("run", &[][..]), ("adopt", &["--apply"])] {
        let (code, said) = other.ended(name, arguments).await;
        assert_ne!(code, Some(0), "{said}");
        assert!(said.contains("belongs to another walpost"), "{said}");
    }
    assert_eq!(fixture.nats.last_sequence(STREAM).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_skipped_by_order_is_not_published() {
    let fixture = NatsFixture::new().await;
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
        fixture.nats.last_sequence(STREAM).await == 6
    })
    .await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
}
