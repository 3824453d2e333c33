//! What the worker tells the sink.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::batch::Sent;
use super::failure::Failure;
use super::message::Limits;
use super::message_id::Writer;
use super::state_key::Last;
use crate::sink::Condition;

/// Values of [`Shared::connected`].
const UNKNOWN: u8 = 0;
const DISCONNECTED: u8 = 1;
const CONNECTED: u8 = 2;

/// Something that happened to the connection of an epoch.
#[derive(Debug)]
pub(super) enum Event {
    /// Messages can be published.
    Synced(Synced),
    /// All messages of a batch are in the stream.
    Stored { epoch: u64, batch: Sent, at: Instant },
    /// The connection cannot be used any more.
    Failed { epoch: u64, failure: Failure },
    /// A state to be logged.
    Condition(Condition),
}

/// What is there when a connection begins.
#[derive(Debug, Clone)]
pub(super) struct Synced {
    pub(super) epoch: u64,
    pub(super) writer: Writer,
    /// The sequence number of the stream's last message.
    pub(super) end: u64,
    /// The last event in it; `None`: none of this generation.
    pub(super) last: Option<Last>,
    pub(super) limits: Limits,
}

/// Events, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Shared {
    events: Mutex<Vec<Event>>,
    connected: AtomicU8,
    /// For everything but stored batches.
    pub(super) stirred: Notify,
    pub(super) stored: Notify,
}

impl Shared {
    pub(super) fn push(&self, event: Event) {
        let is_stored = matches!(event, Event::Stored { .. });
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        if is_stored { self.stored.notify_one() } else { self.stirred.notify_one() }
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
