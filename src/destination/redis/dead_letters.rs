//! The stream of dead letters. A script of Redis moves a letter to the stream of events, so that it is there
//! once, whatever ends the command; `run` may add entries meanwhile.

use std::collections::VecDeque;

use super::batch::{HEADER, VALUE_MAX, add_fields, refusal};
use super::config::RedisConfig;
use super::connection::{Connection, connect};
use super::link::{answered, lacks_replicas};
use super::published::{ENTRIES_FIRST, Entry, ask, field, info, next_count};
use super::script::{Moved, move_letter};
use super::settings::redis_config;
use crate::config::Config;
use crate::destination::dead_letters::{
    LetterStore, LettersAt, LettersError, PutBack, Restored, StoredLetter,
};
use crate::destination::parts::Failure;
use crate::outlet::{Ground, Refusal};

/// The letters up to the last one that there was at the start.
pub(super) struct LetterStream {
    config: RedisConfig,
    connection: Connection,
    end: String,
    /// What was read and not taken.
    read: VecDeque<Entry>,
    /// How many to read next; `None`: all are read.
    count: Option<usize>,
    /// The id of what was taken last.
    last: String,
}

impl LetterStream {
    /// The letters in the configured stream, or in `at`.
    pub(super) async fn open(config: &Config, at: &LettersAt) -> Result<Self, LettersError> {
        let mut config = redis_config(config)?;
        if let Some(from) = &at.from {
            config.dead_letters.clone_from(from);
        }
        let connection = connect(&config).await?;
        let letters = &config.dead_letters;
        let found = info(&config, &connection, letters).await?;
        let found = found.ok_or_else(|| LettersError::Nowhere(format!("stream {letters}")))?;
        let count = (found.length > 0).then_some(ENTRIES_FIRST);
        let (read, last) = (VecDeque::new(), "-".to_owned());
        Ok(Self { config, connection, end: found.last.to_string(), read, count, last })
    }

    /// Reads further entries.
    async fn read(&mut self, count: usize) -> Result<(), Failure> {
        let start = if self.last == "-" { "-".to_owned() } else { format!("({}", self.last) };
        let mut range = redis::cmd("XRANGE");
        range.arg(&self.config.dead_letters).arg(start).arg(&self.end).arg("COUNT").arg(count);
        let entries: Vec<Entry> = ask(&self.config, &self.connection, &range).await?;
        self.count = (entries.len() == count).then(|| next_count(&entries));
        self.read.extend(entries);
        Ok(())
    }
}

impl LetterStore for LetterStream {
    const KEEPS_LETTERS: bool = false;

    async fn take(&mut self) -> Result<Option<StoredLetter>, LettersError> {
        if self.read.is_empty()
            && let Some(count) = self.count
        {
            self.read(count).await?;
        }
        let Some(entry) = self.read.pop_front() else { return Ok(None) };
        self.last.clone_from(&entry.0);
        Ok(Some(stored(&entry)))
    }

    async fn put_back(&mut self, restored: Restored<'_, '_>) -> Result<PutBack, LettersError> {
        let record = restored.record;
        if let Some(refusal) = refusal(record, VALUE_MAX) {
            return Ok(PutBack::Refused(refusal));
        }
        let mut client = self.connection.client.clone();
        let add = |command: &mut _| add_fields(record, command);
        let moving = move_letter(&mut client, &self.config, &self.last, add);
        let moved = answered(&self.config, moving).await;
        crate::crash_points::point!("replayed");
        let refused =
            |ground, reason| Ok(PutBack::Refused(Refusal { ground, may_pass: false, reason }));
        match moved.map_err(|failure| failure.of_values(record.bytes() as u64)) {
            Ok(Moved::Taken) => Ok(PutBack::Gone),
            Ok(Moved::Done) => match lacks_replicas(&mut client, &self.config).await? {
                None => Ok(PutBack::Published),
                // It is moved: what is lost with it is a letter again.
                Some(reason) => Err(Failure::Unusable(reason).into()),
            },
            Err(Failure::Record { reason, .. }) => refused(Ground::Other, reason),
            Err(Failure::TooLarge { reason, .. }) => refused(Ground::Size, reason),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn processed(&mut self) -> Result<(), LettersError> {
        let mut delete = redis::cmd("XDEL");
        delete.arg(&self.config.dead_letters).arg(&self.last);
        ask::<u64>(&self.config, &self.connection, &delete).await?;
        Ok(())
    }
}

/// The letter in an entry.
fn stored(entry: &Entry) -> StoredLetter {
    let (id, fields) = entry;
    let own = |name: &str| field(entry, name).map(<[u8]>::to_vec);
    let header = |pair: &[Vec<u8>]| {
        let name = std::str::from_utf8(pair[0].strip_prefix(HEADER.as_bytes())?).ok()?;
        Some((name.to_owned(), pair[1].clone()))
    };
    StoredLetter {
        place: id.clone(),
        lane: 0,
        key: own("key"),
        value: own("value"),
        headers: fields.chunks_exact(2).filter_map(header).collect(),
    }
}
