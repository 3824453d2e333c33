//! Updates the relay's metrics from its loop. It decides nothing.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::lsn::Lsn;
use crate::metrics::{Metrics, Phase, unix_micros};
use crate::pgoutput::{Message, PgTimestamp};
use crate::source::{Feed, Received, Security, SourceError, VisibilityWaits};
use walpost_core::relay::{Core, Halt};

/// How often the loop runs when nothing happens: the metrics stay current, and the liveness check
/// passes.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

/// The last values, for counters that add only the difference.
#[derive(Debug)]
pub(super) struct Stats {
    pub(super) metrics: Arc<Metrics>,
    transactions: u64,
    events: u64,
    confirmed: Lsn,
    received: Lsn,
    session_bytes: u64,
    /// Start of the uncounted part of the current backpressure, if reading is blocked.
    blocked_since: Option<Instant>,
    /// The waits for other sessions to see transactions, of the current feed.
    visibility_waits: VisibilityWaits,
    /// What holds the current feed up.
    held_up: Option<String>,
    /// Where the server ends each stream, and why.
    stuck: Option<String>,
    has_received: bool,
    /// Whether a halt was counted.
    halted: bool,
}

impl Stats {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            transactions: 0,
            events: 0,
            confirmed: Lsn::ZERO,
            received: Lsn::ZERO,
            session_bytes: 0,
            blocked_since: None,
            visibility_waits: VisibilityWaits::default(),
            held_up: None,
            stuck: None,
            has_received: false,
            halted: false,
        }
    }

    /// Updates the metrics derived from the core. `is_held`: the sink has no room for a record.
    pub(super) fn update(&mut self, core: &Core, is_held: bool) {
        let metrics = &self.metrics;
        metrics.iterated();
        let counters = core.counters();
        if counters.transactions != self.transactions {
            self.transactions = counters.transactions;
            metrics.transactions.set(counters.transactions);
        }
        if counters.events != self.events {
            self.events = counters.events;
            metrics.events_received.set(counters.events);
            metrics.new_events.set(counters.new_events);
        }
        metrics.dropped_headers.set(counters.dropped_headers);
        let (records, bytes) = core.in_flight();
        // A sink without a connection takes none.
        let waiting = records + usize::from(is_held);
        if waiting == 0 {
            metrics.progressed();
        }
        metrics.in_flight_events.set(waiting as u64);
        metrics.in_flight_bytes.set(bytes);
        let confirmed = core.durable_upto();
        let oldest = core.oldest_unconfirmed().map(PgTimestamp::unix_micros);
        let before = metrics.oldest_unconfirmed.get().filter(|_| confirmed <= self.confirmed);
        let held = self.visibility_waits.held.map(|held| held.commit_time.unix_micros());
        // What leaves the ledger undelivered is sent again, with its original commit time.
        let oldest = oldest.into_iter().chain(before).chain(held).min();
        metrics.oldest_unconfirmed.set(oldest.unwrap_or_default());
        let now = (self.has_received || confirmed > self.confirmed)
            .then(|| unix_micros(SystemTime::now()));
        if confirmed > self.confirmed {
            // The first value was confirmed before this process started.
            if self.confirmed > Lsn::ZERO {
                metrics.last_confirmed.set(now.unwrap_or_default());
            }
            self.confirmed = confirmed;
            metrics.confirmed_lsn.set(confirmed.as_u64());
        }
        if let Some(poison) = core.halted().and_then(Halt::poison)
            && !std::mem::replace(&mut self.halted, true)
        {
            metrics.poisoned(poison.cause.key(), "halt", poison.position);
        }
        if std::mem::take(&mut self.has_received) {
            metrics.last_received.set(now.unwrap_or_default());
            metrics.received_lsn.set(self.received.as_u64());
        }
    }

    /// Counts an input.
    pub(super) fn received(&mut self, received: &Received) {
        self.has_received = true;
        let up_to = match received {
            Received::Keepalive(wal_end) => *wal_end,
            Received::Message(Message::Commit(commit)) => commit.end_lsn,
            Received::Message(_) => return,
        };
        self.received = self.received.max(up_to);
    }

    /// Updates the bytes received in this session.
    pub(super) fn session_bytes(&mut self, bytes: u64) {
        if bytes != self.session_bytes {
            let before = if bytes < self.session_bytes { 0 } else { self.session_bytes };
            self.metrics.received_bytes.add(bytes - before);
            self.session_bytes = bytes;
        }
    }

    /// Updates the waits until other sessions see transactions.
    pub(super) fn visibility_waits(&mut self, waits: VisibilityWaits) {
        let before = std::mem::replace(&mut self.visibility_waits, waits);
        if waits == before {
            return;
        }
        let more = waits.total.saturating_sub(before.total).as_micros();
        self.metrics.visibility_wait_micros.add(u64::try_from(more).unwrap_or(u64::MAX));
    }

    /// Updates what holds the session up.
    pub(super) fn held_up(&mut self, by: Option<String>) {
        if by != self.held_up {
            self.held_up = by;
            self.show_trouble();
        }
    }

    /// Updates where the server ends each stream, and why.
    pub(super) fn stuck(&mut self, trouble: Option<String>) {
        self.stuck = trouble;
        self.show_trouble();
    }

    fn show_trouble(&self) {
        let trouble = self.stuck.clone().or_else(|| self.held_up.clone());
        self.metrics.set_source_trouble(trouble);
    }

    /// A session was opened.
    pub(super) fn session_began(&mut self, session: &impl Feed) {
        let security = session.security();
        if self.metrics.streams_from(session.host(), security) {
            log_security(session.host(), security);
        }
        let has_backlog = session.backlog_bytes().is_some();
        self.metrics.enter(if has_backlog { Phase::CatchingUp } else { Phase::Streaming });
        self.session_bytes = 0;
        self.visibility_waits(VisibilityWaits::default());
        self.held_up(None);
        self.reading(true, Instant::now);
    }

    /// A session was lost.
    pub(super) fn lost(&self, error: &SourceError) {
        self.metrics.enter(Phase::Connecting);
        self.metrics.reconnected("postgresql", cause_label(error));
        self.metrics.failed(&error.to_string());
    }

    /// No session could be opened.
    pub(super) fn not_opened(&self, error: &SourceError) {
        if matches!(error, SourceError::InUse { .. }) {
            return self.metrics.enter(Phase::StandingBy);
        }
        self.metrics.enter(Phase::Connecting);
        self.metrics.failed(&error.to_string());
    }

    /// Updates whether the relay reads or is blocked by backpressure.
    pub(super) fn reading(&mut self, reading: bool, now: impl FnOnce() -> Instant) {
        if reading && self.blocked_since.is_none() {
            return;
        }
        let now = now();
        if let Some(since) = self.blocked_since {
            let held = now.saturating_duration_since(since).as_micros();
            self.metrics.backpressure_micros.add(u64::try_from(held).unwrap_or(u64::MAX));
        }
        self.blocked_since = (!reading).then_some(now);
    }

    /// Updates the number of acknowledged records.
    pub(super) fn delivered(&self, records: u64) {
        if records > self.metrics.delivered.get() {
            self.metrics.delivered.set(records);
            self.metrics.progressed();
        }
    }

    /// An event of a transaction that committed at `committed` was acknowledged `ago` before `now`.
    pub(super) fn acknowledged(&self, committed: PgTimestamp, now: i64, ago: Duration) {
        let since = u64::try_from(now - committed.unix_micros()).unwrap_or_default();
        self.metrics.commit_to_ack(Duration::from_micros(since).saturating_sub(ago));
    }
}

