//! A consumer that acts once on each message of a FIFO queue: it adds up what each customer has
//! ordered.
//!
//!     cargo run --features sqs --example sqs_consumer -- \
//!         https://sqs.eu-central-1.amazonaws.com/123456789012/outbox.fifo outbox.event.order \
//!         postgres://postgres@localhost/billing
//!
//! Queue, the topic of the events to act on, and the consumer's own database, which has the tables of
//! `sql/consumer_dedupe.sql` and `examples/consumers/turnover.sql`. Credentials and region are those
//! of the standard variables and files of AWS; `AWS_ENDPOINT_URL` names another server. The id of each
//! event is stored with its effects, in one transaction, and the message is deleted afterwards: an
//! error ends the consumer, and started again it gets the message again.

use anyhow::{Context as _, bail};
use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use tokio_postgres::{NoTls, Transaction};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [queue, topic, database] = arguments.as_slice() else {
        bail!("usage: sqs_consumer QUEUE_URL TOPIC DATABASE");
    };
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let loaded = aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await;
    consume(&Client::new(&loaded), queue, topic, database).await
}

/// Acts on each message, until an error.
pub(crate) async fn consume(
    client: &Client,
    queue: &str,
    topic: &str,
    database: &str,
) -> anyhow::Result<()> {
    let (mut database, connection) = tokio_postgres::connect(database, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    // No other schema can replace PostgreSQL's functions, operators and types.
    database.batch_execute("SET search_path = pg_catalog, pg_temp").await?;
    loop {
        // While they are processed, SQS hands out no other messages of their groups.
        for message in receive(client, queue).await? {
            let transaction = database.transaction().await?;
            let sql = "INSERT INTO public.processed_events (consumer, event_id)
                       VALUES ('billing', $1)
                       ON CONFLICT DO NOTHING";
            let id = attribute(&message, "id").context("the message has no id")?;
            let is_new = transaction.execute(sql, &[&id]).await? == 1;
            if is_new && attribute(&message, "walpost.topic") == Some(topic) {
                act(&transaction, &message).await?;
            }
            transaction.commit().await?;
            let receipt = message.receipt_handle().context("the message has no receipt")?;
            client.delete_message().queue_url(queue).receipt_handle(receipt).send().await?;
        }
    }
}

/// Up to ten messages, with all attributes; none after 20 s without any.
async fn receive(client: &Client, queue: &str) -> anyhow::Result<Vec<Message>> {
    let received = client
        .receive_message()
        .queue_url(queue)
        .max_number_of_messages(10)
        .wait_time_seconds(20)
        .message_attribute_names("All")
        .message_system_attribute_names(MessageSystemAttributeName::All)
        .send();
    Ok(received.await?.messages.unwrap_or_default())
}

fn attribute<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.message_attributes()?.get(name)?.string_value()
}

/// What the event is to cause, in the same transaction.
async fn act(transaction: &Transaction<'_>, message: &Message) -> anyhow::Result<()> {
    // An order that is placed names its customer, and one that is paid does not.
    let sql = "INSERT INTO public.turnover AS sum (customer, orders, total_cents)
               SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
                 FROM (SELECT $1::text::jsonb AS placed) AS event
                WHERE placed ->> 'customer' IS NOT NULL
               ON CONFLICT (customer)
               DO UPDATE SET orders = sum.orders + 1,
                             total_cents = sum.total_cents + excluded.total_cents";
    transaction.execute(sql, &[&message.body()]).await?;
    Ok(())
}
