//! The driver with a minimal source and sink.

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::ledger::Seq;
use crate::lsn::Lsn;
use crate::outbox::{FoundTable, Outbox, OutboxConfig};
use crate::outlet::{Outlet, ProduceError};
use crate::position::EventPosition;
use crate::record::{Record, RecordConfig, Router};
use crate::relay::{StopHandle, stop_channel};
use crate::sink::{BoxFuture, KAFKA, Peer, SinkError};
use crate::source::{
    Feed, Method, PublicationFingerprint, PublishedHistory, Received, Resume, Security,
    ServerIdentity, SlotMetrics, SwitchFeed,
};

/// Messages available at each read: enough that the relay pauses after it.
const MESSAGES: u32 = 100;

/// Reads after which the feed becomes silent.
const READS: u32 = 50;

/// What the feed observes of the relay's pauses.
#[derive(Default)]
struct Observed {
    /// A pause may have begun, and the relay has not read since.
    pausing: AtomicBool,
    pauses: AtomicU32,
    pause_begins: Notify,
}

#[derive(Clone)]
struct BusySource(Arc<Observed>);

impl Source for BusySource {
    type Feed = BusyFeed;

    fn slot(&self) -> &'static str {
        "slot"
    }

    async fn open(&self, _: &Resume) -> Result<BusyFeed, OpenError> {
        Ok(BusyFeed {
            observed: Arc::clone(&self.0),
            identity: ServerIdentity {
                system_identifier: String::new(),
                timeline: 1,
                postmaster_start: 0,
            },
            fingerprint: PublicationFingerprint::default(),
            waiting: 0,
            reads: 0,
        })
    }
}

/// Keepalives in bursts of [`MESSAGES`], one burst per millisecond.
struct BusyFeed {
    observed: Arc<Observed>,
    identity: ServerIdentity,
    fingerprint: PublicationFingerprint,
    waiting: u32,
    reads: u32,
}

impl Feed for BusyFeed {
    fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    fn publication_fingerprint(&self) -> &PublicationFingerprint {
        &self.fingerprint
    }

    fn database_oid(&self) -> u32 {
        5
    }

    fn compare_with(&mut self, _: PublishedHistory) {}

    fn is_compared(&self) -> bool {
        true
    }

    fn walsender(&self) -> Option<i32> {
        None
    }

    fn start(&self) -> Lsn {
        Lsn::new(1)
    }

    fn flushed(&self) -> Lsn {
        Lsn::new(1)
    }

    fn tables(&self) -> &[FoundTable] {
        &[]
    }

    /// Polled as soon as the relay no longer pauses.
    fn next(&mut self, _: bool) -> impl Future<Output = Result<Received, SourceError>> + Send {
        self.observed.pausing.store(false, Ordering::SeqCst);
        async {
            if self.reads == READS {
                return pending().await;
            }
            sleep(Duration::from_millis(1)).await;
            self.reads += 1;
            self.waiting = MESSAGES;
            Ok(Received::Keepalive(Lsn::new(1)))
        }
    }

    fn try_next(&mut self) -> Option<Result<Received, SourceError>> {
        self.waiting = self.waiting.checked_sub(1)?;
        Some(Ok(Received::Keepalive(Lsn::new(1))))
    }

    /// Called right before a pause.
    fn is_backed_up(&mut self) -> bool {
        self.observed.pausing.store(true, Ordering::SeqCst);
        self.observed.pauses.fetch_add(1, Ordering::SeqCst);
        self.observed.pause_begins.notify_one();
        false
    }

    fn host(&self) -> &'static str {
        "test"
    }

    fn security(&self) -> Security {
        Security { tls: None, method: Method::None, is_local: true }
    }

    fn received_bytes(&self) -> u64 {
        0
    }

    fn slot_metrics(&mut self) -> Option<SlotMetrics> {
        None
    }

    fn backlog_bytes(&self) -> Option<u64> {
        None
    }

    fn wanted_switch(&mut self) -> Option<SwitchFeed> {
        None
    }

    async fn may_switch(&mut self) -> Result<bool, SourceError> {
        Ok(false)
    }

    fn confirm(&mut self, _: Lsn) {}

    async fn announce_halt(&mut self, _: &SourceError) {}

    async fn finish(&mut self, _: Lsn, _: Duration) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(self) {}
}

/// A sink that is never given a record.
struct IdleSink;

impl Outlet for IdleSink {
    fn produce(&mut self, _: Seq, _: EventPosition, _: &Record<'_>) -> Result<(), ProduceError> {
        Err(ProduceError::Broken("no record is expected".to_owned()))
    }
}

impl Sink for IdleSink {
    fn peer(&self) -> &'static Peer {
        &KAFKA
    }

    fn take_reports(&mut self, _: &mut Vec<Report>) {}

    fn take_conditions(&mut self) -> Vec<Condition> {
        Vec::new()
    }

    fn is_connected(&self) -> Option<bool> {
        Some(true)
    }

    fn wait_for_events(&self, _: bool) -> BoxFuture<'_, ()> {
        Box::pin(pending())
    }

    fn replace_producer(&mut self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async move { Ok(()) })
    }
}

fn relay(observed: &Arc<Observed>) -> (Relay<BusySource>, StopHandle) {
    let router = Router::new(RecordConfig::to("t".parse().expect("a template")));
    let core = Core::new(Outbox::new(OutboxConfig::default()), router, 1 << 20);
    let settings =
        RelaySettings { drain_timeout: Duration::from_secs(1), until: None, owns_thread: false };
    let (handle, stop) = stop_channel();
    (Relay::new(core, Box::new(IdleSink), BusySource(Arc::clone(observed)), settings, stop), handle)
}

/// Runs the relay through a burst, next to a task that runs whenever it can. Returns the number of
/// pauses, and the number of pauses in which the other task ran.
async fn pauses_beside_a_task(relay: Relay<BusySource>, observed: Arc<Observed>) -> (u32, u32) {
    let progress = Arc::new(AtomicU32::new(0));
    let (counted, watched) = (Arc::clone(&progress), Arc::clone(&observed));
    let task = tokio::spawn(async move {
        loop {
            watched.pause_begins.notified().await;
            if watched.pausing.load(Ordering::SeqCst) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    // The burst takes less than a second of the paused clock; then nothing ends the relay.
    let ended = timeout(Duration::from_secs(10), Box::pin(relay.run())).await;
    assert!(ended.is_err(), "the relay ended: {ended:?}");
    task.abort();
    (observed.pauses.load(Ordering::SeqCst), progress.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn other_tasks_run_during_a_batching_pause() {
    let observed = Arc::<Observed>::default();
    let (relay, _stop) = relay(&observed);
    let (pauses, progress) = pauses_beside_a_task(relay, observed).await;
    assert!(pauses > 20, "{pauses} pauses");
    assert_eq!(progress, pauses, "the other task ran in each pause");
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_owns_its_thread_blocks_it_during_a_batching_pause() {
    let observed = Arc::<Observed>::default();
    let (relay, _stop) = relay(&observed);
    let (pauses, progress) = pauses_beside_a_task(relay.on_own_thread(), observed).await;
    assert!(pauses > 20, "{pauses} pauses");
    assert_eq!(progress, 0, "no other task ran in a pause");
}
