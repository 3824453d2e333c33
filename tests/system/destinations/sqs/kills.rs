//! walpost and the server are killed at random moments: within five minutes the queue recognises what
//! is sent again.

use std::ops::Deref;
use std::sync::Arc;

use walpost_bed::{Consumed, ElasticMq, SinkFixture, Walpost};

use super::fixture::SqsFixture;
use crate::kills;
use crate::promise::Promise;

/// A queue that may have forgotten what it was sent.
struct Forgetful(SqsFixture);

impl Deref for Forgetful {
    type Target = SinkFixture;

    fn deref(&self) -> &SinkFixture {
        &self.0
    }
}

impl Promise for Forgetful {
    const ONCE: bool = false;

    async fn records(&self) -> Vec<Consumed> {
        self.0.records().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_repeats_nothing_within_the_window() {
    let (fixture, front) = SqsFixture::behind_front().await;
    kills::killed_walpost(&fixture, async |_| ()).await;
    let sent: usize = front.batches().iter().map(|batch| batch.entries().len()).sum();
    let stored = fixture.records().await.len();
    assert!(sent > stored, "{sent} were sent and {stored} are there: none came twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_loses_and_repeats_nothing() {
    kills::crash_points(&SqsFixture::new().await, &[1, 40, 233], 300, 17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_session_repeats_nothing_within_the_window() {
    kills::lost_sessions(&SqsFixture::new().await).await;
}

/// Its database has what it has accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_loses_nothing() {
    let server = &Arc::new(ElasticMq::durable().await);
    let fixture = Forgetful(SqsFixture::with(Arc::clone(server)).await);
    let (kill, start_again) =
        (async || server.kill9().await, async |_: &Walpost| server.start_again().await);
    kills::killed_server(&fixture, (3, 30), kill, start_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_instance_takes_over_without_a_repeat() {
    kills::standby_takes_over(&SqsFixture::new().await).await;
}
