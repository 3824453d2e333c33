//! Places and pays orders, and writes an event for each in the transaction that changes the order.
//!
//!     DATABASE_URL=postgres://postgres@localhost/shop cargo run --example writer -- 20
//!
//! The database has the outbox of `walpost init` and the table of `examples/writers/shop.sql`. An
//! order that the database refuses is reported and skipped.

use anyhow::{Context as _, bail};
use futures_util::future::try_join;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, Transaction};

/// A row of `public.orders`.
struct Order {
    id: i64,
    customer: String,
    total_cents: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let database = std::env::var("DATABASE_URL").context("DATABASE_URL")?;
    let count = std::env::args().nth(1).context("usage: writer COUNT")?;
    let (placed, paid) = write(&database, count.parse()?).await?;
    println!("placed {placed}, paid {paid}");
    Ok(())
}

/// Places and pays the orders 1 to `count`; returns how many were placed, and how many were paid.
pub(crate) async fn write(database: &str, count: i64) -> anyhow::Result<(u32, u32)> {
    let (mut client, connection) = tokio_postgres::connect(database, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    // No other schema can replace PostgreSQL's functions, operators and types.
    client.batch_execute("SET search_path = pg_catalog, pg_temp").await?;
    let (mut placed, mut paid) = (0, 0);
    for id in 1..=count {
        let order = Order { id, customer: format!("customer {}", id % 7), total_cents: id * 100 };
        match place(&mut client, &order).await {
            Ok(()) => placed += 1,
            Err(error) => eprintln!("order {id} is not placed: {error:#}"),
        }
        match pay(&mut client, &order).await {
            Ok(()) => paid += 1,
            Err(error) => eprintln!("order {id} is not paid: {error:#}"),
        }
    }
    Ok((placed, paid))
}

/// The order and its event, one statement after the other.
async fn place(client: &mut Client, order: &Order) -> anyhow::Result<()> {
    let transaction = client.transaction().await?;
    let sql = "INSERT INTO public.orders (id, customer, total_cents) VALUES ($1, $2, $3)";
    let values = [
        (&order.id as _, Type::INT8),
        (&order.customer as _, Type::TEXT),
        (&order.total_cents as _, Type::INT8),
    ];
    transaction.execute_typed(sql, &values).await?;
    let payload =
        serde_json::json!({ "customer": order.customer, "total_cents": order.total_cents });
    publish(&transaction, "order", &order.id.to_string(), "order_placed", &payload).await?;
    transaction.commit().await?;
    Ok(())
}

/// The change and its event in one round trip: both statements are sent before the first response
/// arrives.
async fn pay(client: &mut Client, order: &Order) -> anyhow::Result<()> {
    let transaction = client.transaction().await?;
    let sql = "UPDATE public.orders SET status = 'paid' WHERE id = $1 AND status = 'placed'";
    let values = [(&order.id as _, Type::INT8)];
    let change = transaction.execute_typed(sql, &values);
    let (key, payload) =
        (order.id.to_string(), serde_json::json!({ "total_cents": order.total_cents }));
    let event = publish(&transaction, "order", &key, "order_paid", &payload);
    // It polls them in this order, so they are sent in this order.
    let (changed, ()) = try_join(change, event).await?;
    if changed == 0 {
        // Dropping the transaction rolls it back, with the event.
        bail!("there is no such order to pay");
    }
    transaction.commit().await?;
    Ok(())
}

/// Writes an event. It takes a transaction: an event without its change cannot be written.
async fn publish(
    transaction: &Transaction<'_>,
    aggregate_type: &str,
    aggregate_id: &str,
    event_type: &str,
    payload: &serde_json::Value,
) -> Result<(), tokio_postgres::Error> {
    let sql = "INSERT INTO public.outbox
                 (aggregate_type, aggregate_id, event_type, payload, headers)
               VALUES ($1, $2, $3, $4::text::jsonb, $5::text::jsonb)";
    let (payload, headers) = (payload.to_string(), r#"{"source": "shop"}"#);
    let values = [
        (&aggregate_type as _, Type::TEXT),
        (&aggregate_id as _, Type::TEXT),
        (&event_type as _, Type::TEXT),
        (&payload as _, Type::TEXT),
        (&headers as _, Type::TEXT),
    ];
    transaction.execute_typed(sql, &values).await.map(drop)
}
