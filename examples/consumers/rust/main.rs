//! A consumer that acts once on each event, though events come at least once: it
//! adds up what each customer has ordered.
//!
//!     cargo run --example consumer -- \
//!         localhost:9092 outbox.event.order billing postgres://postgres@localhost/billing id
//!
//! Brokers, topic, consumer group, database, and by what a repeated event is known:
//! `id`, `idempotency-key` or `position`. The database has the tables of
//! `sql/consumer_dedupe.sql` and `examples/consumers/turnover.sql`. An error ends it;
//! started again, it resumes after the last offset that it committed.

use anyhow::{Context as _, bail};
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use tokio_postgres::{NoTls, Transaction};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, group, database, by] = arguments.as_slice() else {
        bail!("usage: consumer BROKERS TOPIC GROUP DATABASE id|idempotency-key|position");
    };
    consume(brokers, topic, group, database, by).await
}

/// Acts on each record and has its offset committed, until an error.
pub(crate) async fn consume(
    brokers: &str,
    topic: &str,
    group: &str,
    database: &str,
    by: &str,
) -> anyhow::Result<()> {
    let (mut database, connection) = tokio_postgres::connect(database, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    // No other schema can replace PostgreSQL's functions, operators and types.
    database.batch_execute("SET search_path = pg_catalog, pg_temp").await?;
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        // Stored offsets are committed once a second, and when partitions are revoked.
        .set("enable.auto.offset.store", "false")
        .set("auto.commit.interval.ms", "1000")
        .create()?;
    consumer.subscribe(&[topic])?;
    loop {
        let record = consumer.recv().await?;
        let transaction = database.transaction().await?;
        if is_first(&transaction, by, &record).await? {
            act(&transaction, &record).await?;
        }
        transaction.commit().await?;
        // After the transaction: if the offset is lost, the record arrives again and is skipped.
        consumer.store_offset_from_message(&record)?;
    }
}

/// Whether the event was not processed yet. No other consumer can process it until the
/// transaction ends.
async fn is_first(
    transaction: &Transaction<'_>,
    by: &str,
    record: &BorrowedMessage<'_>,
) -> anyhow::Result<bool> {
    let changed = match by {
        "id" => {
            let id = header(record, "id").context("the record has no id")?;
            let sql = "INSERT INTO public.processed_events (consumer, event_id)
                       VALUES ('billing', $1)
                       ON CONFLICT DO NOTHING";
            transaction.execute(sql, &[&id]).await?
        }
        "idempotency-key" => {
            // A header, or a member of the payload. An event with neither is an error here.
            let (key, payload) = (header(record, "idempotency_key"), text(record.payload()));
            let sql = "INSERT INTO public.processed_events (consumer, event_id)
                       VALUES ('billing',
                         nullif(coalesce($1, $2::text::jsonb ->> 'idempotencyKey'), ''))
                       ON CONFLICT DO NOTHING";
            transaction.execute(sql, &[&key, &payload]).await?
        }
        "position" => {
            let position = header(record, "walpost.position").context("no walpost.position")?;
            let sql = "INSERT INTO public.processed_positions AS seen
                         (consumer, topic, partition, last_position)
                       VALUES ('billing', $1, $2, $3)
                       ON CONFLICT (consumer, topic, partition)
                       DO UPDATE SET last_position = excluded.last_position
                         WHERE seen.last_position < excluded.last_position";
            transaction.execute(sql, &[&record.topic(), &record.partition(), &position]).await?
        }
        other => bail!("deduplicate by id, idempotency-key or position, not by {other}"),
    };
    Ok(changed == 1)
}

/// What the event is to cause, in the same transaction.
async fn act(transaction: &Transaction<'_>, record: &BorrowedMessage<'_>) -> anyhow::Result<()> {
    // An order that is placed names its customer, and one that is paid does not.
    let sql = "INSERT INTO public.turnover AS sum (customer, orders, total_cents)
               SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
                 FROM (SELECT $1::text::jsonb AS placed) AS event
                WHERE placed ->> 'customer' IS NOT NULL
               ON CONFLICT (customer)
               DO UPDATE SET orders = sum.orders + 1,
                             total_cents = sum.total_cents + excluded.total_cents";
    transaction.execute(sql, &[&text(record.payload())]).await?;
    Ok(())
}

/// The text of a header: of several with that name the last, as Kafka's own client takes it.
/// One that is null or empty counts as none.
fn header<'r>(record: &'r BorrowedMessage<'_>, name: &str) -> Option<&'r str> {
    let last = record.headers()?.iter().filter(|header| header.key == name).last()?;
    text(last.value).filter(|value| !value.is_empty())
}

fn text(bytes: Option<&[u8]>) -> Option<&str> {
    std::str::from_utf8(bytes?).ok()
}
