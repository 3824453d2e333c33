//! A consumer that acts once on each message of a NATS stream: it adds up what each customer has
//! ordered.
//!
//!     cargo run --example nats_consumer -- \
//!         nats://localhost outbox outbox.event.order postgres://postgres@localhost/billing
//!
//! NATS, stream, the subject of the events to act on, and the consumer's own database, which has the
//! tables of `examples/consumers/nats/tables.sql` and `examples/consumers/turnover.sql`. The sequence
//! number of the last message is stored with the effects, in one transaction: an error ends the
//! consumer, and started again it resumes behind that message.

use anyhow::{Context as _, anyhow, bail};
use async_nats::jetstream;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use futures_util::StreamExt as _;
use tokio_postgres::{NoTls, Transaction};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [nats, stream, subject, database] = arguments.as_slice() else {
        bail!("usage: nats_consumer NATS STREAM SUBJECT DATABASE");
    };
    consume(nats, stream, subject, database).await
}

/// Acts on each message, until an error.
pub(crate) async fn consume(
    nats: &str,
    stream: &str,
    subject: &str,
    database: &str,
) -> anyhow::Result<()> {
    let (mut database, connection) = tokio_postgres::connect(database, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    // No other schema can replace PostgreSQL's functions, operators and types.
    database.batch_execute("SET search_path = pg_catalog, pg_temp").await?;
    let sql = "SELECT last_sequence FROM public.processed_messages
                WHERE consumer = 'billing' AND stream = $1";
    let row = database.query_opt(sql, &[&stream]).await?;
    let after: i64 = row.map_or(0, |row| row.get(0));
    let mut messages = read(nats, stream, subject, after.try_into()?).await?;
    loop {
        let message = messages.next().await.context("the subscription has ended")??;
        let sequence = message.info().map_err(|error| anyhow!(error))?.stream_sequence;
        let transaction = database.transaction().await?;
        let sql = "INSERT INTO public.processed_messages AS seen (consumer, stream, last_sequence)
                   VALUES ('billing', $1, $2)
                   ON CONFLICT (consumer, stream)
                   DO UPDATE SET last_sequence = excluded.last_sequence
                     WHERE seen.last_sequence < excluded.last_sequence";
        // None if another one has processed it: PostgreSQL may still commit for one that was killed.
        if transaction.execute(sql, &[&stream, &i64::try_from(sequence)?]).await? == 1 {
            act(&transaction, &message).await?;
            transaction.commit().await?;
        }
    }
}

/// The messages of the subject behind that sequence number, in order: the client begins again behind
/// the last one if the connection was lost.
async fn read(nats: &str, stream: &str, subject: &str, after: u64) -> anyhow::Result<Ordered> {
    let context = jetstream::new(async_nats::connect(nats).await?);
    let config = OrderedConfig {
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: after + 1 },
        filter_subject: subject.to_owned(),
        ..OrderedConfig::default()
    };
    let consumer = context.create_consumer_on_stream(config, stream).await?;
    Ok(consumer.messages().await?)
}

/// What the event is to cause, in the same transaction.
async fn act(transaction: &Transaction<'_>, message: &jetstream::Message) -> anyhow::Result<()> {
    let order = std::str::from_utf8(&message.payload)?;
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
