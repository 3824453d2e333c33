//! What streams and catch-ups share.

use bytes::Bytes;

use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::pgoutput::{self, Message};
use crate::source::catalog::slot_metrics::Observer;
use crate::source::connection::connect::Control;
use crate::source::error::SourceError;
use crate::source::identity::publication_guard::PublicationGuard;
use crate::source::identity::server_identity::ServerIdentity;
use crate::source::identity::timeline::Timelines;
use crate::source::wire::Security;

/// The control connection of a feed, and what was read over it.
pub(in crate::source) struct FeedBase {
    pub(in crate::source) control: Control,
    pub(in crate::source) publication_guard: PublicationGuard,
    pub(in crate::source) observer: Observer,
    pub(in crate::source) received_bytes: u64,
    pub(in crate::source) host: String,
    pub(in crate::source) security: Security,
    pub(in crate::source) slot: String,
    pub(in crate::source) database_oid: u32,
    /// The server process that holds the slot.
    pub(in crate::source) backend: Option<i32>,
    pub(in crate::source) identity: ServerIdentity,
    pub(in crate::source) timelines: Timelines,
    pub(in crate::source) start: Lsn,
    /// The position from which the server sends: at or after `start`.
    pub(in crate::source) sends_from: Lsn,
    pub(in crate::source) flushed: Lsn,
    pub(in crate::source) tables: Vec<FoundTable>,
}

/// Decodes a message of the output plugin.
pub(in crate::source) fn message(bytes: &Bytes) -> Result<Message, SourceError> {
    pgoutput::decode(bytes).map_err(|error| {
        SourceError::Undecodable(format!(
            "PostgreSQL sent a message that walpost cannot read: {error}"
        ))
    })
}

/// An SQL connection of a feed.
#[derive(Debug, Clone, Copy)]
pub(in crate::source) enum SqlConnection {
    /// The connection that every feed has.
    Control,
    /// The connection that a catch-up reads on.
    Reading,
    /// The connection that a catch-up advances the slot on.
    Advancing,
}

/// The error of a feed whose SQL connection has ended.
pub(in crate::source) fn connection_ended(
    connection: SqlConnection,
    ended: Result<Result<(), tokio_postgres::Error>, tokio::task::JoinError>,
) -> SourceError {
    let what = match connection {
        SqlConnection::Control => "the control connection ended",
        SqlConnection::Reading => "the connection that reads the backlog ended",
        SqlConnection::Advancing => "the connection that advances the slot ended",
    };
    match ended {
        Ok(Err(error)) => SourceError::query(what, &error),
        Ok(Ok(())) | Err(_) => SourceError::Lost(what.into()),
    }
}
