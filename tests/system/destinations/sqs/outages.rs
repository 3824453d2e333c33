//! The queue is missing: everything is sent in order afterwards.

use serde_json::json;
use walpost_bed::eventually;
use walpost_bed::fixture::{SHORT_TIMEOUT, stop};

use super::fixture::SqsFixture;
use crate::promise::Promise;

const RECOVERED: &str = "delivering to Amazon SQS again";

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
