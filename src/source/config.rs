//! What a session is opened on: the server, the slot, the publication, the tables.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::SourceError;
use super::catchup::cost::{Backlog, Traffic};
use super::open_state::OpenState;
use crate::conninfo::ConnInfo;
use crate::outbox::TableName;

/// What the server's views show of walpost.
pub(crate) const APPLICATION_NAME: &str = "walpost";

/// What a session is opened on.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// The server and the database, asked for at each connect.
    pub conninfo: ConnInfoSource,
    /// The replication slot, as stored in the catalog.
    pub slot: String,
    /// The publication, as stored in the catalog.
    pub publication: String,
    /// The outbox tables that it has to publish.
    pub tables: Vec<TableName>,
    /// Whether records depend on the columns' data types.
    pub typed: bool,
    /// Make a temporary slot of that name, which goes with the session.
    pub temporary_slot: bool,
    /// When a backlog is read in batches.
    pub catch_up: CatchUp,
    /// What an attempt to open a session leaves behind.
    pub open_state: OpenState,
    /// Ask for logical messages too. Any role that may connect can emit them, of any prefix and
    /// size, so this is only for who has events in them.
    pub messages: bool,
}

/// When a backlog is read in batches.
#[derive(Debug, Clone, Default)]
pub struct CatchUp {
    /// Above so many bytes of log; `None`: never.
    threshold: Option<u64>,
    /// Of all clones.
    cooldown: Arc<Mutex<Cooldown>>,
    /// What has come lately, by either feed; of all clones.
    traffic: Arc<Mutex<Option<Traffic>>>,
}

/// Whether batches are left alone.
#[derive(Debug, Default)]
struct Cooldown {
    until: Option<Instant>,
    /// How many times in a row they were of no use.
    failures: u32,
    /// Whose lock is in the way of them, by its server process.
    blocked_by: Option<i32>,
}

/// How long batches are left alone once they were of no use, and how many times that is
/// doubled where they are again and again: a stream needs its time to get through what
/// they could not.
const COOLDOWN: Duration = Duration::from_secs(60);
const DOUBLINGS: u32 = 7;

/// A backlog of so many bytes at most is left to the stream by who has read the rest.
const STREAM_TAIL: u64 = 64 << 10;

impl CatchUp {
    /// Above so many bytes of log.
    pub fn above(threshold: u64) -> Self {
        Self { threshold: Some(threshold), ..Self::default() }
    }

    /// Whether so many bytes of log are a backlog for batches now.
    pub fn is_for(&self, behind: u64) -> bool {
        self.threshold.is_some_and(|threshold| behind > threshold)
            && self.cooldown().until.is_none_or(|until| Instant::now() >= until)
    }

    /// Whether batches cost the server less than a stream there, by what has come lately.
    pub(super) fn pays(&self, backlog: Backlog) -> bool {
        self.traffic().is_none_or(|traffic| backlog.pays(traffic))
    }

    /// Whether batches are worth a trial there; what has come lately may be old.
    pub(super) fn is_worth_a_trial(&self, backlog: Backlog) -> bool {
        let is_known = self.traffic().is_some_and(|traffic| backlog.pays(traffic));
        if !is_known && backlog.is_worth_a_trial() {
            *self.lately() = None;
        }
        is_known || backlog.is_worth_a_trial()
    }

    /// It costs more than a stream there.
    pub(super) fn leave(&self, backlog: Backlog) {
        tracing::info!(
            decoded_again_bytes = backlog.decoded_again,
            lag_bytes = backlog.unread,
            "streaming the backlog: in batches PostgreSQL would decode too much WAL again for too \
             few messages"
        );
        self.postpone();
    }

    /// What has come lately.
    pub fn traffic(&self) -> Option<Traffic> {
        *self.lately()
    }

    /// This has come since.
    pub fn came(&self, next: Traffic) {
        let mut lately = self.lately();
        *lately = Some(lately.map_or(next, |before| before.then(next)));
    }

    fn lately(&self) -> MutexGuard<'_, Option<Traffic>> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes of log are left to the stream.
    pub fn little(&self) -> u64 {
        STREAM_TAIL.max(self.threshold.unwrap_or_default() / 8)
    }

