//! The live feed: one replication session on a logical slot, and a control
//! connection beside it.
//!
//! The session answers keepalives and notices a silent server by itself, also while nobody takes
//! its messages: see [`super::wire`].
//!
//! The control connection's end is the session's end. A fast shutdown of
//! PostgreSQL ends ordinary connections first and then waits for its
//! walsenders, so letting go at that sign keeps walpost from holding a server
//! up that was told to stop.

use std::time::Duration;

use tokio::time::timeout;

use super::SourceError;
use super::catalog::Facts;
use super::catchup::policy::LagDetector;
use super::config::{CatchUp, SourceConfig};
use super::feed::{Received, SwitchFeed};
use super::feed_base::{Connection, FeedBase, connection_ended, message};
use super::wire::{Event, Replication, WireError};
use crate::lsn::Lsn;
use crate::source::SlotFigures;

/// How long an answer to the last status update is waited for before the slot is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// An open replication session.
pub struct StreamFeed {
    base: FeedBase,
    client: Replication,
    temporary_slot: bool,
    bursts: u64,
    lag: LagDetector,
}

impl StreamFeed {
    /// Over `base`, by a client whose replication has been started. Where it falls behind it
    /// gives way to batches, as `catch_up` says.
    pub(super) fn start(
        base: FeedBase,
        config: &SourceConfig,
        client: Replication,
        catch_up: CatchUp,
    ) -> Self {
        let lag = LagDetector::new(catch_up, base.start);
        Self { base, client, temporary_slot: config.temporary_slot, bursts: 0, lag }
    }

    /// Asks the server for an answer and reads on, so that it gets round to reading what it was
    /// sent, until the slot shows `lsn`.
    async fn await_confirmed(&mut self, lsn: Lsn) -> Result<(), SourceError> {
        if self.temporary_slot {
            return Ok(());
        }
        self.client.ask();
        loop {
            let answered = timeout(LOOK_INTERVAL, self.answered()).await;
            let facts = Facts::read(&self.base.control.client, &self.base.slot).await?;
            let confirmed = facts.slot.and_then(|slot| slot.confirmed_flush);
            if confirmed.is_some_and(|confirmed| confirmed >= lsn) {
                return Ok(());
            }
            if let Ok(Err(error)) = answered {
                return Err(error);
            }
        }
    }

    /// Reads up to a keepalive.
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
        let received = match event {
            Ok(Some(Event::Data(data))) => {
                self.base.received_bytes += data.len() as u64;
                Received::Message(message(&data)?)
            }
            Ok(Some(Event::Keepalive(wal_end))) => Received::Keepalive(wal_end),
            Ok(None) => {
                return Err(SourceError::Lost("PostgreSQL ended the replication stream".into()));
            }
            Err(error) => {
                return Err(SourceError::stream(&error, &self.base.host, &self.base.slot));
            }
        };
        self.lag.received(&received);
        Ok(received)
    }
}

impl StreamFeed {
    pub(super) fn base(&self) -> &FeedBase {
        &self.base
    }

    pub(super) async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        self.lag.asked(reading);
        loop {
            let event = tokio::select! {
                biased;
                verified = self.base.watch.verified() => {
                    self.client.confirm(verified?);
                    continue;
                }
                event = next(&mut self.client, reading) => event,
                ended = &mut self.base.control.ended => {
                    return Err(connection_ended(Connection::Control, ended));
                }
            };
            return self.received(event);
        }
    }

    pub(super) fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        let event = self.client.try_next()?;
        Some(self.received(event))
    }

    pub(super) fn is_backed_up(&mut self) -> bool {
        let bursts = self.client.bursts();
        std::mem::replace(&mut self.bursts, bursts) != bursts
    }

    pub(super) fn slot_figures(&mut self) -> Option<SlotFigures> {
        let figures = self.base.observer.news()?;
        self.lag.looked(figures.wal_end);
        Some(figures)
    }

    pub(super) fn turn(&mut self) -> Option<SwitchFeed> {
        self.lag.turn()
    }

    pub(super) async fn finish(&mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        let noted = timeout(within, async {
            self.base.watch.verify().await?;
            self.client.confirm(lsn);
            self.await_confirmed(lsn).await
        });
        noted.await.unwrap_or_else(|_| {
            let unseen = format!("the last confirmation ({lsn}) was not seen to arrive");
            Err(SourceError::Lost(unseen))
        })
    }

    /// Says goodbye in order; a server that does not answer is not waited for.
    pub(super) async fn close(mut self) {
        let _ = timeout(Duration::from_millis(500), self.client.shutdown()).await;
    }
}

/// What comes next where it is read. Else the session's end: what it had sent before comes again
/// in the next. But for what the server cannot send: what it sent before tells where that stands,
/// and no other session can bring more.
async fn next(client: &mut Replication, reading: bool) -> Result<Option<Event>, WireError> {
    if reading {
        return client.next().await;
    }
    match client.ended().await {
        Err(error) if SourceError::stream(&error, "", "").is_unsendable() => {
            std::future::pending().await
        }
        end => end.map(|()| None),
    }
}
