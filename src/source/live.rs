//! The feed from a slot: by a stream, or in batches where there is a backlog.
//!
//! Opening checks everything that both would pass over in silence: that this is still the
//! same server and slot, and that the publication has the tables.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use super::backlog::{self, Backlog};
use super::base::Base;
use super::config::{APPLICATION_NAME, CatchUp, SourceConfig};
use super::connect::{self, Control};
use super::error::SourceError;
use super::facts::Facts;
use super::feed::{Feed, Received, Source, SwitchFeed};
use super::halted::{self, ANNOUNCED_FOR};
use super::history::{HistoryCheck, SkippedRelations, Verdict};
use super::instance::Instance;
use super::lock::{Lock, NOTICED_SOON, Seen, keep, unlock};
use super::mark::PublicationFingerprint;
use super::observer::Observer;
use super::opening::{
    Found, Resume, ServerIdentity, check_catalogs, connect_replication, identify, is_moved_unseen,
    own_process, session_settings, silence_limit, start_replication, wal_sender_timeout,
};
use super::patience::{AuxConnection, Backend};
use super::refusal::ConnectError;
use super::session::Session;
use super::turns::StartPosition;
use super::watch::{Catalogs, PublicationGuard};
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
const CONTROL_SETTINGS: &str = "SET lock_timeout = 0; SET idle_session_timeout = 0";

/// What a session is given up for must not go on in the server.
fn limit_statements() -> String {
    format!("SET statement_timeout = {}", OPENING_LIMIT.as_millis())
}

/// Once it is open, whoever asks has a limit of its own.
const UNLIMITED: &str = "SET statement_timeout = 0";

/// An open feed.
pub struct Live {
    feed: Reads,
    /// Compares what comes with what came before the server was restarted: nothing is confirmed
    /// until that is done.
    check: Option<HistoryCheck>,
    /// The server as it was before it was restarted, until its history is known to be the same:
    /// the next session has to compare then, however this one ends.
    before: Option<ServerIdentity>,
    skipped: SkippedRelations,
    /// What is to be handed out next.
    next: VecDeque<Received>,
}

/// By what a feed reads.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
enum Reads {
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
    instance: Instance,
    outset: StartPosition,
    check: Option<HistoryCheck>,
}

impl Live {
    /// Connects, checks, and begins. Dropping the future gives up, and nothing stays behind.
    pub async fn open(config: &SourceConfig, resume: &Resume) -> Result<Self, SourceError> {
        let conninfo = config.conninfo.resolve()?;
        let control = connect::control(&conninfo, APPLICATION_NAME).await?;
        let host = control.endpoint.host.to_string();
        let beside = Arc::clone(&control.client);
        let opened = Box::pin(async {
            match Self::open_beside(control, &conninfo, config, resume).await {
                Ok(opened) => set(&beside, UNLIMITED).await.map(|()| opened),
                Err(error) => {
                    // One that has never streamed knows of no change that the others do not see.
                    if matches!(resume, Resume::At { .. }) {
                        announce_halt(&beside, &config.slot, &error).await;
                    }
                    Err(error)
                }
            }
        });
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
        set(&control.client, &format!("{CONTROL_SETTINGS}; {}", limit_statements())).await?;
        let instance = Instance::of(&control.client).await?;
        let mut facts = Facts::read(&control.client, &config.slot).await?;
        let at_slot = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush).unwrap_or_default();
        let mut outset = StartPosition::of(resume, at_slot);
        facts.require_version()?;
        let catalogs =
            Catalogs::prepare(Arc::clone(&control.client), facts.version, config).await?;
        // Before anything is confirmed; it is judged once the server is known.
        let look = catalogs.look().await?;
        let settled = look.settled;
        if !settled {
            outset.ack = at_slot.min(outset.ack);
        }
        let check = history_check(resume, instance.postmaster_start, at_slot, outset);
        if check.is_some() {
            outset =
                StartPosition { ack: at_slot.min(outset.ack), start: at_slot.min(outset.start) };
        }
        let host = control.endpoint.host.to_string();
        let failed = |error: WireError| SourceError::stream(&error, &host, &config.slot);
        let mut client = connect_replication(conninfo, &control, &facts).await.map_err(failed)?;
        // Both connections are of one kind; the one whose password can be read counts.
        let security =
            if control.security.shows_password() { control.security } else { client.security() };
        // Before the catalogs: another server's slot and tables say nothing of ours.
        let identity = identify(config, &mut client, &control, &facts, resume, &instance).await?;
        if !config.temporary_slot && is_moved_unseen(&facts, resume) {
            // By another walpost, if that reads a backlog: it has the lock then and not the slot.
            // Else nobody else may begin before this one has said what it found.
            let confirmed = facts.require_slot(&config.slot)?;
            let (own, mark) = (own_process(resume, &identity), &look.mark);
            let seen = Seen { config, own, mark, identity: &identity, confirmed };
            // Where nobody can have it, no other walpost reads a backlog either.
            let _: Lock = seen.lock(&control.client).await?;
            facts = Facts::read(&control.client, &config.slot).await?;
        }
        let found = check_catalogs(config, &facts, resume, &catalogs, look, &identity).await?;
        let is_for_batches = !config.temporary_slot
            && !facts.in_recovery
            && facts.slot.as_ref().is_some_and(|slot| !slot.is_special);
        if is_for_batches && !settled && config.catch_up.is_for(outset.behind(facts.flushed)) {
            // A stream that falls behind must not give way to another stream.
            config.catch_up.put_off();
        }
        let in_batches = is_for_batches
            && check.is_none()
            && outset.is_for_batches(facts.flushed, &config.catch_up);
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
            instance,
            outset,
            check,
        };
        let catch_up = if is_for_batches { config.catch_up.clone() } else { CatchUp::default() };
        opening.begin(client, in_batches, catch_up).await
    }
}

