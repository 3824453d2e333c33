//! walpost and NATS are killed at random moments: each event is still in the stream once.

use walpost_bed::Walpost;

use super::fixture::NatsFixture;
use crate::kills;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_publishes_nothing_twice() {
    kills::killed_walpost(&NatsFixture::new().await, async |_| ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_repeats_nothing() {
    kills::crash_points(&NatsFixture::new().await, &[1, 40, 333], 500, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_that_syncs_each_write_has_everything_once() {
    let fixture = NatsFixture::new().await;
    let server = &fixture.nats;
    let (kill, start_again) =
        (async || server.kill9().await, async |_: &Walpost| server.start_again().await);
    kills::killed_server(&fixture, (5, 400), kill, start_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_killed_at_once_lose_and_repeat_nothing() {
    let fixture = NatsFixture::new().await;
    let server = &fixture.nats;
    let (kill, start_again) = (async || server.kill9().await, async || server.start_again().await);
    kills::both_killed(&fixture, kill, start_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_session_repeats_nothing() {
    kills::lost_sessions(&NatsFixture::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thawed_walpost_cannot_publish_behind_another_one() {
    kills::thawed_walpost(&NatsFixture::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_instance_takes_over_without_a_repeat() {
    kills::standby_takes_over(&NatsFixture::new().await).await;
}
