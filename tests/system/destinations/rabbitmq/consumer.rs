//! The consumer of docs/rabbitmq.md acts once on each event, though it and walpost are ended in
//! between.

use super::fixture::{RabbitFixture, shared};
use crate::consumers::act_once;

#[path = "../../../../examples/consumers/rabbitmq/main.rs"]
#[allow(dead_code, reason = "the program's own start")]
mod program;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_acts_once_on_each_event() {
    let fixture = RabbitFixture::bare(shared().await.rabbit.clone()).await;
    let queue = fixture.queue(0);
    fixture.rabbit.exchange(&fixture.exchange, "fanout").await;
    let arguments = [("x-queue-type", "quorum"), ("x-single-active-consumer", "true")];
    fixture.rabbit.queue(&queue, &arguments).await;
    fixture.rabbit.bind(&queue, &fixture.exchange, "").await;
    let consume = async || {
        let source = &fixture.inner.source;
        program::consume(&fixture.url, &queue, "outbox.event.order", source).await
    };
    act_once(&fixture, 700, || fixture.command("run"), consume).await;
}
