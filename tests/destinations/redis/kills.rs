//! walpost and Redis are killed at random moments: each event is still in the stream once.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, moment, stop};
use walpost_bed::writer::Writer;

use super::fixture::RedisFixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_walpost_adds_nothing_twice() {
    let fixture = RedisFixture::new().await;
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
}

/// Before a record is sent, after it is acknowledged, before the position is confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walpost_that_dies_at_a_crash_point_adds_nothing_twice() {
    let fixture = RedisFixture::new().await;
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
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_redis_with_a_synced_log_has_everything_once() {
    let fixture = RedisFixture::new().await;
    let mut random = fastrand::Rng::with_seed(11);
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 400);
    for _ in 0..5 {
        writer.commits(30).await;
        moment(&mut random).await;
        fixture.redis.kill9().await;
        moment(&mut random).await;
        fixture.redis.start_again().await;
    }
    writer.commits(30).await;
    fixture.assert_exact_after(writer).await;
    assert!(walpost.pid().is_some(), "it still runs: {:?}", walpost.stderr());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_killed_in_turn_and_at_once_lose_and_repeat_nothing() {
    let fixture = RedisFixture::new().await;
    let mut random = fastrand::Rng::with_seed(13);
    let writer = Writer::start(&fixture.inner.postgres, 400);
    for _ in 0..4 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        tokio::join!(walpost.kill9(), fixture.redis.kill9());
        fixture.redis.start_again().await;
    }
    let walpost = fixture.run().await;
    writer.commits(10).await;
    // The session with PostgreSQL is lost, and what was read of a transaction is read again.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
    for _ in 0..5 {
        fixture.inner.postgres.query_text(end).await;
        writer.commits(20).await;
    }
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thawed_walpost_cannot_add_behind_another_one() {
    let fixture = RedisFixture::new().await;
    let frozen = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 200);
    writer.commits(50).await;
    frozen.pause();
    writer.commits(20).await;
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
    fixture.inner.postgres.query_text(end).await;
    // It holds the lock on the slot's name, too.
    let locks = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
    fixture.inner.postgres.query_text(locks).await;
    let other = fixture.run().await;
    writer.commits(50).await;
    frozen.resume();
    writer.commits(100).await;
    fixture.assert_exact_after(writer).await;
    frozen.kill9().await;
    stop(other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_instance_takes_over_without_a_repeat() {
    let fixture = RedisFixture::new().await;
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
