//! A stream belongs to one walpost, server and slot, and nobody else publishes to it.

use serde_json::json;
use walpost_bed::Nats;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::position::Keeper as _;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_stream_stops_delivery_until_an_operator_adopts_the_new_one() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.delete_stream().await;
    fixture.insert(5, 3).await;
    walpost.await_line("stream orders does not exist", LONG_TIMEOUT).await;
    walpost.kill9().await;
    fixture.make_stream().await;
    fixture.refused(3, "was deleted, replaced or restored").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.length().await, 5);
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
        fixture.delete_stream().await;
    }
}
