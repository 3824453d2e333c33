//! walpost and Redis are killed at random moments: each event is still in the stream once.

use walpost_bed::Walpost;

use super::fixture::RedisFixture;
use crate::kills;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_adds_nothing_twice() {
    kills::killed_walpost(&RedisFixture::new().await, async |_| ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_repeats_nothing() {
    kills::crash_points(&RedisFixture::new().await, &[1, 40, 333], 500, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_that_syncs_each_write_has_everything_once() {
    let fixture = RedisFixture::new().await;
    let server = &fixture.redis;
    let (kill, start_again) =
        (async || server.kill9().await, async |_: &Walpost| server.start_again().await);
    kills::killed_server(&fixture, (5, 400), kill, start_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_killed_at_once_lose_and_repeat_nothing() {
    let fixture = RedisFixture::new().await;
    let server = &fixture.redis;
    let (kill, start_again) = (async || server.kill9().await, async || server.start_again().await);
    kills::both_killed(&fixture, kill, start_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_session_repeats_nothing() {
    kills::lost_sessions(&RedisFixture::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thawed_walpost_cannot_add_behind_another_one() {
    kills::thawed_walpost(&RedisFixture::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_instance_takes_over_without_a_repeat() {
    kills::standby_takes_over(&RedisFixture::new().await).await;
}
