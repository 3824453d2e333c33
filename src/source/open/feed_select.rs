//! Starts the feed of a session whose server, slot and publication have been checked: a catch-up
//! for a large backlog, a stream otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio_postgres::Client;

use crate::conninfo::ConnInfo;
use crate::lsn::Lsn;
use crate::source::catalog::CatalogState;
use crate::source::catalog::slot_metrics::Observer;
use crate::source::catchup::advancer;
use crate::source::catchup::backend_liveness::{AuxConnection, Backend};
use crate::source::catchup::cost::Backlog;
use crate::source::catchup::feed::CatchupFeed;
use crate::source::catchup::policy::StartPosition;
use crate::source::config::{APPLICATION_NAME, CatchUp, SourceConfig};
use crate::source::connection::connect;
use crate::source::connection::connect::Control;
use crate::source::connection::error::ConnectError;
use crate::source::connection::instance::Instance;
use crate::source::error::{Holder, HolderKind, Phase, SourceError};
use crate::source::feed::feed_base::FeedBase;
use crate::source::feed::postgres_feed::{ActiveFeed, PostgresFeed};
use crate::source::feed::stream::StreamFeed;
use crate::source::identity::history::HistoryCheck;
use crate::source::identity::publication_fingerprint::PublicationFingerprint;
use crate::source::identity::publication_guard::{Catalogs, PublicationGuard};
use crate::source::identity::resume::Resume;
use crate::source::identity::server_identity::ServerIdentity;
use crate::source::identity::timeline::Timelines;
use crate::source::instances::halt_notice;
use crate::source::instances::slot_lock::{
    DEAD_CLIENT_SETTINGS, Lock, keep_alive, lock, require_no_other_holder, unlock,
};
use crate::source::open::session_setup::{
    Found, create_temporary_slot, own_process, session_settings, silence_limit, start_replication,
    wal_sender_timeout,
};
use crate::source::wire::{ReplicationSession, Security, WireError};

/// The step that the opening of a feed has reached.
#[derive(Debug, Default)]
pub(in crate::source) struct Progress {
    /// Whether it tries a catch-up.
    pub(in crate::source) in_batches: AtomicBool,
    /// Whether it creates a slot, which waits for every transaction that is open at that time.
    pub(in crate::source) creates_slot: AtomicBool,
}

/// A feed that is being opened.
pub(in crate::source) struct Opening<'a> {
    pub(in crate::source) config: &'a SourceConfig,
    pub(in crate::source) conninfo: &'a ConnInfo,
    pub(in crate::source) resume: &'a Resume,
    pub(in crate::source) control: Control,
    pub(in crate::source) security: Security,
    pub(in crate::source) facts: CatalogState,
    pub(in crate::source) catalogs: Catalogs,
    pub(in crate::source) found: Found,
    pub(in crate::source) identity: ServerIdentity,
    pub(in crate::source) timelines: Timelines,
    pub(in crate::source) instance: Instance,
    pub(in crate::source) start_position: StartPosition,
    pub(in crate::source) check: Option<HistoryCheck>,
}

