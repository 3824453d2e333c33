//! NATS accepts nothing more, or its stream is gone.

use serde_json::{Value, json};
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;

/// A message that is refused in the middle of a window: none behind it may be stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_stream_stops_delivery_until_there_is_room() {
    let fixture = NatsFixture::new().await;
    let full = json!({ "max_msgs": 777, "discard": "new" });
    fixture.nats.edit_stream(STREAM, SUBJECTS, &full).await;
    let walpost = fixture.run().await;
    fixture.insert(2000, 50).await;
    let line = walpost.await_line("maximum messages exceeded", LONG_TIMEOUT).await;
    assert!(line.contains("limits"), "{line}");
    assert_eq!(fixture.nats.last_sequence(STREAM).await, 777);
    let room = json!({ "max_msgs": -1, "discard": "new" });
    fixture.nats.edit_stream(STREAM, SUBJECTS, &room).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_stream_is_awaited_and_named() {
    let fixture = NatsFixture::new().await;
    let deleted = fixture.nats.api(&format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    assert_eq!(deleted["success"], true, "{deleted}");
    fixture.insert(5, 3).await;
    let walpost = fixture.command("run").start();
    let line = walpost.await_line("stream orders does not exist", SHORT_TIMEOUT).await;
    assert!(line.contains("create it"), "{line}");
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}
