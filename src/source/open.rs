//! Opens a feed: connects, checks the server, the slot and the publication, and selects how to
//! read.
//!
//! Opening checks what neither feed would report: that the server and the slot are still the same,
//! and that the publication has the tables.

pub(super) mod advanced_slot;
pub(super) mod feed_select;
pub(super) mod open_state;
pub(super) mod session_setup;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::time::{Instant, timeout};

use super::catalog::CatalogState;
use super::catchup::policy::StartPosition;
use super::config::{APPLICATION_NAME, SourceConfig};
use super::connection::connect;
use super::connection::connect::{Control, SqlClient};
use super::connection::deadline::opening_limit;
use super::connection::instance::Instance;
use super::error::{Holder, HolderKind, Phase, SourceError};
use super::feed::{Announcement, OpenError, Source};
use super::wire::WireError;
use crate::conninfo::ConnInfo;
use crate::lsn::Lsn;
use crate::source::feed::message_text::MessageText;
use crate::source::feed::postgres_feed::PostgresFeed;
use crate::source::feed::visibility::Visibility;
use crate::source::identity::history::HistoryCheck;
use crate::source::identity::publication_guard::Catalogs;
use crate::source::identity::resume::Resume;
use crate::source::instances::halt_notice;
use crate::source::instances::slot_lock::holder;
use crate::source::open::feed_select::{Opening, Progress, observed};
use crate::source::open::session_setup::{
    check_catalogs, connect_replication, identify, lift_statement_limit, own_process, prepare,
};

impl Source for SourceConfig {
    type Feed = PostgresFeed;

    fn slot(&self) -> &str {
        &self.slot
    }

    async fn open(&self, resume: &Resume) -> Result<PostgresFeed, OpenError> {
        open(self, resume).await
    }

    fn undecided_error(&self) -> Option<OpenError> {
        let (client, error) = self.open_state.take_advanced_slot()?;
        Some(OpenError { error, announcement: Some(announcement(client, &self.slot)) })
    }
}

/// Connects, checks and starts. Dropping the future cancels the attempt and leaves nothing behind.
async fn open(config: &SourceConfig, resume: &Resume) -> Result<PostgresFeed, OpenError> {
    let conninfo = config.conninfo.resolve_under_own_name()?;
    let control = connect::control(&conninfo, APPLICATION_NAME).await?;
    let control_client = Arc::clone(&control.client);
    let opened = open_within_limit(control, &conninfo, config, resume).await;
    opened.map_err(|error| {
        // An instance that has neither streamed nor seen who advanced the slot has no evidence of a
        // change that other instances could not see themselves.
        let knows = matches!(resume, Resume::At { .. }) || resume.accounted().is_some();
        let knows = knows && error.needs_operator();
        let announcement = knows.then(|| announcement(control_client, &config.slot));
        OpenError { error, announcement }
    })
}

/// Keeps the session of `client`, and with it the lock on the slot's name, open.
fn announcement(client: Arc<SqlClient>, slot: &str) -> Announcement {
    let slot = slot.to_owned();
    Box::pin(async move { halt_notice::announce(&client, &slot).await })
}

async fn open_within_limit(
    control: Control,
    conninfo: &ConnInfo,
    config: &SourceConfig,
    resume: &Resume,
) -> Result<PostgresFeed, SourceError> {
    let host = control.endpoint.host.to_string();
    let began = Instant::now();
    let prepared = timeout(conninfo.connect_timeout, prepare(&control.client, config)).await;
    prepared.unwrap_or_else(|_| {
        Err(SourceError::Lost(format!("{host}: no answer within {:?}", began.elapsed())))
    })?;
    let within = conninfo.connect_timeout + opening_limit(began.elapsed());
    let control_client = Arc::clone(&control.client);
    let progress = Progress::default();
    let mut opened = Box::pin(open_session(control, conninfo, config, resume, &progress));
    loop {
        if let Ok(opened) = timeout(within, &mut opened).await {
            return opened;
        }
        if !progress.creates_slot.load(Relaxed) {
            break;
        }
        // The server sends nothing on the replication session until the slot is created.
        let alive = timeout(conninfo.connect_timeout, control_client.simple_query("")).await;
        if !matches!(alive, Ok(Ok(_))) {
            break;
        }
    }
    let reason = format!("{host}: the session was not ready within {within:.1?}");
    if progress.in_batches.load(Relaxed) {
        // A stream needs fewer round trips.
        config.catch_up.refused(&reason);
    }
    Err(SourceError::Lost(reason))
}

