//! The feed from a slot: by a stream, or in batches where there is a backlog.
//!
//! Opening checks everything that both would pass over in silence: that this is still the
//! same server and slot, and that the publication has the tables.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::backlog::{self, Backlog};
use super::base::Base;
use super::config::{APPLICATION_NAME, CatchUp, SourceConfig};
use super::connect::{self, Control};
use super::error::SourceError;
use super::facts::Facts;
use super::feed::{Feed, Received, Source, Turn};
use super::lock::{NOTICED_SOON, keep, lock, unlock};
use super::mark::Mark;
use super::observer::Observer;
use super::opening::{
    Found, Resume, ServerIdentity, check_catalogs, connect_replication, identify, session_settings,
    silence_limit, start_replication, wal_sender_timeout,
};
use super::patience::{Beside, Peer};
use super::refusal::ConnectError;
use super::session::Session;
use super::turns::Outset;
use super::watch::{Catalogs, Watch};
use super::wire::{Connection, Security, WireError};
use crate::conninfo::ConnInfo;
use crate::lsn::Lsn;
use crate::metrics::SlotFigures;
use crate::outbox::FoundTable;

/// How long all that is asked of the server after connecting may take beyond
/// `connect_timeout`: a handful of small queries and the stream's beginning,
/// which waits for no log to be read.
const OPENING_LIMIT: Duration = Duration::from_secs(30);

/// The control connection may be idle for days and must stay.
const CONTROL_SETTINGS: &str =
    "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0";

/// An open feed.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Live {
    /// What is written comes as it is written.
    Stream(Session),
    /// What was written comes in batches.
    Backlog(Backlog),
}

impl Source for SourceConfig {
    type Feed = Live;

    fn slot(&self) -> &str {
        &self.slot
    }

    async fn open(&self, resume: &Resume) -> Result<Live, SourceError> {
        Live::open(self, resume).await
    }
}

/// A feed that is being opened.
struct Opening<'a> {
    config: &'a SourceConfig,
    conninfo: &'a ConnInfo,
    resume: &'a Resume,
    control: Control,
    security: Security,
    facts: Facts,
    catalogs: Catalogs,
    found: Found,
    identity: ServerIdentity,
    outset: Outset,
}

impl Live {
    /// Connects, checks, and begins. Dropping the future gives up, and nothing stays behind.
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
        let at_slot = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush).unwrap_or_default();
        let mut outset = Outset::of(resume, at_slot);
        facts.require_version()?;
        let catalogs =
            Catalogs::prepare(Arc::clone(&control.client), facts.version, config).await?;
        // Before anything is confirmed; it is judged once the server is known.
        let look = catalogs.look().await?;
        let settled = look.settled;
        if !settled {
            outset.ack = at_slot.min(outset.ack);
        }
        let host = control.endpoint.host.to_string();
        let failed = |error: WireError| SourceError::stream(&error, &host, &config.slot);
        let mut client = connect_replication(conninfo, &control, &facts).await.map_err(failed)?;
        // Both connections are of one kind; the one whose password can be read counts.
        let security =
            if control.security.shows_password() { control.security } else { client.security() };
        // Before the catalogs: another server's slot and tables say nothing of ours.
        let identity = identify(config, &mut client, &control, &facts, resume).await?;
        let found = check_catalogs(config, &facts, resume, &catalogs, look).await?;
        let is_for_batches = !config.temporary_slot
            && !facts.in_recovery
            && facts.slot.as_ref().is_some_and(|slot| !slot.is_special);
        if is_for_batches && !settled && config.catch_up.is_for(outset.behind(facts.flushed)) {
            // A stream that falls behind must not give way to another stream.
            config.catch_up.put_off();
        }
        let in_batches = is_for_batches && outset.is_for_batches(facts.flushed, &config.catch_up);
        let opening = Opening {
            config,
            conninfo,
            resume,
            control,
            security,
            facts,
            catalogs,
            found,
            identity,
            outset,
        };
        if in_batches {
            match opening.two_beside().await? {
                Ok((reading, moving)) => return opening.backlog(reading, moving).await,
                Err(refused) => config.catch_up.refused(&refused.to_string()),
            }
        }
        let catch_up = if is_for_batches { config.catch_up.clone() } else { CatchUp::default() };
        opening.stream(client, catch_up).await
    }
}

