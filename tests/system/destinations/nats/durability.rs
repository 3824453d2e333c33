//! NATS loses what it has acknowledged: walpost says so, and publishes again what PostgreSQL has.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Major, Nats, Postgres, Proxy, eventually};

use super::fixture::{NatsFixture, STREAM, SUBJECTS};
use crate::promise::Promise;
use crate::restored;

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(status.success());
}

/// Stops the server, and keeps a copy of its data.
async fn snapshot(fixture: &NatsFixture) {
    fixture.nats.kill9().await;
    copy(&fixture.nats.data(), &fixture.nats.data().with_extension("kept"));
    fixture.nats.start_again().await;
}

/// Sets the server back to the copy.
async fn set_back(fixture: &NatsFixture) {
    fixture.nats.kill9().await;
    std::fs::remove_dir_all(fixture.nats.data()).expect("it can be removed");
    copy(&fixture.nats.data().with_extension("kept"), &fixture.nats.data());
    fixture.nats.start_again().await;
}

/// Set back to a copy with a part of the messages: PostgreSQL does not have the others any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_set_back_behind_what_is_confirmed_is_not_started_from() {
    let fixture = NatsFixture::new().await;
    fixture.insert(50, 5).await;
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    snapshot(&fixture).await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    set_back(&fixture).await;
    fixture.insert(1, 5).await;
    // The key is that of an earlier opening, so it is opened again and compared with the slot.
    let (code, said) = ended(&walpost).await;
    assert_eq!(code, Some(3), "{said}");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("may be missing in NATS"), "{said}");
    // As the message says: from the slot's position on, and the lost ones by their rows.
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.nats.messages(STREAM).await.len(), 51);
    stop(walpost).await;
}

/// Set back while nothing was confirmed since: everything is published once more, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_set_back_to_what_is_confirmed_gets_the_rest_again() {
    let mut fixture = NatsFixture::new().await;
    // PostgreSQL hears nothing of what follows.
    let proxy = Proxy::to(fixture.inner.postgres.port()).await;
    let direct = fixture.inner.source.clone();
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    snapshot(&fixture).await;
    fixture.inner.source = walpost_bed::fixture::proxied(&proxy);
    let point = "acknowledged=49*off->return";
    fixture.insert(50, 5).await;
    let walpost = fixture.command("run").env("FAILPOINTS", point).start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    eventually(SHORT_TIMEOUT, "all are there", async || {
        fixture.nats.last_sequence(STREAM).await == 100
    })
    .await;
    set_back(&fixture).await;
    assert_eq!(fixture.nats.last_sequence(STREAM).await, 50, "the copy");
    fixture.inner.source = direct;
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// The server has other events at positions that the stream has, and the comparison does not depend on
/// what numbers the events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_server_is_refused_whatever_was_published_last() {
    let server = Postgres::builder(Major::V15).own_identity().start().await;
    let fixture = NatsFixture::over(server, Nats::start().await).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &serde_json::json!({})).await;
    fixture.adopt().await;
    restored::is_refused(&fixture, async || fixture.nats.messages(STREAM).await.len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_a_slot_that_was_made_again_on_a_restored_server() {
    let server = Postgres::builder(Major::V15).own_identity().start().await;
    let fixture = NatsFixture::over(server, Nats::start().await).await;
    fixture.nats.add_stream(STREAM, SUBJECTS, &serde_json::json!({})).await;
    fixture.adopt().await;
    restored::is_found_by_check(&fixture, "nats_position").await;
}

/// What a machine that crashes has not synced is published again: PostgreSQL still has it. The server
/// loses the newest messages of the stream with the key, or without; and the machine is down for longer
/// than a sync would have taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_were_not_synced_are_published_again_after_a_crash() {
    let both = &["KV_walpost_orders", STREAM][..];
    for (parts, interval, down) in [(both, "2min", 0), (&[STREAM][..], "2min", 0), (both, "5s", 8)]
    {
        let fixture = NatsFixture::new().await;
        let run = || fixture.command("run").env("WALPOST_NATS_SYNC_INTERVAL", interval);
        let walpost = run().start();
        fixture.insert(50, 5).await;
        stored(&fixture, 50).await;
        snapshot(&fixture).await;
        fixture.insert(50, 5).await;
        stored(&fixture, 100).await;
        state_is_written(&fixture).await;
        fixture.nats.kill9().await;
        tokio::time::sleep(Duration::from_secs(down)).await;
        for part in parts {
            let stream = |data: PathBuf| data.join("jetstream/$G/streams").join(part);
            std::fs::remove_dir_all(stream(fixture.nats.data())).expect("it can be removed");
            let kept = stream(fixture.nats.data().with_extension("kept"));
            copy(&kept, &stream(fixture.nats.data()));
        }
        fixture.nats.start_again().await;
        assert_eq!(fixture.nats.last_sequence(STREAM).await, 50);
        let (code, said) = ended(&walpost).await;
        assert_ne!(code, Some(3), "{said}");
        let walpost = run().start();
        stored(&fixture, 100).await;
        fixture.judge().await.assert_exact();
        stop(walpost).await;
    }
}

/// The run ends once its position is confirmed, which waits until it cannot be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_until_a_position_ends_once_that_is_kept() {
    let fixture = NatsFixture::new().await;
    fixture.insert(50, 5).await;
    let run = fixture.command("run").args(["--until", "current"]);
    let walpost = run.env("WALPOST_NATS_SYNC_INTERVAL", "2s").start();
    let (code, said) = ended(&walpost).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.confirmed(SHORT_TIMEOUT).await;
    fixture.judge().await.assert_exact();
}

async fn stored(fixture: &NatsFixture, sequence: u64) {
    eventually(LONG_TIMEOUT, "all are there", async || {
        fixture.nats.last_sequence(STREAM).await == sequence
    })
    .await;
}

/// The state key knows the stream's last message, and PostgreSQL has not been told yet.
async fn state_is_written(fixture: &NatsFixture) {
    eventually(SHORT_TIMEOUT, "the position is written", async || {
        let key = fixture.nats.messages("KV_walpost_orders").await.pop().expect("the state key");
        let value: serde_json::Value = serde_json::from_slice(&key.payload).expect("JSON");
        value["last"]["seq"] == 100
    })
    .await;
}

/// Synced every two minutes: what a killed process has acknowledged is in the kernel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_that_syncs_seldom_loses_nothing() {
    let fixture = NatsFixture::with(Nats::builder().sync_interval("2m")).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..3 {
        writer.commits(100).await;
        fixture.nats.kill9().await;
        fixture.nats.start_again().await;
    }
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}
