//! walpost is killed at random moments: each event is accepted at least once, in order.

use std::time::Duration;

use walpost_bed::eventually;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::HttpFixture;
use super::receiver::Answer;
use crate::kills;
use crate::promise::Promise;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_loses_nothing() {
    let fixture = HttpFixture::new().await;
    let restart_server = async |random: &mut fastrand::Rng| {
        if random.bool() {
            fixture.receiver.stop().await;
            fixture.receiver.start_again();
        }
    };
    kills::killed_walpost(&fixture, restart_server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_loses_nothing() {
    kills::crash_points(&HttpFixture::new().await, &[1, 40, 333], 500, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_session_loses_nothing() {
    kills::lost_sessions(&HttpFixture::new().await).await;
}

/// It knows then that another one has the slot, and has delivered what it still has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thawed_walpost_sends_little_behind_another_one() {
    const ROWS: u32 = 5000;
    let fixture = HttpFixture::new().await;
    let received = || fixture.receiver.requests().len();
    fixture.receiver.answers(|_| Answer { after: Duration::from_millis(10), ..Answer::of(200) });
    let frozen = fixture.run().await;
    fixture.insert(ROWS, 50).await;
    eventually(LONG_TIMEOUT, "it sends", async || received() > 100).await;
    frozen.pause();
    kills::end_sessions(&fixture).await;
    let other = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let before = received();
    frozen.resume();
    frozen.await_line("another walpost advanced the slot", LONG_TIMEOUT).await;
    fixture.insert(10, 10).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let repeats = received() - before;
    assert!(repeats < ROWS as usize / 4, "{repeats}");
    fixture.judge_with(&[]).await.assert_ok();
    frozen.kill9().await;
    stop(other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_stop_repeats_nothing() {
    let fixture = HttpFixture::new().await;
    kills::clean_stops(&fixture).await;
    fixture.assert_exact().await;
}
