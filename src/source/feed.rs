//! The seam that the relay reads through: a source opens feeds, one after the
//! other, and a feed hands out the log and carries confirmations back.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::{PublicationFingerprint, Resume, Security, ServerIdentity, SourceError};
use crate::lsn::Lsn;
use crate::outbox::FoundTable;
use crate::pgoutput::Message;
use crate::source::SlotFigures;

/// Where feeds come from.
pub trait Source: Clone {
    /// An open feed.
    type Feed: Feed;

    /// The replication slot, as stored in the catalog.
    fn slot(&self) -> &str;

    /// Opens a feed. Dropping the future gives up, and nothing stays behind.
    fn open(&self, resume: &Resume) -> impl Future<Output = Result<Self::Feed, OpenError>> + Send;

    /// What an opening was judging that has been given up: nobody has judged it then, so it is for
    /// a person.
    fn unjudged(&self) -> Option<OpenError> {
        None
    }
}

/// Why no feed was opened.
pub struct OpenError {
    /// The reason.
    pub error: SourceError,
    /// Where a person has to decide: shows the instances that wait for the slot that this one
    /// halts, and completes once they can have seen it. The error is known before that, so that
    /// no signal in the meantime hides it.
    pub announcement: Option<Announcement>,
}

/// Shows waiting instances that this one halts: see [`OpenError::announcement`].
pub type Announcement = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<E: Into<SourceError>> From<E> for OpenError {
    fn from(error: E) -> Self {
        Self { error: error.into(), announcement: None }
    }
}

/// What a feed hands out, in the order of the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// A message of the plugin.
    Message(Message),
    /// The server has sent everything that committed before this LSN.
    Keepalive(Lsn),
}

/// When a feed is to be ended, and another to be opened in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchFeed {
    /// At once.
    Now,
    /// Once nothing is in flight; nothing more is to be taken until then.
    Drained,
}

/// The log from the slot: [`super::PostgresFeed`], or what stands for it.
pub trait Feed {
    /// Which server this is.
    fn identity(&self) -> &ServerIdentity;

    /// What the catalogs hold of its publication.
    fn mark(&self) -> &PublicationFingerprint;

    /// The server process by which it has the slot.
    fn walsender(&self) -> Option<i32>;

    /// A at the start of this feed.
    fn start(&self) -> Lsn;

    /// Where the server's log ended when the feed was opened.
    fn flushed(&self) -> Lsn;

    /// The outbox tables, with the columns that the publication sends.
    fn tables(&self) -> &[FoundTable];

    /// What comes next; with `reading` false nothing is taken, and only the
    /// feed's end is waited for. An error is that end. Cancel-safe.
    fn next(&mut self, reading: bool)
    -> impl Future<Output = Result<Received, SourceError>> + Send;

    /// What has come already, if anything has.
    fn try_next(&mut self) -> Option<Result<Received, SourceError>>;

    /// Whether more has been received than was taken since the last call, or comes in large pieces
    /// by itself.
    fn is_backed_up(&mut self) -> bool;

    /// The server's name or address.
    fn host(&self) -> &str;

    /// How the connection to it is protected.
    fn security(&self) -> Security;

    /// Bytes of the plugin's messages that were received so far.
    fn received_bytes(&self) -> u64;

    /// What the server said of the slot, where that is news.
    fn slot_figures(&mut self) -> Option<SlotFigures>;

    /// How many bytes of log it was opened for to be read in batches; `None` where it streams.
    fn backlog_bytes(&self) -> Option<u64>;

    /// Whether another feed is to take its place.
    fn turn(&mut self) -> Option<SwitchFeed>;

    /// Whether nothing is lost if this feed makes room for another one now: asked before it does.
    fn may_switch(&mut self) -> impl Future<Output = Result<bool, SourceError>> + Send;

    /// Everything before `lsn` is durable, and is confirmed once it is seen to
    /// have been handed out wholly.
    fn confirm(&mut self, lsn: Lsn);

    /// The relay ends with `error`. Where a person has to decide, the instances that wait for the
    /// slot are shown that, so that none of them continues; completes once they can have seen it.
    fn halting(&mut self, error: &SourceError) -> impl Future<Output = ()> + Send;

    /// Confirms `lsn`, and sees that the server has taken note of it. Messages that still come are
    /// thrown away: nothing may be read from the feed afterwards.
    fn finish(
        &mut self,
        lsn: Lsn,
        within: Duration,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Ends the feed in order.
    fn close(self) -> impl Future<Output = ()> + Send;
}
