//! What `check` finds.

use serde_json::json;
use walpost_bed::Nats;

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::position::Keeper as _;
use crate::promise::{Destination as _, finding};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_what_would_lose_messages() {
    let fixture = NatsFixture::bare(Nats::start().await).await;
    fixture.assert_found("error", "nats_stream_missing").await;
    fixture.make_stream().await;
    fixture.assert_found("error", "nats_state_missing").await;
    fixture.adopt().await;
    fixture.delivers().await;
    let found = fixture.codes(&[]).await;
    for code in ["nats_server", "nats_subjects", "nats_stream"] {
        assert!(found.contains(&finding("ok", code)), "{found:?}");
    }
    assert!(found.contains(&finding("warning", "nats_replicas")), "{found:?}");
    for (subjects, settings, level, code) in [
        (SUBJECTS, json!({ "max_msgs": 100, "discard": "new" }), "error", "nats_full"),
        (&["outbox.event.order"][..], json!({}), "warning", "nats_subjects"),
        (SUBJECTS, json!({ "max_msgs": 10 }), "warning", "nats_discard"),
        (SUBJECTS, json!({ "max_msgs": 10, "discard": "new" }), "ok", "nats_discard"),
        (SUBJECTS, json!({ "max_age": 60_000_000_000_u64 }), "warning", "nats_max_age"),
        (
            SUBJECTS,
            json!({ "duplicate_window": 1_000_000_000 }),
            "warning",
            "nats_duplicate_window",
        ),
        (SUBJECTS, json!({ "no_ack": true }), "error", "nats_stream_unfit"),
    ] {
        fixture.nats.edit_stream(STREAM, subjects, &settings).await;
        fixture.assert_found(level, code).await;
    }
    fixture.delete_stream().await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({ "storage": "memory" })).await;
    fixture.assert_found("error", "nats_storage").await;
}
