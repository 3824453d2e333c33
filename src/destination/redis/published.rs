//! Reads back the entries of the stream, and those of the dead letters.

use std::collections::HashMap;

use redis::{FromRedisValue as _, Value};

use super::batch::HEADER;
use super::config::RedisConfig;
use super::connection::{Connection, connect};
use super::entry_id::EntryId;
use super::failure::NO_SUCH_KEY;
use super::link::answered;
use super::script::REPLAYED;
use crate::destination::parts::Failure;
use crate::destination::published::{
    Found, Part, PublishedEvent, ReadError, ReadTopic, Reader, WantedRecords,
};

/// The most entries of an answer, and the bytes from which on there are fewer.
const ENTRIES_MAX: usize = 1_000;
const BYTES_MAX: usize = 4 << 20;

/// Entries of the first answer: nothing is known of their size.
pub(super) const ENTRIES_FIRST: usize = 16;

/// An entry: its id, names and values in turn.
pub(super) type Entry = (String, Vec<Vec<u8>>);

/// The stream of events and that of dead letters.
pub(super) struct Streams {
    config: RedisConfig,
    wanted: WantedRecords,
    connection: Option<Connection>,
    /// What is left to read, the next stream last.
    left: Vec<Reading>,
}

/// A stream that is read, from its end to the time in question.
struct Reading {
    name: String,
    /// Whether Redis makes the ids of its entries.
    has_clock_ids: bool,
    /// The topics of its entries.
    topics: Vec<String>,
    /// What it had at the start.
    had: StreamInfo,
    /// The time of the oldest entry that was read, in milliseconds since 1970.
    oldest_ms: Option<i64>,
    /// The id before which the next answer ends, as `XREVRANGE` has it, and its entries.
    end: String,
    count: usize,
}

/// What Redis says of a stream (<https://redis.io/docs/latest/commands/xinfo-stream/>).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamInfo {
    pub(super) length: u64,
    /// `None`: it is empty.
    first: Option<EntryId>,
    pub(super) last: EntryId,
    /// How many entries were ever added, and the highest id that `XDEL` has removed; `None`: the server is
    /// older than Redis 7, and does not say it.
    removals: Option<(u64, EntryId)>,
}

impl Streams {
    /// The streams of this server.
    pub(super) fn new(config: RedisConfig) -> Self {
        Self { config, wanted: WantedRecords::default(), connection: None, left: Vec::new() }
    }

    async fn info(&self, stream: &str) -> Result<Option<StreamInfo>, Failure> {
        info(&self.config, self.connection()?, stream).await
    }

    fn connection(&self) -> Result<&Connection, Failure> {
        self.connection.as_ref().ok_or_else(|| Failure::Unusable("it is not open".to_owned()))
    }
}

