//! walpost and RabbitMQ are killed at random moments: each event arrives at least once, in order.

use walpost_bed::Walpost;
use walpost_bed::fixture::LONG_TIMEOUT;

use super::fixture::RabbitFixture;
use crate::kills;
use crate::promise::Promise;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_loses_nothing() {
    kills::killed_walpost(&RabbitFixture::new().await, async |_| ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_loses_nothing() {
    kills::crash_points(&RabbitFixture::new().await, &[1, 333], 500, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_session_loses_nothing() {
    kills::lost_sessions(&RabbitFixture::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_stop_repeats_nothing() {
    let fixture = RabbitFixture::new().await;
    kills::clean_stops(&fixture).await;
    fixture.assert_exact().await;
}

/// Durable queues and their messages survive; walpost keeps its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_rabbitmq_loses_nothing() {
    let fixture = RabbitFixture::alone().await;
    let server = &fixture.rabbit;
    let start_again = async |walpost: &Walpost| {
        server.start_again().await;
        walpost.await_line("delivering to RabbitMQ again", LONG_TIMEOUT).await;
    };
    kills::killed_server(&fixture, (2, 300), async || server.kill9().await, start_again).await;
}
