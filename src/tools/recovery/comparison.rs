//! Which of the chosen rows are published, told by the events' ids, and by key and value where another
//! event can have the same id.
//!
//! A row has 20 bytes here, whatever its size.

use std::collections::{BTreeSet, HashSet};

use sha2::{Digest as _, Sha256};

use super::ahead::{Streamed, expect};
use super::error::RecoveryError;
use crate::assembly;
use crate::config::Config;
use crate::destination::published::{Content, Published, PublishedEvent, ReadTopic, WantedRecords};
use crate::lsn::Lsn;
use crate::outbox::Outbox;
use crate::pgoutput::{Insert, PgTimestamp, Tuple};
use crate::position::EventPosition;
use crate::record::{ID_HEADER, Policies, Profile, Router, ValueEncoding};
use crate::source::RowSnapshot;

/// Records before a time that are read too: clocks differ, and times without a zone may be local ones.
const MARGIN_MS: i64 = 15 * 3_600_000;

/// Rows of each table whose topics are read too.
const SAMPLED: u32 = 10_000;

/// The start of a hash, the place of the row among those that are read, and its record's content.
type IdAt = ([u8; 12], u32, Content);

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The row's event is not published.
    Missing,
    /// The row's event is published.
    Published,
    /// The topic may have lost the event's record, or the row has no id.
    Undecided,
    /// A record has its id, and another key or value.
    Differs,
    /// The slot sends it.
    Streamed,
}

/// The counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Compared {
    /// Rows that were compared.
    pub(crate) rows: u64,
    /// Events that are published.
    pub(crate) published: u64,
    /// Events that are not.
    pub(crate) missing: u64,
    /// Events of which neither is known.
    pub(crate) undecided: u64,
    /// Published events whose id a record has with another key or value.
    pub(crate) differing: u64,
    /// Published events whose rows are in none of the tables.
    pub(crate) ghosts: u64,
}

/// What is listed, one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listed {
    /// The id of a published event whose row is in none of the tables.
    Ghost(String),
    /// The id of a published event that a row has with another key or value.
    OtherContent(String),
    /// Why rows of a topic cannot be told.
    Gap(String),
}

/// The chosen rows, in the order in which they are read.
pub(super) struct Comparison {
    fates: Vec<Fate>,
    counts: Compared,
}

/// Tells events apart, and their topics.
struct Identifier<'a> {
    outbox: Outbox,
    streamed: &'a Streamed,
    router: Router,
    /// The topic of undeliverable events, if there is one.
    dead_letters: Option<String>,
}

/// What is known of a row.
struct Identified {
    id: Option<[u8; 12]>,
    /// What its record is.
    content: Content,
    /// Whether the slot sends it.
    is_streamed: bool,
    topic: Option<String>,
}

fn hash(id: &[u8]) -> [u8; 12] {
    let mut start = [0; 12];
    start.copy_from_slice(&Sha256::digest(id)[..12]);
    start
}

/// What a published event is compared by; `None` for records of others.
fn identified(event: PublishedEvent) -> Option<(Vec<u8>, Content)> {
    event.id.map(|id| (id, event.content))
}

impl Identifier<'_> {
    fn of(&mut self, relation: u32, tuple: Tuple) -> Result<Identified, RecoveryError> {
        let position = EventPosition { commit_lsn: Lsn::ZERO, ordinal: 0 };
        let insert = Insert { relation, tuple };
        let event = self.outbox.event(&insert, position, PgTimestamp::from_micros(0));
        // An unreadable row.
        let Some(Ok(event)) = event else {
            let content = Content::of(None, None);
            return Ok(Identified { id: None, content, is_streamed: false, topic: None });
        };
        let raw = event.id.as_deref().and_then(|id| std::str::from_utf8(id).ok());
        let is_streamed = raw.is_some_and(|id| self.streamed.has(relation, id));
        Ok(match self.router.route(&event) {
            Ok(record) => {
                let header = record.headers.iter().find(|header| header.name == ID_HEADER);
                if header.is_none() && event.id.is_some() {
                    return Err(RecoveryError::NoIds);
                }
                let id = header.and_then(|header| header.value.as_deref()).map(hash);
                let content = Content::of(record.key, record.value);
                Identified { id, content, is_streamed, topic: Some(record.topic.to_owned()) }
            }
            Err(_) => Identified {
                id: event.id.as_deref().map(hash),
                content: Content::of(event.aggregate_id.as_deref(), event.payload.as_deref()),
                is_streamed,
                topic: self.dead_letters.clone(),
            },
        })
    }
}