async fn open_session(
    control: Control,
    conninfo: &ConnInfo,
    config: &SourceConfig,
    resume: &Resume,
    progress: &Progress,
) -> Result<PostgresFeed, SourceError> {
    // Pipelined on one connection: `biased` fixes the order in which the server gets the queries.
    // The server's identity comes first, and the lock's holder is read after the slot.
    let (instance, facts, holder) = tokio::join!(
        biased;
        Instance::of(&control.client),
        CatalogState::read(&control.client, &config.slot),
        holder(&control.client, &config.slot)
    );
    let (instance, facts) = (instance?, facts?);
    let holder = holder?.filter(|_| !config.temporary_slot);
    config.open_state.close_standby_session();
    let at_slot = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush).unwrap_or_default();
    let mut start_position = StartPosition::of(resume, at_slot);
    facts.require_version()?;
    let (checked, client) = tokio::join!(
        biased;
        // Sent before the other connection is opened. The publication is read before anything is
        // confirmed, and checked once the server's identity is known.
        Catalogs::checked(Arc::clone(&control.client), facts.version, config),
        connect_replication(conninfo, &control, &facts)
    );
    let (catalogs, catalog_check) = checked?;
    let settled = catalog_check.settled;
    if !settled {
        start_position.ack = at_slot.min(start_position.ack);
    }
    let check = history_check(resume, instance.postmaster_start, at_slot, start_position);
    if check.is_some() {
        start_position = start_position.at_most(at_slot);
    }
    let host = control.endpoint.host.to_string();
    let failed =
        |error: WireError| SourceError::session(&error, Phase::Opening, &host, &config.slot);
    let mut client = client.map_err(failed)?;
    // Both connections are secured in the same way; if one exposes the password, report that one.
    let security =
        if control.security.shows_password() { control.security } else { client.security() };
    // Before the catalogs are checked: another server's slot and tables are not valid here.
    let (identity, timelines) =
        identify(config, &mut client, &control, &facts, resume, &instance).await?;
    let own = own_process(resume, &identity);
    let kind = facts.slot.as_ref().map_or(HolderKind::Unknown, |slot| slot.held_by(own));
    let other_role = facts.slot.as_ref().and_then(|slot| slot.other_role.clone());
    let seen = Holder {
        kind,
        other_role,
        ..observed(&catalog_check.fingerprint, &identity, at_slot, facts.flushed)
    };
    let control_client = &control.client;
    let (facts, is_locked) = advanced_slot::check_other_instances(
        control_client,
        config,
        resume,
        (facts, holder),
        own,
        seen,
    )
    .await?;
    let found = check_catalogs(config, &facts, resume, &catalogs, catalog_check, &identity).await;
    if !is_locked {
        keep_session_of_standby(config, &control.client, &found);
    }
    let found = found?;
    let visibility = if config.wait_until_visible {
        Some(Visibility::prepare(Arc::clone(&control.client), &facts).await?)
    } else {
        None
    };
    let texts = MessageText::of(&control.client, config.text_prefix.as_deref()).await?;
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
        timelines,
        instance,
        start_position,
        check,
    };
    let control_client = Arc::clone(&opening.control.client);
    let opened = opening.begin(client, settled, progress).await;
    keep_session_of_standby(config, &control_client, &opened);
    let opened = opened?;
    let opened = match visibility {
        Some(visibility) => opened.holding_back(visibility),
        None => opened,
    };
    let opened = match texts {
        Some(texts) => opened.converting(texts),
        None => opened,
    };
    lift_statement_limit(&control_client).await?;
    Ok(opened)
}

/// Keeps the control connection for the next attempt if another walpost holds the slot.
fn keep_session_of_standby<T>(
    config: &SourceConfig,
    client: &Arc<SqlClient>,
    attempt: &Result<T, SourceError>,
) {
    if let Err(SourceError::InUse { .. }) = attempt {
        config.open_state.keep_standby_session(client);
    }
}

/// The history check for a server whose postmaster started at another time than the last session's.
fn history_check(
    resume: &Resume,
    postmaster_start: i64,
    at_slot: Lsn,
    start_position: StartPosition,
) -> Option<HistoryCheck> {
    match resume {
        Resume::At { identity, received, .. } if identity.postmaster_start != postmaster_start => {
            HistoryCheck::new(at_slot.min(start_position.start), start_position.start, received)
        }
        Resume::At { .. } | Resume::AtSlot { .. } => None,
    }
}
