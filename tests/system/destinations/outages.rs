//! A server that is away, frozen, or whose connections are cut, with each destination: walpost keeps its
//! session, its position and its memory, and publishes everything in order afterwards.

use std::time::Duration;

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Endpoints, Walpost, eventually, long_outage, unchanged};

use crate::promise::{Destination, assert_rows, cases};

cases! {
    outage_keeps_session_position_and_memory(new): all;
    #[ignore = "long: make long"]
    outage_of_ten_minutes_under_load(alone): [redis nats rabbitmq http];
    #[ignore = "long: make long"]
    cut_off_for_ten_minutes_under_load(new): [sqs];
    frozen_server_is_used_again(new): all;
    cut_connections(new): all;
    server_that_is_away_is_waited_for(new): all;
}

/// What memory may grow by once the budget is spent, in bytes.
const GROWTH: u64 = 16 * 1024 * 1024;

/// Transactions a second.
const LOAD: u32 = 100;

async fn outage_keeps_session_position_and_memory<D: Destination>(fixture: &mut D) {
    let proxy = fixture.proxied().await;
    let (postgres, (rows, keys)) = (&fixture.inner.postgres, D::BACKLOG);
    postgres.execute("ALTER SYSTEM SET wal_sender_timeout = '3s'").await;
    postgres.execute("SELECT pg_reload_conf()").await;
    let walpost = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]);
    let walpost = walpost.args(["--in-flight-bytes", "256KiB"]).start();
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    proxy.refuse();
    proxy.cut();
    let unconfirmed = postgres.commit(&insert(rows, keys)).await;
    noticed::<D>(&walpost).await;
    // What was in flight is read again over another session.
    let walsender = async || fixture.inner.walsender().await;
    let kept = unchanged(Duration::from_secs(2), SHORT_TIMEOUT, walsender).await;
    // What the alert on a stall looks at.
    let in_flight = Endpoints::of(&walpost).await.metric("walpost_in_flight_events", "").await;
    assert!(in_flight > 0, "nothing waits");
    let before = walpost.rss_bytes().expect("it runs");
    // Several times what PostgreSQL waits for a client that does not answer.
    tokio::time::sleep(Duration::from_secs(10)).await;
    fixture.insert(rows, keys).await;
    let after = walpost.rss_bytes().expect("it runs");
    assert!(after < before + GROWTH, "{before} {after}");
    fixture.inner.assert_unconfirmed(&unconfirmed).await;
    assert!(kept.is_some(), "it has the slot");
    assert_eq!(walsender().await, kept, "the same session");
    proxy.restore();
    if D::ONCE_AFTER_OUTAGE {
        fixture.assert_exact().await;
    } else {
        fixture.confirmed(LONG_TIMEOUT).await;
        fixture.judge().await.assert_ok();
    }
    walpost.await_line(&format!("delivering to {} again", D::NAME), SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// For a server that takes longer than the outage for its backlog if it syncs each message.
async fn cut_off_for_ten_minutes_under_load<D: Destination>(fixture: &mut D) {
    let proxy = fixture.proxied().await;
    let begin = async || {
        proxy.refuse();
        proxy.cut();
    };
    let outage = long_outage(fixture, LOAD.min(D::LOAD), begin, async || proxy.restore()).await;
    assert_rows(&fixture.judge_with(&outage.rolled_back).await, D::ONCE_LATER);
}

async fn outage_of_ten_minutes_under_load<D: Destination>(fixture: &D) {
    let (begin, end) = (async || fixture.kill().await, async || fixture.start_again().await);
    let outage = long_outage(fixture, LOAD.min(D::LOAD), begin, end).await;
    assert_rows(&fixture.judge_with(&outage.rolled_back).await, D::ONCE_LATER);
}

/// Waits until the outage is logged: whether the connection was idle when it was lost, or not.
async fn noticed<D: Destination>(walpost: &Walpost) {
    let cannot = format!("cannot deliver to {}", D::NAME);
    eventually(LONG_TIMEOUT, "the outage is logged", async || {
        walpost.said(&cannot) || walpost.said("delivery failed; replaying")
    })
    .await;
}

async fn frozen_server_is_used_again<D: Destination>(fixture: &mut D) {
    let proxy = fixture.proxied().await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, LOAD);
    writer.commits(50).await;
    proxy.blackhole();
    // Longer than a connection without answers is kept.
    noticed::<D>(&walpost).await;
    proxy.restore();
    writer.commits(50).await;
    fixture.assert_kept_after(writer).await;
    stop(walpost).await;
}

async fn cut_connections(fixture: &mut impl Destination) {
    let proxy = fixture.proxied().await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..10 {
        writer.commits(40).await;
        proxy.cut();
        proxy.restore();
    }
    writer.commits(20).await;
    fixture.assert_kept_after(writer).await;
    stop(walpost).await;
}

async fn server_that_is_away_is_waited_for<D: Destination>(fixture: &mut D) {
    let proxy = fixture.proxied().await;
    proxy.refuse();
    let walpost = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]).start();
    let line = walpost.await_line("walpost starts", SHORT_TIMEOUT).await;
    assert!(line.contains(&fixture.described(proxy.port())), "{line}");
    let endpoints = Endpoints::of(&walpost).await;
    let name = D::NAME.trim_start_matches("the ");
    eventually(SHORT_TIMEOUT, "it is not ready", async || {
        let (ready, text) = endpoints.readiness().await;
        !ready && text.contains(name)
    })
    .await;
    proxy.restore();
    eventually(LONG_TIMEOUT, "it is ready", async || endpoints.are_ready().await).await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    let status = endpoints.status().await;
    assert!(status["sink"].as_str().is_some_and(|sink| sink.contains(name)), "{status}");
    assert_eq!(status["sink_connected"], true);
    assert_eq!(endpoints.metric("walpost_sink_connected", "").await, 1);
    let metrics = endpoints.metrics().await;
    let published = r#"walpost_events_published_total{database="postgres",slot="walpost",topic="outbox.event.order"} 10"#;
    assert!(metrics.contains(published), "{metrics}");
    if D::HAS_CONNECTION {
        // Which is idle when it is lost.
        proxy.refuse();
        proxy.cut();
        eventually(LONG_TIMEOUT, "it is not ready", async || {
            let (ready, text) = endpoints.readiness().await;
            let is_connected = endpoints.metric("walpost_sink_connected", "").await == 1;
            !ready && !is_connected && text.contains(name)
        })
        .await;
        proxy.restore();
        eventually(LONG_TIMEOUT, "it is ready again", async || endpoints.are_ready().await).await;
    }
    stop(walpost).await;
}
