//! What the worker tells the sink.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::batch::Batch;
use super::entry_id::EntryId;
use super::failure::Failure;
use crate::sink::Condition;

/// Values of [`Shared::connected`].
const UNKNOWN: u8 = 0;
const DISCONNECTED: u8 = 1;
const CONNECTED: u8 = 2;

/// Something that happened to the connection of an epoch.
#[derive(Debug)]
pub(super) enum Event {
    /// Entries can be added.
    Synced(Synced),
    /// A batch is in the stream, and as durable as configured.
    Added { epoch: u64, batch: Batch, at: Instant },
    /// The connection cannot be used any more.
    Failed { epoch: u64, failure: Failure },
    /// Redis does not accept a value of that many bytes. [`Event::Failed`] follows.
    TooLarge { epoch: u64, bytes: u64 },
    /// A state to be logged.
    Condition(Condition),
}

/// What is there when a connection begins.
#[derive(Debug, Clone)]
pub(super) struct Synced {
    pub(super) epoch: u64,
    pub(super) writer: String,
    pub(super) generation: u8,
    /// The id of the last event that was handled.
    pub(super) last: EntryId,
    /// The size of a value that the server accepts, in bytes, if the user may ask for it.
    pub(super) value_max: Option<u64>,
}

/// Events, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Shared {
    events: Mutex<Vec<Event>>,
    connected: AtomicU8,
    /// For everything but added batches.
    pub(super) stirred: Notify,
    pub(super) added: Notify,
}

impl Shared {
    pub(super) fn push(&self, event: Event) {
        let is_added = matches!(event, Event::Added { .. });
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        if is_added { self.added.notify_one() } else { self.stirred.notify_one() }
    }

    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.store(if connected { CONNECTED } else { DISCONNECTED }, Ordering::Relaxed);
    }

    pub(super) fn is_connected(&self) -> Option<bool> {
        match self.connected.load(Ordering::Relaxed) {
            UNKNOWN => None,
            connected => Some(connected == CONNECTED),
        }
    }
}
