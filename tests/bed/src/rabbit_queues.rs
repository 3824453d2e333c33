//! Quorum queues of RabbitMQ that share the keys of an exchange, and what was read of them.
//!
//! Each key is bound to its queue: an exchange that hashes keys may give them to other queues when
//! RabbitMQ restarts. A queue gives a message once, so what was taken out of the queues is kept here.

use std::sync::Arc;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};
use tokio::sync::{Mutex, MutexGuard, mpsc};

use crate::consumer::Consumed;
use crate::rabbitmq::RabbitMq;

/// How many queues share the keys.
const QUEUES: u32 = 3;

/// An exchange, and queues behind it that each have a part of the keys.
#[derive(Debug)]
pub struct RabbitQueues {
    rabbit: Arc<RabbitMq>,
    exchange: String,
    /// What was taken out of the queues so far, in the order of each queue.
    taken: Mutex<Vec<Consumed>>,
}

impl RabbitQueues {
    /// Of an exchange that is not declared yet.
    pub fn new(rabbit: Arc<RabbitMq>, exchange: &str) -> Self {
        Self { rabbit, exchange: exchange.to_owned(), taken: Mutex::default() }
    }

    /// Declares the exchange, which gives each message to those behind it, and behind that one with
    /// the keys that the bed writes, bound to the queues. Another key goes to the first queue.
    pub async fn declare(&self) {
        let (keys, rest) = (format!("{}.keys", self.exchange), format!("{}.rest", self.exchange));
        self.rabbit.exchange(&self.exchange, "fanout").await;
        self.rabbit.exchange(&rest, "fanout").await;
        let (_connection, channel) = self.rabbit.channel().await;
        let mut arguments = FieldTable::default();
        let rest_name = AMQPValue::LongString(rest.as_str().into());
        arguments.insert("alternate-exchange".into(), rest_name);
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let kind = ExchangeKind::Direct;
        let declared = channel.exchange_declare(keys.as_str().into(), kind, options, arguments);
        declared.await.expect("it is declared");
        self.rabbit.bind_exchange(&keys, &self.exchange).await;
        for number in 0..QUEUES {
            self.rabbit.queue(&self.queue(number), &[("x-queue-type", "quorum")]).await;
        }
        self.rabbit.bind(&self.queue(0), &rest, "").await;
        let of_writer = (0..8).map(|number| format!("w{number}"));
        let known = (0..50).map(|number| number.to_string()).chain(of_writer);
        for (key, number) in known.zip((0..QUEUES).cycle()) {
            let queue = self.queue(number);
            let bound = channel.queue_bind(
                queue.as_str().into(),
                keys.as_str().into(),
                key.as_str().into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            );
            bound.await.expect("it is bound");
        }
    }

    /// The same, so that they survive a kill of RabbitMQ.
    pub async fn declare_durably(&self) {
        self.declare().await;
        self.rabbit.sync_queue_names().await;
    }

    pub fn rabbit(&self) -> &RabbitMq {
        &self.rabbit
    }

    /// The name of a queue.
    pub fn queue(&self, number: u32) -> String {
        format!("{}.{number}", self.exchange)
    }

    /// All records that consumers have read by now, in the order of each queue.
    pub async fn records(&self) -> Vec<Consumed> {
        self.records_after(0).await
    }

    /// How many these are.
    pub async fn count(&self) -> usize {
        self.take().await.len()
    }

    /// Those behind the first so many.
    pub async fn records_after(&self, count: usize) -> Vec<Consumed> {
        self.take().await[count..].to_vec()
    }

    /// Takes out of the queues what is there.
    async fn take(&self) -> MutexGuard<'_, Vec<Consumed>> {
        let mut taken = self.taken.lock().await;
        for number in 0..QUEUES {
            let partition = i32::try_from(number).expect("a small number");
            let before = taken.iter().filter(|record| record.partition == partition).count();
            let messages = self.rabbit.take(&self.queue(number)).await;
            let offsets = i64::try_from(before).expect("a small number")..;
            let records = offsets.zip(messages);
            taken.extend(records.map(|(offset, message)| message.record(partition, offset)));
        }
        taken
    }

    /// The records that are published from here on, as they come, until RabbitMQ ends. They are in
    /// the queues as well.
    pub async fn follow(&self) -> mpsc::UnboundedReceiver<Consumed> {
        let queue = format!("{}.followed", self.exchange);
        self.rabbit.queue(&queue, &[]).await;
        self.rabbit.bind(&queue, &self.exchange, "").await;
        let mut messages = self.rabbit.follow(&queue).await;
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for offset in 0.. {
                let Some(message) = messages.recv().await else { return };
                if sender.send(message.record(0, offset)).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}
