//! walpost as a library: runs the example of the documentation.

use walpost::config::Environment;
use walpost_bed::eventually;

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert};

#[allow(dead_code, reason = "its main is for people")]
#[path = "../../examples/embed.rs"]
mod example;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_relay_delivers_until_shutdown() {
    let fixture = Fixture::new().await;
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("walpost.toml");
    let toml = format!(
        "[source]\nurl = '{}'\n[kafka]\nbootstrap_servers = '{}'\n",
        fixture.postgres.url(),
        fixture.bootstrap
    );
    std::fs::write(&file, toml).unwrap();
    let topic = fixture.topic("{aggregate_type}");
    let environment = Environment::new(
        [
            ("WALPOST_RECORD_TOPIC", &*topic),
            ("WALPOST_DELIVERY_STATE_TOPIC", "off"),
            ("WALPOST_KAFKA_PROPERTIES", "allow.auto.create.topics=true"),
        ],
        directory.path(),
    );
    fixture.postgres.execute(&insert(100, 7)).await;
    let leave = async {
        // Not the slot: the relay confirms at its own pace, and once more as it leaves.
        eventually(SHORT_TIMEOUT, "all records are there", async || {
            fixture.records().await.len() == 100
        })
        .await;
    };
    let summary = example::relay_until(leave, Some(file), &environment).await.unwrap();
    assert_eq!((summary.delivered, summary.undrained), (100, 0));
    // No session is left to confirm it later.
    fixture.assert_exact(SHORT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_relay_returns_an_error_for_a_missing_slot() {
    let fixture = Fixture::new().await;
    let directory = tempfile::TempDir::new().unwrap();
    let url = fixture.postgres.url();
    let environment = Environment::new(
        [("WALPOST_SOURCE_URL", &*url), ("WALPOST_SOURCE_SLOT", "another")],
        directory.path(),
    );
    let never = std::future::pending();
    let error = example::relay_until(never, None, &environment).await.unwrap_err();
    assert!(error.to_string().contains("\"another\" does not exist"), "{error}");
}
