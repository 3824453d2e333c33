//! Holds a transaction back until other sessions see it: `delivery.wait_until_visible`.
//!
//! PostgreSQL sends a transaction once its commit record is flushed. Other sessions see it when its
//! backend has left the list of running transactions, a moment later: with a synchronous standby,
//! after that has answered. Once one snapshot shows a transaction, every later one of the same
//! server does.
//!
//! One snapshot shows many transactions, so it is kept. Another is read, on the control connection,
//! only for a transaction that it does not show. The stream's task answers keepalives meanwhile.
//!
//! An empty transaction is not held back, and asks for no snapshot: there is nothing to be seen of it.
//! PostgreSQL 14 sends the Begin and Commit of every transaction of the database, later releases only
//! of those with events. So a Begin that no snapshot shows is kept until it is known what follows.
//!
//! The snapshot of a standby does not answer the question: it lists no running transactions, and
//! the standby may show what the primary still hides.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_postgres::Statement;

use crate::pgoutput::{Begin, Message};
use crate::source::catalog::CatalogState;
use crate::source::connection::connect::SqlClient;
use crate::source::connection::deadline::answered;
use crate::source::error::SourceError;
use crate::source::feed::{HeldBack, Received, VisibilityWaits};

/// How often a snapshot is read again at once for the same transaction: without a standby to wait
/// for, its backend needs a moment only, which is less than a timer's millisecond.
const AT_ONCE: u32 = 3;

/// The pauses between further ones: they double from the first to the last. So a wait lasts at most
/// twice as long as necessary.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// How long a snapshot is used. It must be far less than the server needs for 2^31 transactions:
/// see [`Snapshot::complete`].
const LIFETIME: Duration = Duration::from_secs(60);

/// A wait of this length is logged.
const LONG_WAIT: Duration = Duration::from_secs(10);

const SNAPSHOT: &str = "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text";

/// The connection's name in errors.
const CONTROL: &str = "the control connection";

/// A query that is still running when the future that awaits it is dropped.
type Asked = Pin<Box<dyn Future<Output = Result<Snapshot, SourceError>> + Send>>;

/// Holds back transactions that other sessions do not see yet.
pub(in crate::source) struct Visibility {
    client: Arc<SqlClient>,
    statement: Statement,
    /// The last snapshot, and when it was requested.
    snapshot: Option<(Snapshot, Instant)>,
    /// A transaction that the snapshot does not show, and of which nothing but Begin was received.
    begun: Option<Begin>,
    held: Option<Held>,
    /// The time of the waits that are over.
    waited: Duration,
}

/// What becomes of a message.
#[derive(Debug)]
pub(in crate::source) enum Passage {
    /// A message that may be passed on immediately.
    Now(Received),
    /// A Begin, which is passed on before what follows, or nothing that matters.
    Later,
    /// The Begin may be passed on at once, and then this Commit: the transaction is empty.
    Empty(Begin, Received),
    /// It, and what follows, may be passed on only after [`Visibility::released`] has returned the
    /// Begin.
    Held(Received),
}

/// The transaction that is held back.
struct Held {
    begin: Begin,
    since: Instant,
    /// The running query, and when it was sent.
    asked: Option<(Asked, Instant)>,
    /// When the next query is due; `None`: at once.
    due: Option<Instant>,
    /// How many snapshots did not show it.
    without: u32,
    is_logged: bool,
}

impl Visibility {
    /// The check for the server of `client`, which must be a primary.
    pub(in crate::source) async fn prepare(
        client: Arc<SqlClient>,
        facts: &CatalogState,
    ) -> Result<Self, SourceError> {
        if facts.in_recovery {
            return Err(SourceError::Setup(
                "this server is a standby, which cannot show what sessions on the primary see: \
                 connect to the primary, or set delivery.wait_until_visible = false"
                    .to_owned(),
            ));
        }
        let prepared = async {
            let prepared = client.prepare(SNAPSHOT).await;
            prepared.map_err(|error| SourceError::query("preparing the query of snapshots", &error))
        };
        let statement = answered(CONTROL, prepared).await?;
        Ok(Self {
            client,
            statement,
            snapshot: None,
            begun: None,
            held: None,
            waited: Duration::ZERO,
        })
    }

