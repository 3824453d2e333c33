//! Publishing in a transaction that a driver has begun.

use std::future::Future;

use uuid::Uuid;

use crate::batch::Batch;
use crate::error::Error;
use crate::event::Event;
use crate::outbox::Outbox;

/// A transaction of a driver, in which [`Outbox::publish`] inserts events.
///
/// It is implemented for the drivers whose features are enabled, and cannot be implemented
/// elsewhere. No pool, client or connection implements it.
#[diagnostic::on_unimplemented(
    message = "events are published in a transaction, and `{Self}` is none",
    label = "not a transaction",
    note = "begin a transaction, publish in it, and commit it"
)]
pub trait Transactional: sealed::Insert + Send {}

pub(crate) mod sealed {
    use super::{Batch, Error, Future};

    /// How a driver runs the statements.
    pub trait Insert {
        /// Runs a statement with its parameters.
        fn insert(&mut self, batch: Batch) -> impl Future<Output = Result<(), Error>> + Send;

        /// Makes sure that the transaction cannot be committed.
        fn fail(&mut self) -> impl Future<Output = ()> + Send;
    }
}

/// A statement that PostgreSQL always refuses: it makes a transaction fail, and names the reason
/// in the server's log.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx"))]
pub(crate) const FAIL: &str = "SELECT 'walpost-outbox: an event could not be published, \
    so the transaction must not be committed'::pg_catalog.int4";

impl Outbox {
    /// Inserts an event in this transaction, with one round trip, and returns the event's id.
    ///
    /// If the event cannot be serialized, the transaction is made to fail: it cannot be committed
    /// then, even if the error is ignored. After an error, roll the transaction back.
    ///
    /// Cancel safety: none. If the future is dropped before it is ready, the event may be missing:
    /// roll the transaction back.
    pub fn publish<'t, T, E>(
        &self,
        transaction: &'t mut T,
        event: &E,
    ) -> impl Future<Output = Result<Uuid, Error>> + Send + use<'t, T, E>
    where
        T: Transactional,
        E: Event + ?Sized,
    {
        let outbox = self.clone();
        let record = self.record(event);
        async move {
            match record {
                Ok(record) => {
                    let id = record.id;
                    transaction.insert(Batch::one(outbox, record)).await?;
                    Ok(id)
                }
                Err(error) => {
                    transaction.fail().await;
                    Err(error)
                }
            }
        }
    }

    /// Inserts several events of one type in this transaction, in their order, and returns their
    /// ids. It takes one round trip for each 1,000 events or 4 MiB. Otherwise it is
    /// [`Outbox::publish`].
    pub fn publish_all<'t, 'e, T, E>(
        &self,
        transaction: &'t mut T,
        events: impl IntoIterator<Item = &'e E>,
    ) -> impl Future<Output = Result<Vec<Uuid>, Error>> + Send
    where
        T: Transactional,
        E: Event + ?Sized + 'e,
    {
        let outbox = self.clone();
        let records: Result<Vec<_>, _> = events.into_iter().map(|it| self.record(it)).collect();
        async move {
            match records {
                Ok(records) => {
                    let ids = records.iter().map(|record| record.id).collect();
                    for batch in Batch::of(&outbox, records) {
                        transaction.insert(batch).await?;
                    }
                    Ok(ids)
                }
                Err(error) => {
                    transaction.fail().await;
                    Err(error)
                }
            }
        }
    }
}
