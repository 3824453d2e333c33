//! The server is away, frozen, or has no such queue: walpost keeps its session, its position and its
//! memory, and sends everything in order afterwards.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{ElasticMq, Endpoints, Proxy, eventually, long_outage};

use super::fixture::SqsFixture;
use crate::promise::Promise;

const RECOVERED: &str = "delivering to Amazon SQS again";

/// Transactions a second of the long outage: ElasticMQ takes a few hundred messages a second, and then
/// has to catch up and be read.
const LOAD: u32 = 20;

/// What memory may grow by once the budget is spent, in bytes.
const GROWTH: u64 = 16 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_keeps_session_position_and_memory() {
    let mut fixture = SqsFixture::new().await;
    let proxy = Proxy::to(fixture.elasticmq.port()).await;
    fixture.url = ElasticMq::queue_url_at(proxy.port(), &fixture.queue);
    fixture.inner.postgres.execute("ALTER SYSTEM SET wal_sender_timeout = '3s'").await;
    fixture.inner.postgres.execute("SELECT pg_reload_conf()").await;
    let walpost = fixture.command("run").args(["--in-flight-bytes", "256KiB"]).start();
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let walsender = fixture.inner.walsender().await;
    proxy.refuse();
    proxy.cut();
    let unconfirmed = fixture.inner.postgres.commit(&insert(2000, 500)).await;
    walpost.await_line("sqs.queue_url", SHORT_TIMEOUT).await;
    let before = walpost.rss_bytes().expect("it runs");
    // Several times what PostgreSQL waits for a client that does not answer.
    tokio::time::sleep(Duration::from_secs(10)).await;
    fixture.insert(2000, 500).await;
    let after = walpost.rss_bytes().expect("it runs");
    assert!(after < before + GROWTH, "{before} {after}");
    fixture.inner.assert_unconfirmed(&unconfirmed).await;
    proxy.restore();
    fixture.assert_exact().await;
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    assert_eq!(fixture.inner.walsender().await, walsender, "the same session");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn outage_of_ten_minutes_under_load_loses_nothing() {
    let mut fixture = SqsFixture::new().await;
    // ElasticMQ takes longer than the outage for its backlog if it syncs each message.
    let proxy = Proxy::to(fixture.elasticmq.port()).await;
    fixture.url = ElasticMq::queue_url_at(proxy.port(), &fixture.queue);
    let begin = async || {
        proxy.refuse();
        proxy.cut();
    };
    let outage = long_outage(&fixture, LOAD, begin, async || proxy.restore()).await;
    fixture.judge_with(&outage.rolled_back).await.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_server_is_used_again() {
    let fixture = SqsFixture::with(Arc::new(ElasticMq::in_memory().await)).await;
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 100);
    writer.commits(50).await;
    fixture.elasticmq.pause();
    // Longer than an answer may take.
    walpost.await_line("cannot deliver to Amazon SQS", LONG_TIMEOUT).await;
    fixture.elasticmq.resume();
    writer.commits(50).await;
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_repeat_nothing() {
    let mut fixture = SqsFixture::new().await;
    let proxy = Proxy::to(fixture.elasticmq.port()).await;
    fixture.url = ElasticMq::queue_url_at(proxy.port(), &fixture.queue);
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..10 {
        writer.commits(30).await;
        proxy.cut();
        proxy.restore();
    }
    writer.commits(20).await;
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}

/// What is wrong for every event is not the fault of one: nothing is skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_queue_is_said_and_waited_for() {
    let fixture = SqsFixture::new().await.configured("[poison]\nrefused = 'skip'\n");
    fixture.elasticmq.delete_queue(&fixture.queue).await;
    fixture.insert(5, 3).await;
    let walpost = fixture.command("run").start();
    let line = walpost.await_line("create the queue", SHORT_TIMEOUT).await;
    assert!(line.contains("sqs.queue_url"), "{line}");
    fixture.elasticmq.add_queue(&fixture.queue, &json!({})).await;
    fixture.assert_exact().await;
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    // And while it runs.
    fixture.elasticmq.delete_queue(&fixture.queue).await;
    fixture.insert(5, 3).await;
    eventually(SHORT_TIMEOUT, "it is said again", async || {
        walpost.stderr().iter().filter(|line| line.contains("create the queue")).count() > 1
    })
    .await;
    fixture.elasticmq.add_queue(&fixture.queue, &json!({})).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_away_at_the_start_is_waited_for() {
    let mut fixture = SqsFixture::new().await;
    let proxy = Proxy::to(fixture.elasticmq.port()).await;
    fixture.url = ElasticMq::queue_url_at(proxy.port(), &fixture.queue);
    proxy.refuse();
    let walpost = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]).start();
    let line = walpost.await_line("walpost starts", SHORT_TIMEOUT).await;
    let line: serde_json::Value = serde_json::from_str(&line).expect("a JSON line");
    assert_eq!(line["endpoint"], fixture.url.as_str());
    let endpoints = Endpoints::of(&walpost).await;
    eventually(SHORT_TIMEOUT, "it is not ready", async || {
        let (ready, text) = endpoints.readiness().await;
        !ready && text.contains("SQS")
    })
    .await;
    proxy.restore();
    eventually(LONG_TIMEOUT, "it is ready", async || endpoints.are_ready().await).await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    let status = endpoints.status().await;
    let sink = (&status["sink"], &status["sink_connected"]);
    assert_eq!(sink, (&"Amazon SQS".into(), &true.into()));
    let metrics = endpoints.metrics().await;
    let published = r#"walpost_events_published_total{database="postgres",slot="walpost",topic="outbox.event.order"} 10"#;
    assert!(metrics.contains(published), "{metrics}");
    stop(walpost).await;
}