/// The position from which records are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadFrom {
    /// The beginning: the times of records are not those of their production.
    Beginning,
    /// A time, in milliseconds since 1970: nothing was published before.
    Time(u64),
    /// The time of the oldest row; at least this one.
    OldestRow(u64),
}

impl ReadFrom {
    /// The time, given that of the oldest row; it is not known if a row has none.
    fn since_ms(self, oldest_ms: Option<i64>) -> Option<i64> {
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let since = match self {
            Self::Beginning => None,
            Self::Time(time) => Some(ms(time)),
            Self::OldestRow(time) => oldest_ms.map(|oldest| oldest.min(ms(time))),
        };
        since.map(|since| since.saturating_sub(MARGIN_MS))
    }
}

/// Makes the records that are compared: without the prefix of a schema, which may be another one by now.
pub(super) fn router(
    config: &Config,
    mut profile: Profile,
    by_content: bool,
) -> Result<Router, RecoveryError> {
    if let Profile::Walpost(record) = &mut profile
        && let Some(ValueEncoding::Frame(_)) = record.encoding.take()
        && by_content
    {
        return Err(RecoveryError::Framed);
    }
    Ok(assembly::router(config, profile)?)
}

/// What a comparison needs.
pub(super) struct Comparing<'a> {
    pub(super) snapshot: &'a RowSnapshot,
    /// The ids of rows that the slot sends.
    pub(super) streamed: &'a Streamed,
    /// Topics to read besides those of the rows.
    pub(super) topics: &'a [String],
    pub(super) published: Box<dyn Published>,
    pub(super) outbox: Outbox,
    pub(super) router: Router,
    pub(super) policies: &'a Policies,
    pub(super) from: ReadFrom,
    /// Whether another event can have the same id, so that key and value must be the same too.
    pub(super) by_content: bool,
    /// Whether to look for events whose rows are gone.
    pub(super) ghosts: bool,
    /// Whether the topics of other rows are read too: where not all rows are compared.
    pub(super) samples: bool,
}

/// Lists why rows of topics cannot be told; returns the indexes of those that may lack records.
fn gaps(read: &[ReadTopic], topics: &[String], list: &mut impl FnMut(Listed)) -> BTreeSet<usize> {
    for (topic, doubt) in read.iter().filter_map(|topic| Some((&topic.name, topic.doubt?))) {
        list(Listed::Gap(format!("topic {topic}: {doubt}")));
    }
    let gap = |(index, name): (usize, &String)| {
        let gap = read.iter().find(|topic| topic.name == *name)?.gap.as_ref()?;
        list(Listed::Gap(format!("topic {name}: {gap}")));
        Some(index)
    };
    topics.iter().enumerate().filter_map(gap).collect()
}

