//! The business application: orders are placed, paid and shipped, each in one transaction together
//! with its outbox row. Some are rolled back.
//!
//! It does not know walpost or Kafka; that is the point of an outbox.

use std::time::Instant;

use tokio_postgres::{Client, Transaction};

use crate::DemoError;

/// The tables of the business; the outbox is made by `walpost init --apply`.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE orders (
        id       bigint PRIMARY KEY,
        customer text NOT NULL,
        status   text NOT NULL
    );
    CREATE TABLE order_items (
        order_id bigint NOT NULL REFERENCES orders,
        line     integer NOT NULL,
        article  text NOT NULL,
        PRIMARY KEY (order_id, line)
    );";

const EVENT: &str = "
    INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', id::text, $2,
           jsonb_build_object('order', id, 'customer', customer, 'status', status)
      FROM orders WHERE id = $1
    RETURNING id::text";

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    /// Something in the business says no.
    Rollback,
}

/// One event that was written to the outbox.
#[derive(Clone)]
pub(crate) struct Written {
    /// The row's id, which is the record's header `id`.
    pub(crate) id: String,
    pub(crate) order: i64,
    /// When COMMIT was sent, so that no part of a delay is left out.
    pub(crate) at: Instant,
    pub(crate) end: End,
}

/// A session of the application.
pub(crate) struct Shop {
    client: Client,
}

impl Shop {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// A customer orders two articles.
    pub(crate) async fn place(
        &mut self,
        order: i64,
        customer: &str,
        end: End,
    ) -> Result<Written, DemoError> {
        let work = self.client.transaction().await?;
        let insert = "INSERT INTO orders VALUES ($1, $2, 'placed')";
        work.execute(insert, &[&order, &customer]).await?;
        let items = "INSERT INTO order_items VALUES ($1, 1, 'tea'), ($1, 2, 'cups')";
        work.execute(items, &[&order]).await?;
        finish(work, order, "order_placed", end).await
    }

    /// An order that is there becomes paid, shipped, …
    pub(crate) async fn advance(
        &mut self,
        order: i64,
        status: &str,
        end: End,
    ) -> Result<Written, DemoError> {
        let work = self.client.transaction().await?;
        let update = "UPDATE orders SET status = $2 WHERE id = $1";
        work.execute(update, &[&order, &status]).await?;
        finish(work, order, &format!("order_{status}"), end).await
    }
}

/// Writes the event in the same transaction, and ends that.
async fn finish(
    work: Transaction<'_>,
    order: i64,
    event: &str,
    end: End,
) -> Result<Written, DemoError> {
    let id: String = work.query_one(EVENT, &[&order, &event]).await?.get(0);
    let at = Instant::now();
    match end {
        End::Commit => work.commit().await?,
        End::Rollback => work.rollback().await?,
    }
    Ok(Written { id, order, at, end })
}