impl Opening<'_> {
    /// The server process that was this walpost's last.
    fn own(&self) -> Option<i32> {
        own_process(self.resume, &self.identity)
    }

    /// What is known when the slot's name is to be locked.
    fn seen(&self) -> Seen<'_> {
        let Found { mark, confirmed, .. } = &self.found;
        let (own, identity) = (self.own(), &self.identity);
        Seen { config: self.config, own, mark, identity, confirmed: *confirmed }
    }

    /// Begins in batches, where that is wanted and can be done, or by a stream.
    async fn begin(
        self,
        client: Connection,
        in_batches: bool,
        catch_up: CatchUp,
    ) -> Result<Live, SourceError> {
        if in_batches {
            match self.two_beside().await? {
                // By whom the slot is moved, so that nobody moves it who has not the lock.
                Ok((reading, moving)) => match self.seen().lock(&moving.peer.client).await? {
                    Lock::Held => return self.backlog(reading, moving).await,
                    Lock::Blocked => catch_up.bar(),
                },
                Err(refused) => catch_up.refused(&refused.to_string()),
            }
        }
        self.stream(client, catch_up).await
    }

    async fn stream(mut self, client: Connection, catch_up: CatchUp) -> Result<Live, SourceError> {
        let (config, beside) = (self.config, Arc::clone(&self.control.client));
        let host = self.control.endpoint.host.to_string();
        let failed = |error: WireError| SourceError::stream(&error, &host, &config.slot);
        let locked =
            if config.temporary_slot { None } else { Some(self.seen().lock(&beside).await?) };
        let client =
            start_replication(config, client, &self.facts, self.outset).await.map_err(failed)?;
        let now = Facts::read(&beside, &config.slot).await?;
        self.check_started(&now)?;
        match locked {
            Some(Lock::Held) => unlock(&beside, &config.slot).await?,
            // Who came to have it before the stream began does not know of the stream.
            Some(Lock::Blocked) => self.seen().require_no_other(&beside).await?,
            None => {}
        }
        let walsender = now.slot.and_then(|slot| slot.active_pid);
        let check = self.check.take();
        let before = match self.resume {
            Resume::At { identity, .. } => Some(identity.clone()),
            Resume::AtSlot { .. } => None,
        };
        let base = self.base(walsender, walsender);
        let feed = Reads::Stream(Session::start(base, config, client, catch_up));
        Ok(Live { before: check.as_ref().and(before), check, ..Live::over(feed) })
    }

    async fn backlog(
        self,
        reading: AuxConnection,
        moving: AuxConnection,
    ) -> Result<Live, SourceError> {
        let (config, client) = (self.config, Arc::clone(&moving.peer.client));
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
        let feed = Backlog::start(base, config, reading, moving, kept, keeps_idle_slots);
        Ok(Live::over(Reads::Backlog(feed)))
    }

    /// The two connections that batches take; or why the server gives none, where it is there.
    async fn two_beside(
        &self,
    ) -> Result<Result<(AuxConnection, AuxConnection), ConnectError>, SourceError> {
        // The server may give up a client that does not read where the connection only moves the
        // slot; the other one waits for room here, and Kafka, for as long as it takes.
        let both = async {
            Ok::<_, ConnectError>((self.beside("").await?, self.beside(NOTICED_SOON).await?))
        };
        let given = match both.await {
            Err(error) if error.is_outage() => return Err(error.into()),
            given => given,
        };
        if let Ok((reading, moving)) = &given {
            for one in [reading, moving] {
                self.instance.require_same(&Instance::of(&one.peer.client).await?)?;
            }
        }
        Ok(given)
    }

    /// Another connection to the same address, with further settings.
    async fn beside(&self, further: &str) -> Result<AuxConnection, ConnectError> {
        let Self { conninfo, control, facts, .. } = self;
        let endpoint = &control.endpoint;
        let failed = |error| ConnectError::of_control(&endpoint.host.to_string(), error);
        let other = connect::beside(conninfo, endpoint, APPLICATION_NAME).await?;
        let settings = session_settings(conninfo, facts.version);
        other.client.batch_execute(&format!("{settings}; {further}")).await.map_err(failed)?;
        let limit = silence_limit(wal_sender_timeout(facts));
        let (client, asked) = (Arc::clone(&other.client), Arc::clone(&control.client));
        let peer = Backend::new(client, asked, limit).await.map_err(failed)?;
        Ok(AuxConnection { control: other, peer })
    }

    fn base(self, walsender: Option<i32>, backend: Option<i32>) -> Base {
        let Self { config, control, security, facts, catalogs, found, identity, outset, .. } = self;
        Base {
            observer: Observer::start(Arc::clone(&control.client), config.slot.clone()),
            received_bytes: 0,
            host: control.endpoint.host.to_string(),
            security,
            control,
            watch: PublicationGuard::start(catalogs, found.mark, walsender, outset.ack),
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
        match &self.feed {
            Reads::Stream(session) => session.base(),
            Reads::Backlog(backlog) => backlog.base(),
        }
    }

    fn over(feed: Reads) -> Self {
        let (skipped, next) = (SkippedRelations::default(), VecDeque::new());
        Self { feed, check: None, before: None, skipped, next }
    }

    /// What is to be handed out of what came; nothing of what was handed out before the server
    /// was restarted.
    fn compare(&mut self, received: Received) -> Result<Option<Received>, SourceError> {
        let Some(check) = &mut self.check else { return Ok(Some(self.described(received))) };
        let verdict = match &received {
            Received::Message(message) => check.message(message)?,
            Received::Keepalive(wal_end) => check.keepalive(*wal_end)?,
        };
        match verdict {
            Verdict::Skip => {
                if let Received::Message(message) = received {
                    self.skipped.skipped(message);
                }
                return Ok(None);
            }
            Verdict::Pass => {}
            Verdict::Same => {
                tracing::info!("the restarted server has the history that was published");
                (self.check, self.before) = (None, None);
            }
        }
        Ok(Some(self.described(received)))
    }

    /// The first of what is to be handed out for it: its table's description comes before a row.
    fn described(&mut self, received: Received) -> Received {
        let Received::Message(message) = &received else { return received };
        let before = self.skipped.before(message);
        if before.is_empty() {
            return received;
        }
        self.next.extend(before.into_iter().map(Received::Message));
        self.next.push_back(received);
        self.next.pop_front().unwrap_or(Received::Keepalive(Lsn::ZERO))
    }
}