impl Comparison {
    /// Reads the rows, then what is published. Calls `list` for what is listed, and `note` for each step.
    pub(super) async fn run(
        comparing: Comparing<'_>,
        mut list: impl FnMut(Listed),
        mut note: impl FnMut(&str),
    ) -> Result<Self, RecoveryError> {
        let Comparing { snapshot, streamed, outbox, router, policies, .. } = comparing;
        let mut published = comparing.published;
        let dead_letters = policies.write_letters().then(|| policies.dead_letter_topic.clone());
        let mut identifier = Identifier { outbox, streamed, router, dead_letters };
        note("reading the rows");
        let rows = Rows::read(snapshot, &mut identifier, comparing.samples).await?;
        let Rows { mut ids, topics, of_topic, mut fates, oldest_ms, is_untimed } = rows;
        ids.sort_unstable_by_key(|(id, at, _)| (*id, *at));
        let since = comparing.from.since_ms(oldest_ms.filter(|_| !is_untimed));
        let others = comparing.topics.iter().chain(&identifier.dead_letters).cloned();
        let read: BTreeSet<String> = topics.iter().cloned().chain(others).collect();
        let read: Vec<String> = read.into_iter().collect();
        if topics.is_empty() && comparing.topics.is_empty() {
            note("no row tells a topic: --read-topic names those that walpost has published to");
        }
        let wanted = WantedRecords { topics: read.clone(), others_too: true, since_ms: since };
        let found = published.open(wanted, &mut note).await?;
        let lacks =
            |name: &String| found.topics.iter().any(|topic| topic.name == *name && !topic.exists);
        if let Some(topic) = comparing.topics.iter().find(|name| lacks(name)) {
            return Err(RecoveryError::NoTopic(topic.clone()));
        }
        note(&format!("reading {} records of these topics: {}", found.records, read.join(", ")));
        crate::crash_points::point!("records_counted");
        let mut lacking = gaps(&found.topics, &topics, &mut list);
        let mut against = Against {
            by_content: comparing.by_content,
            looks_for_ghosts: comparing.ghosts,
            snapshot,
            ids: &ids,
            fates: &mut fates,
            ghosts: 0,
            listed: HashSet::new(),
        };
        while let Some(part) = published.next().await? {
            against.compare(part.events, &mut list).await?;
            for (topic, why) in part.gaps {
                list(Listed::Gap(format!("topic {topic}: {why}")));
                lacking.extend(topics.iter().position(|one| *one == topic));
            }
        }
        let ghosts = against.ghosts;
        for (fate, topic) in fates.iter_mut().zip(of_topic) {
            if *fate == Fate::Missing && lacking.contains(&usize::from(topic)) {
                *fate = Fate::Undecided;
            }
        }
        let count = |wanted| fates.iter().filter(|fate| **fate == wanted).count() as u64;
        let counts = Compared {
            rows: fates.len() as u64 - count(Fate::Streamed),
            published: count(Fate::Published),
            missing: count(Fate::Missing),
            undecided: count(Fate::Undecided) + count(Fate::Differs),
            differing: count(Fate::Differs),
            ghosts,
        };
        Ok(Self { fates, counts })
    }

    pub(super) fn counts(&self) -> Compared {
        self.counts
    }

    /// Whether the row at this place is to be published.
    pub(super) fn is_wanted(&self, at: usize, with_undecided: bool) -> bool {
        match self.fates.get(at) {
            Some(Fate::Missing) => true,
            Some(Fate::Undecided | Fate::Differs) => with_undecided,
            Some(Fate::Published | Fate::Streamed) | None => false,
        }
    }
}

/// What published events are compared with.
struct Against<'a> {
    snapshot: &'a RowSnapshot,
    /// Whether key and value must be the same too.
    by_content: bool,
    /// Whether to look for events whose rows are gone.
    looks_for_ghosts: bool,
    /// In the order of their hashes.
    ids: &'a [IdAt],
    fates: &'a mut [Fate],
    ghosts: u64,
    listed: HashSet<([u8; 12], Content)>,
}

impl Against<'_> {
    async fn compare(
        &mut self,
        events: Vec<PublishedEvent>,
        list: &mut impl FnMut(Listed),
    ) -> Result<(), RecoveryError> {
        let mut unknown = Vec::new();
        for (id, content) in events.into_iter().filter_map(identified) {
            let hash = hash(&id);
            let (is_known, is_same) = self.note(hash, content);
            if is_same || !self.looks_for_ghosts {
                continue;
            }
            // Texts of PostgreSQL have no zero bytes.
            let Some(id) = String::from_utf8(id).ok().filter(|id| !id.contains('\0')) else {
                continue;
            };
            if !is_known {
                unknown.push(id);
            } else if self.listed.insert((hash, content)) {
                self.ghosts += 1;
                list(Listed::OtherContent(id));
            }
        }
        unknown.sort_unstable();
        unknown.dedup();
        for ghost in self.snapshot.absent(unknown).await? {
            if self.listed.insert((hash(ghost.as_bytes()), Content::of(None, None))) {
                self.ghosts += 1;
                list(Listed::Ghost(ghost));
            }
        }
        Ok(())
    }

    /// Notes that such an event is published; returns whether a row has its id, and is the same.
    fn note(&mut self, hash: [u8; 12], content: Content) -> (bool, bool) {
        let first = self.ids.partition_point(|(other, ..)| *other < hash);
        let same = self.ids[first..].iter().take_while(|(other, ..)| *other == hash);
        let (mut is_known, mut is_same) = (false, false);
        for (_, at, own) in same {
            is_known = true;
            let matches = !self.by_content || *own == content;
            is_same |= matches;
            let Some(fate) = self.fates.get_mut(*at as usize) else { continue };
            match *fate {
                Fate::Streamed | Fate::Published => {}
                _ if matches => *fate = Fate::Published,
                _ => *fate = Fate::Differs,
            }
        }
        (is_known, is_same)
    }
}

