//! The configuration of a session: server, slot, publication and tables.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::SourceError;
use super::catchup::cost::{Backlog, Traffic};
use crate::conninfo::ConnInfo;
use crate::outbox::TableName;
use crate::source::open::open_state::OpenState;

/// The `application_name` of walpost's sessions.
pub(crate) const APPLICATION_NAME: &str = "walpost";

/// The configuration of a session.
#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// How to connect; read again at each connect.
    pub conninfo: ConnInfoSource,
    /// The replication slot's name, as stored in the catalog.
    pub slot: String,
    /// The publication's name, as stored in the catalog.
    pub publication: String,
    /// The outbox tables that it must publish.
    pub tables: Vec<TableName>,
    /// Whether records depend on the columns' data types.
    pub typed: bool,
    /// Whether to create a temporary slot of that name, which PostgreSQL drops at the end of the
    /// session.
    pub temporary_slot: bool,
    /// When to catch up by SQL.
    pub catch_up: CatchUp,
    /// State that an attempt to open a session leaves behind.
    pub open_state: OpenState,
    /// Whether to hold a transaction back until other sessions see it.
    pub wait_until_visible: bool,
    /// Whether to request logical messages too. Any role that may connect can emit them, with any
    /// prefix and size, so they are requested only if events are read from them.
    pub messages: bool,
    /// The prefix of messages whose content is text.
    pub text_prefix: Option<String>,
}

/// When to read a backlog by SQL instead of streaming it.
#[derive(Debug, Clone, Default)]
pub struct CatchUp {
    /// The minimum backlog in bytes of WAL; `None` disables catch-up.
    threshold: Option<u64>,
    /// Shared by all clones.
    cooldown: Arc<Mutex<Cooldown>>,
    /// The recent traffic of either feed; shared by all clones.
    traffic: Arc<Mutex<Option<Traffic>>>,
}

/// Whether catch-up is suspended.
#[derive(Debug, Default)]
struct Cooldown {
    until: Option<Instant>,
    /// Consecutive failed catch-ups.
    failures: u32,
    /// The server process whose lock blocks catch-up.
    blocked_by: Option<i32>,
}

/// How long catch-up is suspended after a failure, and how often that is doubled after repeated
/// failures: the stream needs time to pass the stretch that catch-up could not read.
const COOLDOWN: Duration = Duration::from_secs(60);
const COOLDOWN_DOUBLINGS: u32 = 7;

/// A catch-up leaves at least this many bytes of WAL to the stream.
const STREAM_TAIL: u64 = 64 << 10;

impl CatchUp {
    /// Catches up if the backlog exceeds `threshold` bytes of WAL.
    pub fn above(threshold: u64) -> Self {
        Self { threshold: Some(threshold), ..Self::default() }
    }

    /// Whether a backlog of `behind` bytes of WAL should be read by SQL now.
    pub fn applies_to(&self, behind: u64) -> bool {
        self.threshold.is_some_and(|threshold| behind > threshold)
            && self.cooldown().until.is_none_or(|until| Instant::now() >= until)
    }

    /// Whether batches cost the server less than a stream, or the traffic is unknown.
    pub(super) fn costs_less_in_batches(&self, backlog: Backlog) -> bool {
        self.traffic().is_none_or(|traffic| backlog.costs_less_in_batches(traffic))
    }

    /// Chooses between batches and a stream for the backlog of a new session; returns whether it is
    /// batches. The known traffic may be old, so a cheap first batch is tried against it: the traffic
    /// is then forgotten. Catch-up is suspended if a stream is chosen.
    pub(super) fn choose_batches(&self, backlog: Backlog) -> bool {
        if self.traffic().is_some_and(|traffic| backlog.costs_less_in_batches(traffic)) {
            return true;
        }
        if backlog.is_cheap_to_try() {
            *self.lock_traffic() = None;
            return true;
        }
        self.stream_instead(backlog);
        false
    }

    /// Suspends catch-up, since it costs more than a stream for this backlog.
    pub(super) fn stream_instead(&self, backlog: Backlog) {
        tracing::info!(
            decoded_again_bytes = backlog.decoded_again,
            lag_bytes = backlog.unread,
            "streaming the backlog: with SQL batches, PostgreSQL would decode too much WAL again \
             for too few messages"
        );
        self.postpone();
    }

    /// The recent traffic of either feed.
    pub fn traffic(&self) -> Option<Traffic> {
        *self.lock_traffic()
    }

    /// Records the traffic since the last call.
    pub fn record_traffic(&self, next: Traffic) {
        let mut recent = self.lock_traffic();
        *recent = Some(recent.map_or(next, |before| before.followed_by(next)));
    }

    fn lock_traffic(&self) -> MutexGuard<'_, Option<Traffic>> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes of WAL a catch-up leaves to the stream.
    pub fn stream_tail_bytes(&self) -> u64 {
        STREAM_TAIL.max(self.threshold.unwrap_or_default() / 8)
    }

    /// Records that the server does not allow a catch-up, for this reason.
    pub(super) fn refused(&self, reason: &str) {
        tracing::warn!(reason, "cannot read the backlog in SQL batches; streaming it instead");
        self.start_cooldown();
    }

    /// Records a failed catch-up.
    pub(super) fn start_cooldown(&self) {
        let mut cooldown = self.cooldown();
        cooldown.until =
            Some(Instant::now() + COOLDOWN * (1 << cooldown.failures.min(COOLDOWN_DOUBLINGS)));
        cooldown.failures += 1;
    }

    /// Records which server process's lock blocks catch-up, if any. Returns whether it changed.
    pub(super) fn blocked_by(&self, pid: Option<i32>) -> bool {
        std::mem::replace(&mut self.cooldown().blocked_by, pid) != pid
    }

