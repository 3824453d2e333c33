//! A consumer that acts once on each event of a RabbitMQ queue: it adds up what each customer has
//! ordered.
//!
//!     cargo run --example rabbitmq_consumer -- \
//!         amqp://localhost billing outbox.event.order postgres://postgres@localhost/billing
//!
//! RabbitMQ, queue, the topic of the events to act on, and the consumer's own database, which has
//! the tables of `sql/consumer_dedupe.sql` and `examples/consumers/turnover.sql`. The event's id is
//! stored with the effects, in one transaction, and the message is acknowledged then: an error ends
//! the consumer, and RabbitMQ delivers again what was not acknowledged.

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use tokio_postgres::{NoTls, Transaction};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rabbitmq, queue, topic, database] = arguments.as_slice() else {
        bail!("usage: rabbitmq_consumer RABBITMQ QUEUE TOPIC DATABASE");
    };
    consume(rabbitmq, queue, topic, database).await
}

/// Acts on each message, until an error.
pub(crate) async fn consume(
    rabbitmq: &str,
    queue: &str,
    topic: &str,
    database: &str,
) -> anyhow::Result<()> {
    let (mut database, connection) = tokio_postgres::connect(database, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    // No other schema can replace PostgreSQL's functions, operators and types.
    database.batch_execute("SET search_path = pg_catalog, pg_temp").await?;
    let connection = Connection::connect(rabbitmq, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    // One message after the other: this keeps the order of each key.
    channel.basic_qos(1, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let consumer =
        channel.basic_consume(queue.into(), "billing".into(), options, FieldTable::default());
    let mut consumer = consumer.await?;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        let properties = &delivery.properties;
        let id = properties.message_id().as_ref().context("a message without an id")?.as_str();
        let transaction = database.transaction().await?;
        let sql = "INSERT INTO public.processed_events (consumer, event_id)
                   VALUES ('billing', $1)
                   ON CONFLICT DO NOTHING";
        let is_new = transaction.execute(sql, &[&id]).await? == 1;
        if is_new && header(properties, "walpost.topic").as_deref() == Some(topic) {
            act(&transaction, std::str::from_utf8(&delivery.data)?).await?;
        }
        transaction.commit().await?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    bail!("RabbitMQ has cancelled the consumer")
}

/// A header that is text.
fn header(properties: &BasicProperties, name: &str) -> Option<String> {
    match properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// What the event is to cause, in the same transaction.
async fn act(transaction: &Transaction<'_>, order: &str) -> anyhow::Result<()> {
    // An order that is placed names its customer, and one that is paid does not.
    let sql = "INSERT INTO public.turnover AS sum (customer, orders, total_cents)
               SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
                 FROM (SELECT $1::text::jsonb AS placed) AS event
                WHERE placed ->> 'customer' IS NOT NULL
               ON CONFLICT (customer)
               DO UPDATE SET orders = sum.orders + 1,
                             total_cents = sum.total_cents + excluded.total_cents";
    transaction.execute(sql, &[&order]).await?;
    Ok(())
}
