//! What `check` finds.

use serde_json::json;
use walpost_bed::fixture::LONG_TIMEOUT;

use super::fixture::SqsFixture;
use super::front::Deed;
use crate::promise::{Destination as _, finding};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_sends_nothing_and_finds_what_is_wrong() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    assert_eq!(fixture.codes(&[]).await, [finding("ok", "sqs_queue")]);
    assert!(front.batches().is_empty());
    front.does(|_| Deed::Error(403, "AccessDenied", "no"));
    assert_eq!(fixture.codes(&[]).await, [finding("error", "sqs_credentials")]);
    front.does(|_| Deed::Pass);
    let letters = fixture.url.replace(&fixture.queue, &fixture.letters);
    let toml =
        format!("[sqs]\ndead_letter_queue_url = '{letters}'\n[poison]\nrefused = 'dead_letter'\n");
    fixture.configure(&toml);
    let both = [finding("ok", "sqs_queue"), finding("ok", "sqs_dead_letter_queue")];
    assert_eq!(fixture.codes(&[]).await, both);
    fixture.elasticmq.delete_queue(&fixture.letters).await;
    assert_eq!(fixture.codes(&[]).await, [finding("error", "sqs_unusable")]);
}

/// A queue whose name alone is that of a FIFO queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_that_is_no_fifo_queue_is_found() {
    let fixture = SqsFixture::behind_front().await;
    let front = fixture.front();
    front.does(|request| match request.action.as_str() {
        "GetQueueAttributes" => Deed::Answer(json!({ "Attributes": { "DelaySeconds": "0" } })),
        _ => Deed::Pass,
    });
    let (code, said) = fixture.ended("check", &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is not a FIFO queue: create one"), "{said}");
    let walpost = fixture.command("run").start();
    walpost.await_line("is not a FIFO queue", LONG_TIMEOUT).await;
    assert!(front.batches().is_empty());
    walpost.kill9().await;
}
