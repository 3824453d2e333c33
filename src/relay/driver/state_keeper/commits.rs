//! When the open Kafka transaction is committed.

use std::time::Duration;

use tokio::time::Instant;

use super::{StateKeeper, Urgency};
use crate::position::{Checkpoint, EventPosition};
use crate::source::ReceivedTransactions;
use crate::state::{Partial, State, unix_ms};
use walpost_core::relay::{CommitAt, Core};

/// Records of a Kafka transaction, and per second of its age, up to which it is committed as soon as
/// there is nothing to read. With more, once nothing came for [`QUIET`]. Committing at each empty
/// socket halved the rate of a dense stream.
const SPARSE_RECORDS: u64 = 50;
const SPARSE_PER_SECOND: u64 = 4000;
pub(super) const QUIET: Duration = Duration::from_millis(3);

/// When a Kafka transaction is committed: also whenever the source has nothing more to read.
#[derive(Debug, Clone, Copy)]
pub struct CommitLimits {
    /// The time from its first record, after which it is committed between two PostgreSQL
    /// transactions.
    pub interval: Duration,
    /// Bytes of records from which on it is committed at once.
    pub bytes: u64,
    /// The time from its first record after which it is committed at once: a third of
    /// `transaction.timeout.ms`.
    pub timeout: Duration,
}

impl CommitLimits {
    pub(super) fn transaction_timeout(self) -> Duration {
        self.timeout * 3
    }
}

impl StateKeeper {
    /// Commits the open Kafka transaction, if it is time and everything in it is acknowledged.
    pub(super) fn commit(
        &mut self,
        core: &mut Core,
        received: &mut ReceivedTransactions,
        urgency: Urgency,
    ) {
        if let Some(at) = self.due(core, urgency) {
            core.request_commit(at);
        }
        let (Some(checkpoint), Some(before)) = (core.checkpoint(), &self.state) else { return };
        if checkpoint.upto < before.acked_upto {
            // It would be published again.
            return core
                .request_producer_replacement("its position is older than the state topic's");
        }
        if core.is_split_by(&checkpoint) {
            self.metrics.split_transactions.add(1);
        }
        let last = self.last(received.durable(checkpoint.upto), before);
        let Checkpoint { upto: acked_upto, partial } = checkpoint;
        let partial = partial.map(|next| partly_published(next, received, before));
        self.write(State { partial, at_ms: unix_ms(), ..before.moved(acked_upto, last) });
    }

    /// Whether to stop reading for a commit.
    fn due(&mut self, core: &Core, urgency: Urgency) -> Option<CommitAt> {
        let (records, bytes) = core.uncommitted();
        if records == 0 {
            let grew = core.flush_lsn() > self.written_upto();
            let is_urgent = matches!(urgency, Urgency::Last | Urgency::Switch);
            let is_due = is_urgent || self.written_at.elapsed() >= self.idle_interval();
            return (grew && is_due).then_some(CommitAt::Boundary);
        }
        let (limits, now) = (self.settings.commits, Instant::now());
        let age = now - *self.transaction_since.get_or_insert(now);
        if records != self.grew.0 {
            self.grew = (records, now);
        }
        if bytes >= limits.bytes || age >= limits.timeout {
            return Some(CommitAt::Now);
        }
        let is_due = match urgency {
            Urgency::Last | Urgency::Switch => true,
            Urgency::Idle => age >= limits.interval || self.is_pause(records, age, now),
            Urgency::Normal => age >= limits.interval,
        };
        is_due.then_some(CommitAt::Boundary)
    }

    /// Whether a source that has nothing to read now pauses: in a dense stream it often has nothing
    /// for a moment, and each commit makes it wait.
    fn is_pause(&self, records: u64, age: Duration, now: Instant) -> bool {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let sparse = SPARSE_RECORDS + millis.saturating_mul(SPARSE_PER_SECOND / 1000);
        records <= sparse || now - self.grew.1 >= QUIET
    }
}

/// The transaction that is published in part, before the event at `next`.
fn partly_published(
    next: EventPosition,
    received: &ReceivedTransactions,
    before: &State,
) -> Partial {
    let known = received.committed_at(next.commit_lsn).map(|one| (one.xid, one.commit_time));
    let is_same = |former: &Partial| former.next.commit_lsn == next.commit_lsn;
    let former = before.partial.filter(is_same).and_then(|former| former.identity);
    Partial { next, identity: known.or(former) }
}
