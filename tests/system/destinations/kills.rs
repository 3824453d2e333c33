//! Kills, freezes, lost sessions, and none of that, with each destination. What has to hold afterwards is up to each: see
//! its [`Promise`].

use walpost_bed::SinkFixture;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, moment, stop};
use walpost_bed::writer::Writer;

use crate::promise::{Destination, assert_rows, cases};

cases! {
    killed_walpost(new): all;
    crash_points(new): all;
    lost_sessions(new): all;
    standby_takes_over(new): all;
    clean_stops(new): all;
    large_transactions(new): all;
    killed_server(alone): all;
    both_killed(alone): [redis nats http];
    // The others cannot tell it from the instance that has the slot.
    thawed_walpost(new): [redis nats];
}

/// Transactions that are committed per second.
const LOAD: u32 = 300;

const END_SESSION: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";

/// walpost is killed at random moments.
pub async fn killed_walpost(fixture: &impl Destination) {
    let mut random = fastrand::Rng::with_seed(7);
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    for _ in 0..8 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        walpost.kill9().await;
        fixture.meanwhile(&mut random).await;
    }
    let walpost = fixture.run().await;
    fixture.assert_kept_after(writer).await;
    stop(walpost).await;
}

/// walpost dies before a record is sent, after it is acknowledged, and before the position is
/// confirmed.
async fn crash_points<D: Destination>(fixture: &D) {
    let (counts, rows, keys) = D::CRASHES;
    for point in ["produced", "acknowledged", "received"] {
        for count in counts {
            fixture.insert(rows, keys).await;
            let action = format!("{point}={}*off->return", count - 1);
            let walpost = fixture.command("run").env("FAILPOINTS", action).start();
            let status = walpost.wait(SHORT_TIMEOUT).await;
            assert!(!status.expect("it dies").success(), "{point} {count}");
        }
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.assert_kept(&[]).await;
    stop(walpost).await;
}

/// The session with PostgreSQL is lost, and what was read of a transaction is read again.
async fn lost_sessions(fixture: &impl Destination) {
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    for _ in 0..5 {
        writer.commits(20).await;
        fixture.inner.postgres.query_text(END_SESSION).await;
    }
    writer.commits(20).await;
    fixture.assert_kept_after(writer).await;
    stop(walpost).await;
}

/// walpost and the server are killed at once.
async fn both_killed(fixture: &impl Destination) {
    let mut random = fastrand::Rng::with_seed(13);
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    for _ in 0..4 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        tokio::join!(walpost.kill9(), fixture.kill());
        fixture.start_again().await;
    }
    let walpost = fixture.run().await;
    fixture.assert_kept_after(writer).await;
    stop(walpost).await;
}

/// The server is killed, and walpost keeps running.
async fn killed_server<D: Destination>(fixture: &D) {
    let mut random = fastrand::Rng::with_seed(11);
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, D::LOAD);
    for _ in 0..D::KILLS {
        writer.commits(30).await;
        moment(&mut random).await;
        fixture.kill().await;
        writer.commits(10).await;
        moment(&mut random).await;
        fixture.start_again().await;
    }
    writer.commits(30).await;
    assert_rows(&fixture.judge_after(writer).await, D::ONCE_LATER);
    assert!(walpost.pid().is_some(), "it still runs: {:?}", walpost.stderr());
    stop(walpost).await;
}

/// A standby instance takes over from one that was killed.
async fn standby_takes_over(fixture: &impl Destination) {
    let active = fixture.run().await;
    let standby = fixture.command("run").start();
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    writer.commits(100).await;
    active.kill9().await;
    standby.await_line("streaming from PostgreSQL", LONG_TIMEOUT).await;
    writer.commits(50).await;
    fixture.assert_kept_after(writer).await;
    stop(standby).await;
}

/// Ends the sessions of an instance that is frozen, so that another one can take its slot.
pub async fn end_sessions(fixture: &SinkFixture) {
    for end in [
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots",
        // It holds the lock on the slot's name, too.
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'",
    ] {
        fixture.inner.postgres.query_text(end).await;
    }
}

/// walpost is frozen, another one takes its slot, and the first continues.
async fn thawed_walpost(fixture: &impl Destination) {
    let frozen = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    writer.commits(50).await;
    frozen.pause();
    writer.commits(20).await;
    end_sessions(fixture).await;
    let other = fixture.run().await;
    writer.commits(50).await;
    frozen.resume();
    writer.commits(100).await;
    fixture.assert_kept_after(writer).await;
    frozen.kill9().await;
    stop(other).await;
}

/// A clean stop leaves nothing to be published again.
async fn clean_stops(fixture: &impl Destination) {
    for _ in 0..3 {
        let walpost = fixture.run().await;
        fixture.insert(200, 7).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
    fixture.assert_exact().await;
}

/// Each of a backlog is there once and in order.
async fn large_transactions<D: Destination>(fixture: &D) {
    let (rows, keys) = D::BACKLOG;
    fixture.insert(rows, keys).await;
    for _ in 0..50 {
        fixture.insert(20, 7).await;
    }
    let walpost = fixture
        .command("run")
        .env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB")
        .args(["--in-flight-bytes", "1MiB"])
        .start();
    fixture.assert_exact().await;
    let last = stop(walpost).await;
    assert_eq!(last["delivered"], rows + 1000);
    // A clean restart delivers nothing again.
    let walpost = fixture.run().await;
    fixture.insert(1, 1).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}