impl Opening<'_> {
    /// Starts a catch-up or a stream.
    pub(in crate::source) async fn begin(
        self,
        client: ReplicationSession,
        settled: bool,
        progress: &Progress,
    ) -> Result<PostgresFeed, SourceError> {
        let Self { config, facts, start_position, .. } = &self;
        let can_catch_up = !config.temporary_slot
            && !facts.in_recovery
            && facts.slot.as_ref().is_some_and(|slot| !slot.failover);
        let backlog = self.unread();
        let is_large = can_catch_up && config.catch_up.applies_to(backlog.unread);
        if is_large && !settled {
            // This session streams. Its stream must not be replaced by another one for its lag.
            config.catch_up.postpone();
        }
        let catches_up = is_large
            && settled
            && self.check.is_none()
            && start_position.choose_catch_up(backlog, &config.catch_up);
        if catches_up {
            progress.in_batches.store(true, Relaxed);
            match self.auxiliary_connections().await? {
                // The connection that advances the slot holds the lock: only the lock's holder
                // advances it.
                Ok((reading, advancing)) => match self.lock(&advancing.peer.client).await? {
                    Lock::Held => return self.catch_up(reading, advancing).await,
                    Lock::Blocked => config.catch_up.start_cooldown(),
                },
                Err(refused) => config.catch_up.refused(&refused.to_string()),
            }
            progress.in_batches.store(false, Relaxed);
        }
        let catch_up = if can_catch_up { config.catch_up.clone() } else { CatchUp::default() };
        self.stream(client, catch_up, progress).await
    }

    /// The backlog after the flush LSN.
    fn unread(&self) -> Backlog {
        let (slot, ack) = (self.facts.slot.as_ref(), self.start_position.ack);
        let restart = slot.and_then(|slot| slot.restart).unwrap_or_default();
        let is_held = slot.is_some_and(|slot| slot.restart_is_held);
        Backlog::between(restart, ack, self.facts.flushed, is_held)
    }

    /// The server process of this walpost's last session.
    fn own(&self) -> Option<i32> {
        own_process(self.resume, &self.identity)
    }

    fn observed(&self) -> Holder {
        let (found, flushed) = (&self.found, self.facts.flushed);
        observed(&found.fingerprint, &self.identity, found.confirmed, flushed)
    }

    /// Takes the slot's advisory lock for the session of `client`.
    async fn lock(&self, client: &Client) -> Result<Lock, SourceError> {
        lock(client, self.config, self.own(), self.observed()).await
    }

    /// Releases the lock: the walsender holds the slot now.
    async fn unlock(&self, client: &Client, locked: Lock) -> Result<(), SourceError> {
        let slot = &self.config.slot;
        let alone = async {
            match locked {
                Lock::Held => unlock(client, slot).await,
                // A walpost that took the lock before this stream started does not know of it.
                Lock::Blocked => {
                    require_no_other_holder(client, slot, self.own(), self.observed()).await
                }
            }
        };
        let end_check = halt_notice::end_check(client, slot);
        // Pipelined on one connection, so they run in this order.
        let (alone, ended) = tokio::join!(biased; alone, end_check);
        alone.and(ended)
    }

    async fn stream(
        mut self,
        mut client: ReplicationSession,
        catch_up: CatchUp,
        progress: &Progress,
    ) -> Result<PostgresFeed, SourceError> {
        let (config, beside) = (self.config, Arc::clone(&self.control.client));
        let host = self.control.endpoint.host.to_string();
        let failed =
            |error: WireError, phase| SourceError::session(&error, phase, &host, &config.slot);
        let locked = if config.temporary_slot { None } else { Some(self.lock(&beside).await?) };
        if config.temporary_slot {
            progress.creates_slot.store(true, Relaxed);
            let created = create_temporary_slot(&config.slot, &mut client).await;
            created.map_err(|error| failed(error, Phase::Opening))?;
            progress.creates_slot.store(false, Relaxed);
        }
        let started = start_replication(config, client, &self.facts, self.start_position).await;
        let client = match started.map_err(|error| failed(error, Phase::Starting)) {
            Ok(client) => client,
            Err(error) => {
                // The session may stay open until the next halt check, and must not lock others out.
                if let (SourceError::InUse { .. }, Some(Lock::Held)) = (&error, locked) {
                    unlock(&beside, &config.slot).await?;
                }
                return Err(error);
            }
        };
        let now = CatalogState::read(&beside, &config.slot).await?;
        self.check_started(&now)?;
        if let Some(locked) = locked {
            self.unlock(&beside, locked).await?;
        }
        let walsender = now.slot.and_then(|slot| slot.active_pid);
        let check = self.check.take();
        let before = match self.resume {
            Resume::At { identity, .. } => Some(identity.clone()),
            Resume::AtSlot { .. } => None,
        };
        let base = self.base(walsender, walsender);
        let feed = ActiveFeed::Stream(StreamFeed::start(base, config, client, catch_up));
        Ok(PostgresFeed::comparing(feed, check, before))
    }

    async fn catch_up(
        self,
        reading: AuxConnection,
        advancing: AuxConnection,
    ) -> Result<PostgresFeed, SourceError> {
        let (config, client) = (self.config, Arc::clone(&advancing.peer.client));
        let now = CatalogState::read(&client, &config.slot).await?;
        self.check_started(&now)?;
        if let Some(pid) = now.slot.as_ref().and_then(|slot| slot.active_pid) {
            let (slot, pid) = (config.slot.clone(), Some(pid));
            return Err(SourceError::InUse { slot, pid, holder: None });
        }
        let position = now.require_slot(&config.slot)?;
        if let Some(first) = self.start_position.first_advance(position) {
            advancer::advance(&client, &config.slot, first).await?;
        }
        halt_notice::end_check(&self.control.client, &config.slot).await?;
        let keeps_idle_slots = self.facts.version < 180_000;
        let base = self.base(None, Some(advancing.peer.pid));
        let kept = keep_alive(client).await?;
        let feed = CatchupFeed::start(base, config, reading, advancing, kept, keeps_idle_slots);
        Ok(PostgresFeed::over(ActiveFeed::Catchup(feed)))
    }

    /// The two further connections of a catch-up, or why the available server rejects them.
    async fn auxiliary_connections(
        &self,
    ) -> Result<Result<(AuxConnection, AuxConnection), ConnectError>, SourceError> {
        // The server may end the connection that advances the slot if its client does not read. It
        // must not end the other one, which reads no faster than Kafka accepts the records.
        let opened = match tokio::try_join!(
            self.auxiliary_connection(""),
            self.auxiliary_connection(DEAD_CLIENT_SETTINGS)
        ) {
            // A connection that times out does not prevent a stream: the first two connections
            // exist.
            Err(error @ ConnectError::TimedOut { .. }) => Err(error),
            Err(error) if error.is_outage() => return Err(error.into()),
            opened => opened,
        };
        if let Ok((reading, advancing)) = &opened {
            let (one, other) = (&reading.peer.client, &advancing.peer.client);
            let (one, other) = tokio::try_join!(Instance::of(one), Instance::of(other))?;
            self.instance.require_same(&one)?;
            self.instance.require_same(&other)?;
        }
        Ok(opened)
    }

    /// Opens another connection to the same address, with these further settings.
    async fn auxiliary_connection(&self, further: &str) -> Result<AuxConnection, ConnectError> {
        let Self { conninfo, control, facts, .. } = self;
        let endpoint = &control.endpoint;
        let failed = |error| ConnectError::of_control(&endpoint.host.to_string(), error);
        let other = connect::auxiliary(conninfo, endpoint, APPLICATION_NAME).await?;
        let settings = session_settings(conninfo, facts.version);
        let limit = silence_limit(wal_sender_timeout(facts));
        let (client, observer) = (Arc::clone(&other.client), Arc::clone(&control.client));
        let settings = format!("{settings}; {further}");
        // Pipelined on one connection: the settings apply to all that follows.
        let (set, peer) = tokio::join!(
            biased;
            other.client.batch_execute(&settings),
            Backend::new(client, observer, limit)
        );
        set.map_err(failed)?;
        let peer = peer.map_err(failed)?;
        Ok(AuxConnection { control: other, peer })
    }

    fn base(self, walsender: Option<i32>, backend: Option<i32>) -> FeedBase {
        let Self {
            config,
            control,
            security,
            facts,
            catalogs,
            found,
            identity,
            timelines,
            start_position,
            ..
        } = self;
        FeedBase {
            observer: Observer::start(
                Arc::clone(&control.client),
                config.slot.clone(),
                config.tables.clone(),
            ),
            received_bytes: 0,
            host: control.endpoint.host.to_string(),
            security,
            control,
            publication_guard: PublicationGuard::start(
                catalogs,
                found.fingerprint,
                walsender,
                start_position.ack,
            ),
            slot: config.slot.clone(),
            database_oid: facts.database_oid,
            backend,
            identity,
            timelines,
            start: start_position.ack,
            sends_from: start_position.start,
            flushed: facts.flushed,
            tables: found.tables,
        }
    }

    /// Checks that the position of the slot, which is held now, is the one that was checked before.
    fn check_started(&self, facts: &CatalogState) -> Result<(), SourceError> {
        let (config, confirmed) = (self.config, self.found.confirmed.max(self.start_position.ack));
        if config.temporary_slot {
            return Ok(());
        }
        // The previous instance may have started to halt while this one connected.
        if let Some(pid) = facts.halted_by {
            return Err(halt_notice::found(&config.slot, pid));
        }
        let now = facts.require_slot(&config.slot)?;
        if now <= confirmed {
            return Ok(());
        }
        Err(match self.resume {
            // The previous holder confirmed more before it released the slot: an attempt from the new
            // position succeeds.
            Resume::AtSlot { .. } | Resume::At { after_another: true, .. } => {
                SourceError::Lost(format!(
                    "replication slot \"{}\" was advanced from {confirmed} to {now} while walpost \
                     connected",
                    config.slot
                ))
            }
            Resume::At { after_another: false, .. } => {
                SourceError::slot_advanced(&config.slot, confirmed, now)
            }
        })
    }
}

/// The observed state of a holder that is not identified yet.
pub(in crate::source) fn observed(
    fingerprint: &PublicationFingerprint,
    identity: &ServerIdentity,
    confirmed: Lsn,
    flushed: Lsn,
) -> Holder {
    let (fingerprint, identity) = (fingerprint.clone(), identity.clone());
    Holder {
        kind: HolderKind::Unknown,
        other_role: None,
        fingerprint,
        identity,
        confirmed,
        flushed,
    }
}