impl Opening<'_> {
    /// The server process that was this walpost's last.
    fn own(&self) -> Option<i32> {
        match self.resume {
            Resume::At { walsender, .. } => *walsender,
            Resume::AtSlot { .. } => None,
        }
    }

    async fn stream(self, client: Connection, catch_up: CatchUp) -> Result<Live, SourceError> {
        let (config, beside) = (self.config, Arc::clone(&self.control.client));
        let host = self.control.endpoint.host.to_string();
        let failed = |error: WireError| SourceError::stream(&error, &host, &config.slot);
        if !config.temporary_slot {
            lock(&beside, &config.slot, self.own(), &self.found.mark).await?;
        }
        let client =
            start_replication(config, client, &self.facts, self.outset).await.map_err(failed)?;
        let now = Facts::read(&beside, &config.slot).await?;
        self.check_started(&now)?;
        if !config.temporary_slot {
            unlock(&beside, &config.slot).await?;
        }
        let walsender = now.slot.and_then(|slot| slot.active_pid);
        let base = self.base(walsender, walsender);
        Ok(Live::Stream(Session::start(base, config, client, catch_up)))
    }

    async fn backlog(self, reading: Beside, moving: Beside) -> Result<Live, SourceError> {
        let (config, client) = (self.config, Arc::clone(&moving.peer.client));
        // By whom the slot is moved, so that nobody moves it who has not the lock.
        lock(&client, &config.slot, self.own(), &self.found.mark).await?;
        let now = Facts::read(&client, &config.slot).await?;
        self.check_started(&now)?;
        if let Some(pid) = now.slot.as_ref().and_then(|slot| slot.active_pid) {
            let (slot, pid) = (config.slot.clone(), Some(pid));
            return Err(SourceError::InUse { slot, pid, holder: None });
        }
        let stands = now.require_slot(&config.slot)?;
        if let Some(one) = self.outset.first_move(stands) {
            backlog::advance(&client, &config.slot, one).await?;
        }
        let keeps_idle_slots = self.facts.version < 180_000;
        let base = self.base(None, Some(moving.peer.pid));
        let kept = keep(client).await?;
        Ok(Live::Backlog(Backlog::start(base, config, reading, moving, kept, keeps_idle_slots)))
    }

    /// The two connections that batches take; or why the server gives none, where it is there.
    async fn two_beside(&self) -> Result<Result<(Beside, Beside), ConnectError>, SourceError> {
        let both = async { Ok::<_, ConnectError>((self.beside().await?, self.beside().await?)) };
        match both.await {
            Err(error) if error.is_outage() => Err(error.into()),
            given => Ok(given),
        }
    }

    /// Another connection to the same server.
    async fn beside(&self) -> Result<Beside, ConnectError> {
        let Self { conninfo, control, facts, .. } = self;
        let endpoint = &control.endpoint;
        let failed = |error| ConnectError::of_control(&endpoint.host.to_string(), error);
        let other = connect::beside(conninfo, endpoint, APPLICATION_NAME).await?;
        let settings = session_settings(conninfo, facts.version);
        other.client.batch_execute(&format!("{settings}; {NOTICED_SOON}")).await.map_err(failed)?;
        let limit = silence_limit(wal_sender_timeout(facts));
        let (client, asked) = (Arc::clone(&other.client), Arc::clone(&control.client));
        let peer = Peer::new(client, asked, limit).await.map_err(failed)?;
        Ok(Beside { control: other, peer })
    }

    fn base(self, walsender: Option<i32>, backend: Option<i32>) -> Base {
        let Self { config, control, security, facts, catalogs, found, identity, outset, .. } = self;
        Base {
            observer: Observer::start(Arc::clone(&control.client), config.slot.clone()),
            received_bytes: 0,
            host: control.endpoint.host.to_string(),
            security,
            control,
            watch: Watch::start(catalogs, found.mark, walsender, outset.ack),
            slot: config.slot.clone(),
            backend,
            identity,
            start: outset.ack,
            flushed: facts.flushed,
            tables: found.tables,
        }
    }

    /// The slot is held now: it must stand where it stood when it was looked at.
    fn check_started(&self, facts: &Facts) -> Result<(), SourceError> {
        let (config, confirmed) = (self.config, self.found.confirmed.max(self.outset.ack));
        if config.temporary_slot {
            return Ok(());
        }
        let now = facts.require_slot(&config.slot)?;
        if now <= confirmed {
            return Ok(());
        }
        Err(match self.resume {
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
}

impl Live {
    fn base(&self) -> &Base {
        match self {
            Self::Stream(session) => session.base(),
            Self::Backlog(backlog) => backlog.base(),
        }
    }
}

impl Feed for Live {
    fn identity(&self) -> &ServerIdentity {
        &self.base().identity
    }

    fn mark(&self) -> &Mark {
        self.base().watch.mark()
    }

    fn walsender(&self) -> Option<i32> {
        self.base().backend
    }

    fn start(&self) -> Lsn {
        self.base().start
    }

    fn flushed(&self) -> Lsn {
        self.base().flushed
    }

    fn tables(&self) -> &[FoundTable] {
        &self.base().tables
    }

    async fn next(&mut self, reading: bool) -> Result<Received, SourceError> {
        match self {
            Self::Stream(session) => session.next(reading).await,
            Self::Backlog(backlog) => backlog.next(reading).await,
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        match self {
            Self::Stream(session) => session.try_next(),
            Self::Backlog(backlog) => backlog.try_next(),
        }
    }

    fn is_backed_up(&mut self) -> bool {
        match self {
            Self::Stream(session) => session.is_backed_up(),
            Self::Backlog(_) => true,
        }
    }

    fn host(&self) -> &str {
        &self.base().host
    }

    fn security(&self) -> Security {
        self.base().security
    }

    fn received_bytes(&self) -> u64 {
        self.base().received_bytes
    }

    fn slot_figures(&mut self) -> Option<SlotFigures> {
        match self {
            Self::Stream(session) => session.slot_figures(),
            Self::Backlog(backlog) => backlog.slot_figures(),
        }
    }

    fn backlog_bytes(&self) -> Option<u64> {
        match self {
            Self::Stream(_) => None,
            Self::Backlog(backlog) => Some(backlog.bytes()),
        }
    }

    fn turn(&mut self) -> Option<Turn> {
        match self {
            Self::Stream(session) => session.turn(),
            Self::Backlog(backlog) => backlog.turn(),
        }
    }

    fn confirm(&mut self, lsn: Lsn) {
        self.base().watch.want(lsn);
    }

    async fn finish(self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        match self {
            Self::Stream(session) => session.finish(lsn, within).await,
            Self::Backlog(backlog) => backlog.finish(lsn, within).await,
        }
    }
}
