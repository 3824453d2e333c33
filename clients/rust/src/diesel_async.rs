//! Publishing with diesel-async: [`Outbox::publish`] inserts at once, with one round trip.
//!
//! diesel-async hands out a plain connection inside a transaction. [`transaction`] gives its
//! closure a [`Transaction`] instead, which proves that there is one.
//!
//! diesel-async prepares the statement once per connection, which is one more round trip the first
//! time.
//!
//! ```no_run
//! # async fn example<E: walpost_outbox::Event + Sync>(
//! #     connection: &mut diesel_async::AsyncPgConnection, event: E,
//! # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use diesel_async::RunQueryDsl as _;
//! use walpost_outbox::Outbox;
//!
//! let outbox = Outbox::new();
//! walpost_outbox::diesel_async::transaction(connection, async |mut transaction| {
//!     diesel::sql_query("UPDATE orders SET state = 'placed' WHERE id = 7")
//!         .execute(transaction.connection())
//!         .await?;
//!     outbox.publish(&mut transaction, &event).await?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```
//!
//! diesel-async' commit succeeds even if an earlier statement failed and PostgreSQL rolled back. So
//! return the error of every statement from the closure instead of ignoring it.
//!
//! Publishing by the connection does not compile:
//!
//! ```compile_fail,E0277
//! # async fn example<E: walpost_outbox::Event>(
//! #     connection: &mut diesel_async::AsyncPgConnection, event: E,
//! # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let outbox = walpost_outbox::Outbox::new();
//! outbox.publish(connection, &event).await?;
//! # Ok(())
//! # }
//! ```

use std::future::Future;

use ::diesel::QueryResult;
use ::diesel::pg::Pg;
use ::diesel::query_builder::{AstPass, QueryFragment, QueryId};
use ::diesel::sql_types::{Array, Nullable, Text};
use ::diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl as _, TransactionManager};

use crate::batch::{Batch, Parameter};
use crate::error::Error;
#[cfg(doc)]
use crate::outbox::Outbox;
use crate::transactional::{Transactional, sealed};

type Manager = <AsyncPgConnection as AsyncConnection>::TransactionManager;

/// A transaction of a connection; [`transaction`] begins and ends it.
pub struct Transaction<'c> {
    connection: &'c mut AsyncPgConnection,
    has_failed: &'c mut bool,
}

/// The closure of [`transaction`]: an async closure that takes a [`Transaction`].
///
/// It is implemented for all of them; the trait only gives their future a name.
pub trait Body<T, R>: AsyncFnOnce(T) -> R + FnOnce(T) -> <Self as Body<T, R>>::Future {
    /// What the closure returns.
    type Future: Future<Output = R>;
}

impl<F, T, R, Fut> Body<T, R> for F
where
    F: AsyncFnOnce(T) -> R + FnOnce(T) -> Fut,
    Fut: Future<Output = R>,
{
    type Future = Fut;
}

/// Runs `body` in a transaction, which is committed if it returns `Ok` and rolled back otherwise.
/// If the connection has a transaction already, it is a savepoint.
///
/// If an event could not be published, the transaction is rolled back even if `body` ignored it:
/// the error is then [`Error::EarlierFailure`].
///
/// Cancel safety: none. If the future is dropped, the connection is left inside the transaction,
/// and pools discard it.
#[expect(clippy::manual_async_fn, reason = "it promises `Send`")]
pub fn transaction<R, E, F>(
    connection: &mut AsyncPgConnection,
    body: F,
) -> impl Future<Output = Result<R, E>> + Send + use<'_, R, E, F>
where
    for<'t> F: AsyncFnOnce(Transaction<'t>) -> Result<R, E>
        + Body<Transaction<'t>, Result<R, E>, Future: Send>
        + Send,
    R: Send,
    E: From<::diesel::result::Error> + From<Error> + Send,
{
    async move {
        Manager::begin_transaction(connection).await?;
        let mut has_failed = false;
        let result = body(Transaction { connection, has_failed: &mut has_failed }).await;
        let error = match result {
            Ok(value) if !has_failed => {
                Manager::commit_transaction(connection).await?;
                return Ok(value);
            }
            Ok(_) => Error::EarlierFailure.into(),
            Err(error) => error,
        };
        match Manager::rollback_transaction(connection).await {
            // The body's error is the reason for both.
            Ok(()) | Err(::diesel::result::Error::BrokenTransactionManager) => Err(error),
            Err(rollback) => Err(rollback.into()),
        }
    }
}

impl Transaction<'_> {
    /// The connection, for queries in the transaction. A transaction that it begins is a savepoint,
    /// in which nothing can be published: [`Transaction::savepoint`] is for that.
    pub fn connection(&mut self) -> &mut AsyncPgConnection {
        self.connection
    }

    /// Runs `body` in a savepoint, which is released if it returns `Ok` and rolled back otherwise.
    /// Its begin and its end are one round trip each.
    pub fn savepoint<R, E, F>(
        &mut self,
        body: F,
    ) -> impl Future<Output = Result<R, E>> + Send + use<'_, R, E, F>
    where
        for<'t> F: AsyncFnOnce(Transaction<'t>) -> Result<R, E>
            + Body<Transaction<'t>, Result<R, E>, Future: Send>
            + Send,
        R: Send,
        E: From<::diesel::result::Error> + From<Error> + Send,
    {
        transaction(self.connection, body)
    }
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("has_failed", &self.has_failed).finish_non_exhaustive()
    }
}

impl Transactional for Transaction<'_> {}

impl sealed::Insert for Transaction<'_> {
    async fn insert(&mut self, batch: Batch) -> Result<(), Error> {
        let insert =
            Insert { pieces: batch.statement().pieces.clone(), parameters: batch.parameters() };
        insert.execute(self.connection).await.map(|_| ()).map_err(|error| {
            *self.has_failed = true;
            Error::Diesel(error)
        })
    }

    async fn fail(&mut self) {
        *self.has_failed = true;
    }
}

/// The statement as a query of Diesel's, which it keeps prepared, unlike `sql_query`.
struct Insert {
    pieces: Vec<String>,
    parameters: Vec<Parameter>,
}

impl QueryId for Insert {
    type QueryId = ();

    // Its text identifies it.
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl QueryFragment<Pg> for Insert {
    fn walk_ast<'b>(&'b self, mut pass: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        // Diesel writes `$1`, `$2`, … between them.
        let mut parameters = self.parameters.iter();
        for piece in &self.pieces {
            pass.push_sql(piece);
            match parameters.next() {
                Some(Parameter::One(text)) => pass.push_bind_param::<Nullable<Text>, _>(text)?,
                Some(Parameter::Many(texts)) => {
                    pass.push_bind_param::<Array<Nullable<Text>>, _>(texts)?;
                }
                None => {}
            }
        }
        Ok(())
    }
}
