//! Opening a session, and reopening it after it was lost.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::state_keeper::{StateKeeper, StateOpened};
use super::{BACKOFF_LIMIT, Ended, Relay};
use crate::lsn::Lsn;
use crate::relay::backoff::{Backoff, backoff};
use crate::relay::run_result::{RelayError, Until};
use crate::relay::standby::Standby;
use crate::sink::Origin;
use crate::source::{
    Feed, OpenError, PublicationFingerprint, ReceivedTransactions, Resume, ServerIdentity, Source,
    SourceError,
};

/// After a session of at least this duration, the next one is opened without delay.
const GOOD_SESSION: Duration = Duration::from_secs(10);

/// Maximum delay between two attempts while another instance holds the slot: bounds the time of a
/// takeover.
const IN_USE_LIMIT: Duration = Duration::from_secs(1);

/// State kept between sessions.
pub(super) struct SessionState {
    /// `None` before the first session.
    pub(super) last: Option<LastSession>,
    pub(super) received: ReceivedTransactions,
    /// The position at which the relay ends by itself; known from the first session on.
    pub(super) until: Option<Lsn>,
    /// The end of flushed WAL when the last session was opened.
    pub(super) flushed: Lsn,
    delay: Backoff,
}

/// The last session's server and publication, to which positions belong.
pub(super) struct LastSession {
    pub(super) identity: ServerIdentity,
    publication_fingerprint: PublicationFingerprint,
    pub(super) walsender: Option<i32>,
}

/// The outcome of connecting.
pub(super) enum Opened<F> {
    Session(Box<F>),
    /// The relay stops.
    Stopped,
    /// The relay ends with this error.
    Failed(OpenError),
}

impl Default for SessionState {
    fn default() -> Self {
        Self {
            last: None,
            received: ReceivedTransactions::default(),
            until: None,
            flushed: Lsn::ZERO,
            delay: backoff(BACKOFF_LIMIT),
        }
    }
}

