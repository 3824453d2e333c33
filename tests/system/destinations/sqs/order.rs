//! Single messages of a batch fail, requests are refused, and answers are lost: each key keeps its
//! order, and nothing is in the queue twice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::writer::Writer;

use super::fixture::SqsFixture;
use super::front::{Deed, Front};
use crate::kills;
use crate::promise::Promise;

const RECOVERED: &str = "delivering to Amazon SQS again";

/// Counts the requests that come, from 0.
fn counted(front: &Front, plan: impl Fn(u32, usize) -> Deed + Send + Sync + 'static) {
    let count = AtomicU32::new(0);
    front.does(move |request| {
        if request.is_batch() {
            plan(count.fetch_add(1, Ordering::Relaxed), request.entries().len())
        } else {
            Deed::Pass
        }
    });
}

/// Of each batch the first fails, or the last, or every second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_fail_singly_keep_the_order_of_their_keys() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    counted(&front, |number, entries| {
        let places = match number % 4 {
            0 => vec![0],
            1 => vec![entries - 1],
            2 => (0..entries).step_by(2).collect(),
            _ => Vec::new(),
        };
        Deed::Fail(places.into_iter().map(|at| (at, "InternalError", false)).collect())
    });
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    writer.commits(300).await;
    front.does(|_| Deed::Pass);
    fixture.assert_exact_after(writer).await;
    front.assert_one_at_a_time();
    let failed = front.batches().len();
    assert!(failed > 20, "{failed}");
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_requests_are_made_again() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    counted(&front, |number, _| match number % 5 {
        0 => Deed::Error(400, "RequestThrottled", "slow down"),
        2 => Deed::Error(500, "InternalFailure", "sorry"),
        3 => Deed::Error(503, "ServiceUnavailable", "busy"),
        _ => Deed::Pass,
    });
    let walpost = fixture.run().await;
    for _ in 0..6 {
        fixture.insert(20, 7).await;
    }
    walpost.await_line("SQS limits the rate", SHORT_TIMEOUT).await;
    fixture.assert_exact().await;
    front.assert_one_at_a_time();
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// The queue has the messages, and walpost does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_repeat_nothing() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    counted(&front, |number, _| if number % 3 == 1 { Deed::Lose } else { Deed::Pass });
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 200);
    writer.commits(150).await;
    front.does(|_| Deed::Pass);
    fixture.assert_exact_after(writer).await;
    front.assert_one_at_a_time();
    stop(walpost).await;
}

/// A message that fails does not hold other keys back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_key_delays_no_other_one() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    let fails_key_1 = |request: &super::front::Received| {
        let places = request.entries().into_iter().enumerate().filter_map(|(at, entry)| {
            (entry["MessageGroupId"] == "1").then_some((at, "InternalError", false))
        });
        Deed::Fail(places.collect())
    };
    front.does(move |request| if request.is_batch() { fails_key_1(request) } else { Deed::Pass });
    let walpost = fixture.run().await;
    fixture.insert(60, 3).await;
    walpost.await_line("InternalError", SHORT_TIMEOUT).await;
    walpost_bed::eventually(LONG_TIMEOUT, "the other keys are delivered", async || {
        let others = fixture.records().await;
        if others.len() == 40 { Ok(()) } else { Err(others.len()) }
    })
    .await;
    // It is tried again while it fails.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fixture.records().await.len(), 40);
    front.does(|_| Deed::Pass);
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_repeats_nothing_within_the_window() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    kills::killed_walpost(&fixture).await;
    let sent: usize = front.batches().iter().map(|batch| batch.entries().len()).sum();
    let stored = fixture.records().await.len();
    assert!(sent > stored, "{sent} were sent and {stored} are there: none came twice");
}