/// Settings of the control connection.
async fn set(client: &Client, settings: &str) -> Result<(), SourceError> {
    let set = client.batch_execute(settings).await;
    set.map_err(|error| SourceError::query("preparing the control connection", &error))
}

/// The comparison that a session on a server needs whose postmaster was started at another time
/// than that of the last session.
fn history_check(
    resume: &Resume,
    postmaster_start: i64,
    at_slot: Lsn,
    outset: StartPosition,
) -> Option<HistoryCheck> {
    match resume {
        Resume::At { identity, last, .. } if identity.postmaster_start != postmaster_start => {
            HistoryCheck::new(at_slot.min(outset.start), outset.start, *last)
        }
        Resume::At { .. } | Resume::AtSlot { .. } => None,
    }
}

/// Where `error` is for a person to decide: lets the instances that wait for the slot see that
/// this one halts, for as long as they need to see it.
async fn announce_halt(client: &Client, slot: &str, error: &SourceError) {
    if !error.is_for_a_person() {
        return;
    }
    match halted::announce(client, slot).await {
        Ok(()) => sleep(ANNOUNCED_FOR).await,
        Err(error) => tracing::debug!(%error, "waiting instances do not see that this one halts"),
    }
}

impl Feed for Live {
    fn identity(&self) -> &ServerIdentity {
        self.before.as_ref().unwrap_or(&self.base().identity)
    }

