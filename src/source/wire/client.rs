//! A replication session as its user sees it: first a connection for commands, then a stream.

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
use super::stream::{Batch, Event, Pump, Shared, Timing};
use crate::conninfo::Keepalive;
use crate::lsn::Lsn;
use crate::source::connection::connect::Endpoint;

/// A session that does not stream yet. Dropping it closes the connection.
pub(crate) struct Connection {
    ready: Ready<Socket>,
    security: Security,
}

/// Opens a session at that end point, protected as it says. Cancel-safe.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    keepalive: &Keepalive,
    login: &Login<'_>,
) -> Result<Connection, WireError> {
    // Who reads the stream may pause.
    let socket = Socket::connect(&endpoint.host, endpoint.address, keepalive, false).await?;
    let line = secure(socket, endpoint.tls()).await?;
    let ready = startup::start(line, login).await?;
    let (tls, method) = (ready.line.tls_version(), ready.method);
    let security = Security { tls, method, is_local: endpoint.is_local() };
    Ok(Connection { ready, security })
}

/// What a stream is of.
#[derive(Debug, Clone)]
pub(crate) struct StreamSettings {
    /// As stored in the catalog.
    pub(crate) slot: String,
    /// As stored in the catalog.
    pub(crate) publication: String,
    /// Where to read from.
    pub(crate) start: Lsn,
    /// Whether logical messages are asked for.
    pub(crate) messages: bool,
    /// What may be confirmed from the beginning.
    pub(crate) ack: Lsn,
    /// As it holds for the session.
    pub(crate) wal_sender_timeout: Duration,
    /// How long nothing may come.
    pub(crate) silence_limit: Duration,
}

impl StreamSettings {
    /// The command that begins it. Both names are identifiers, the second one inside a string
    /// whose quotes are doubled; replication commands know no other escape.
    fn command(&self) -> String {
        format!(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names '{}'{})",
            escape_identifier(&self.slot),
            self.start,
            escape_identifier(&self.publication).replace('\'', "''"),
            // Any role may emit them: nobody's content is to be received.
            if self.messages { ", messages 'true'" } else { "" },
        )
    }
}

impl Connection {
    /// How it is protected.
    pub(crate) fn security(&self) -> Security {
        self.security
    }

    /// Asks the server who it is.
    pub(crate) async fn identify(&mut self) -> Result<System, WireError> {
        query::identify(&mut self.ready).await
    }

    /// The first value of a query's only row.
    pub(crate) async fn query_text(&mut self, sql: &str) -> Result<String, WireError> {
        let rows = query::query(&mut self.ready, sql).await?;
        let value = rows.first().and_then(|row| row.first()?.as_deref());
        let text = value.and_then(|value| std::str::from_utf8(value).ok());
        text.map(str::to_owned)
            .ok_or_else(|| WireError::Protocol("a query gave no text".to_owned()))
    }

    /// Makes a slot that goes with the session.
    pub(crate) async fn create_temporary_slot(&mut self, slot: &str) -> Result<(), WireError> {
        let slot = escape_identifier(slot);
        let command =
            format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        query::query(&mut self.ready, &command).await.map(drop)
    }

    /// Begins the stream. Once this is done the slot is held by this session.
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

/// A replication stream. Dropped, it confirms nothing more and is gone at once.
pub(crate) struct Replication {
    shared: Arc<Shared>,
    batches: UnboundedReceiver<Batch>,
    events: IntoIter<Event>,
    /// What is to be said to be taken once the events are.
    held: usize,
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
        batches: UnboundedReceiver<Batch>,
        task: JoinHandle<Result<(), WireError>>,
    ) -> Self {
        Self { shared, batches, events: Vec::new().into_iter(), held: 0, task, end: None }
    }

    /// The next event; none once the stream has ended in order. Cancel-safe.
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

    /// What has come already. The end is none here, unless there is a reason.
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

    /// How the stream ends, whatever has come and was not taken. Cancel-safe.
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
        if self.events.as_slice().is_empty() && self.held > 0 {
            self.shared.taken(std::mem::take(&mut self.held));
        }
        event
    }

    fn take(&mut self, batch: Batch) {
        self.events = batch.events.into_iter();
        self.held = batch.bytes;
    }

    /// Confirms everything before `lsn`, which never falls.
    pub(crate) fn confirm(&self, lsn: Lsn) {
        self.shared.raise(lsn);
    }

    /// Sends a status update that asks for an answer.
    pub(crate) fn ask(&self) {
        self.shared.ask();
    }

    /// Rises each time that events come faster than they are taken.
    pub(crate) fn bursts(&self) -> u64 {
        self.shared.bursts()
    }

    /// Ends the stream in order, with a last status update.
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
