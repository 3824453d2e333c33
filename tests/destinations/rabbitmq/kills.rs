//! walpost and RabbitMQ are killed at random moments: each event arrives at least once, in order.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, moment, stop};
use walpost_bed::writer::Writer;

use super::fixture::RabbitFixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_loses_nothing() {
    let fixture = RabbitFixture::new().await;
    let mut random = fastrand::Rng::with_seed(7);
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..8 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        walpost.kill9().await;
    }
    let walpost = fixture.run().await;
    fixture.assert_ok_after(writer).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_loses_nothing() {
    let fixture = RabbitFixture::new().await;
    for point in ["produced", "acknowledged", "received"] {
        for count in [1, 333] {
            fixture.insert(500, 7).await;
            let action = format!("{point}={}*off->return", count - 1);
            let walpost = fixture.command("run").env("FAILPOINTS", action).start();
            let status = walpost.wait(SHORT_TIMEOUT).await;
            assert!(!status.expect("it dies").success(), "{point} {count}");
        }
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&[]).await.assert_ok();
    stop(walpost).await;
}

/// The session with PostgreSQL is lost, and what was read of a transaction is read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_session_loses_nothing() {
    let fixture = RabbitFixture::new().await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..4 {
        writer.commits(20).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
        fixture.inner.postgres.query_text(end).await;
    }
    writer.commits(20).await;
    fixture.assert_ok_after(writer).await;
    stop(walpost).await;
}

/// A clean stop leaves nothing to be published again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_stop_repeats_nothing() {
    let fixture = RabbitFixture::new().await;
    for _ in 0..3 {
        let walpost = fixture.run().await;
        fixture.insert(200, 7).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
    fixture.assert_exact().await;
}

/// Durable queues and their messages survive; walpost keeps its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_rabbitmq_loses_nothing() {
    let fixture = RabbitFixture::alone().await;
    let mut random = fastrand::Rng::with_seed(11);
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..2 {
        writer.commits(30).await;
        moment(&mut random).await;
        fixture.rabbit.kill9().await;
        writer.commits(10).await;
        fixture.rabbit.start_again().await;
        walpost.await_line("delivering to RabbitMQ again", LONG_TIMEOUT).await;
    }
    writer.commits(30).await;
    fixture.assert_ok_after(writer).await;
    assert!(walpost.pid().is_some(), "it still runs: {:?}", walpost.stderr());
    stop(walpost).await;
}
