//! A quorum queue of RabbitMQ. The bare producer publishes the same messages over one channel with
//! confirmations, without waiting for messages of the same key.

use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, PublisherConfirm};
use walpost_bed::{RabbitMessage, RabbitMq};

use crate::backlog::Shape;
use crate::{Bench, ended, until};

const EXCHANGE: &str = "outbox";
const QUEUE: &str = "orders";

/// Messages that are sent before the first is confirmed: as walpost has.
const IN_FLIGHT: usize = 2048;

pub(crate) async fn bench(bench: &Bench) {
    let rabbit = RabbitMq::start().await;
    rabbit.exchange(EXCHANGE, "fanout").await;
    rabbit.queue(QUEUE, &[("x-queue-type", "quorum")]).await;
    rabbit.bind(QUEUE, EXCHANGE, "").await;
    let command = |name: &str| {
        let command = bench.command("rabbitmq", name).env("WALPOST_RABBITMQ_URL", rabbit.url());
        command.env("WALPOST_RABBITMQ_EXCHANGE", EXCHANGE)
    };
    ended(command("init").arg("--apply")).await;
    for keys in [1000, 10_000] {
        let length = async || rabbit.length(QUEUE).await as usize;
        let round = async || {
            bench.write_backlog(Shape::OneTransaction, keys).await;
            let walposts = bench.drain(command("run"), until(bench.rows, length)).await;
            let messages = rabbit.take(QUEUE).await;
            let bare = async || {
                rabbit.take(QUEUE).await;
                let begun = Instant::now();
                publish(&rabbit, &messages).await;
                until(bench.rows, length).await;
                begun.elapsed()
            };
            let times = bench.against(walposts, bare).await;
            rabbit.take(QUEUE).await;
            times
        };
        bench.compare(&format!("RabbitMQ, {keys} keys"), round).await;
    }
}

/// Publishes the same messages.
async fn publish(rabbit: &RabbitMq, messages: &[RabbitMessage]) {
    let (_connection, channel) = rabbit.channel().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirmations");
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let mut unconfirmed = FuturesUnordered::<PublisherConfirm>::new();
    for message in messages {
        if unconfirmed.len() >= IN_FLIGHT {
            unconfirmed.next().await.expect("one").expect("it is confirmed");
        }
        let routing_key = message.routing_key.as_str().into();
        let properties = properties(message);
        let published =
            channel.basic_publish(EXCHANGE.into(), routing_key, options, &message.body, properties);
        unconfirmed.push(published.await.expect("it is published"));
    }
    while let Some(confirmed) = unconfirmed.next().await {
        confirmed.expect("it is confirmed");
    }
}

fn properties(message: &RabbitMessage) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in &message.headers {
        headers.insert(name.as_str().into(), AMQPValue::LongString(value.clone().into()));
    }
    BasicProperties::default()
        .with_content_type("application/json".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_message_id(message.message_id.as_str().into())
        .with_timestamp(message.timestamp.unwrap_or_default())
}
