//! A transaction that keeps its events until it commits.

use std::ops::Deref;

use ::tokio_postgres::{Statement, TransactionBuilder};
use uuid::Uuid;

use crate::batch::Batch;
use crate::error::Error;
use crate::event::Event;
use crate::outbox::Outbox;

use super::buffer::Buffer;
use super::savepoint::Savepoint;
use super::{failed, insert_failed, pipeline};

/// A transaction that publishes events: [`Outbox::begin`] begins one.
///
/// It dereferences to [`tokio_postgres::Transaction`] for queries, but the only way to commit is
/// [`commit`](Self::commit), which sends the events. If it is dropped, everything is rolled back.
///
/// ```no_run
/// # use walpost_outbox::{Event, Outbox};
/// # async fn example<E: Event>(client: &mut tokio_postgres::Client, event: E)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::new();
/// let mut transaction = outbox.begin(client).await?;
/// transaction.execute("UPDATE orders SET state = 'placed' WHERE id = 7", &[]).await?;
/// transaction.publish(&event)?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// Publishing after the commit does not compile:
///
/// ```compile_fail,E0382
/// # use walpost_outbox::{Event, Outbox};
/// # async fn example<E: Event>(client: &mut tokio_postgres::Client, event: E)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # let outbox = Outbox::new();
/// let mut transaction = outbox.begin(client).await?;
/// transaction.commit().await?;
/// transaction.publish(&event)?;
/// # Ok(())
/// # }
/// ```
///
/// Nor does a commit of the inner transaction, which would not send the events:
///
/// ```compile_fail,E0507
/// # use walpost_outbox::{Event, Outbox};
/// # async fn example<E: Event>(client: &mut tokio_postgres::Client, event: E)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # let outbox = Outbox::new();
/// let mut transaction = outbox.begin(client).await?;
/// transaction.publish(&event)?;
/// (*transaction).commit().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a transaction is rolled back when it is dropped"]
pub struct Transaction<'c> {
    outbox: Outbox,
    inner: ::tokio_postgres::Transaction<'c>,
    buffer: Buffer,
    /// The statement for one event, if it is prepared.
    prepared: Option<Statement>,
}

impl<'c> Transaction<'c> {
    pub(super) async fn begin(
        outbox: Outbox,
        builder: TransactionBuilder<'c>,
        prepared: Option<Statement>,
    ) -> Result<Self, Error> {
        let inner = builder.start().await.map_err(failed("cannot begin a transaction"))?;
        Ok(Self { outbox, inner, buffer: Buffer::default(), prepared })
    }

    /// Keeps an event for the commit, and returns its id. It sends nothing, so no statement of the
    /// transaction sees the event.
    ///
    /// After an error [`commit`](Self::commit) refuses to commit the transaction.
    pub fn publish<E: Event + ?Sized>(&mut self, event: &E) -> Result<Uuid, Error> {
        publish(&self.outbox, &mut self.buffer, event)
    }

    /// Inserts the events so far, with one round trip. Useful to bound the memory of a transaction
    /// with very many events.
    ///
    /// Cancel safety: none. After an error, or if the future is dropped before it is ready,
    /// [`commit`](Self::commit) refuses to commit the transaction.
    pub async fn flush(&mut self) -> Result<(), Error> {
        let records = std::mem::take(&mut self.buffer.records);
        if records.is_empty() {
            return Ok(());
        }
        let had_failed = std::mem::replace(&mut self.buffer.has_failed, true);
        let batches = Batch::of(&self.outbox, records);
        let prepared = self.prepared.as_ref();
        pipeline::insert(self.inner.client(), batches, prepared).await.map_err(insert_failed)?;
        self.buffer.has_failed = had_failed;
        Ok(())
    }

    /// Begins a savepoint, with one round trip. What is published in it is published if both the
    /// savepoint and the transaction are committed.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_>, Error> {
        let inner = self.inner.transaction().await.map_err(failed("cannot begin a savepoint"))?;
        Ok(Savepoint::new(&self.outbox, inner, self.buffer.mark()))
    }

    /// Inserts the events and commits, in one round trip: all requests are sent before the first
    /// answer is awaited, in the order in which the events were published.
    ///
    /// If it returns `Ok`, change and events are committed. A failed insert fails the commit, and
    /// so does an earlier failed statement, which PostgreSQL's `COMMIT` would not report. After an
    /// error nothing is committed, unless it is [`Error::OutcomeUnknown`].
    ///
    /// Cancel safety: none. If the future is dropped after it was polled, either all is committed
    /// or nothing is.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { outbox, inner, buffer, prepared } = self;
        if buffer.has_failed {
            rollback(inner).await?;
            return Err(Error::EarlierFailure);
        }
        pipeline::commit(inner, Batch::of(&outbox, buffer.records), prepared.as_ref()).await
    }

    /// Rolls back the transaction. Nothing is published.
    ///
    /// A transaction that is dropped is rolled back too, but before the next statement of the
    /// client and without an error.
    pub async fn rollback(self) -> Result<(), Error> {
        rollback(self.inner).await
    }
}

impl<'c> Deref for Transaction<'c> {
    type Target = ::tokio_postgres::Transaction<'c>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { outbox, inner: _, buffer, prepared: _ } = self;
        f.debug_struct("Transaction")
            .field("outbox", outbox)
            .field("events", &buffer.records.len())
            .finish_non_exhaustive()
    }
}

pub(super) fn publish<E: Event + ?Sized>(
    outbox: &Outbox,
    buffer: &mut Buffer,
    event: &E,
) -> Result<Uuid, Error> {
    match outbox.record(event) {
        Ok(record) => {
            let id = record.id;
            buffer.records.push(record);
            Ok(id)
        }
        Err(error) => {
            buffer.has_failed = true;
            Err(error)
        }
    }
}

pub(super) async fn rollback(inner: ::tokio_postgres::Transaction<'_>) -> Result<(), Error> {
    inner.rollback().await.map_err(failed("cannot roll back"))
}