    /// What becomes of a message, while no transaction is held back.
    pub(in crate::source) fn pass(&mut self, received: Received) -> Passage {
        let now = Instant::now();
        if let Received::Message(Message::Begin(begin)) = received {
            if let Some((snapshot, requested)) = &self.snapshot
                && now.saturating_duration_since(*requested) < LIFETIME
                && snapshot.shows(begin.xid)
            {
                return Passage::Now(received);
            }
            self.begun = Some(begin);
            return Passage::Later;
        }
        let Some(begin) = self.begun else { return Passage::Now(received) };
        match received {
            // A keepalive would confirm the transaction; an origin has no event.
            Received::Keepalive(_) | Received::Message(Message::Origin) => Passage::Later,
            Received::Message(Message::Commit(_)) => {
                self.begun = None;
                Passage::Empty(begin, received)
            }
            Received::Message(_) => {
                self.begun = None;
                self.held = Some(Held {
                    begin,
                    since: now,
                    asked: None,
                    due: None,
                    without: 0,
                    is_logged: false,
                });
                Passage::Held(received)
            }
        }
    }

    /// Whether a transaction is held back.
    pub(in crate::source) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Waits until other sessions see the transaction that is held back; returns its Begin.
    /// Cancel-safe.
    pub(in crate::source) async fn released(&mut self) -> Result<Received, SourceError> {
        let Self { client, statement, snapshot, held, waited, .. } = self;
        let Some(current) = held else { return std::future::pending().await };
        loop {
            let (asked, at) = match &mut current.asked {
                Some(asked) => asked,
                none => {
                    if let Some(due) = current.due {
                        sleep_until(due).await;
                    }
                    let asked = ask(Arc::clone(client), statement.clone());
                    none.insert((asked, Instant::now()))
                }
            };
            let (found, at) = (asked.as_mut().await, *at);
            current.asked = None;
            let found = snapshot.insert((found?, at));
            let since = current.since.elapsed();
            if found.0.shows(current.begin.xid) {
                break;
            }
            current.log_if_long(since);
            current.without += 1;
            current.due = pause_after(current.without).map(|pause| Instant::now() + pause);
        }
        let Held { begin, since, is_logged, .. } = *current;
        let since = since.elapsed();
        if is_logged {
            let waited_seconds = since.as_secs();
            tracing::info!(
                xid = begin.xid,
                waited_seconds,
                "other sessions see the transaction now"
            );
        }
        *waited += since;
        *held = None;
        Ok(Received::Message(Message::Begin(begin)))
    }

    /// The wait that is not over, if it is long.
    pub(in crate::source) fn trouble(&self) -> Option<String> {
        let held = self.held.as_ref().filter(|held| held.since.elapsed() >= LONG_WAIT)?;
        Some(format!(
            "transaction {} is held back: other sessions do not see it yet (delivery.wait_until_visible)",
            held.begin.xid
        ))
    }

    /// The waits so far.
    pub(in crate::source) fn waits(&self) -> VisibilityWaits {
        let held = self.held.as_ref().map(|held| HeldBack {
            xid: held.begin.xid,
            commit_time: held.begin.commit_time,
            waited: held.since.elapsed(),
        });
        let current = held.map_or(Duration::ZERO, |held| held.waited);
        VisibilityWaits { total: self.waited + current, held }
    }
}

impl Held {
    fn log_if_long(&mut self, waited: Duration) {
        if waited < LONG_WAIT || std::mem::replace(&mut self.is_logged, true) {
            return;
        }
        tracing::warn!(
            xid = self.begin.xid,
            waited_seconds = waited.as_secs(),
            "holding back a transaction that other sessions do not see yet (delivery.wait_until_visible): \
             commits that wait for a synchronous standby have wait_event SyncRep in pg_stat_activity; \
             start that standby, or take it out of synchronous_standby_names"
        );
    }
}

/// The pause after so many snapshots that did not show the transaction.
fn pause_after(snapshots: u32) -> Option<Duration> {
    let doublings = snapshots.checked_sub(AT_ONCE + 1)?;
    Some((FIRST_PAUSE * 2_u32.saturating_pow(doublings)).min(LAST_PAUSE))
}

