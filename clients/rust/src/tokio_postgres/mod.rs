//! Publishing with tokio-postgres, without an added round trip.
//!
//! [`Outbox::begin`] begins a [`Transaction`], which keeps the events until
//! [`commit`](Transaction::commit) sends them together with `COMMIT`. In a transaction that was
//! begun elsewhere, [`Outbox::publish`] inserts at once, with one round trip.
//!
//! Statements go through the [`Deref`](std::ops::Deref) to tokio-postgres' transaction. Do not end
//! a transaction by SQL (`batch_execute("COMMIT")`): its events would be inserted after it, each
//! for itself.

mod buffer;
mod pipeline;
mod prepared;
mod savepoint;
mod transaction;

use ::tokio_postgres::error::SqlState;
use ::tokio_postgres::types::{ToSql, Type};
use ::tokio_postgres::{Client, Statement, TransactionBuilder};

use crate::Error;
use crate::Outbox;
use crate::batch::{Batch, Parameter};
use crate::transactional::{FAIL, Transactional, sealed};

pub use prepared::Prepared;
pub use savepoint::Savepoint;
pub use transaction::Transaction;

impl Outbox {
    /// Begins a transaction that publishes without an added round trip.
    ///
    /// `client` can be that of a pool, such as deadpool's, by `&mut client`.
    ///
    /// Publishing by the client, outside a transaction, does not compile:
    ///
    /// ```compile_fail,E0277
    /// # async fn example<E: walpost_outbox::Event>(
    /// #     outbox: walpost_outbox::Outbox, mut client: tokio_postgres::Client, event: E,
    /// # ) -> Result<(), walpost_outbox::Error> {
    /// outbox.publish(&mut client, &event).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn begin<'c>(&self, client: &'c mut Client) -> Result<Transaction<'c>, Error> {
        self.begin_with(client.build_transaction()).await
    }

    /// Begins a transaction with an isolation level, or other settings of `builder`.
    ///
    /// ```no_run
    /// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), walpost_outbox::Error> {
    /// use tokio_postgres::IsolationLevel;
    /// use walpost_outbox::Outbox;
    ///
    /// let builder = client.build_transaction().isolation_level(IsolationLevel::Serializable);
    /// let transaction = Outbox::new().begin_with(builder).await?;
    /// # transaction.commit().await
    /// # }
    /// ```
    pub async fn begin_with<'c>(
        &self,
        builder: TransactionBuilder<'c>,
    ) -> Result<Transaction<'c>, Error> {
        Transaction::begin(self.clone(), builder, None).await
    }
}

impl Transactional for ::tokio_postgres::Transaction<'_> {}

impl sealed::Insert for ::tokio_postgres::Transaction<'_> {
    async fn insert(&mut self, batch: Batch) -> Result<(), Error> {
        execute(self.client(), batch, None).await.map_err(insert_failed)
    }

    async fn fail(&mut self) {
        // Its error is the purpose.
        let _ = self.batch_execute(FAIL).await;
    }
}

/// Runs a statement by one request, which is sent when the future is first polled.
///
/// The types are given, so that no request has to ask for them first. `prepared` is the statement for
/// one event.
async fn execute(
    client: &Client,
    batch: Batch,
    prepared: Option<Statement>,
) -> Result<(), ::tokio_postgres::Error> {
    if let Some(statement) = prepared.filter(|_| batch.is_one()) {
        let parameters = batch.parameters();
        let values = parameters.iter().filter_map(|parameter| match parameter {
            Parameter::One(text) => Some(text as &(dyn ToSql + Sync)),
            Parameter::Many(_) => None,
        });
        let values: Vec<_> = values.collect();
        return client.execute(&statement, &values).await.map(|_| ());
    }
    let sql = batch.statement().text.clone();
    let parameters = batch.parameters();
    let typed: Vec<(&(dyn ToSql + Sync), Type)> = parameters
        .iter()
        .map(|parameter| match parameter {
            Parameter::One(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
            Parameter::Many(texts) => (texts as _, Type::TEXT_ARRAY),
        })
        .collect();
    client.execute_typed(&sql, &typed).await.map(|_| ())
}

fn failed(doing: &'static str) -> impl FnOnce(::tokio_postgres::Error) -> Error {
    move |source| Error::TokioPostgres { doing, source }
}

fn insert_failed(source: ::tokio_postgres::Error) -> Error {
    if source.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
        return Error::AlreadyFailed;
    }
    Error::TokioPostgres { doing: "cannot insert events", source }
}