/// The label of the reconnect metric for a lost session.
fn cause_label(error: &SourceError) -> &'static str {
    match error {
        SourceError::Lost(_) => "lost",
        SourceError::ServerError(_) => "server_error",
        SourceError::Access(_) => "access",
        SourceError::InUse { .. } => "in_use",
        SourceError::Setup(_) | SourceError::Changed(_) => "setup",
        SourceError::Slot(_) => "slot",
        SourceError::Undecodable(_) | SourceError::Encoding(_) | SourceError::Unprintable(_) => {
            "undecodable"
        }
    }
}

/// Logs how the connection to the server is secured.
fn log_security(host: &str, security: Security) {
    let (tls, authentication) = (security.tls.unwrap_or("none"), security.method);
    tracing::info!(host, tls, %authentication, "connected to PostgreSQL");
    if security.shows_password() {
        tracing::warn!(
            host,
            %authentication,
            "the password was sent without TLS: others on the network can read or replay it; use a \
             hostssl line with scram-sha-256 in pg_hba.conf and sslmode=verify-full, then change \
             the password"
        );
    } else if security.is_readable() {
        tracing::warn!(
            host,
            "the connection to PostgreSQL is without TLS: others on the network can read and change \
             what passes; use a hostssl line in pg_hba.conf and sslmode=verify-full"
        );
    }
}
