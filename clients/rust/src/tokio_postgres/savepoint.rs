//! A part of a transaction that can be rolled back, events included.

use std::ops::Deref;

use uuid::Uuid;

use crate::error::Error;
use crate::event::Event;
use crate::outbox::Outbox;

use super::buffer::Mark;
use super::failed;
use super::transaction::{publish, rollback};

/// A savepoint: [`Transaction::savepoint`](super::Transaction::savepoint) begins one.
///
/// If it is dropped, everything since its begin is rolled back, and its events are forgotten.
#[must_use = "a savepoint is rolled back when it is dropped"]
pub struct Savepoint<'t> {
    outbox: &'t Outbox,
    inner: ::tokio_postgres::Transaction<'t>,
    mark: Mark<'t>,
}

impl<'t> Savepoint<'t> {
    pub(super) fn new(
        outbox: &'t Outbox,
        inner: ::tokio_postgres::Transaction<'t>,
        mark: Mark<'t>,
    ) -> Self {
        Self { outbox, inner, mark }
    }

    /// Keeps an event for the commit of the transaction, and returns its id.
    ///
    /// After an error [`commit`](Self::commit) rolls the savepoint back.
    pub fn publish<E: Event + ?Sized>(&mut self, event: &E) -> Result<Uuid, Error> {
        publish(self.outbox, self.mark.buffer(), event)
    }

    /// Begins a savepoint within this one.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_>, Error> {
        let inner = self.inner.transaction().await.map_err(failed("cannot begin a savepoint"))?;
        Ok(Savepoint::new(self.outbox, inner, self.mark.buffer().mark()))
    }

    /// Releases the savepoint: change and events belong to the transaction from now on.
    ///
    /// After an error the transaction cannot be committed, except after
    /// [`Error::EarlierFailure`], with which the savepoint is rolled back.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { outbox: _, inner, mark } = self;
        if mark.has_failed_since() {
            rollback(inner).await?;
            return Err(Error::EarlierFailure);
        }
        // Kept before the answer: if the future is dropped after the request was sent, the change
        // belongs to the transaction, and so must its events.
        mark.keep();
        inner.commit().await.map_err(failed("cannot release a savepoint"))
    }

    /// Rolls back to the begin of the savepoint, and forgets its events.
    pub async fn rollback(self) -> Result<(), Error> {
        rollback(self.inner).await
    }
}

impl<'t> Deref for Savepoint<'t> {
    type Target = ::tokio_postgres::Transaction<'t>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl std::fmt::Debug for Savepoint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Savepoint").field("mark", &self.mark).finish_non_exhaustive()
    }
}
