//! Settings of the wrong destination, commands that need Kafka, and what `check` finds.

use serde_json::{Value, json};
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{Endpoints, Nats, eventually};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_have_no_effect_are_errors() {
    let fixture = NatsFixture::bare(Nats::start().await).await;
    for (toml, part) in [
        ("[kafka]\nbootstrap_servers = 'k:9092'\n", "`kafka.bootstrap_servers`"),
        ("[redis]\nstream = 'x'\n", "`redis.stream`"),
        ("[delivery]\nmode = 'exactly-once'\n", "`delivery.mode`"),
        ("[nats]\nca_file = '/ca.pem'\n", "tls://"),
        ("[nats]\nsubject = 'a.{tenant}'\n", "`nats.subject`"),
        ("[record]\nplace = ['n:partition']\n", "only topics of Kafka"),
        ("[record]\ntopic = 'walpost.dead-letter'\n", "`poison.dead_letter_topic`"),
        ("[poison]\ndead_letter_topic = 'a..b'\n", "empty part"),
        ("[poison]\ntoo_large = 'dead_letter'\n", "`poison.too_large`"),
    ] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let path = file.path().to_str().expect("UTF-8");
        let (code, said) = fixture.ended("run", &["--config", path]).await;
        assert_eq!(code, Some(78), "{toml}: {said}");
        assert!(said.contains(part), "{toml}: {said}");
    }
    for (name, arguments) in [
        ("prune", &["--older-than", "7d"][..]),
        ("recover", &[]),
        ("replay-dead-letters", &[]),
        ("init", &["--apply", "--existing-rows"]),
    ] {
        let (code, said) = fixture.ended(name, arguments).await;
        assert_eq!(code, Some(78), "{name}: {said}");
        assert!(said.contains("does not support sink.kind = \"nats\""), "{name}: {said}");
    }
}

async fn codes(fixture: &NatsFixture, arguments: &[&str]) -> Vec<(String, String)> {
    let check = fixture.command("check").args(["--json"]).args(arguments).start();
    check.wait(LONG_TIMEOUT).await.expect("check ends");
    let report: Value = serde_json::from_str(&check.stdout().join("\n")).expect("JSON");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings").iter();
    let of_nats = findings.filter(|finding| finding["subject"] == "NATS");
    of_nats.map(|finding| (text(finding, "level"), text(finding, "code"))).collect()
}

#[track_caller]
fn has(found: &[(String, String)], level: &str, code: &str) {
    assert!(found.contains(&(level.to_owned(), code.to_owned())), "{level} {code}: {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_what_would_lose_messages() {
    let mut fixture = NatsFixture::bare(Nats::start().await).await;
    has(&codes(&fixture, &["--offline"]).await, "skipped", "nats");
    has(&codes(&fixture, &[]).await, "error", "nats_stream_missing");
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    has(&codes(&fixture, &[]).await, "error", "nats_state_missing");
    fixture.adopt().await;
    let found = codes(&fixture, &[]).await;
    for code in ["nats_server", "nats_subjects", "nats_stream"] {
        has(&found, "ok", code);
    }
    has(&found, "warning", "nats_replicas");
    for (subjects, settings, level, code) in [
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
        has(&codes(&fixture, &[]).await, level, code);
    }
    fixture.nats.api(&format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({ "storage": "memory" })).await;
    has(&codes(&fixture, &[]).await, "error", "nats_storage");
    fixture.url = "nats://127.0.0.1:1".to_owned();
    has(&codes(&fixture, &[]).await, "error", "nats_unreachable");
}

/// What `run` finds before it publishes, `check` finds too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_each_state_in_which_run_does_not_start() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    has(&codes(&fixture, &[]).await, "ok", "nats_stream");
    let refused = async |code: &str, exit: i32| {
        has(&codes(&fixture, &[]).await, "error", code);
        let (ended, said) = fixture.ended("run", &[]).await;
        assert_eq!(ended, Some(exit), "{said}");
    };
    fixture.nats.publish("outbox.event.order", "foreign").await;
    refused("nats_state", 3).await;
    fixture.nats.api(&format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    has(&codes(&fixture, &[]).await, "error", "nats_stream_missing");
    fixture.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    refused("nats_state", 3).await;
    fixture.adopt().await;
    has(&codes(&fixture, &[]).await, "ok", "nats_stream");
    let advance = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    fixture.inner.postgres.execute("SELECT pg_logical_emit_message(true, 'other', 'x')").await;
    fixture.inner.postgres.execute(advance).await;
    refused("nats_position", 3).await;
    fixture.adopt().await;
    let key = fixture.nats.messages("KV_walpost_orders").await.pop().expect("the state key");
    let mut value: Value = serde_json::from_slice(&key.payload).expect("JSON");
    let owner = std::mem::replace(&mut value["owner"], "other".into());
    fixture.nats.publish(&key.subject, &value.to_string()).await;
    refused("nats_state", 78).await;
    value["owner"] = owner;
    fixture.nats.publish(&key.subject, &value.to_string()).await;
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let full = json!({ "max_msgs": 3, "discard": "new" });
    fixture.nats.edit_stream(STREAM, SUBJECTS, &full).await;
    has(&codes(&fixture, &[]).await, "error", "nats_full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_name_nats() {
    let fixture = NatsFixture::new().await;
    let walpost = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]).start();
    let line = walpost.await_line("walpost starts", SHORT_TIMEOUT).await;
    let line: Value = serde_json::from_str(&line).expect("a JSON line");
    assert_eq!(line["stream"], STREAM);
    let endpoints = Endpoints::of(&walpost).await;
    eventually(SHORT_TIMEOUT, "it is ready", async || endpoints.are_ready().await).await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    let status = endpoints.status().await;
    assert_eq!((&status["sink"], &status["sink_connected"]), (&"NATS".into(), &true.into()));
    let metrics = endpoints.metrics().await;
    let published = r#"walpost_events_published_total{database="postgres",slot="walpost",topic="outbox.event.order"} 10"#;
    assert!(metrics.contains(published), "{metrics}");
    fixture.nats.kill9().await;
    eventually(SHORT_TIMEOUT, "it is not ready", async || {
        let (ready, text) = endpoints.readiness().await;
        !ready && text.contains("NATS")
    })
    .await;
    let metrics = endpoints.metrics().await;
    assert!(
        metrics.contains(r#"walpost_sink_connected{database="postgres",slot="walpost"} 0"#),
        "{metrics}"
    );
    fixture.nats.start_again().await;
    eventually(LONG_TIMEOUT, "it is ready again", async || endpoints.are_ready().await).await;
    stop(walpost).await;
}
