//! What the sinks have in common that send requests, and send one again until it succeeds: the
//! outcomes and failures of their workers, and how the sink takes them. Nothing here decides
//! anything about records.

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::Failure;
use super::failure::REFUSED;
use crate::ledger::Seq;
use crate::metrics::{Metrics, Published};
use crate::position::EventPosition;
use crate::record::Record;
use crate::sink::{Condition, Outcome, Report};

/// How many requests with a record have to be rejected before it is a suspect, where several machines can
/// stand behind one address: one of them may reject everything.
pub(crate) const REJECTIONS: u32 = 8;

/// An error and its causes.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !said.is_empty() && !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    crate::excerpt::at_most(300, &text)
}

/// Records with the same number keep their order: those of a key. Those without one have no order, and
/// differ in their ids.
pub(crate) fn order(record: &Record<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(key) = record.key {
        key.hash(&mut hasher);
    } else {
        (record.topic, record.value).hash(&mut hasher);
        for header in &record.headers {
            (&header.name, &header.value).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The number of the event at a position: that of its key ([`order`]), or one of its own if it has no key.
pub(crate) fn order_at(record: &Record<'_>, position: EventPosition) -> u64 {
    if record.key.is_some() {
        return order(record);
    }
    let mut hasher = DefaultHasher::new();
    position.hash(&mut hasher);
    hasher.finish()
}

/// What is known of a record in flight apart from what is sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// The producer's epoch: what an earlier producer has sent is no longer reported.
    pub(crate) epoch: u64,
    pub(crate) seq: Seq,
    pub(crate) topic: String,
    /// The size of key and value, in bytes.
    pub(crate) bytes: u64,
    /// When it was produced.
    pub(crate) since: Instant,
}

/// An event that is done with.
#[derive(Debug)]
struct Done {
    epoch: u64,
    report: Report,
    topic: String,
    bytes: u64,
    /// Since it was produced.
    after: Duration,
}

/// A failed attempt.
#[derive(Debug)]
struct Failed {
    topic: String,
    code: &'static str,
}

#[derive(Debug)]
struct Inner<L> {
    done: Vec<Done>,
    failed: Vec<Failed>,
    conditions: Vec<Condition>,
    /// Whether the destination was reached by the last attempt.
    connected: Option<bool>,
    /// The lanes that fail, and why.
    failing: BTreeMap<L, Failure>,
    /// What was reported last, while lanes fail.
    reported: Option<Failure>,
    /// Whether the end of what was reported is still to be reported.
    is_down: bool,
}

impl<L: Ord> Inner<L> {
    /// That lane fails no more.
    fn ends(&mut self, lane: &L) {
        self.failing.remove(lane);
        if self.failing.is_empty() {
            self.reported = None;
        }
    }
}

/// What happened to the events of lanes, and who waits for it. A lane is what fails and recovers by
/// itself.
#[derive(Debug)]
pub(crate) struct Attempts<L> {
    inner: Mutex<Inner<L>>,
    /// The signal for everything but delivered events.
    stirred: Notify,
    delivered: Notify,
}

impl<L: Ord> Default for Attempts<L> {
    fn default() -> Self {
        let inner = Inner {
            done: Vec::new(),
            failed: Vec::new(),
            conditions: Vec::new(),
            connected: None,
            failing: BTreeMap::new(),
            reported: None,
            is_down: false,
        };
        Self { inner: Mutex::new(inner), stirred: Notify::new(), delivered: Notify::new() }
    }
}

impl<L: Ord> Attempts<L> {
    fn lock(&self) -> MutexGuard<'_, Inner<L>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record is delivered, or refused.
    pub(crate) fn done(&self, sent: Sent, outcome: Outcome) {
        let is_delivered = outcome == Outcome::Delivered;
        let report = Report::new(sent.seq, outcome);
        let after = report.at.saturating_duration_since(sent.since);
        let Sent { epoch, topic, bytes, .. } = sent;
        self.lock().done.push(Done { epoch, report, topic, bytes, after });
        if is_delivered { self.delivered.notify_one() } else { self.stirred.notify_one() }
    }

    /// A lane has an answer, or a connection.
    pub(crate) fn works(&self, lane: &L) {
        let mut inner = self.lock();
        let was = inner.connected.replace(true);
        inner.ends(lane);
        let is_over = inner.failing.is_empty() && std::mem::take(&mut inner.is_down);
        if is_over {
            inner.conditions.push(Condition::Flowing);
        }
        let is_new = is_over || was != Some(true);
        drop(inner);
        if is_new {
            self.stirred.notify_one();
        }
    }

    /// A lane has nothing to send any more: the event that failed may come to another one. Whether that
    /// works is not known yet.
    pub(crate) fn gives_up(&self, lane: &L) {
        self.lock().ends(lane);
    }

    /// Records that there is no connection, for whatever reason.
    pub(crate) fn disconnected(&self) {
        self.lock().connected = Some(false);
    }

    /// All lanes have nothing to send any more.
    fn all_give_up(&self) {
        let mut inner = self.lock();
        inner.failing.clear();
        inner.reported = None;
    }

    /// A lane fails, for events of these topics. Of the lanes that fail for the same kind of reason,
    /// the first is reported.
    pub(crate) fn fails<'a>(
        &self,
        lane: L,
        failure: Failure,
        topics: impl IntoIterator<Item = &'a str>,
    ) {
        let mut inner = self.lock();
        let code = failure.code();
        let failed = topics.into_iter().map(|topic| Failed { topic: topic.to_owned(), code });
        inner.failed.extend(failed);
        if matches!(failure, Failure::Unreachable(_)) {
            inner.connected = Some(false);
        }
        if inner.reported.as_ref().map(Failure::code) != Some(code) {
            inner.conditions.extend(failure.condition());
            inner.reported = Some(failure.clone());
            inner.is_down = true;
        }
        inner.failing.insert(lane, failure);
        drop(inner);
        self.stirred.notify_one();
    }
}

/// The sink's side: what it has taken of the attempts, and has not handed on yet.
pub(crate) struct Taken<L> {
    /// Rises with each replaced producer: workers drop what is older.
    epoch: watch::Sender<u64>,
    attempts: Arc<Attempts<L>>,
    reports: Vec<Report>,
    conditions: Vec<Condition>,
    metrics: Arc<Metrics>,
}

impl<L: Ord> Taken<L> {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        let (reports, conditions) = (Vec::new(), Vec::new());
        Self {
            epoch: watch::Sender::new(0),
            attempts: Arc::default(),
            reports,
            conditions,
            metrics,
        }
    }

    /// The attempts, for the workers.
    pub(crate) fn attempts(&self) -> Arc<Attempts<L>> {
        Arc::clone(&self.attempts)
    }

    /// Whether the thread of the workers runs.
    pub(crate) fn has_workers(&self) -> bool {
        !self.epoch.is_closed()
    }

    /// The number of replaced producers.
    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// The same, for the workers.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// Takes what has happened; reports are those of the current epoch.
    fn take(&mut self) {
        self.take_of(self.epoch());
    }

    fn take_of(&mut self, epoch: u64) {
        let mut inner = self.attempts.lock();
        let done = std::mem::take(&mut inner.done);
        let failed = std::mem::take(&mut inner.failed);
        self.conditions.append(&mut inner.conditions);
        drop(inner);
        for done in done {
            match &done.report.outcome {
                Outcome::Delivered => {
                    let published = Published { events: 1, bytes: done.bytes };
                    self.metrics.published(&done.topic, published);
                    self.metrics.broker_ack(done.after);
                }
                _ => self.refused(&done.topic),
            }
            if done.epoch == epoch {
                self.reports.push(done.report);
            }
        }
        for failed in failed {
            self.metrics.publish_error(&failed.topic, failed.code);
        }
    }

    /// Begins another epoch: the same failure is reported again if it lasts.
    pub(crate) fn replace(&mut self) {
        let before = self.epoch();
        self.epoch.send_modify(|epoch| *epoch += 1);
        self.take_of(before);
        self.attempts.all_give_up();
    }

    /// Counts a record that is refused.
    pub(crate) fn refused(&self, topic: &str) {
        self.metrics.publish_error(topic, REFUSED);
    }

    pub(crate) fn reports(&mut self, into: &mut Vec<Report>) {
        self.take();
        into.append(&mut self.reports);
    }

    pub(crate) fn conditions(&mut self) -> Vec<Condition> {
        self.take();
        std::mem::take(&mut self.conditions)
    }

    /// Adds a condition of the sink's own.
    pub(crate) fn note(&mut self, condition: Condition) {
        self.conditions.push(condition);
    }

    pub(crate) fn is_connected(&self) -> Option<bool> {
        self.attempts.lock().connected
    }

    pub(crate) async fn wait_for_events(&self, eager: bool) {
        if eager && !self.reports.is_empty() {
            return;
        }
        tokio::select! {
            () = self.attempts.stirred.notified() => {}
            () = self.attempts.delivered.notified(), if eager => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_once_until_no_lane_fails() {
        let mut taken = Taken::<u16>::new(Arc::default());
        let attempts = taken.attempts();
        let away = Failure::Unreachable("away".to_owned());
        let busy = Failure::Unusable("busy".to_owned());
        assert_eq!(taken.is_connected(), None);
        attempts.fails(0, away.clone(), None);
        attempts.fails(1, away, ["t"]);
        assert_eq!(taken.is_connected(), Some(false));
        assert_eq!(attempts.lock().failed.len(), 1);
        assert_eq!(taken.conditions(), [Condition::Unreachable("away".to_owned())]);
        attempts.works(&0);
        assert!(taken.conditions().is_empty(), "lane 1 fails");
        attempts.fails(1, busy.clone(), None);
        assert_eq!(taken.conditions(), [busy.condition().expect("one")]);
        assert_eq!(taken.is_connected(), Some(true), "it answers");
        attempts.works(&1);
        assert_eq!(taken.conditions(), [Condition::Flowing]);
        attempts.fails(1, busy.clone(), None);
        attempts.gives_up(&1);
        assert_eq!(taken.conditions(), [busy.condition().expect("one")], "nothing has worked");
        attempts.fails(2, busy.clone(), None);
        taken.replace();
        attempts.fails(3, busy.clone(), None);
        assert_eq!(
            taken.conditions(),
            [busy.condition().expect("one"), busy.condition().expect("one")]
        );
        attempts.works(&3);
        assert_eq!(taken.conditions(), [Condition::Flowing]);
        attempts.works(&3);
        assert!(taken.conditions().is_empty());
    }

    #[test]
    fn only_the_current_producers_records_are_reported() {
        let mut taken = Taken::<u16>::new(Arc::default());
        let sent = |epoch, seq| {
            let (topic, since) = ("t".to_owned(), Instant::now());
            Sent { epoch, seq: Seq::new(seq), topic, bytes: 1, since }
        };
        taken.replace();
        taken.attempts().done(sent(0, 1), Outcome::Delivered);
        taken.attempts().done(sent(1, 2), Outcome::Delivered);
        let mut reports = Vec::new();
        taken.reports(&mut reports);
        assert_eq!(reports.iter().map(|report| report.seq).collect::<Vec<_>>(), [Seq::new(2)]);
    }
}
