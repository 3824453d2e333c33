//! NATS loses what it has acknowledged: walpost says so, and publishes again what PostgreSQL has.

use std::path::PathBuf;
use std::time::Duration;

use walpost_bed::eventually;
use walpost_bed::fixture::{SHORT_TIMEOUT, ended, stop};

use super::fixture::{NatsFixture, STREAM, copy};
use crate::position::Keeper as _;
use crate::promise::Promise as _;

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
        fixture.reaches(50).await;
        fixture.snapshot().await;
        fixture.insert(50, 5).await;
        fixture.reaches(100).await;
        state_is_written(&fixture).await;
        fixture.nats.kill9().await;
        tokio::time::sleep(Duration::from_secs(down)).await;
        for part in parts {
            let stream = |data: PathBuf| data.join("jetstream/$G/streams").join(part);
            std::fs::remove_dir_all(stream(fixture.nats.data())).expect("it can be removed");
            let kept = stream(fixture.kept());
            copy(&kept, &stream(fixture.nats.data()));
        }
        fixture.nats.start_again().await;
        assert_eq!(fixture.length().await, 50);
        let (code, said) = ended(&walpost).await;
        assert_ne!(code, Some(3), "{said}");
        let walpost = run().start();
        fixture.reaches(100).await;
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

/// The state key knows the stream's last message, and PostgreSQL has not been told yet.
async fn state_is_written(fixture: &NatsFixture) {
    eventually(SHORT_TIMEOUT, "the position is written", async || {
        fixture.state().await["last"]["seq"] == 100
    })
    .await;
}
