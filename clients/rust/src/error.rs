//! Why an event was not published.

use std::borrow::Cow;

/// Why an event was not published, or a transaction with events was not committed.
///
/// Unless it is [`Error::OutcomeUnknown`], neither the event nor the change is committed, provided
/// that the transaction is not committed by other means afterwards.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The payload could not be serialized.
    #[error("cannot serialize the payload of event {event_type}: {source}")]
    Serialize {
        /// [`Event::EVENT_TYPE`](crate::Event::EVENT_TYPE) of the event.
        event_type: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// The event can be serialized, but it can never become a row or a record.
    #[error("cannot publish event {event_type}: {reason}")]
    Invalid {
        /// [`Event::EVENT_TYPE`](crate::Event::EVENT_TYPE) of the event.
        event_type: &'static str,
        /// Why.
        reason: Cow<'static, str>,
    },
    /// An earlier `publish` or `flush` in this transaction failed, so `commit` rolled it back.
    #[error("transaction rolled back: an earlier event in it could not be published")]
    EarlierFailure,
    /// An earlier statement of the transaction had failed, so PostgreSQL rolled it back.
    #[error("transaction rolled back: an earlier statement in it had failed")]
    AlreadyFailed,
    /// `COMMIT` was sent, but its answer did not arrive. Both the change and the event are
    /// committed, or neither is.
    #[error("connection lost during COMMIT: the transaction may have been committed: {reason}")]
    OutcomeUnknown {
        /// What was seen of the connection.
        reason: String,
    },
    /// PostgreSQL or the connection failed, in tokio-postgres.
    #[cfg(feature = "tokio-postgres")]
    #[error("{doing}: {}", reason_of(source))]
    TokioPostgres {
        /// What failed, such as `cannot insert events`.
        doing: &'static str,
        /// Why.
        source: ::tokio_postgres::Error,
    },
    /// PostgreSQL or the connection failed, in sqlx.
    #[cfg(feature = "sqlx")]
    #[error("cannot insert events: {0}")]
    Sqlx(#[source] ::sqlx::Error),
    /// PostgreSQL or the connection failed, in Diesel.
    #[cfg(feature = "diesel-async")]
    #[error("cannot insert events: {0}")]
    Diesel(#[source] ::diesel::result::Error),
}

/// What PostgreSQL says, which tokio-postgres leaves to the source of its error.
#[cfg(feature = "tokio-postgres")]
pub(crate) fn reason_of(error: &::tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => error.to_string(),
        None => error.to_string(),
    }
}
