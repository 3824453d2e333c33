//! A replication session, as its user sees it: first a connection for commands, then a stream.

use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use bytes::BytesMut;
use futures_util::FutureExt as _;
use postgres_protocol::escape::escape_identifier;
use postgres_protocol::message::frontend;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;

use super::error::WireError;
use super::line::{Socket, secure};
use super::policy::{Login, MESSAGE, Security};
use super::query::{self, Answer, System};
use super::startup::{self, Ready};
use super::stream::{Event, Pump, ReceivedEvents, Shared, Timing};
use crate::conninfo::Keepalive;
use crate::lsn::Lsn;
use crate::source::connection::connect::Endpoint;

/// A session that does not stream yet. Dropping it closes the connection.
pub(crate) struct ReplicationSession {
    ready: Ready<Socket>,
    security: Security,
}

/// Opens a session to `endpoint`, with the security that it configures. Cancel-safe.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    keepalive: &Keepalive,
    login: &Login<'_>,
) -> Result<ReplicationSession, WireError> {
    // The reader of the stream may pause, so no `tcp_user_timeout`.
    let socket = Socket::connect(&endpoint.host, endpoint.address, keepalive, false).await?;
    let line = secure(socket, endpoint.tls()).await?;
    let ready = startup::start(line, login).await?;
    let (tls, method) = (ready.line.tls_version(), ready.method);
    let security = Security { tls, method, is_local: endpoint.is_local() };
    Ok(ReplicationSession { ready, security })
}

/// What to stream, and how.
#[derive(Debug, Clone)]
pub(crate) struct StreamSettings {
    /// The slot's name, as stored in the catalog.
    pub(crate) slot: String,
    /// The publication's name, as stored in the catalog.
    pub(crate) publication: String,
    /// The LSN to start streaming from.
    pub(crate) start: Lsn,
    /// Whether to request logical messages.
    pub(crate) messages: bool,
    /// The LSN that may be confirmed from the start.
    pub(crate) ack: Lsn,
    /// The session's value.
    pub(crate) wal_sender_timeout: Duration,
    /// How long the server may send nothing.
    pub(crate) silence_limit: Duration,
}

impl StreamSettings {
    /// The command that starts the stream. Both names are quoted as identifiers, the second one
    /// inside a string whose quotes are doubled; replication commands have no other escape.
    fn command(&self) -> String {
        format!(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names '{}'{})",
            escape_identifier(&self.slot),
            self.start,
            escape_identifier(&self.publication).replace('\'', "''"),
            // Any role may emit logical messages, so they are not requested unless needed.
            if self.messages { ", messages 'true'" } else { "" },
        )
    }
}

impl ReplicationSession {
    /// How the connection is secured.
    pub(crate) fn security(&self) -> Security {
        self.security
    }

    /// Runs `IDENTIFY_SYSTEM`.
    pub(crate) async fn identify(&mut self) -> Result<System, WireError> {
        query::identify(&mut self.ready).await
    }

