//! The live feed: one replication session on a logical slot, and a control
//! connection beside it.
//!
//! The session answers keepalives by itself, also while nobody takes its messages.
//!
//! The control connection's end is the session's end. A fast shutdown of
//! PostgreSQL ends ordinary connections first and then waits for its
//! walsenders, so letting go at that sign keeps walpost from holding a server
//! up that was told to stop.

use std::time::Duration;

use futures_util::FutureExt as _;
use pgwire_replication::client::ReplicationEvent;
use pgwire_replication::{PgWireError, ReplicationClient};
use tokio::time::{Instant, sleep, timeout};

use super::SourceError;
use super::base::{Base, Connection, connection_ended, message};
use super::config::{CatchUp, SourceConfig};
use super::facts::Facts;
use super::feed::{Received, Turn};
use super::turns::Lag;
use crate::lsn::Lsn;
use crate::metrics::SlotFigures;
use crate::pgoutput::{Begin, Commit, LogicalMessage, Message, PgTimestamp};

/// An open replication session.
pub struct Session {
    base: Base,
    client: Replication,
    temporary_slot: bool,
    silence_limit: Duration,
    last_received: Instant,
    stalls: u64,
    /// Whether the last [`Session::next`] was willing to read.
    was_reading: bool,
    lag: Lag,
}

/// What the replication client gives: an event, or its end.
type Event = Result<Option<ReplicationEvent>, PgWireError>;

/// A replication client that confirms nothing more, and is gone at once, when
/// it is dropped: in the midst of connecting too.
pub(super) struct Replication(pub(super) ReplicationClient);

impl Drop for Replication {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    /// Over `base`, by a client whose replication has been started. Where it falls behind it
    /// gives way to batches, as `catch_up` says.
    pub(super) fn start(
        base: Base,
        config: &SourceConfig,
        client: Replication,
        silence_limit: Duration,
        catch_up: CatchUp,
    ) -> Self {
        let lag = Lag::new(catch_up, base.start);
        Self {
            base,
            client,
            temporary_slot: config.temporary_slot,
            silence_limit,
            last_received: Instant::now(),
            stalls: 0,
            was_reading: true,
            lag,
        }
    }

    /// Reads on, so that the server gets round to reading what it was sent,
    /// until the slot shows `lsn`.
    async fn await_confirmed(&mut self, lsn: Lsn) -> Result<(), SourceError> {
        if self.temporary_slot {
            return Ok(());
        }
        loop {
            let facts = Facts::read(&self.base.control.client, &self.base.slot).await?;
            let confirmed = facts.slot.and_then(|slot| slot.confirmed_flush);
            if confirmed.is_some_and(|confirmed| confirmed >= lsn) {
                return Ok(());
            }
            let discard =
                async { while self.client.0.recv().await.is_ok_and(|event| event.is_some()) {} };
            // Either this long, or until the session ends.
            let _ = timeout(Duration::from_millis(20), discard).await;
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// What comes next where it is read. Else the session's end: what it had sent
    /// before comes again in the next.
    async fn event(client: &mut ReplicationClient, reading: bool) -> Event {
        if reading {
            return receive(client).await;
        }
        while client.is_running() {
            sleep(Duration::from_secs(1)).await;
        }
        loop {
            match receive(client).await {
                Ok(Some(_)) => {}
                end => return end,
            }
        }
    }

    fn received(&mut self, event: Event) -> Result<Received, SourceError> {
        self.last_received = Instant::now();
        match event {
            Ok(Some(event)) => {
                self.base.received_bytes += bytes(&event);
                let received = received(event)?;
                self.lag.received(&received);
                Ok(received)
            }
            Ok(None) => Err(SourceError::Lost("PostgreSQL ended the replication stream".into())),
            Err(error) => Err(SourceError::stream(&error, &self.base.host, &self.base.slot)),
        }
    }
}

impl Session {
    pub(super) fn base(&self) -> &Base {
        &self.base
    }

    pub(super) async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        if !(reading && self.was_reading) {
            // Nobody listened: the silence is the relay's own.
            self.last_received = Instant::now();
        }
        self.was_reading = reading;
        self.lag.asked(reading);
        loop {
            let event = tokio::select! {
                biased;
                verified = self.base.watch.verified() => {
                    self.client.0.update_applied_lsn(wire_lsn(verified?));
                    continue;
                }
                event = Self::event(&mut self.client.0, reading) => event,
                ended = &mut self.base.control.ended => {
                    return Err(connection_ended(Connection::Control, ended));
                }
                () = silence(reading.then(|| self.last_received + self.silence_limit)) => {
                    let limit = self.silence_limit;
                    return Err(SourceError::Lost(format!(
                        "nothing came from PostgreSQL for {limit:?}, not even a keepalive"
                    )));
                }
            };
            return self.received(event);
        }
    }

    pub(super) fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        let event = receive(&mut self.client.0).now_or_never()?;
        Some(self.received(event))
    }

