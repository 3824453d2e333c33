//! A consumer that acts once on each entry of a Redis stream: it adds up what each customer has
//! ordered.
//!
//!     cargo run --example redis_consumer -- \
//!         redis://localhost outbox outbox.event.order postgres://postgres@localhost/billing
//!
//! Redis, stream, the topic of the events to act on, and the consumer's own database, which has the
//! tables of `examples/consumers/redis/tables.sql` and `examples/consumers/turnover.sql`. The id of
//! the last entry is stored with the effects, in one transaction: an error ends the consumer, and
//! started again it resumes behind that entry.

use std::collections::HashMap;

use anyhow::{Context as _, bail};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio_postgres::{Client, NoTls, Transaction};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [redis, stream, topic, database] = arguments.as_slice() else {
        bail!("usage: redis_consumer REDIS STREAM TOPIC DATABASE");
    };
    consume(redis, stream, topic, database).await
}

/// Acts on each entry, until an error.
pub(crate) async fn consume(
    redis: &str,
    stream: &str,
    topic: &str,
    database: &str,
) -> anyhow::Result<()> {
    let (mut database, connection) = tokio_postgres::connect(database, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    // No other schema can replace PostgreSQL's functions, operators and types.
    database.batch_execute("SET search_path = pg_catalog, pg_temp").await?;
    // A read may wait for an entry longer than an answer usually takes.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(redis)?;
    let mut redis = client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut after = last_id(&database, stream).await?;
    loop {
        for (id, fields) in read(&mut redis, stream, &after).await? {
            let transaction = database.transaction().await?;
            let sql = "INSERT INTO public.processed_entries AS seen (consumer, stream, last_id)
                       VALUES ('billing', $1, $2)
                       ON CONFLICT (consumer, stream)
                       DO UPDATE SET last_id = excluded.last_id WHERE seen.last_id = $3";
            // None if another one has processed it: PostgreSQL may still commit for one that was killed.
            if transaction.execute(sql, &[&stream, &id, &after]).await? == 0 {
                transaction.rollback().await?;
                after = last_id(&database, stream).await?;
                break;
            }
            if fields.get("topic").map(String::as_str) == Some(topic) {
                act(&transaction, &fields).await?;
            }
            transaction.commit().await?;
            after = id;
        }
    }
}

/// The last entry that was processed.
async fn last_id(database: &Client, stream: &str) -> anyhow::Result<String> {
    let sql =
        "SELECT last_id FROM public.processed_entries WHERE consumer = 'billing' AND stream = $1";
    let row = database.query_opt(sql, &[&stream]).await?;
    Ok(row.map_or_else(|| "0-0".to_owned(), |row| row.get(0)))
}

/// The next entries behind that one; waits until there are some.
async fn read(
    redis: &mut MultiplexedConnection,
    stream: &str,
    after: &str,
) -> anyhow::Result<Vec<(String, HashMap<String, String>)>> {
    let mut command = redis::cmd("XREAD");
    command.arg("COUNT").arg(100).arg("BLOCK").arg(0).arg("STREAMS").arg(stream).arg(after);
    let Value::Array(streams) = command.query_async(redis).await? else {
        return Ok(Vec::new());
    };
    let stream = streams.into_iter().next().context("XREAD returned no stream")?;
    let (_, entries): (String, _) = redis::from_redis_value(stream)?;
    Ok(entries)
}

/// What the event is to cause, in the same transaction.
async fn act(
    transaction: &Transaction<'_>,
    fields: &HashMap<String, String>,
) -> anyhow::Result<()> {
    // An order that is placed names its customer, and one that is paid does not.
    let sql = "INSERT INTO public.turnover AS sum (customer, orders, total_cents)
               SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
                 FROM (SELECT $1::text::jsonb AS placed) AS event
                WHERE placed ->> 'customer' IS NOT NULL
               ON CONFLICT (customer)
               DO UPDATE SET orders = sum.orders + 1,
                             total_cents = sum.total_cents + excluded.total_cents";
    transaction.execute(sql, &[&fields.get("value")]).await?;
    Ok(())
}
