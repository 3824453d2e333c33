//! What the lanes tell the sink.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::verdict::Failure;
use crate::sink::{Condition, Report};

/// An event that is done with.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) epoch: u64,
    pub(super) report: Report,
    pub(super) topic: String,
    /// Of key and value.
    pub(super) bytes: u64,
    /// Since it was produced.
    pub(super) after: Duration,
}

/// A failed attempt.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) topic: String,
    pub(super) code: &'static str,
}

#[derive(Debug, Default)]
struct Inner {
    done: Vec<Done>,
    failed: Vec<Failed>,
    conditions: Vec<Condition>,
    /// Whether the endpoint was reached by the last attempt.
    connected: Option<bool>,
    /// The lanes that fail, and why.
    failing: BTreeMap<u16, Failure>,
    /// What was reported last, while lanes fail.
    reported: Option<Failure>,
}

impl Inner {
    /// Whether that lane has failed until now.
    fn recovers(&mut self, lane: u16) -> bool {
        let has_failed = self.failing.remove(&lane).is_some();
        if self.failing.is_empty() && self.reported.take().is_some() {
            self.conditions.push(Condition::Flowing);
        }
        has_failed
    }
}

/// What happened, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// For everything but delivered events.
    pub(super) stirred: Notify,
    pub(super) delivered: Notify,
}

/// What has happened since the last time.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) done: Vec<Done>,
    pub(super) failed: Vec<Failed>,
    pub(super) conditions: Vec<Condition>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn done(&self, done: Done, is_delivered: bool) {
        self.lock().done.push(done);
        if is_delivered { self.delivered.notify_one() } else { self.stirred.notify_one() }
    }

    /// A lane has an answer, or a connection.
    pub(super) fn works(&self, lane: u16) {
        let mut inner = self.lock();
        let was = inner.connected.replace(true);
        let is_new = inner.recovers(lane) || was != Some(true);
        drop(inner);
        if is_new {
            self.stirred.notify_one();
        }
    }

    /// A lane has nothing to send any more: the event that failed may come to another one.
    pub(super) fn gives_up(&self, lane: u16) {
        if self.lock().recovers(lane) {
            self.stirred.notify_one();
        }
    }

    /// A lane fails. Of the lanes that fail for the same kind of reason, the first is reported.
    pub(super) fn fails(&self, lane: u16, failure: Failure, topic: Option<&str>) {
        let mut inner = self.lock();
        if let Some(topic) = topic {
            inner.failed.push(Failed { topic: topic.to_owned(), code: failure.code() });
        }
        if matches!(failure, Failure::Unreachable(_)) {
            inner.connected = Some(false);
        }
        if inner.reported.as_ref().map(Failure::code) != Some(failure.code()) {
            inner.conditions.push(failure.condition());
            inner.reported = Some(failure.clone());
        }
        inner.failing.insert(lane, failure);
        drop(inner);
        self.stirred.notify_one();
    }

    pub(super) fn take(&self) -> News {
        let mut inner = self.lock();
        News {
            done: std::mem::take(&mut inner.done),
            failed: std::mem::take(&mut inner.failed),
            conditions: std::mem::take(&mut inner.conditions),
        }
    }

    pub(super) fn is_connected(&self) -> Option<bool> {
        self.lock().connected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_once_until_no_lane_fails() {
        let shared = Shared::default();
        let away = Failure::Unreachable("away".to_owned());
        let busy = Failure::Unusable("busy".to_owned());
        assert_eq!(shared.is_connected(), None);
        shared.fails(0, away.clone(), None);
        shared.fails(1, away, Some("t"));
        assert_eq!(shared.is_connected(), Some(false));
        let news = shared.take();
        assert_eq!(news.conditions, [Condition::Unreachable("away".to_owned())]);
        assert_eq!(news.failed.len(), 1);
        shared.works(0);
        assert!(shared.take().conditions.is_empty(), "lane 1 fails");
        shared.fails(1, busy.clone(), None);
        assert_eq!(shared.take().conditions, [busy.condition()]);
        assert_eq!(shared.is_connected(), Some(true), "it answers");
        shared.works(1);
        assert_eq!(shared.take().conditions, [Condition::Flowing]);
        shared.fails(1, busy.clone(), None);
        shared.gives_up(1);
        assert_eq!(shared.take().conditions, [busy.condition(), Condition::Flowing]);
    }
}