    pub(super) fn is_backed_up(&mut self) -> bool {
        let stalls = self.client.0.metrics().stall_count();
        std::mem::replace(&mut self.stalls, stalls) != stalls
    }

    pub(super) fn slot_figures(&mut self) -> Option<SlotFigures> {
        let figures = self.base.observer.news()?;
        self.lag.looked(figures.wal_end);
        Some(figures)
    }

    pub(super) fn turn(&mut self) -> Option<Turn> {
        self.lag.turn()
    }

    pub(super) async fn finish(mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        let noted = timeout(within, async {
            self.base.watch.verify().await?;
            self.client.0.update_applied_lsn(wire_lsn(lsn));
            self.await_confirmed(lsn).await
        });
        let noted = noted.await;
        // Says goodbye in order; a server that does not answer is not waited for.
        let _ = timeout(Duration::from_millis(500), self.client.0.shutdown()).await;
        let unseen = format!("the last confirmation ({lsn}) was not seen to arrive");
        match noted {
            Ok(result) => result,
            Err(_) => Err(SourceError::Lost(unseen)),
        }
    }
}

/// The next event. Not subject to the runtime's budget for one turn: a worker
/// that has ended is asked for its reason but once, and a turn that ended
/// between would lose it. The worker's own buffer bounds the turn.
async fn receive(client: &mut ReplicationClient) -> Event {
    tokio::task::unconstrained(client.recv()).await
}

fn wire_lsn(lsn: Lsn) -> pgwire_replication::Lsn {
    pgwire_replication::Lsn::from_u64(lsn.as_u64())
}

async fn silence(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// How long the plugin's message was.
fn bytes(event: &ReplicationEvent) -> u64 {
    match event {
        ReplicationEvent::XLogData { data, .. } => data.len() as u64,
        ReplicationEvent::Begin { .. } => 21,
        ReplicationEvent::Commit { .. } => 26,
        ReplicationEvent::Message { prefix, content, .. } => {
            15 + prefix.len() as u64 + content.len() as u64
        }
        ReplicationEvent::KeepAlive { .. } | ReplicationEvent::StoppedAt { .. } => 0,
    }
}

fn received(event: ReplicationEvent) -> Result<Received, SourceError> {
    let lsn = |lsn: pgwire_replication::Lsn| Lsn::new(lsn.as_u64());
    let message = match event {
        ReplicationEvent::XLogData { data, .. } => message(&data)?,
        ReplicationEvent::Begin { final_lsn, xid, commit_time_micros } => Message::Begin(Begin {
            commit_lsn: lsn(final_lsn),
            commit_time: PgTimestamp::from_micros(commit_time_micros),
            xid,
        }),
        ReplicationEvent::Commit { lsn: commit_lsn, end_lsn, commit_time_micros } => {
            Message::Commit(Commit {
                commit_lsn: lsn(commit_lsn),
                end_lsn: lsn(end_lsn),
                commit_time: PgTimestamp::from_micros(commit_time_micros),
            })
        }
        ReplicationEvent::Message { transactional, lsn: at, prefix, content } => {
            Message::Logical(LogicalMessage { transactional, lsn: lsn(at), prefix, content })
        }
        ReplicationEvent::KeepAlive { wal_end, .. } => {
            return Ok(Received::Keepalive(lsn(wal_end)));
        }
        ReplicationEvent::StoppedAt { .. } => {
            return Err(SourceError::Lost("the replication stream was stopped".into()));
        }
    };
    Ok(Received::Message(message))
}
