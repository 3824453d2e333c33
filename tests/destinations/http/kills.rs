//! walpost is killed at random moments: each event is accepted at least once, in order.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, moment, stop};
use walpost_bed::writer::Writer;

use super::fixture::HttpFixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_loses_nothing() {
    let fixture = HttpFixture::new().await;
    let mut random = fastrand::Rng::with_seed(7);
    let writer = Writer::start(&fixture.inner.postgres, 400);
    for _ in 0..8 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        walpost.kill9().await;
        if random.bool() {
            fixture.receiver.stop().await;
            fixture.receiver.start_again();
        }
    }
    let walpost = fixture.run().await;
    fixture.assert_ok_after(writer).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_loses_nothing() {
    let fixture = HttpFixture::new().await;
    for point in ["produced", "acknowledged", "received"] {
        for count in [1, 40, 333] {
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
    let fixture = HttpFixture::new().await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 400);
    for _ in 0..5 {
        writer.commits(20).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
        fixture.inner.postgres.query_text(end).await;
    }
    writer.commits(20).await;
    fixture.assert_ok_after(writer).await;
    stop(walpost).await;
}

/// A clean stop leaves nothing to be sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_stop_repeats_nothing() {
    let fixture = HttpFixture::new().await;
    for _ in 0..3 {
        let walpost = fixture.run().await;
        fixture.insert(200, 7).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
    fixture.assert_exact().await;
}
