//! An outbox whose statement is prepared on a connection.

use ::tokio_postgres::types::Type;
use ::tokio_postgres::{Client, Statement, TransactionBuilder};

use crate::error::Error;
use crate::outbox::Outbox;

use super::failed;
use super::transaction::Transaction;

/// An [`Outbox`] whose statement for one event is prepared on one connection, so that PostgreSQL does
/// not parse and plan it for each event. Keep it beside that connection; on any other one, and after
/// `DISCARD ALL`, the commit of a transaction with an event fails.
///
/// ```no_run
/// # use walpost_outbox::{Event, Outbox};
/// # async fn example<E: Event>(client: &mut tokio_postgres::Client, events: Vec<E>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let prepared = Outbox::new().prepare(client).await?;
/// for event in events {
///     let mut transaction = prepared.begin(client).await?;
///     transaction.publish(&event)?;
///     transaction.commit().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Prepared {
    outbox: Outbox,
    one: Statement,
}

impl Prepared {
    /// Takes a statement that was prepared from [`Outbox::statement`], such as by the cache of a pool:
    ///
    /// ```ignore
    /// let (sql, types) = outbox.statement();
    /// let statement = client.prepare_typed_cached(sql, &types).await?;   // deadpool-postgres
    /// let mut transaction = Prepared::new(outbox, statement).begin(&mut client).await?;
    /// ```
    #[must_use]
    pub fn new(outbox: Outbox, statement: Statement) -> Self {
        Self { outbox, one: statement }
    }

    /// As [`Outbox::begin`]. A transaction with one event inserts it by the prepared statement.
    pub async fn begin<'c>(&self, client: &'c mut Client) -> Result<Transaction<'c>, Error> {
        self.begin_with(client.build_transaction()).await
    }

    /// As [`Outbox::begin_with`].
    pub async fn begin_with<'c>(
        &self,
        builder: TransactionBuilder<'c>,
    ) -> Result<Transaction<'c>, Error> {
        Transaction::begin(self.outbox.clone(), builder, Some(self.one.clone())).await
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl Outbox {
    /// Prepares the statement for one event on this connection, with one round trip.
    pub async fn prepare(&self, client: &Client) -> Result<Prepared, Error> {
        let (sql, types) = self.statement();
        let one = client.prepare_typed(sql, &types).await;
        let one = one.map_err(failed("cannot prepare the statement that publishes"))?;
        Ok(Prepared::new(self.clone(), one))
    }

    /// The statement for one event, and the types of its parameters, for [`Prepared::new`].
    #[must_use]
    pub fn statement(&self) -> (&str, Vec<Type>) {
        let one = &self.inner.statements.one;
        (&one.text, vec![Type::TEXT; one.pieces.len() - 1])
    }
}
