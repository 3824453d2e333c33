//! The live feed: one replication session on a logical slot, and a control
//! connection beside it.
//!
//! Opening checks everything that a stream would pass over in silence: that
//! this is still the same server and slot, and that the publication has the
//! tables. The session then answers keepalives by itself, also while nobody
//! takes its messages.
//!
//! The control connection's end is the session's end. A fast shutdown of
//! PostgreSQL ends ordinary connections first and then waits for its
//! walsenders, so letting go at that sign keeps walpost from holding a server
//! up that was told to stop.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use pgwire_replication::client::ReplicationEvent;
use pgwire_replication::{PgWireError, ReplicationClient};
use tokio::time::{Instant, sleep, timeout};

use super::SourceError;
use super::config::{APPLICATION_NAME, SourceConfig};
use super::connect::{self, Control};
use super::facts::Facts;
use super::feed::{Feed, Source};
use super::mark::Mark;
use super::observer::Observer;
use super::opening::{
    Resume, ServerIdentity, check_catalogs, identify, replication_settings, silence_limit,
    start_replication, wal_sender_timeout,
};
use super::watch::{Catalogs, Watch};
use crate::conninfo::ConnInfo;
use crate::lsn::Lsn;
use crate::metrics::SlotFigures;
use crate::outbox::FoundTable;
use crate::pgoutput::{self, Begin, Commit, LogicalMessage, Message, PgTimestamp};

/// How long all that is asked of the server after connecting may take beyond
/// `connect_timeout`: a handful of small queries and the stream's beginning,
/// which waits for no log to be read.
const OPENING_LIMIT: Duration = Duration::from_secs(30);

/// The control connection may be idle for days and must stay.
const CONTROL_SETTINGS: &str =
    "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0";

/// What a session hands out, in the order of the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// A message of the plugin.
    Message(Message),
    /// The server has sent everything that committed before this LSN.
    Keepalive(Lsn),
}

/// An open replication session.
pub struct Session {
    client: Replication,
    control: Control,
    watch: Watch,
    observer: Observer,
    received_bytes: u64,
    host: String,
    slot: String,
    temporary_slot: bool,
    identity: ServerIdentity,
    start: Lsn,
    flushed: Lsn,
    tables: Vec<FoundTable>,
    silence_limit: Duration,
    last_received: Instant,
    stalls: u64,
    /// Whether the last [`Session::next`] was willing to read.
    was_reading: bool,
}

/// What the replication client gives: an event, or its end.
type Event = Result<Option<ReplicationEvent>, PgWireError>;

/// A replication client that confirms nothing more, and is gone at once, when
/// it is dropped: in the midst of connecting too.
struct Replication(ReplicationClient);

impl Drop for Replication {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Source for SourceConfig {
    type Feed = Session;

    fn slot(&self) -> &str {
        &self.slot
    }

    async fn open(&self, resume: &Resume) -> Result<Session, SourceError> {
        Session::open(self, resume).await
    }
}

impl Session {
    /// Connects, checks, and starts streaming. Dropping the future gives up, and
    /// nothing stays behind.
    pub async fn open(config: &SourceConfig, resume: &Resume) -> Result<Self, SourceError> {
        let conninfo = config.conninfo.resolve()?;
        let control = connect::control(&conninfo, APPLICATION_NAME).await?;
        let host = control.endpoint.host.to_string();
        let opened = Box::pin(Self::open_beside(control, &conninfo, config, resume));
        if config.temporary_slot {
            // A new slot waits for the end of every transaction that is open now.
            return opened.await;
        }
        let within = conninfo.connect_timeout + OPENING_LIMIT;
        timeout(within, opened).await.unwrap_or_else(|_| {
            let reason = format!("{host}: the replication session was not ready within {within:?}");
            Err(SourceError::Lost(reason))
        })
    }