    /// The server will not do it, for that reason.
    pub(super) fn refused(&self, reason: &str) {
        tracing::warn!(reason, "cannot read the backlog in SQL batches; streaming it instead");
        self.start_cooldown();
    }

    /// It led nowhere.
    pub(super) fn start_cooldown(&self) {
        let mut cooldown = self.cooldown();
        cooldown.until = Some(Instant::now() + COOLDOWN * (1 << cooldown.failures.min(DOUBLINGS)));
        cooldown.failures += 1;
    }

    /// That session's lock is in the way, or nobody's; whether it is another's than before.
    pub(super) fn blocked_by(&self, pid: Option<i32>) -> bool {
        std::mem::replace(&mut self.cooldown().blocked_by, pid) != pid
    }

    /// It cannot be done just now.
    pub(super) fn postpone(&self) {
        self.cooldown().until = Some(Instant::now() + COOLDOWN);
    }

    /// A backlog was read.
    pub(super) fn succeeded(&self) {
        self.cooldown().failures = 0;
    }

    fn cooldown(&self) -> MutexGuard<'_, Cooldown> {
        self.cooldown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says how to connect, anew each time, so that a password that was changed in
/// its file is taken up without a restart.
#[derive(Clone)]
pub struct ConnInfoSource {
    resolve: Arc<dyn Fn() -> Result<ConnInfo, String> + Send + Sync>,
    /// The name was said that is not used.
    is_reported: Arc<AtomicBool>,
}

impl ConnInfoSource {
    /// From a function that reads everything again; its error is for people.
    pub fn new(resolve: impl Fn() -> Result<ConnInfo, String> + Send + Sync + 'static) -> Self {
        Self { resolve: Arc::new(resolve), is_reported: Arc::default() }
    }

    /// What holds now.
    pub fn resolve(&self) -> Result<ConnInfo, SourceError> {
        (self.resolve)().map_err(SourceError::Access)
    }

    /// What holds now, for sessions that other instances have to recognise: by a name of walpost's
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
    fn a_backlog_is_what_is_above_the_threshold_until_the_server_refuses() {
        assert!(!CatchUp::default().is_for(u64::MAX), "never");
        let (catch_up, other) = (CatchUp::above(1 << 20), CatchUp::above(1 << 20));
        let clone = catch_up.clone();
        assert!(catch_up.is_for((1 << 20) + 1) && !catch_up.is_for(1 << 20));
        catch_up.start_cooldown();
        assert!(!clone.is_for(u64::MAX), "of all clones");
        assert!(other.is_for(u64::MAX));
        assert_eq!((catch_up.little(), CatchUp::above(1024).little()), (1 << 17, STREAM_TAIL));
    }

    #[test]
    fn where_it_is_of_no_use_again_and_again_it_is_left_alone_for_longer() {
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
    fn what_came_before_an_outage_does_not_prevent_a_trial_after_it() {
        let backlog = |decoded_again| Backlog { decoded_again, unread: 1 << 30, is_held: false };
        let catch_up = CatchUp::above(0);
        assert!(catch_up.is_worth_a_trial(backlog(1000)) && catch_up.pays(backlog(1 << 40)));
        let none = Traffic { wal: 1 << 30, messages: 0, bytes: 0 };
        catch_up.came(none);
        assert!(!catch_up.pays(backlog(1000)));
        assert!(!catch_up.is_worth_a_trial(backlog(1 << 30)));
        assert_eq!(catch_up.clone().traffic(), Some(none));
        assert!(catch_up.is_worth_a_trial(backlog(1000)));
        assert_eq!(catch_up.traffic(), None, "of what comes now nothing is known");
        let many = Traffic { wal: 1 << 20, messages: 8000, bytes: 800_000 };
        catch_up.came(many);
        assert!(catch_up.is_worth_a_trial(backlog(1 << 28)), "it is known to pay");
        assert_eq!(catch_up.traffic(), Some(many));
    }

    #[test]
    fn sessions_have_the_name_by_which_instances_recognise_each_other() {
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
    fn how_to_connect_shows_no_secret_in_debug() {
        let source = ConnInfoSource::new(|| Err("s3cret".to_owned()));
        assert!(!format!("{source:?}").contains("s3cret"));
        assert_eq!(source.resolve().err(), Some(SourceError::Access("s3cret".to_owned())));
    }
}
