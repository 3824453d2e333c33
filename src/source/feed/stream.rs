//! A streaming feed: a replication session on a logical slot, and a control connection.
//!
//! The session answers keepalives and detects a silent server on a task of its own, also while its
//! messages are not taken: see [`crate::source::wire`].
//!
//! The session ends when the control connection ends. A fast shutdown of PostgreSQL ends ordinary
//! connections first and then waits for its walsenders, so releasing the slot at that sign keeps
//! walpost from delaying the shutdown.

use std::time::Duration;

use tokio::time::timeout;

use crate::lsn::Lsn;
use crate::source::SlotMetrics;
use crate::source::SourceError;
use crate::source::catalog::CatalogState;
use crate::source::catchup::policy::LagDetector;
use crate::source::config::{CatchUp, SourceConfig};
use crate::source::error::Phase;
use crate::source::feed::feed_base::{FeedBase, SqlConnection, connection_ended, message};
use crate::source::feed::{Received, SwitchFeed};
use crate::source::wire::{Event, Replication, WireError};

/// How long to wait for a reply to the last status update before reading the slot.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An open replication session.
pub struct StreamFeed {
    base: FeedBase,
    client: Replication,
    temporary_slot: bool,
    bursts: u64,
    lag: LagDetector,
}

impl StreamFeed {
    /// Streams over `base` with a client whose replication has been started. A stream that falls
    /// behind yields to a catch-up, as `catch_up` configures.
    pub(in crate::source) fn start(
        base: FeedBase,
        config: &SourceConfig,
        client: Replication,
        catch_up: CatchUp,
    ) -> Self {
        let lag = LagDetector::new(catch_up, base.start);
        Self { base, client, temporary_slot: config.temporary_slot, bursts: 0, lag }
    }

    /// Requests a reply from the server, and keeps reading so that the server processes what it was
    /// sent, until the slot shows `lsn`.
    async fn await_confirmed(&mut self, lsn: Lsn) -> Result<(), SourceError> {
        if self.temporary_slot {
            return Ok(());
        }
        self.client.ask();
        loop {
            let answered = timeout(POLL_INTERVAL, self.answered()).await;
            let facts = CatalogState::read(&self.base.control.client, &self.base.slot).await?;
            let confirmed = facts.slot.and_then(|slot| slot.confirmed_flush);
            if confirmed.is_some_and(|confirmed| confirmed >= lsn) {
                return Ok(());
            }
            if let Ok(Err(error)) = answered {
                return Err(error);
            }
        }
    }

    /// Reads up to the next keepalive.
    async fn answered(&mut self) -> Result<(), SourceError> {
        loop {
            match self.client.next().await {
                Ok(Some(Event::Data(_))) => {}
                Ok(Some(Event::Keepalive(_))) => return Ok(()),
                end => return self.received(end).map(drop),
            }
        }
    }

    fn received(
        &mut self,
        event: Result<Option<Event>, WireError>,
    ) -> Result<Received, SourceError> {
        let (received, bytes) = match event {
            Ok(Some(Event::Data(data))) => {
                self.base.received_bytes += data.len() as u64;
                (Received::Message(message(&data)?), data.len())
            }
            Ok(Some(Event::Keepalive(wal_end))) => (Received::Keepalive(wal_end), 0),
            Ok(None) => {
                return Err(SourceError::Lost("PostgreSQL ended the replication stream".into()));
            }
            Err(error) => {
                let FeedBase { host, slot, .. } = &self.base;
                return Err(SourceError::session(&error, Phase::Streaming, host, slot));
            }
        };
        self.lag.received(&received, bytes);
        Ok(received)
    }
}

impl StreamFeed {
    pub(in crate::source) fn base(&self) -> &FeedBase {
        &self.base
    }

    pub(in crate::source) async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        self.lag.polled(reading);
        loop {
            let event = tokio::select! {
                // The guard first: it is seldom ready, and a busy stream, which is always ready,
                // must not delay a confirmation, or the error that the publication changed. The
                // control connection last: messages received before it ended are still taken, and
                // the replication session's own error is more specific.
                biased;
                verified = self.base.publication_guard.verified() => {
                    self.client.confirm(verified?);
                    continue;
                }
                event = next(&mut self.client, reading) => event,
                ended = &mut self.base.control.ended => {
                    return Err(connection_ended(SqlConnection::Control, ended));
                }
            };
            return self.received(event);
        }
    }

    pub(in crate::source) fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        let event = self.client.try_next()?;
        Some(self.received(event))
    }

    pub(in crate::source) fn is_backed_up(&mut self) -> bool {
        let bursts = self.client.bursts();
        std::mem::replace(&mut self.bursts, bursts) != bursts
    }

    pub(in crate::source) fn slot_metrics(&mut self) -> Option<SlotMetrics> {
        let figures = self.base.observer.changed()?;
        self.lag.measured(figures.wal_end, figures.retained_bytes);
        Some(figures)
    }

    pub(in crate::source) fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        self.lag.wanted_switch()
    }

    pub(in crate::source) async fn finish(
        &mut self,
        lsn: Lsn,
        within: Duration,
    ) -> Result<(), SourceError> {
        let noted = timeout(within, async {
            self.base.publication_guard.verify().await?;
            self.client.confirm(lsn);
            self.await_confirmed(lsn).await
        });
        noted.await.unwrap_or_else(|_| {
            let unseen = format!("it is not known whether the last confirmation ({lsn}) arrived");
            Err(SourceError::Lost(unseen))
        })
    }

    /// Closes the session in an orderly way, but does not wait long for a server that does not
    /// respond.
    pub(in crate::source) async fn close(mut self) {
        let _ = timeout(Duration::from_millis(500), self.client.shutdown()).await;
    }
}

/// The next event if `reading`; otherwise only the session's end, because the next session receives
/// again what was not taken. An error about a change that the server cannot send does not end it
/// here: events received before it show its position, and no other session can receive more.
async fn next(client: &mut Replication, reading: bool) -> Result<Option<Event>, WireError> {
    if reading {
        return client.next().await;
    }
    match client.ended().await {
        Err(error) if SourceError::session(&error, Phase::Streaming, "", "").is_unsendable() => {
            std::future::pending().await
        }
        end => end.map(|()| None),
    }
}
