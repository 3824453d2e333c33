//! RabbitMQ is low on memory, frozen or full: walpost publishes everything in order once it can.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Endpoints, eventually};

use super::fixture::{RabbitFixture, shared};
use crate::promise::Promise;

const RECOVERED: &str = "delivering to RabbitMQ again";

/// What memory may grow by once the budget is spent, in bytes.
const GROWTH: u64 = 16 * 1024 * 1024;

/// First it reads nothing from publishers, then nothing at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_and_frozen_broker_is_waited_for() {
    let fixture = RabbitFixture::alone().await;
    fixture.inner.postgres.execute("ALTER SYSTEM SET wal_sender_timeout = '3s'").await;
    fixture.inner.postgres.execute("SELECT pg_reload_conf()").await;
    let walpost = fixture.command("run").args(["--in-flight-bytes", "1MiB"]);
    let walpost = walpost.args(["--admin-listen", "127.0.0.1:0"]).start();
    let endpoints = Endpoints::of(&walpost).await;
    fixture.insert(100, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let walsender = fixture.inner.walsender().await;
    fixture.rabbit.control(&["set_vm_memory_high_watermark", "0"]).await;
    let unconfirmed = fixture.inner.postgres.commit(&insert(20_000, 50)).await;
    let line = walpost.await_line("has blocked publishers", SHORT_TIMEOUT).await;
    assert!(line.contains("low on memory"), "{line}");
    eventually(SHORT_TIMEOUT, "it is not ready", async || !endpoints.are_ready().await).await;
    let before = walpost.rss_bytes().expect("it runs");
    fixture.insert(20_000, 50).await;
    // More than PostgreSQL waits for a client that does not answer.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = walpost.rss_bytes().expect("it runs");
    assert!(after < before + GROWTH, "{before} {after}");
    fixture.inner.assert_unconfirmed(&unconfirmed).await;
    fixture.rabbit.control(&["set_vm_memory_high_watermark", "0.6"]).await;
    fixture.assert_exact().await;
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "it is ready", async || endpoints.are_ready().await).await;

    assert_eq!(fixture.inner.walsender().await, walsender, "the same session");

    fixture.rabbit.pause();
    fixture.insert(100, 5).await;
    walpost.await_line("has not answered for 15s", LONG_TIMEOUT).await;
    // What was in flight is read again over another session, which stays.
    eventually(LONG_TIMEOUT, "it holds the slot", async || {
        fixture.inner.walsender().await.is_some_and(|now| Some(now) != walsender)
    })
    .await;
    let walsender = fixture.inner.walsender().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.inner.walsender().await, walsender, "the same session");
    fixture.rabbit.resume();
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&[]).await.assert_ok();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_exchange_is_awaited_and_named() {
    let fixture = RabbitFixture::bare(Arc::clone(&shared().await.rabbit)).await;
    let walpost = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]).start();
    let endpoints = Endpoints::of(&walpost).await;
    fixture.insert(10, 3).await;
    let line = walpost.await_line("no exchange", SHORT_TIMEOUT).await;
    assert!(line.contains("rabbitmq.exchange") && line.contains(&fixture.exchange), "{line}");
    assert!(!endpoints.are_ready().await);
    let queue = fixture.queue(0);
    fixture.rabbit.exchange(&fixture.exchange, "fanout").await;
    fixture.rabbit.queue(&queue, &[]).await;
    fixture.rabbit.bind(&queue, &fixture.exchange, "").await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert!(fixture.rabbit.length(&queue).await >= 10);
    eventually(SHORT_TIMEOUT, "it is ready", async || endpoints.are_ready().await).await;
    stop(walpost).await;
}

/// As one without a majority of its members. The keys of other queues do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_that_confirms_nothing_is_reported_and_waited_for() {
    let fixture = RabbitFixture::new().await;
    let walpost = fixture.run().await;
    let order = async |order: &str| {
        let order = format!("sys:{order}('%2F_{}').", fixture.queue(1));
        fixture.rabbit.control(&["eval", &order]).await;
    };
    // The broker makes itself known to a queue with the first message.
    fixture.insert(100, 50).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    order("suspend").await;
    let writer = Writer::start(&fixture.inner.postgres, 100);
    let line = walpost.await_line("has not confirmed a message for 15s", LONG_TIMEOUT).await;
    assert!(line.contains("majority"), "{line}");
    let other = fixture.rabbit.length(&fixture.queue(0)).await;
    writer.commits(100).await;
    eventually(SHORT_TIMEOUT, "another queue gets messages", async || {
        fixture.rabbit.length(&fixture.queue(0)).await > other
    })
    .await;
    order("resume").await;
    let rolled_back = writer.stop().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.judge_with(&rolled_back).await.assert_exact();
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// What a full queue refuses is published again in its place; other keys do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_message_is_published_again_and_nothing_of_its_key_passes_it() {
    let fixture = RabbitFixture::bare(Arc::clone(&shared().await.rabbit)).await;
    fixture.rabbit.exchange(&fixture.exchange, "direct").await;
    let full = &fixture.queue(0);
    fixture.rabbit.queue(full, &[("x-max-length", "20"), ("x-overflow", "reject-publish")]).await;
    fixture.rabbit.queue(&fixture.queue(1), &[]).await;
    fixture.rabbit.queue(&fixture.queue(2), &[]).await;
    for key in 0..7 {
        // The first key alone has room.
        let queue = if key == 0 { fixture.queue(1) } else { full.clone() };
        fixture.rabbit.bind(&queue, &fixture.exchange, &key.to_string()).await;
    }
    let walpost = fixture.run().await;
    fixture.insert(700, 7).await;
    let line = walpost.await_line("basic.nack", SHORT_TIMEOUT).await;
    assert!(line.contains("reject-publish"), "{line}");
    eventually(LONG_TIMEOUT, "the other key arrives", async || {
        fixture.rabbit.length(&fixture.queue(1)).await == 100
    })
    .await;
    // Consumers make room, a little at a time.
    let mut confirmed = std::pin::pin!(fixture.confirmed(LONG_TIMEOUT));
    while timeout(Duration::from_millis(20), &mut confirmed).await.is_err() {
        fixture.records().await;
    }
    // What was read is kept by the fixture.
    fixture.judge_with(&[]).await.assert_exact();
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    stop(walpost).await;
}