    /// Suspends catch-up because it is temporarily not possible.
    pub(super) fn postpone(&self) {
        self.cooldown().until = Some(Instant::now() + COOLDOWN);
    }

    /// Records a successful catch-up.
    pub(super) fn succeeded(&self) {
        self.cooldown().failures = 0;
    }

    fn cooldown(&self) -> MutexGuard<'_, Cooldown> {
        self.cooldown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How to connect. It is resolved at each connect, so a password changed in its file takes effect
/// without a restart.
#[derive(Clone)]
pub struct ConnInfoSource {
    resolve: Arc<dyn Fn() -> Result<ConnInfo, String> + Send + Sync>,
    /// Whether the ignored `application_name` has been logged.
    is_reported: Arc<AtomicBool>,
}

impl ConnInfoSource {
    /// Resolves by this function, which reads all sources again. Its error is shown to the
    /// operator.
    pub fn new(resolve: impl Fn() -> Result<ConnInfo, String> + Send + Sync + 'static) -> Self {
        Self { resolve: Arc::new(resolve), is_reported: Arc::default() }
    }

    /// Resolves the current connection parameters.
    pub fn resolve(&self) -> Result<ConnInfo, SourceError> {
        (self.resolve)().map_err(SourceError::Access)
    }

    /// The same for sessions that other instances must recognise: `application_name` is walpost's
    /// own.
    pub(super) fn resolve_under_own_name(&self) -> Result<ConnInfo, SourceError> {
        let mut conninfo = self.resolve()?;
        let given = conninfo.application_name.take().filter(|name| name != APPLICATION_NAME);
        if let Some(application_name) = given
            && !self.is_reported.swap(true, Relaxed)
        {
            tracing::warn!(
                application_name,
                "ignoring application_name: instances recognise each other by the name walpost; \
                 remove it from the connection string, or unset PGAPPNAME"
            );
        }
        Ok(conninfo)
    }
}

impl fmt::Debug for ConnInfoSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnInfoSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlogs_above_the_threshold_are_caught_up_until_the_server_refuses() {
        assert!(!CatchUp::default().applies_to(u64::MAX), "never");
        let (catch_up, other) = (CatchUp::above(1 << 20), CatchUp::above(1 << 20));
        let clone = catch_up.clone();
        assert!(catch_up.applies_to((1 << 20) + 1) && !catch_up.applies_to(1 << 20));
        catch_up.start_cooldown();
        assert!(!clone.applies_to(u64::MAX), "of all clones");
        assert!(other.applies_to(u64::MAX));
        assert_eq!(
            (catch_up.stream_tail_bytes(), CatchUp::above(1024).stream_tail_bytes()),
            (1 << 17, STREAM_TAIL)
        );
    }

    #[test]
    fn repeated_failures_extend_the_cooldown() {
        let catch_up = CatchUp::above(0);
        let left = || catch_up.cooldown().until.map(|until| until.duration_since(Instant::now()));
        let is_about = |left: Option<Duration>, minutes: u64| {
            let about = Duration::from_secs(minutes * 60);
            left.is_some_and(|left| left <= about && left > about / 2)
        };
        for minutes in [1, 2, 4, 8, 16, 32, 64, 128, 128] {
            catch_up.start_cooldown();
            assert!(is_about(left(), minutes), "{:?}", left());
        }
        catch_up.postpone();
        assert!(is_about(left(), 1));
        catch_up.succeeded();
        catch_up.start_cooldown();
        assert!(is_about(left(), 1));
    }

    #[test]
    fn old_traffic_does_not_prevent_a_cheap_first_batch() {
        let backlog = |decoded_again| Backlog { decoded_again, unread: 1 << 30, is_held: false };
        let catch_up = CatchUp::above(0);
        assert!(catch_up.choose_batches(backlog(1000)));
        assert!(catch_up.costs_less_in_batches(backlog(1 << 40)), "nothing is known");
        let none = Traffic { wal: 1 << 30, messages: 0, bytes: 0 };
        catch_up.record_traffic(none);
        assert!(!catch_up.costs_less_in_batches(backlog(1000)));
        assert!(!catch_up.choose_batches(backlog(1 << 30)));
        assert_eq!(catch_up.clone().traffic(), Some(none));
        assert!(catch_up.choose_batches(backlog(1000)));
        assert_eq!(catch_up.traffic(), None, "the old traffic is forgotten");
        let many = Traffic { wal: 1 << 20, messages: 8000, bytes: 800_000 };
        catch_up.record_traffic(many);
        assert!(catch_up.choose_batches(backlog(1 << 28)), "batches are known to cost less");
        assert_eq!(catch_up.traffic(), Some(many));
    }

    #[test]
    fn sessions_use_walposts_own_application_name() {
        let source = ConnInfoSource::new(|| {
            let of = |_: &str| None;
            ConnInfo::resolve(Some("postgres://u@db/shop?application_name=relay"), &of)
                .map_err(|error| error.to_string())
        });
        let name = |conninfo: ConnInfo| conninfo.application_name;
        assert_eq!(source.resolve().map(name), Ok(Some("relay".to_owned())));
        assert_eq!(source.resolve_under_own_name().map(name), Ok(None));
        assert!(source.is_reported.load(Relaxed));
    }

    #[test]
    fn debug_output_of_conninfo_source_shows_no_secret() {
        let source = ConnInfoSource::new(|| Err("s3cret".to_owned()));
        assert!(!format!("{source:?}").contains("s3cret"));
        assert_eq!(source.resolve().err(), Some(SourceError::Access("s3cret".to_owned())));
    }
}
