//! What a message is made of, and that every event becomes one.

use std::collections::BTreeSet;

use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::RabbitFixture;
use crate::promise::Promise;

/// Behind an exchange that hashes the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_arrives_once_and_in_order() {
    let fixture = RabbitFixture::bare(super::fixture::shared().await.rabbit.clone()).await;
    fixture.rabbit.exchange(&fixture.exchange, "x-consistent-hash").await;
    for number in 0..3 {
        let queue = fixture.queue(number);
        fixture.rabbit.queue(&queue, &[("x-queue-type", "quorum")]).await;
        // The routing key is the queue's weight.
        fixture.rabbit.bind(&queue, &fixture.exchange, "1").await;
    }
    let walpost = fixture.run().await;
    for count in [1, 10, 2000] {
        fixture.insert(count, 50).await;
    }
    // Of one key, one message is unconfirmed at a time.
    fixture.insert(300, 1).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// A direct exchange gives each partition of the keys to the queue with its number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_partition_are_in_one_queue() {
    let fixture = RabbitFixture::bare(super::fixture::shared().await.rabbit.clone()).await;
    let fixture = fixture.configured("rabbitmq.routing_key = '{partition(3)}'\n");
    fixture.rabbit.exchange(&fixture.exchange, "direct").await;
    for number in 0..3 {
        let queue = fixture.queue(number);
        fixture.rabbit.queue(&queue, &[("x-queue-type", "quorum")]).await;
        fixture.rabbit.bind(&queue, &fixture.exchange, &number.to_string()).await;
    }
    let walpost = fixture.run().await;
    fixture.insert(300, 50).await;
    fixture.assert_exact().await;
    let mut keys: Vec<_> =
        fixture.records().await.into_iter().map(|read| (read.key, read.partition)).collect();
    keys.sort_unstable();
    keys.dedup();
    let queues: BTreeSet<_> = keys.iter().map(|(_, queue)| *queue).collect();
    assert_eq!((keys.len(), queues), (50, BTreeSet::from([0, 1, 2])), "{keys:?}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_has_key_topic_position_and_headers() {
    let fixture = RabbitFixture::bare(super::fixture::shared().await.rabbit.clone()).await;
    let fixture = fixture.configured("rabbitmq.routing_key = 'eu.{topic}.{key}'\n");
    let queue = fixture.queue(0);
    fixture.rabbit.exchange(&fixture.exchange, "topic").await;
    fixture.rabbit.queue(&queue, &[]).await;
    // A key is one word, whatever it has.
    fixture.rabbit.bind(&queue, &fixture.exchange, "eu.outbox.event.order.*").await;
    let sql = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
               VALUES ('order', 'k 1.x', 'placed', '{\"a\": 1}', '{\"tenant\": \"é\"}')";
    fixture.inner.postgres.execute(sql).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let messages = fixture.rabbit.take(&queue).await;
    let [message] = messages.as_slice() else { panic!("{messages:?}") };
    let id = fixture.inner.postgres.query_text("SELECT id::text FROM public.outbox").await;
    assert_eq!(Some(message.message_id.clone()), id);
    assert_eq!(message.routing_key, "eu.outbox.event.order.k 1%2Ex");
    assert_eq!(message.content_type.as_deref(), Some("application/json"));
    assert_eq!((message.delivery_mode, message.timestamp.is_some()), (Some(2), true));
    for (name, value) in [
        ("id", id.as_deref()),
        ("event_type", Some("placed")),
        ("tenant", Some("é")),
        ("walpost.topic", Some("outbox.event.order")),
        ("walpost.key", Some("k 1.x")),
        ("walpost.tombstone", None),
    ] {
        assert_eq!(message.header(name), value, "{name} in {message:?}");
    }
    assert!(message.header("walpost.position").is_some_and(|position| position.len() == 25));
    let body: serde_json::Value = serde_json::from_slice(&message.body).expect("JSON");
    assert_eq!(body["a"], 1);
    stop(walpost).await;
}
