//! The last events that were acknowledged. At most as many are noted as were asked for, once a second, so
//! that many events cost no more than a few.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use super::lock;
use crate::position::EventPosition;

/// How many events are kept.
pub const TRAIL: u32 = 50;

/// An event that was acknowledged: never its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrailEvent {
    /// When it was acknowledged.
    pub at: SystemTime,
    /// The topic.
    pub topic: String,
    /// A hash of the key; `None`: it has no key.
    pub key: Option<u64>,
    /// The event's id, from the record's headers; empty where they have none.
    pub id: String,
    /// The event's position.
    pub position: EventPosition,
    /// Bytes of topic, key, value and headers.
    pub bytes: u64,
    /// The time from commit to acknowledgement.
    pub latency: Duration,
}

/// The last events.
#[derive(Debug, Default)]
pub struct Trail {
    /// How many more are to be noted.
    wanted: AtomicU32,
    last: Mutex<VecDeque<TrailEvent>>,
}

impl Trail {
    /// Asks for that many of the next events.
    pub fn want(&self, events: u32) {
        self.wanted.store(events, Relaxed);
    }

    /// How many more are to be noted.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Relaxed)
    }

    /// Adds an event.
    pub fn add(&self, event: TrailEvent) {
        let mut last = lock(&self.last);
        if last.len() >= TRAIL as usize {
            last.pop_front();
        }
        last.push_back(event);
    }

    /// The last events, the newest first.
    pub fn last(&self) -> Vec<TrailEvent> {
        lock(&self.last).iter().rev().cloned().collect()
    }
}