    async fn open_beside(
        control: Control,
        conninfo: &ConnInfo,
        config: &SourceConfig,
        resume: &Resume,
    ) -> Result<Self, SourceError> {
        control
            .client
            .batch_execute(CONTROL_SETTINGS)
            .await
            .map_err(|error| SourceError::query("preparing the control connection", &error))?;
        let facts = Facts::read(&control.client, &config.slot).await?;
        let at_slot = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush);
        let (start, ack) = match resume {
            Resume::AtSlot { .. } => (at_slot.unwrap_or_default(), at_slot.unwrap_or_default()),
            Resume::At { confirmed, start, .. } => match at_slot {
                // Another walpost has moved it on: what this one had read beyond is
                // of no account any more, and comes again.
                Some(moved) if moved > *confirmed => (moved, moved),
                _ => (*start, *confirmed),
            },
        };
        facts.require_version()?;
        let catalogs =
            Catalogs::prepare(Arc::clone(&control.client), facts.version, config).await?;
        // Before anything is confirmed; it is judged once the server is known.
        let look = catalogs.look().await?;
        let ack = if look.settled { ack } else { at_slot.unwrap_or_default().min(ack) };
        let settings = replication_settings(config, conninfo, &control, &facts, start, ack);
        let host = control.endpoint.host.to_string();
        let failed = |error: PgWireError| SourceError::stream(&error, &host, &config.slot);
        let mut client =
            Replication(ReplicationClient::connect_gated(settings).await.map_err(failed)?);
        // Before the catalogs: another server's slot and tables say nothing of ours.
        let identity = identify(config, &mut client.0, &control, &facts, resume).await?;
        let found = check_catalogs(config, &facts, resume, &catalogs, look).await?;
        start_replication(config, &mut client.0).await.map_err(failed)?;
        let now = Facts::read(&control.client, &config.slot).await?;
        check_started(config, &now, found.confirmed.max(ack), resume)?;
        let walsender = now.slot.and_then(|slot| slot.active_pid);
        let observer = Observer::start(Arc::clone(&control.client), config.slot.clone());
        Ok(Self {
            client,
            host,
            observer,
            received_bytes: 0,
            control,
            watch: Watch::start(catalogs, found.mark, walsender, ack),
            slot: config.slot.clone(),
            temporary_slot: config.temporary_slot,
            identity,
            start: ack,
            flushed: facts.flushed,
            tables: found.tables,
            silence_limit: silence_limit(wal_sender_timeout(&facts)),
            last_received: Instant::now(),
            stalls: 0,
            was_reading: true,
        })
    }

    /// Reads on, so that the server gets round to reading what it was sent,
    /// until the slot shows `lsn`.
    async fn await_confirmed(&mut self, lsn: Lsn) -> Result<(), SourceError> {
        if self.temporary_slot {
            return Ok(());
        }
        loop {
            let facts = Facts::read(&self.control.client, &self.slot).await?;
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
                self.received_bytes += bytes(&event);
                received(event)
            }
            Ok(None) => Err(SourceError::Lost("PostgreSQL ended the replication stream".into())),
            Err(error) => Err(SourceError::stream(&error, &self.host, &self.slot)),
        }
    }
}

impl Feed for Session {
    fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    fn mark(&self) -> &Mark {
        self.watch.mark()
    }

    fn walsender(&self) -> Option<i32> {
        self.watch.walsender()
    }

    fn start(&self) -> Lsn {
        self.start
    }

    fn tables(&self) -> &[FoundTable] {
        &self.tables
    }

    fn flushed(&self) -> Lsn {
        self.flushed
    }

    async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        if !(reading && self.was_reading) {
            // Nobody listened: the silence is the relay's own.
            self.last_received = Instant::now();
        }
        self.was_reading = reading;
        loop {
            let event = tokio::select! {
                biased;
                verified = self.watch.verified() => {
                    self.client.0.update_applied_lsn(wire_lsn(verified?));
                    continue;
                }
                event = Self::event(&mut self.client.0, reading) => event,
                ended = &mut self.control.ended => return Err(control_ended(ended)),
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

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        let event = receive(&mut self.client.0).now_or_never()?;
        Some(self.received(event))
    }

    fn is_backed_up(&mut self) -> bool {
        let stalls = self.client.0.metrics().stall_count();
        std::mem::replace(&mut self.stalls, stalls) != stalls
    }

    fn host(&self) -> &str {
        &self.host
    }

    fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    fn slot_figures(&mut self) -> Option<SlotFigures> {
        self.observer.news()
    }

    fn confirm(&mut self, lsn: Lsn) {
        self.watch.want(lsn);
    }

    async fn finish(mut self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        let noted = timeout(within, async {
            self.watch.verify().await?;
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

/// The slot is held now: it must stand where it stood when it was looked at.
fn check_started(
    config: &SourceConfig,
    facts: &Facts,
    confirmed: Lsn,
    resume: &Resume,
) -> Result<(), SourceError> {
    if config.temporary_slot {
        return Ok(());
    }
    let now = facts.require_slot(&config.slot)?;
    if now <= confirmed {
        return Ok(());
    }
    Err(match resume {
        // Whoever had it before went in between: nothing of ours is amiss.
        Resume::AtSlot { .. } | Resume::At { after_another: true, .. } => {
            SourceError::Lost(format!(
                "replication slot \"{}\" moved from {confirmed} to {now} while walpost connected",
                config.slot
            ))
        }
        Resume::At { after_another: false, .. } => {
            SourceError::slot_moved(&config.slot, confirmed, now)
        }
    })
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

fn control_ended(
    ended: Result<Result<(), tokio_postgres::Error>, tokio::task::JoinError>,
) -> SourceError {
    match ended {
        Ok(Err(error)) => SourceError::query("the control connection ended", &error),
        Ok(Ok(())) | Err(_) => SourceError::Lost("the control connection ended".into()),
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
        ReplicationEvent::XLogData { data, .. } => pgoutput::decode(&data).map_err(|error| {
            SourceError::Undecodable(format!(
                "PostgreSQL sent a message that walpost cannot read: {error}"
            ))
        })?,
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