fn ask(client: Arc<SqlClient>, statement: Statement) -> Asked {
    const WHAT: &str = "querying the snapshot";
    Box::pin(answered(CONTROL, async move {
        let failed = |error| SourceError::query(WHAT, &error);
        let row = client.query_one(&statement, &[]).await.map_err(failed)?;
        let text: String = row.try_get(0).map_err(failed)?;
        text.parse().map_err(|()| SourceError::Lost(format!("{WHAT}: it is \"{text}\"")))
    }))
}

/// `pg_current_snapshot()`, with transaction ids of 64 bits
/// (<https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-SNAPSHOT>).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Snapshot {
    /// Every transaction with a lower id has ended.
    xmin: u64,
    /// No transaction with this id or a higher one has ended.
    xmax: u64,
    /// The transactions between these that are running, in ascending order.
    running: Vec<u64>,
}

impl Snapshot {
    /// Whether it shows the transaction of that id, which the server has committed.
    fn shows(&self, xid: u32) -> bool {
        let xid = self.complete(xid);
        xid < self.xmin || xid < self.xmax && self.running.binary_search(&xid).is_err()
    }

    /// The id of 64 bits, of which pgoutput sends the lower half. All ids that the server has in
    /// use, or in WAL that a slot has yet to decode, are less than 2^31 apart: so it is the one next
    /// to the snapshot's end.
    fn complete(&self, xid: u32) -> u64 {
        #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
        let distance = xid.wrapping_sub(self.xmax as u32).cast_signed();
        self.xmax.saturating_add_signed(i64::from(distance))
    }
}

impl FromStr for Snapshot {
    type Err = ();

    /// Parses PostgreSQL's form, as in `100:104:100,102`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or(());
        let number = |text: &str| text.parse::<u64>().map_err(drop);
        let (xmin, xmax, running) = (number(next()?)?, number(next()?)?, next()?);
        let running = running.split(',').filter(|one| !one.is_empty()).map(number);
        let mut running = running.collect::<Result<Vec<_>, _>>()?;
        running.sort_unstable();
        Ok(Self { xmin, xmax, running })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().expect("a snapshot")
    }

    #[test]
    fn a_snapshot_shows_what_ended_before_it() {
        let taken = snapshot("100:104:100,102");
        let shown: Vec<u32> = (98..107).filter(|xid| taken.shows(*xid)).collect();
        assert_eq!(shown, [98, 99, 101, 103]);
        assert_eq!(snapshot("7:7:"), Snapshot { xmin: 7, xmax: 7, running: Vec::new() });
        assert!(snapshot("7:7:").shows(6) && !snapshot("7:7:").shows(7));
        for text in ["", "1", "1:2", "a:2:", "1:2:3,b", "1:-2:"] {
            assert_eq!(text.parse::<Snapshot>(), Err(()), "{text}");
        }
    }

    #[test]
    fn pauses_begin_after_some_snapshots_and_are_bounded() {
        let pauses = [1, 3, 4, 5, 10, 11, 1000, u32::MAX].map(pause_after);
        let millis = pauses.map(|pause| pause.map(|pause| pause.as_millis()));
        let last = Some(100);
        assert_eq!(millis, [None, None, Some(1), Some(2), Some(64), last, last, last]);
    }

    #[test]
    fn ids_are_completed_across_the_end_of_an_epoch() {
        let epoch = 1_u64 << 32;
        // The second epoch has just begun; one transaction of the first is still running.
        let taken = snapshot(&format!("{}:{}:{}", epoch - 3, epoch + 5, epoch - 3));
        assert!(!taken.shows(u32::MAX - 2), "it is running");
        assert!(taken.shows(u32::MAX - 1) && taken.shows(u32::MAX) && taken.shows(4));
        assert!(!taken.shows(5) && !taken.shows(1 << 30), "not begun yet");
        // And the end of the first: what commits behind the snapshot has an id of the second.
        let taken = snapshot(&format!("{0}:{0}:", epoch - 2));
        assert!(taken.shows(u32::MAX - 2), "the last one before");
        assert!(!taken.shows(u32::MAX - 1) && !taken.shows(3));
        assert_eq!(taken.complete(3), epoch + 3);
    }
}