/// What Redis says of a stream; `None`: there is no such stream.
pub(super) async fn info(
    config: &RedisConfig,
    connection: &Connection,
    stream: &str,
) -> Result<Option<StreamInfo>, Failure> {
    let mut info = redis::cmd("XINFO");
    info.arg("STREAM").arg(stream);
    match ask::<HashMap<String, Value>>(config, connection, &info).await {
        Ok(found) => Ok(Some(StreamInfo::of(found).ok_or_else(|| unexpected(stream))?)),
        Err(Failure::Unusable(reason)) if reason.contains(NO_SUCH_KEY) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The answer to a command.
pub(super) async fn ask<T: redis::FromRedisValue>(
    config: &RedisConfig,
    connection: &Connection,
    command: &redis::Cmd,
) -> Result<T, Failure> {
    let mut client = connection.client.clone();
    answered(config, async { Ok(command.query_async(&mut client).await?) }).await
}

impl Reader for Streams {
    async fn find(
        &mut self,
        wanted: WantedRecords,
        _note: &mut dyn FnMut(&str),
    ) -> Result<Found, ReadError> {
        self.connection = Some(connect(&self.config).await?);
        let (letters, events): (Vec<_>, Vec<_>) =
            wanted.topics.iter().cloned().partition(|topic| *topic == self.config.dead_letters);
        let mut found = Found { topics: Vec::new(), records: 0 };
        for (name, topics, are_letters) in [
            (self.config.dead_letters.clone(), letters, true),
            (self.config.stream.clone(), events, false),
        ] {
            // Other walposts may write dead letters to the same stream.
            let info =
                if topics.is_empty() && are_letters { None } else { self.info(&name).await? };
            let gap = (info.is_none() && !are_letters).then_some("its stream does not exist");
            found.topics.extend(topics.iter().map(|topic| ReadTopic::of_stream(topic, gap)));
            if let Some(had) = info {
                found.records += had.length;
                let (end, count, has_clock_ids) =
                    (had.last.to_string(), ENTRIES_FIRST, are_letters);
                let oldest_ms = None;
                self.left.push(Reading { name, has_clock_ids, topics, had, oldest_ms, end, count });
            }
        }
        self.wanted = wanted;
        Ok(found)
    }

    async fn part(&mut self) -> Result<Option<Part>, ReadError> {
        let Some(mut reading) = self.left.pop() else { return Ok(None) };
        let mut range = redis::cmd("XREVRANGE");
        range.arg(&reading.name).arg(&reading.end).arg("-").arg("COUNT").arg(reading.count);
        let entries: Vec<Entry> = ask(&self.config, self.connection()?, &range).await?;
        let mut part = Part::default();
        let is_full = entries.len() == reading.count;
        if let Some(oldest) = entries.last() {
            reading.oldest_ms = reading.ms(oldest);
        }
        let is_kept = self.wanted.is_older(reading.oldest_ms);
        let is_older = |entry| self.wanted.is_older(reading.ms(entry));
        // Without a full answer there are no more.
        let is_last = !is_full || entries.iter().all(is_older);
        let is_wanted = |entry: &&Entry| self.wanted.has(field(entry, "topic").unwrap_or_default());
        part.events.extend(entries.iter().filter(is_wanted).map(event));
        if let Some((last, _)) = entries.last().filter(|_| !is_last) {
            reading.end = format!("({last}");
            reading.count = next_count(&entries);
            self.left.push(reading);
        } else if let Some(why) = reading.had.gap(is_kept, self.info(&reading.name).await?.as_ref())
        {
            part.gaps.extend(reading.topics.into_iter().map(|topic| (topic, why.to_owned())));
        }
        Ok(Some(part))
    }
}

impl Reading {
    /// The entry's time, in milliseconds since 1970; `None`: it does not tell which entries were added before.
    fn ms(&self, entry: &Entry) -> Option<i64> {
        if field(entry, REPLAYED).is_some() {
            return None;
        }
        if self.has_clock_ids {
            return i64::try_from(EntryId::from_text(&entry.0)?.high()).ok();
        }
        std::str::from_utf8(field(entry, "timestamp")?).ok()?.parse().ok()
    }
}

impl StreamInfo {
    fn of(mut found: HashMap<String, Value>) -> Option<Self> {
        let mut take = |name: &str| found.remove(name);
        let id = |value: Value| EntryId::from_text(&String::from_redis_value(value).ok()?);
        let number = |value: Value| u64::from_redis_value(value).ok();
        let first: Option<Entry> = Option::from_redis_value(take("first-entry")?).ok()?;
        let first = first.map(|(id, _)| EntryId::from_text(&id));
        Some(Self {
            length: number(take("length")?)?,
            first: match first {
                Some(id) => Some(id?),
                None => None,
            },
            last: id(take("last-generated-id")?)?,
            removals: take("entries-added")
                .and_then(number)
                .zip(take("max-deleted-entry-id").and_then(id)),
        })
    }

    /// Why entries of the time in question may be missing, by what there is `now`. `is_kept`: older ones
    /// are there.
    fn gap(&self, is_kept: bool, now: Option<&Self>) -> Option<&'static str> {
        let highest = |info: &Self| info.removals.map(|(_, highest)| highest);
        let is_same = |now: &Self| {
            (now.first, highest(now)) == (self.first, highest(self)) && now.last >= self.last
        };
        let is_removed = |highest: EntryId| self.first.is_some_and(|first| highest > first);
        match self.removals {
            _ if !now.is_some_and(is_same) => Some("entries were removed while they were read"),
            Some((_, highest)) if is_removed(highest) => {
                Some("entries were removed from its stream by XDEL")
            }
            Some((added, _)) if added > self.length && !is_kept => {
                Some("the oldest entries of its stream are removed")
            }
            Some(_) => None,
            None => Some("Redis before version 7 does not say whether its stream lacks entries"),
        }
    }
}

/// How many entries to ask for after these.
pub(super) fn next_count(entries: &[Entry]) -> usize {
    let bytes: usize = entries.iter().flat_map(|(_, fields)| fields).map(Vec::len).sum();
    let room = entries.len().saturating_mul(BYTES_MAX) / bytes.max(1);
    room.clamp(1, ENTRIES_MAX).min(entries.len() * 4)
}

fn event(entry: &Entry) -> PublishedEvent {
    let header = |name: &str| field(entry, &format!("{HEADER}{name}"));
    PublishedEvent::of(field(entry, "key"), field(entry, "value"), header)
}

pub(super) fn field<'a>((_, fields): &'a Entry, name: &str) -> Option<&'a [u8]> {
    let pair = fields.chunks_exact(2).find(|pair| pair[0] == name.as_bytes())?;
    Some(&pair[1])
}

fn unexpected(stream: &str) -> Failure {
    Failure::Unsupported(format!("what Redis says of stream {stream} is not understood"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(first: u64, added: u64, highest: u64) -> StreamInfo {
        let id = |high: u64| EntryId::from_text(&format!("{high}-1")).expect("an id");
        let highest = if highest == 0 { EntryId::default() } else { id(highest) };
        StreamInfo {
            length: 10,
            first: Some(id(first)),
            last: id(99),
            removals: Some((added, highest)),
        }
    }

    #[test]
    fn removed_entries_are_a_gap_unless_older_ones_are_left() {
        for (had, is_kept, now, has_gap) in [
            (info(5, 10, 0), false, info(5, 12, 0), false),
            (info(5, 11, 0), false, info(5, 11, 0), true),
            (info(5, 11, 0), true, info(5, 11, 0), false),
            (info(5, 11, 4), true, info(5, 11, 4), false),
            (info(5, 11, 6), true, info(5, 11, 6), true),
            (info(5, 10, 0), true, info(6, 10, 0), true),
            (info(5, 10, 0), true, info(5, 10, 7), true),
        ] {
            let gap = had.gap(is_kept, Some(&now));
            assert_eq!(gap.is_some(), has_gap, "{had:?} {is_kept} {now:?}: {gap:?}");
        }
        assert!(info(5, 10, 0).gap(true, None).is_some());
        let old = || StreamInfo { removals: None, ..info(5, 0, 0) };
        let gap = |is_kept| old().gap(is_kept, Some(&old()));
        assert!(gap(false).is_some() && gap(true).is_some());
    }

    #[test]
    fn answers_grow_until_they_are_large() {
        let entries = |count: usize, bytes| vec![(String::new(), vec![vec![0; bytes]]); count];
        for (count, bytes, next) in
            [(16, 100, 64), (1_000, 100, 1_000), (16, 1 << 20, 4), (4, 1 << 20, 4), (1, 8 << 20, 1)]
        {
            assert_eq!(next_count(&entries(count, bytes)), next, "{count} of {bytes}");
        }
    }
}