    /// The history file of a timeline, by `TIMELINE_HISTORY`; `None` if the server has none.
    pub(crate) async fn timeline_history(
        &mut self,
        timeline: u32,
    ) -> Result<Option<String>, WireError> {
        let rows = query::query(&mut self.ready, &format!("TIMELINE_HISTORY {timeline}")).await;
        let rows = match rows {
            Ok(rows) => rows,
            // No such file, no such command (a server that only resembles PostgreSQL), or no right: all
            // but a server that lacks resources or shuts down.
            Err(WireError::Server(error)) if !error.is_passing() => {
                tracing::debug!(%error, timeline, "no history of the timeline");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let content = rows.first().and_then(|row| row.get(1)?.as_deref());
        Ok(content.map(|content| String::from_utf8_lossy(content).into_owned()))
    }

    /// Returns the first value of a query's only row.
    pub(crate) async fn query_text(&mut self, sql: &str) -> Result<String, WireError> {
        let rows = query::query(&mut self.ready, sql).await?;
        let value = rows.first().and_then(|row| row.first()?.as_deref());
        let text = value.and_then(|value| std::str::from_utf8(value).ok());
        text.map(str::to_owned)
            .ok_or_else(|| WireError::Protocol("a query gave no text".to_owned()))
    }

    /// Creates a temporary slot: PostgreSQL drops it at the end of the session.
    pub(crate) async fn create_temporary_slot(&mut self, slot: &str) -> Result<(), WireError> {
        let slot = escape_identifier(slot);
        let command =
            format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        query::query(&mut self.ready, &command).await.map(drop)
    }

    /// Starts streaming. On success this session holds the slot.
    pub(crate) async fn start(
        mut self,
        settings: &StreamSettings,
    ) -> Result<Replication, WireError> {
        let mut message = BytesMut::new();
        frontend::query(&settings.command(), &mut message)?;
        self.ready.line.write_all(&message).await?;
        self.ready.line.flush().await?;
        let mut answer = Answer::default();
        loop {
            let frame = self.ready.receive().await?;
            answer.received(&frame)?;
            match frame.tag {
                // CopyBothResponse.
                b'W' => break,
                b'N' | b'S' => {}
                _ => return Err(WireError::unexpected(&frame, "the stream's beginning")),
            }
        }
        let Ready { line, mut frames, .. } = self.ready;
        frames.set_limit(MESSAGE);
        let shared = Arc::new(Shared::new(settings.ack));
        let (sender, batches) = mpsc::unbounded_channel();
        let timing = Timing {
            wal_sender_timeout: settings.wal_sender_timeout,
            silence_limit: settings.silence_limit,
        };
        let pump = Pump::new(line, frames, Arc::clone(&shared), sender, timing);
        Ok(Replication::new(shared, batches, tokio::spawn(pump.run())))
    }
}

/// A replication stream. Dropping it closes the connection at once and confirms nothing more.
pub(crate) struct Replication {
    shared: Arc<Shared>,
    batches: UnboundedReceiver<ReceivedEvents>,
    events: IntoIter<Event>,
    /// Bytes of the current batch, released from the queue once its events are taken.
    batch_bytes: usize,
    task: JoinHandle<Result<(), WireError>>,
    end: Option<Result<(), WireError>>,
}

impl Drop for Replication {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Replication {
    pub(super) fn new(
        shared: Arc<Shared>,
        batches: UnboundedReceiver<ReceivedEvents>,
        task: JoinHandle<Result<(), WireError>>,
    ) -> Self {
        Self { shared, batches, events: Vec::new().into_iter(), batch_bytes: 0, task, end: None }
    }

    /// The next event, or `None` after an orderly end of the stream. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, WireError> {
        loop {
            if let Some(event) = self.event() {
                return Ok(Some(event));
            }
            match self.batches.recv().await {
                Some(batch) => self.take(batch),
                None => return self.ended().await.map(|()| None),
            }
        }
    }

    /// The next event if one has already arrived. Returns `Some(Ok(None))` after an orderly end of
    /// the stream.
    pub(crate) fn try_next(&mut self) -> Option<Result<Option<Event>, WireError>> {
        loop {
            if let Some(event) = self.event() {
                return Some(Ok(Some(event)));
            }
            match self.batches.try_recv() {
                Ok(batch) => self.take(batch),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    return self.ended().now_or_never().map(|end| end.map(|()| None));
                }
            }
        }
    }

    /// Waits for the end of the stream and returns its result, even if events are still queued.
    /// Cancel-safe.
    pub(crate) async fn ended(&mut self) -> Result<(), WireError> {
        if let Some(end) = &self.end {
            return end.clone();
        }
        let end = (&mut self.task).await.unwrap_or_else(|error| {
            Err(WireError::Protocol(format!("the session's task ended: {error}")))
        });
        self.end.insert(end).clone()
    }

    fn event(&mut self) -> Option<Event> {
        let event = self.events.next();
        if self.events.as_slice().is_empty() && self.batch_bytes > 0 {
            self.shared.taken(std::mem::take(&mut self.batch_bytes));
        }
        event
    }

    fn take(&mut self, batch: ReceivedEvents) {
        self.events = batch.events.into_iter();
        self.batch_bytes = batch.bytes;
    }

    /// Lets status updates confirm everything before `lsn`. The confirmed LSN never decreases.
    pub(crate) fn confirm(&self, lsn: Lsn) {
        self.shared.raise(lsn);
    }

    /// Sends a status update that requests a reply.
    pub(crate) fn ask(&self) {
        self.shared.ask();
    }

    /// Counts how often events arrived faster than they were taken.
    pub(crate) fn bursts(&self) -> u64 {
        self.shared.bursts()
    }

    /// Ends the stream in an orderly way, with a final status update.
    pub(crate) async fn shutdown(&mut self) -> Result<(), WireError> {
        self.shared.end();
        self.ended().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_reach_the_command_as_quoted_identifiers() {
        let mut settings = StreamSettings {
            slot: "a\"b".to_owned(),
            publication: "Mine, it's".to_owned(),
            start: Lsn::new(0x1_0000_002A),
            messages: true,
            ack: Lsn::ZERO,
            wal_sender_timeout: Duration::from_secs(60),
            silence_limit: Duration::from_secs(120),
        };
        assert_eq!(
            settings.command(),
            "START_REPLICATION SLOT \"a\"\"b\" LOGICAL 1/2A (proto_version '1', \
             publication_names '\"Mine, it''s\"', messages 'true')"
        );
        settings.messages = false;
        assert!(settings.command().ends_with("publication_names '\"Mine, it''s\"')"));
    }
}