    fn mark(&self) -> &PublicationFingerprint {
        self.base().watch.mark()
    }

    fn walsender(&self) -> Option<i32> {
        // A number means something on the server of that identity only.
        self.base().backend.filter(|_| self.before.is_none())
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
        if reading && let Some(next) = self.next.pop_front() {
            return Ok(next);
        }
        loop {
            let received = match &mut self.feed {
                Reads::Stream(session) => session.next(reading).await?,
                Reads::Backlog(backlog) => backlog.next(reading).await?,
            };
            if let Some(received) = self.compare(received)? {
                return Ok(received);
            }
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        if let Some(next) = self.next.pop_front() {
            return Some(Ok(next));
        }
        loop {
            let received = match &mut self.feed {
                Reads::Stream(session) => session.try_next()?,
                Reads::Backlog(backlog) => backlog.try_next()?,
            };
            let compared = received.and_then(|received| self.compare(received));
            if let Some(received) = compared.transpose() {
                return Some(received);
            }
        }
    }

    fn is_backed_up(&mut self) -> bool {
        match &mut self.feed {
            Reads::Stream(session) => session.is_backed_up(),
            Reads::Backlog(_) => true,
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
        match &mut self.feed {
            Reads::Stream(session) => session.slot_figures(),
            Reads::Backlog(backlog) => backlog.slot_figures(),
        }
    }

    fn backlog_bytes(&self) -> Option<u64> {
        match &self.feed {
            Reads::Stream(_) => None,
            Reads::Backlog(backlog) => Some(backlog.bytes()),
        }
    }

    fn turn(&mut self) -> Option<SwitchFeed> {
        // What is compared comes by this stream.
        if self.check.is_some() {
            return None;
        }
        match &mut self.feed {
            Reads::Stream(session) => session.turn(),
            Reads::Backlog(backlog) => backlog.turn(),
        }
    }

    fn confirm(&mut self, lsn: Lsn) {
        if self.check.is_none() {
            self.base().watch.want(lsn);
        }
    }

    async fn halting(&mut self, error: &SourceError) {
        let (client, slot) = (Arc::clone(&self.base().control.client), self.base().slot.clone());
        announce_halt(&client, &slot, error).await;
    }

    async fn finish(self, lsn: Lsn, within: Duration) -> Result<(), SourceError> {
        if self.check.is_some() {
            let unknown = "it is not known yet whether the restarted server has the history that was \
                           published: nothing is confirmed to it";
            return Err(SourceError::Lost(unknown.to_owned()));
        }
        match self.feed {
            Reads::Stream(session) => session.finish(lsn, within).await,
            Reads::Backlog(backlog) => backlog.finish(lsn, within).await,
        }
    }
}
