//! What streams and catch-ups share.

use bytes::Bytes;

use super::connection::connect::Control;
use super::error::SourceError;
use super::publication_guard::PublicationGuard;
use super::server_identity::ServerIdentity;
use super::slot_metrics::Observer;
use super::timeline::Timelines;
use super::wire::Security;
use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::pgoutput::{self, Message};

/// The control connection of a feed, and what was read over it.
pub(super) struct FeedBase {
    pub(super) control: Control,
    pub(super) publication_guard: PublicationGuard,
    pub(super) observer: Observer,
    pub(super) received_bytes: u64,
    pub(super) host: String,
    pub(super) security: Security,
    pub(super) slot: String,
    pub(super) database_oid: u32,
    /// The server process that holds the slot.
    pub(super) backend: Option<i32>,
    pub(super) identity: ServerIdentity,
    pub(super) timelines: Timelines,
    pub(super) start: Lsn,
    /// The position from which the server sends: at or after `start`.
    pub(super) sends_from: Lsn,
    pub(super) flushed: Lsn,
    pub(super) tables: Vec<FoundTable>,
}

/// Decodes a message of the output plugin.
pub(super) fn message(bytes: &Bytes) -> Result<Message, SourceError> {
    pgoutput::decode(bytes).map_err(|error| {
        SourceError::Undecodable(format!(
            "PostgreSQL sent a message that walpost cannot read: {error}"
        ))
    })
}

/// An SQL connection of a feed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Connection {
    /// The connection that every feed has.
    Control,
    /// The connection that a catch-up reads on.
    Reading,
    /// The connection that a catch-up advances the slot on.
    Advancing,
}

/// The error of a feed whose SQL connection has ended.
pub(super) fn connection_ended(
    connection: Connection,
    ended: Result<Result<(), tokio_postgres::Error>, tokio::task::JoinError>,
) -> SourceError {
    let what = match connection {
        Connection::Control => "the control connection ended",
        Connection::Reading => "the connection that reads the backlog ended",
        Connection::Advancing => "the connection that advances the slot ended",
    };
    match ended {
        Ok(Err(error)) => SourceError::query(what, &error),
        Ok(Ok(())) | Err(_) => SourceError::Lost(what.into()),
    }
}
