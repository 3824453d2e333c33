//! Reading back what is published, for the commands that compare it with rows.

use std::pin::Pin;

use sha2::{Digest as _, Sha256};

use crate::destination::parts::Failure;
use crate::position::EventPosition;
use crate::record::dead_letter::Letter;
use crate::record::{ID_HEADER, POSITION_HEADER};
use crate::sink::SinkError;

/// A future that stays on its thread.
pub(crate) type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A reader of what is published. It changes nothing.
pub(crate) trait Published {
    /// Finds what there is to read, up to its present end. Waits for records that cannot be read yet, and
    /// calls `note` if there are any.
    fn open<'a>(
        &'a mut self,
        wanted: WantedRecords,
        note: &'a mut dyn FnMut(&str),
    ) -> LocalFuture<'a, Result<Found, ReadError>>;

    /// Reads some of it; `None`: that was all.
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Part>, ReadError>>;
}

/// The work of a [`Published`], for each destination.
pub(super) trait Reader {
    /// The work of [`Published::open`].
    async fn find(
        &mut self,
        wanted: WantedRecords,
        note: &mut dyn FnMut(&str),
    ) -> Result<Found, ReadError>;

    /// The work of [`Published::next`].
    async fn part(&mut self) -> Result<Option<Part>, ReadError>;
}

impl<R: Reader> Published for R {
    fn open<'a>(
        &'a mut self,
        wanted: WantedRecords,
        note: &'a mut dyn FnMut(&str),
    ) -> LocalFuture<'a, Result<Found, ReadError>> {
        Box::pin(self.find(wanted, note))
    }

    fn next(&mut self) -> LocalFuture<'_, Result<Option<Part>, ReadError>> {
        Box::pin(self.part())
    }
}

/// What is to be read.
#[derive(Debug, Clone, Default)]
pub(crate) struct WantedRecords {
    pub(crate) topics: Vec<String>,
    /// Whether a stream that has all topics is read as a whole.
    pub(crate) others_too: bool,
    /// From when on, in milliseconds since 1970; `None`: all.
    pub(crate) since_ms: Option<i64>,
}

#[cfg_attr(
    not(feature = "destinations"),
    allow(dead_code, reason = "a build may have no destination with one stream for all topics")
)]
impl WantedRecords {
    /// Whether a record of this topic, in a stream that has all topics, is to be read.
    pub(super) fn has(&self, topic: &[u8]) -> bool {
        self.others_too || self.topics.iter().any(|one| one.as_bytes() == topic)
    }

    /// Whether a record of this time, in milliseconds since 1970, is older than what is to be read.
    pub(super) fn is_older(&self, ms: Option<i64>) -> bool {
        ms.zip(self.since_ms).is_some_and(|(ms, since)| ms < since)
    }
}

/// What there is to read.
#[derive(Debug)]
pub(crate) struct Found {
    /// The topics in question.
    pub(crate) topics: Vec<ReadTopic>,
    /// The number of records, or a little more.
    pub(crate) records: u64,
}

/// A topic that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadTopic {
    /// The topic's name.
    pub(crate) name: String,
    /// Whether the topic exists.
    pub(crate) exists: bool,
    /// Why it may lack records of the time in question; `None`: it has all.
    pub(crate) gap: Option<String>,
    /// What cannot be found out about that.
    pub(crate) doubt: Option<&'static str>,
}

#[cfg_attr(
    not(feature = "destinations"),
    allow(dead_code, reason = "a build may have no destination with one stream for all topics")
)]
impl ReadTopic {
    /// A topic in a stream that has all of them.
    pub(super) fn of_stream(name: &str, gap: Option<&str>) -> Self {
        Self { name: name.to_owned(), exists: true, gap: gap.map(str::to_owned), doubt: None }
    }
}

/// A part of what is published.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) events: Vec<PublishedEvent>,
    /// Topics that may lack records of the time in question, as reading them has shown, and why.
    pub(crate) gaps: Vec<(String, String)>,
}

/// The event of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishedEvent {
    /// The event's id; `None`: the record does not have it.
    pub(crate) id: Option<Vec<u8>>,
    /// The event's position; `None`: the record does not have it.
    pub(crate) position: Option<EventPosition>,
    /// What its key and value are.
    pub(crate) content: Content,
}

impl PublishedEvent {
    /// The event in a record with these parts, or in a dead letter.
    pub(crate) fn of<'a>(
        key: Option<&'a [u8]>,
        value: Option<&'a [u8]>,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Self {
        let content = Content::of(key, value);
        if let Ok(Some(letter)) = Letter::read(key, value, &header) {
            let (id, position) = (letter.id().map(<[u8]>::to_vec), Some(letter.position));
            return Self { id, position, content };
        }
        let position = header(POSITION_HEADER).and_then(|text| std::str::from_utf8(text).ok());
        let position = position.and_then(EventPosition::from_text);
        Self { id: header(ID_HEADER).map(<[u8]>::to_vec), position, content }
    }
}

/// The start of a hash, which distinguishes keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Content([u8; 4]);

impl Content {
    /// The hash of this key and value.
    pub(crate) fn of(key: Option<&[u8]>, value: Option<&[u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in [key, value] {
            // No two pairs are the same bytes.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            hash.update(length.to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        let mut start = [0; 4];
        start.copy_from_slice(&hash.finalize()[..4]);
        Self(start)
    }
}

/// Why it cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// A client cannot be created.
    #[error(transparent)]
    Client(#[from] SinkError),
    /// The destination does not answer as it should.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A topic cannot be read.
    #[error("topic {topic}: {why}")]
    Topic { topic: String, why: String },
    /// Records after an open transaction cannot be read.
    #[error(
        "topic {0}: a producer has had a transaction open for a quarter of an hour, and what follows it \
         cannot be read: end it (`kafka-transactions.sh find-hanging`), then run the command again"
    )]
    OpenTransaction(String),
}
