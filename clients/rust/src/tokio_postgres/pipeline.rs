//! Inserts and `COMMIT`, sent together.
//!
//! tokio-postgres sends a request when its future is first polled, and requests in the order of
//! these first polls (<https://docs.rs/tokio-postgres/#pipelining>). So each future is polled once
//! before any answer is awaited, `COMMIT` last. A request that cannot even be sent is ready at
//! once: `COMMIT` is not sent then.
//!
//! PostgreSQL answers every request. After a failed one it refuses all others of the transaction
//! but `COMMIT`, which then rolls back and succeeds (with the tag `ROLLBACK`, which tokio-postgres
//! does not show). So the result of the commit is that of the requests before it.

use std::future::{self, Future};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio_postgres::error::Severity;
use ::tokio_postgres::{Client, Statement};

use crate::batch::Batch;
use crate::error::{Error, reason_of};

use super::{execute, insert_failed};

type PgError = ::tokio_postgres::Error;

/// A request that is being answered, or its result.
enum Request<'c> {
    Sent(Pin<Box<dyn Future<Output = Result<(), PgError>> + Send + 'c>>),
    Answered(Result<(), PgError>),
}

impl<'c> Request<'c> {
    fn new(request: impl Future<Output = Result<(), PgError>> + Send + 'c) -> Self {
        Self::Sent(Box::pin(request))
    }

    /// Whether it has its result.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        if let Self::Sent(future) = self
            && let Poll::Ready(result) = future.as_mut().poll(context)
        {
            *self = Self::Answered(result);
        }
        matches!(self, Self::Answered(_))
    }

    fn has_failed(&self) -> bool {
        matches!(self, Self::Answered(Err(_)))
    }

    /// The error of an answered request.
    fn into_error(self) -> Option<PgError> {
        match self {
            Self::Answered(result) => result.err(),
            Self::Sent(_) => None,
        }
    }
}

/// Inserts all, in one round trip. `prepared` is the statement for one event.
pub(super) async fn insert(
    client: &Client,
    batches: Vec<Batch>,
    prepared: Option<&Statement>,
) -> Result<(), PgError> {
    let mut requests = requests(client, batches, prepared);
    future::poll_fn(|context| ready_if(poll_all(&mut requests, context))).await;
    requests.into_iter().find_map(Request::into_error).map_or(Ok(()), Err)
}

fn requests<'c>(
    client: &'c Client,
    batches: Vec<Batch>,
    prepared: Option<&Statement>,
) -> Vec<Request<'c>> {
    let execute = |batch| Request::new(execute(client, batch, prepared.cloned()));
    batches.into_iter().map(execute).collect()
}

/// What became of inserts and `COMMIT`.
enum Outcome {
    /// `COMMIT` was not sent, because a request before it failed already.
    NotSent(PgError),
    /// All requests were answered: the first error of the inserts, and that of `COMMIT`.
    Answered { insert: Option<PgError>, commit: Option<PgError> },
}

/// Inserts all and commits, in one round trip.
pub(super) async fn commit(
    inner: ::tokio_postgres::Transaction<'_>,
    batches: Vec<Batch>,
    prepared: Option<&Statement>,
) -> Result<(), Error> {
    match send(inner.client(), batches, prepared).await {
        Outcome::NotSent(error) => {
            // The error of the request is the one to report. If the rollback fails, the connection
            // is lost, and PostgreSQL rolls back.
            let _ = inner.rollback().await;
            Err(insert_failed(error))
        }
        Outcome::Answered { insert, commit } => {
            // It has ended: its drop must not roll back.
            std::mem::forget(inner);
            judge(insert, commit)
        }
    }
}

async fn send(client: &Client, batches: Vec<Batch>, prepared: Option<&Statement>) -> Outcome {
    let mut requests = requests(client, batches, prepared);
    if requests.is_empty() {
        // Without events, this shows whether the transaction had failed.
        requests
            .push(Request::new(async { client.execute_typed("SELECT", &[]).await.map(|_| ()) }));
    }
    let mut commit = Request::new(client.batch_execute("COMMIT"));
    let mut is_commit_sent = false;
    future::poll_fn(|context| {
        let are_ready = poll_all(&mut requests, context);
        if !is_commit_sent && requests.iter().any(Request::has_failed) {
            return Poll::Ready(());
        }
        is_commit_sent = true;
        ready_if(commit.poll(context) && are_ready)
    })
    .await;
    let insert = requests.into_iter().find_map(Request::into_error);
    match insert {
        Some(error) if !is_commit_sent => Outcome::NotSent(error),
        insert => Outcome::Answered { insert, commit: commit.into_error() },
    }
}

/// Polls each one, even after one that is not ready; whether all have their results.
fn poll_all(requests: &mut [Request<'_>], context: &mut Context<'_>) -> bool {
    let mut are_ready = true;
    for request in requests {
        are_ready &= request.poll(context);
    }
    are_ready
}

fn ready_if(is_ready: bool) -> Poll<()> {
    if is_ready { Poll::Ready(()) } else { Poll::Pending }
}

/// The result of the commit, by the first failed insert and the answer to `COMMIT`.
///
/// PostgreSQL cannot have committed after it has reported an error to a request before `COMMIT`.
/// If the connection was lost instead, it may have received all and committed.
fn judge(insert: Option<PgError>, commit: Option<PgError>) -> Result<(), Error> {
    match (insert, commit) {
        (None, None) => Ok(()),
        (Some(error), _) if error.as_db_error().is_some() => Err(insert_failed(error)),
        (None, Some(source)) if is_rejection(&source) => {
            Err(Error::TokioPostgres { doing: "cannot commit", source })
        }
        (Some(error), _) | (None, Some(error)) => {
            Err(Error::OutcomeUnknown { reason: reason_of(&error) })
        }
    }
}

/// Whether PostgreSQL says that it has not committed. A session that is ended while it waits for a
/// standby has.
fn is_rejection(error: &PgError) -> bool {
    error.as_db_error().is_some_and(|it| it.parsed_severity() == Some(Severity::Error))
}
