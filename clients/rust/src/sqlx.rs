//! Publishing with sqlx: [`Outbox::publish`] inserts at once, with one round trip.
//!
//! sqlx prepares the statement once per connection, which is one more round trip the first time.
//!
//! sqlx' `commit` succeeds even if an earlier statement failed and PostgreSQL rolled back. So
//! return the error of every statement instead of ignoring it.
//!
//! ```no_run
//! # async fn example<E: walpost_outbox::Event>(pool: sqlx::PgPool, event: E)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # let outbox = walpost_outbox::Outbox::new();
//! let mut transaction = pool.begin().await?;
//! sqlx::query("UPDATE orders SET state = 'placed' WHERE id = 7").execute(&mut *transaction).await?;
//! outbox.publish(&mut transaction, &event).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Publishing outside a transaction does not compile, be it in a pool or in a connection:
//!
//! ```compile_fail,E0277
//! # async fn example<E: walpost_outbox::Event>(mut pool: sqlx::PgPool, event: E)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # let outbox = walpost_outbox::Outbox::new();
//! outbox.publish(&mut pool, &event).await?;
//! # Ok(())
//! # }
//! ```
//!
//! ```compile_fail,E0277
//! # async fn example<E: walpost_outbox::Event>(mut connection: sqlx::PgConnection, event: E)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # let outbox = walpost_outbox::Outbox::new();
//! outbox.publish(&mut connection, &event).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Nor does publishing after the commit:
//!
//! ```compile_fail,E0382
//! # async fn example<E: walpost_outbox::Event>(pool: sqlx::PgPool, event: E)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # let outbox = walpost_outbox::Outbox::new();
//! let mut transaction = pool.begin().await?;
//! transaction.commit().await?;
//! outbox.publish(&mut transaction, &event).await?;
//! # Ok(())
//! # }
//! ```

use ::sqlx::{Executor as _, Postgres, Transaction};

use crate::batch::{Batch, Parameter};
use crate::error::Error;
#[cfg(doc)]
use crate::outbox::Outbox;
use crate::transactional::{FAIL, Transactional, sealed};

impl Transactional for Transaction<'_, Postgres> {}

impl sealed::Insert for Transaction<'_, Postgres> {
    async fn insert(&mut self, batch: Batch) -> Result<(), Error> {
        let sql = batch.statement().text.clone();
        let mut query = ::sqlx::query(&sql);
        for parameter in batch.parameters() {
            query = match parameter {
                Parameter::One(text) => query.bind(text),
                Parameter::Many(texts) => query.bind(texts),
            };
        }
        query.execute(&mut **self).await.map(|_| ()).map_err(Error::Sqlx)
    }

    async fn fail(&mut self) {
        // Its error is the purpose.
        let _ = (&mut **self).execute(FAIL).await;
    }
}
