//! Kills, freezes and lost sessions that several destinations are tested with. What has to hold
//! afterwards is up to each: see its [`Promise`].

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, moment, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{SinkFixture, Walpost};

use crate::promise::Promise;

/// Transactions that are committed per second.
const LOAD: u32 = 300;

const END_SESSION: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";

/// walpost is killed at random moments; `meanwhile` is called while it is away.
pub async fn killed_walpost(
    fixture: &impl Promise,
    mut meanwhile: impl AsyncFnMut(&mut fastrand::Rng),
) {
    let mut random = fastrand::Rng::with_seed(7);
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    for _ in 0..8 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        walpost.kill9().await;
        meanwhile(&mut random).await;
    }
    let walpost = fixture.run().await;
    fixture.assert_kept_after(writer).await;
    stop(walpost).await;
}

/// walpost dies before a record is sent, after it is acknowledged, and before the position is
/// confirmed: at the records with these numbers of so many rows, with so many keys.
pub async fn crash_points(fixture: &impl Promise, counts: &[u32], rows: u32, keys: u32) {
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
pub async fn lost_sessions(fixture: &impl Promise) {
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
pub async fn both_killed(
    fixture: &impl Promise,
    kill: impl AsyncFn(),
    start_again: impl AsyncFn(),
) {
    let mut random = fastrand::Rng::with_seed(13);
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    for _ in 0..4 {
        let walpost = fixture.run().await;
        writer.commits(20).await;
        moment(&mut random).await;
        tokio::join!(walpost.kill9(), kill());
        start_again().await;
    }
    let walpost = fixture.run().await;
    fixture.assert_kept_after(writer).await;
    stop(walpost).await;
}

/// The server is killed so many times, and walpost keeps running. `load`: transactions per second.
/// `start_again` may look at what walpost says of it.
pub async fn killed_server(
    fixture: &impl Promise,
    (times, load): (u32, u32),
    kill: impl AsyncFn(),
    start_again: impl AsyncFn(&Walpost),
) {
    let mut random = fastrand::Rng::with_seed(11);
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, load);
    for _ in 0..times {
        writer.commits(30).await;
        moment(&mut random).await;
        kill().await;
        writer.commits(10).await;
        moment(&mut random).await;
        start_again(&walpost).await;
    }
    writer.commits(30).await;
    fixture.assert_kept_after(writer).await;
    assert!(walpost.pid().is_some(), "it still runs: {:?}", walpost.stderr());
    stop(walpost).await;
}

/// A standby instance takes over from one that was killed.
pub async fn standby_takes_over(fixture: &impl Promise) {
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
pub async fn thawed_walpost(fixture: &impl Promise) {
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
pub async fn clean_stops(fixture: &impl Promise) {
    for _ in 0..3 {
        let walpost = fixture.run().await;
        fixture.insert(200, 7).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
}