impl<P: Source> Relay<P> {
    /// Opens a session, however long it takes.
    pub(super) async fn connect(&mut self) -> Result<Opened<P::Feed>, RelayError> {
        let mut delays = backoff(BACKOFF_LIMIT);
        let mut logged: Option<SourceError> = None;
        let last = self.session.last.as_ref();
        let mut standby = Standby::new(last.map(|last| last.publication_fingerprint.clone()));
        loop {
            let resume = self.resume(&standby);
            let source = self.source.clone();
            let opened = match self.serve_sink_during(source.open(&resume)).await {
                Ok(Some(opened)) => opened,
                stopped @ (Ok(None) | Err(RelayError::Aborted)) => {
                    let undecided_error = self.source.undecided_error().map(Opened::Failed);
                    return undecided_error.map_or(stopped.map(|_| Opened::Stopped), Ok);
                }
                Err(error) => return Err(error),
            };
            let OpenError { error, announcement } = match opened {
                Ok(mut session) => 'session: {
                    let after_another = standby.is_after_another();
                    // It may wait for the state for as long as the destination is away.
                    if self.session.last.is_some() {
                        self.diagnostics.stats.session_began(&session);
                    }
                    match self.open_state(&mut session, after_another).await? {
                        StateOpened::Ready => {}
                        StateOpened::Stopped => return Ok(Opened::Stopped),
                        StateOpened::Failed(error) => return Ok(Opened::Failed(error.into())),
                        StateOpened::Lost(error) => break 'session error.into(),
                    }
                    if after_another {
                        self.core.forget_accepted();
                    }
                    let is_ahead = session.start() > self.core.flush_lsn();
                    let has_worked = self.session.last.is_some();
                    if is_ahead && has_worked && !self.discard_in_flight(session.start()).await? {
                        return Ok(Opened::Stopped);
                    }
                    if is_ahead || !has_worked {
                        self.session.received.begin(session.start());
                    }
                    self.connected(&session);
                    return Ok(Opened::Session(Box::new(session)));
                }
                Err(error) => error,
            };
            if let SourceError::InUse { holder: Some(holder), .. } = &error {
                standby.observe(holder);
                let confirmed = holder.confirmed;
                if self.is_superseded(&standby, confirmed) {
                    let (ours, theirs) = (self.core.flush_lsn(), confirmed);
                    tracing::info!(
                        %ours, %theirs,
                        "another walpost advanced the slot; discarding what was in flight here"
                    );
                    if !self.replace_producer().await? {
                        return Ok(Opened::Stopped);
                    }
                }
            }
            let Some(limit) = self.retry_limit(&error, &standby) else {
                return Ok(Opened::Failed(OpenError { error, announcement }));
            };
            let delay = delays.next().unwrap_or(limit).min(limit);
            self.diagnostics.stats.not_opened(&error);
            if logged.as_ref() == Some(&error) {
                tracing::debug!(%error, ?delay, "PostgreSQL still cannot be used");
            } else if matches!(error, SourceError::InUse { .. }) {
                tracing::info!("{error}");
            } else {
                tracing::warn!(%error, "cannot connect to PostgreSQL; retrying");
            }
            logged = Some(error);
            if self.serve_sink_during(sleep(delay)).await?.is_none() {
                return Ok(Opened::Stopped);
            }
        }
    }

    /// Maximum delay before the next attempt after this error; `None` if an operator must act.
    fn retry_limit(&self, error: &SourceError, standby: &Standby) -> Option<Duration> {
        match error {
            // A standby instance must see in time that the active one halts.
            SourceError::Lost(_) | SourceError::ServerError(_) if standby.waited().is_some() => {
                Some(IN_USE_LIMIT)
            }
            SourceError::Lost(_) | SourceError::ServerError(_) => Some(BACKOFF_LIMIT),
            // Before the first session it is a configuration error.
            SourceError::Access(_) => self.session.last.is_some().then_some(BACKOFF_LIMIT),
            SourceError::InUse { .. } => Some(IN_USE_LIMIT),
            SourceError::Setup(_)
            | SourceError::Changed(_)
            | SourceError::Slot(_)
            | SourceError::Undecodable(_)
            | SourceError::Encoding(_)
            | SourceError::Unprintable(_) => None,
        }
    }

    /// The highest position that this process may have confirmed to PostgreSQL.
    pub(super) fn confirmed_at_most(&self) -> Lsn {
        let durable = self.core.durable_upto();
        self.state.as_ref().map_or(durable, |keeper| keeper.covered().min(durable))
    }

    fn resume(&self, standby: &Standby) -> Resume {
        let (confirmed, durable) = (self.confirmed_at_most(), self.core.durable_upto());
        // The position is not what this process has received: all of it is compared again.
        let is_compared = self.state.as_ref().is_none_or(StateKeeper::is_compared);
        let ack = match &self.state {
            None => durable,
            Some(keeper) if is_compared => keeper.to_confirm(durable),
            // The server may be another one: its slot's own position only.
            Some(_) => Lsn::ZERO,
        };
        let last = self.session.last.as_ref();
        match last.filter(|_| is_compared || !self.core.is_exactly_once()) {
            None => Resume::AtSlot { waited: standby.waited() },
            Some(last) => Resume::At {
                identity: ServerIdentity {
                    // What was observed since then is on that one, which lacks nothing.
                    timeline: standby.timeline().unwrap_or(last.identity.timeline),
                    ..last.identity.clone()
                },
                fingerprint: standby.publication_fingerprint().cloned().unwrap_or_default(),
                walsender: last.walsender,
                confirmed,
                ack: ack.min(confirmed),
                start: self.core.resume_at(),
                after_another: standby.is_after_another(),
                by_others: standby.by_walposts(),
                seen: standby.confirmed(),
                received: self.session.received.clone(),
            },
        }
    }

    /// Whether another walpost, which has confirmed this position, publishes what this one still has in
    /// flight: sent from here as well, it would arrive behind later events. A destination that refuses
    /// that needs no care.
    fn is_superseded(&self, standby: &Standby, confirmed: Lsn) -> bool {
        let is_fenced = self.core.is_exactly_once() || self.sink.is_fenced_by_state();
        standby.is_after_another()
            && confirmed > self.core.flush_lsn()
            && self.core.in_flight().0 > 0
            && !is_fenced
    }

    /// Another instance has delivered everything up to `start` since then, so the records in flight
    /// are obsolete. Returns false if the relay stops first.
    async fn discard_in_flight(&mut self, start: Lsn) -> Result<bool, RelayError> {
        let ours = self.core.flush_lsn();
        tracing::info!(%ours, %start, "another walpost advanced the slot; resuming from there");
        self.replace_producer().await
    }

    fn connected(&mut self, session: &P::Feed) {
        self.core.connected(session.start(), session.tables());
        if self.session.last.is_none() {
            self.session.until = self.settings.until.map(|until| match until {
                Until::Current => session.flushed(),
                Until::Lsn(lsn) => lsn,
            });
        }
        self.diagnostics.stats.session_began(session);
        self.session.flushed = session.flushed();
        self.diagnostics.stuck_stream.opened(session.flushed());
        let (identity, timeline) = (session.identity(), session.timeline());
        self.sink.begins(&Origin {
            system_identifier: &identity.system_identifier,
            database_oid: session.database_oid(),
            slot: self.source.slot(),
        });
        let known = self.session.last.as_ref().map(|last| last.identity.timeline);
        if known.is_some_and(|known| known < timeline) {
            tracing::warn!(
                timeline,
                "the server was promoted, and lacks nothing that walpost has received; continuing"
            );
        }
        self.session.last = Some(LastSession {
            identity: identity.clone(),
            publication_fingerprint: session.publication_fingerprint().clone(),
            walsender: session.walsender(),
        });
        let (slot, confirmed) = (self.source.slot(), self.core.durable_upto());
        if self.diagnostics.delivery_log.is_repeating() {
            // Replays that repeat every few seconds are logged once.
            tracing::debug!(%confirmed, "streaming from PostgreSQL");
        } else if let Some(bytes) = session.backlog_bytes() {
            tracing::info!(slot, %confirmed, bytes, "starting a catch-up read");
        } else {
            tracing::info!(
                slot,
                %confirmed,
                system_identifier = %identity.system_identifier,
                timeline,
                "streaming from PostgreSQL"
            );
        }
    }

    /// Waits before the next session if the last one, opened at `opened`, was lost soon; returns
    /// false if the relay stops first.
    pub(super) async fn pause_after(&mut self, opened: Instant) -> Result<bool, RelayError> {
        if opened.elapsed() >= GOOD_SESSION {
            self.session.delay = backoff(BACKOFF_LIMIT);
            return Ok(true);
        }
        let delay = self.session.delay.next().unwrap_or(BACKOFF_LIMIT).min(BACKOFF_LIMIT);
        Ok(self.serve_sink_during(sleep(delay)).await?.is_some())
    }
}

/// Whether a session that failed with `error` can be reopened, or an operator must act.
pub(super) fn failed_or_lost(error: SourceError) -> Ended {
    match error {
        SourceError::Lost(_)
        | SourceError::ServerError(_)
        | SourceError::Access(_)
        | SourceError::InUse { .. } => Ended::Lost(error),
        SourceError::Setup(_)
        | SourceError::Changed(_)
        | SourceError::Slot(_)
        | SourceError::Undecodable(_)
        | SourceError::Encoding(_)
        | SourceError::Unprintable(_) => Ended::Failed(error),
    }
}
