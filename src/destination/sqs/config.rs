//! The configuration of the sink, and where it is read again.

use std::path::PathBuf;

use super::url::{Endpoint, QueueUrl};
use crate::destination::parts::Reread;

/// The queues, and the server that has them.
#[derive(Debug, Clone)]
pub(crate) struct SqsConfig {
    /// The queue of the events.
    pub queue: QueueUrl,
    /// The queue of the dead letters; `None`: no policy makes any.
    pub dead_letter_queue: Option<QueueUrl>,
    /// The topic of the dead letters.
    pub dead_letter_topic: String,
    /// The server that is connected to.
    pub endpoint: Endpoint,
    /// The region; `None`: that of the standard variables and files.
    pub region: Option<String>,
    /// The certificates of the authorities that sign the server's; `None`: there are none.
    pub roots: Option<PathBuf>,
    /// `delivery.id`.
    pub delivery_id: String,
}

impl SqsConfig {
    /// The queue of that kind.
    pub(super) fn queue(&self, kind: QueueKind) -> Option<&QueueUrl> {
        match kind {
            QueueKind::Events => Some(&self.queue),
            QueueKind::DeadLetters => self.dead_letter_queue.as_ref(),
        }
    }
}

/// The configuration of the queues, which can be read again.
pub(crate) type SqsSource = Reread<SqsConfig>;

/// What a queue is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum QueueKind {
    Events,
    DeadLetters,
}

impl QueueKind {
    pub(crate) const ALL: [Self; 2] = [Self::Events, Self::DeadLetters];
}