/// The rows that are compared.
struct Rows {
    ids: Vec<IdAt>,
    /// The topics of the events.
    topics: Vec<String>,
    /// The topic of each row, as an index; the highest number: none.
    of_topic: Vec<u16>,
    fates: Vec<Fate>,
    /// The time of the oldest one, in milliseconds since 1970.
    oldest_ms: Option<i64>,
    /// Whether one has no time.
    is_untimed: bool,
}

impl Rows {
    async fn read(
        snapshot: &RowSnapshot,
        identifier: &mut Identifier<'_>,
        samples: bool,
    ) -> Result<Self, RecoveryError> {
        let mut all = Self {
            ids: Vec::new(),
            topics: Vec::new(),
            of_topic: Vec::new(),
            fates: Vec::new(),
            oldest_ms: None,
            is_untimed: false,
        };
        let mut failed = None;
        for (index, table) in snapshot.tables.iter().enumerate() {
            expect(&mut identifier.outbox, table)?;
            let relation = table.relation.oid;
            snapshot
                .rows(index, &[], async |rows| {
                    for row in rows {
                        let times = all.oldest_ms.into_iter().chain(row.written_ms);
                        all.oldest_ms = times.min();
                        all.is_untimed |= row.written_ms.is_none();
                        match identifier.of(relation, row.tuple) {
                            Ok(row) => all.add(row),
                            Err(error) => failed = Some(error),
                        }
                    }
                    failed.is_none()
                })
                .await?;
            // Events whose rows are gone went to topics like these.
            if let Some(error) = failed {
                return Err(error);
            }
            if !samples {
                continue;
            }
            snapshot
                .newest(index, SAMPLED, async |rows| {
                    for row in rows {
                        match identifier.of(relation, row.tuple) {
                            Ok(row) => {
                                all.topic(row.topic);
                            }
                            Err(error) => failed = Some(error),
                        }
                    }
                    failed.is_none()
                })
                .await?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(all)
    }

    fn add(&mut self, Identified { id, content, is_streamed, topic }: Identified) {
        let at = u32::try_from(self.fates.len()).unwrap_or(u32::MAX);
        self.fates.push(match id {
            _ if is_streamed => Fate::Streamed,
            Some(_) => Fate::Missing,
            None => Fate::Undecided,
        });
        self.ids.extend(id.map(|id| (id, at, content)));
        let topic = self.topic(topic);
        self.of_topic.push(topic);
    }

    /// The topic's index.
    fn topic(&mut self, topic: Option<String>) -> u16 {
        let Some(topic) = topic else { return u16::MAX };
        // Mostly the same few.
        let index = self.topics.iter().position(|other| *other == topic).unwrap_or_else(|| {
            self.topics.push(topic);
            self.topics.len() - 1
        });
        u16::try_from(index).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_from_a_margin_before_the_oldest_row() {
        let margins = |margins: i64| margins * MARGIN_MS;
        let ms = |margins: u64| margins * MARGIN_MS.unsigned_abs();
        for (from, oldest, since) in [
            (ReadFrom::Beginning, Some(margins(9)), None),
            (ReadFrom::Time(ms(20)), Some(margins(9)), Some(margins(19))),
            (ReadFrom::Time(ms(20)), None, Some(margins(19))),
            (ReadFrom::OldestRow(ms(20)), Some(margins(9)), Some(margins(8))),
            (ReadFrom::OldestRow(ms(20)), Some(margins(30)), Some(margins(19))),
            (ReadFrom::OldestRow(ms(20)), None, None),
        ] {
            assert_eq!(from.since_ms(oldest), since, "{from:?} {oldest:?}");
        }
    }
}
