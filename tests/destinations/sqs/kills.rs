//! walpost and the server are killed at random moments.

use std::sync::Arc;

use walpost_bed::ElasticMq;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, moment, stop};
use walpost_bed::writer::Writer;

use super::fixture::SqsFixture;

/// The queue recognises what is sent again, for five minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_repeats_nothing_within_the_window() {
    let (fixture, front) = SqsFixture::behind_front().await;
    let mut random = fastrand::Rng::with_seed(7);
    let writer = Writer::start(&fixture.inner.postgres, 400);
    for _ in 0..8 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        walpost.kill9().await;
    }
    let walpost = fixture.run().await;
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
    let sent: usize = front.batches().iter().map(|batch| batch.entries().len()).sum();
    let stored = fixture.records().await.len();
    assert!(sent > stored, "{sent} were sent and {stored} are there: none came twice");
}

/// Before a message is sent, after it is acknowledged, before the position is confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_loses_and_repeats_nothing() {
    let fixture = SqsFixture::new().await;
    for point in ["produced", "acknowledged", "received"] {
        for count in [1, 40, 233] {
            fixture.insert(300, 17).await;
            let action = format!("{point}={}*off->return", count - 1);
            let walpost = fixture.command("run").env("FAILPOINTS", action).start();
            let status = walpost.wait(SHORT_TIMEOUT).await;
            assert!(!status.expect("it dies").success(), "{point} {count}");
        }
    }
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// The session with PostgreSQL is lost, and what was read of a transaction is read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_session_repeats_nothing_within_the_window() {
    let fixture = SqsFixture::new().await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 400);
    for _ in 0..5 {
        writer.commits(20).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
        fixture.inner.postgres.query_text(end).await;
    }
    writer.commits(20).await;
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}

/// Its database has what it has accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_loses_nothing() {
    let fixture = SqsFixture::with(Arc::new(ElasticMq::durable().await)).await;
    let mut random = fastrand::Rng::with_seed(11);
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 30);
    for _ in 0..3 {
        writer.commits(30).await;
        moment(&mut random).await;
        fixture.elasticmq.kill9().await;
        writer.commits(10).await;
        fixture.elasticmq.start_again().await;
    }
    writer.commits(20).await;
    fixture.judge_after(writer).await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_instance_takes_over_without_a_repeat() {
    let fixture = SqsFixture::new().await;
    let active = fixture.run().await;
    let standby = fixture.command("run").start();
    let writer = Writer::start(&fixture.inner.postgres, 300);
    writer.commits(100).await;
    active.kill9().await;
    standby.await_line("streaming from PostgreSQL", LONG_TIMEOUT).await;
    writer.commits(50).await;
    fixture.assert_exact_after(writer).await;
    stop(standby).await;
}
