//! Replays dead letters: each is restored to the original event, routed and published with the
//! current configuration, and counts as processed once the broker acknowledges its record.
//!
//! Dead letters are replayed one at a time, in order within a partition of the dead-letter topic.
//! One that is still poison is kept, and so are later ones with the same key, so that the dead
//! letters of a key keep their order. A processed dead letter is never replayed again, and one that
//! the topic has twice is replayed once per run. If the process ends between the acknowledgement
//! and the commit of the progress, a record is duplicated, but never lost.

mod consumer;
mod progress;

use crate::position::EventPosition;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use tokio::time::{Instant, sleep, timeout_at};

use self::consumer::DeadLetterConsumer;
use crate::assembly;
use crate::config::{self, Config, ConfigError};
use crate::crash_points;
use crate::destination::kafka::{ConnectionFailure, KafkaSink, MetadataClient, kafka};
use crate::excerpt::excerpt;
use crate::ledger::Seq;
use crate::lsn::Lsn;
use crate::outbox::{ColumnNames, Event, Outbox};
use crate::outlet::{Outlet as _, ProduceError, Refusal};
use crate::pgoutput::LogicalMessage;
use crate::record::dead_letter::{FIELDS, Letter};
use crate::record::{Cause, Dropped, Poison, Record, Router};
use crate::sink::{Condition, Outcome, Report, Sink as _, SinkError};

/// Maximum time to wait for a record's acknowledgement.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time for the brokers to respond at the start.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait before a record is offered again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The position of a record that is published again: Kafka's sink does not use it.
const NO_POSITION: EventPosition = EventPosition { commit_lsn: Lsn::ZERO, ordinal: 0 };

/// How often the progress is committed.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// What to replay.
#[derive(Debug, Clone)]
pub(crate) struct ReplaySettings {
    /// The dead-letter topic.
    pub topic: String,
    /// The consumer group whose offsets store the progress.
    pub group: String,
    /// Only dead letters with this cause, by its key.
    pub cause: Option<String>,
    /// The maximum number of dead letters.
    pub limit: u64,
    /// Publish and commit nothing.
    pub dry_run: bool,
}

/// How many dead letters were replayed, kept and skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReplaySummary {
    /// Published and processed.
    pub replayed: u64,
    /// Still poison, and kept.
    pub poison: u64,
    /// Kept because an earlier dead letter with the same key is still poison.
    pub held_back: u64,
    /// Records with another cause, that are no dead letters, or duplicates.
    pub skipped: u64,
}

/// Why a replay ended early. The progress up to then is committed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    /// An invalid value in the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The producer cannot be created.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The brokers reject the credentials.
    #[error("the credentials are refused: {0}")]
    Unauthenticated(String),
    /// No broker responds.
    #[error("Kafka cannot be reached: {0}")]
    Unreachable(String),
    /// The dead-letter topic does not exist.
    #[error(
        "there is no topic {topic}: no dead letter was written yet, or it is another (--from, \
         poison.dead_letter_topic)"
    )]
    NoTopic {
        /// The topic.
        topic: String,
    },
    /// The dead-letter topic cannot be read, or the progress cannot be committed.
    #[error("{0}")]
    Reading(String),
    /// A record was not acknowledged.
    #[error("the letter at {place} could not be delivered for now, and is kept: {reason}")]
    Undelivered {
        /// Partition and offset of the dead letter.
        place: String,
        /// The reason.
        reason: String,
    },
    /// Kept and processed dead letters alternate too often.
    #[error(
        "the letter at {place} is kept: no more of its partition can be marked as done, since too \
         many before it are kept; replay those first, without --cause"
    )]
    Scattered {
        /// Partition and offset of the dead letter.
        place: String,
    },
    /// Another client commits offsets for the group.
    #[error(
        "another replay is running for the group {group}, and continues alone; letters of the \
         last seconds may have been published by both"
    )]
    Another {
        /// The group.
        group: String,
    },
    /// A signal stopped it.
    #[error("stopped by a signal")]
    Stopped,
}

impl From<ConnectionFailure> for ReplayError {
    fn from(failure: ConnectionFailure) -> Self {
        if failure.is_refused_login() {
            Self::Unauthenticated(failure.into_reason())
        } else {
            Self::Unreachable(failure.into_reason())
        }
    }
}

/// Replays dead letters.
pub(crate) struct Replay {
    router: Router,
    outbox: Outbox,
    columns: ColumnNames,
    producer: Producer,
    letters: DeadLetterConsumer,
    settings: ReplaySettings,
    summary: ReplaySummary,
    held_back: HeldBack,
    /// The dead letters that were replayed.
    seen: HashSet<Identity>,
}

/// The keys of kept dead letters, by partition: a 128-bit hash of each, because a key can be as
/// large as a record. Keys with the same hash delay each other's dead letters, which reorders
/// nothing.
#[derive(Default)]
struct HeldBack {
    hashers: [RandomState; 2],
    keys: HashSet<[u64; 2]>,
}

impl HeldBack {
    fn hash(&self, partition: i32, key: &[u8]) -> [u64; 2] {
        self.hashers.each_ref().map(|hasher| hasher.hash_one((partition, key)))
    }

    fn insert(&mut self, partition: i32, key: &[u8]) {
        self.keys.insert(self.hash(partition, key));
    }

    fn contains(&self, partition: i32, key: &[u8]) -> bool {
        self.keys.contains(&self.hash(partition, key))
    }
}

/// The identity of a dead letter: the position, and a hash of the rest, because an event of another
/// cluster may have the same position.
type Identity = (EventPosition, u64);

/// The outcome for a record of the dead-letter topic.
enum LetterOutcome {
    /// The letter was published, or would be.
    Replayed(String),
    Poison(Poison),
    Unreadable(String),
    HeldBack,
    OtherCause,
    NotALetter,
    /// The letter was already replayed: the topic has it twice.
    Duplicate,
}

impl Replay {
    /// Opens the dead-letter topic and the configured Kafka cluster. Events are restored with the
    /// configured columns, and published as records of the configured format.
    pub(crate) fn open(config: &Config, settings: ReplaySettings) -> Result<Self, ReplayError> {
        let profile = config::profile(config)?;
        let outbox = config::outbox(config, &profile);
        let columns = config::columns(config, &profile);
        let router = assembly::router(config, profile)?;
        let mut kafka = kafka(config);
        MetadataClient::open(&kafka)?.reach(REQUEST_TIMEOUT)?;
        let letters = DeadLetterConsumer::open(&kafka, &settings.topic, &settings.group)?;
        // Each record is sent separately.
        kafka.properties.insert("linger.ms".to_owned(), "0".to_owned());
        kafka.properties.insert("batch.size".to_owned(), "1".to_owned());
        let producer = Producer { sink: KafkaSink::new(&kafka, Arc::default())?, last: Seq::FIRST };
        Ok(Self {
            router,
            outbox,
            columns,
            producer,
            letters,
            settings,
            summary: ReplaySummary::default(),
            held_back: HeldBack::default(),
            seen: HashSet::new(),
        })
    }

    /// Replays until the end of the topic or until `stop` completes; `show` receives a line for
    /// each dead letter that a dry run would publish.
    pub(crate) async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        show: impl FnMut(&str),
    ) -> (ReplaySummary, Result<(), ReplayError>) {
        let worked = tokio::select! {
            // A stop request comes first: while dead letters are available at once, the work never
            // yields. What is processed until then is committed below.
            biased;
            () = stop => Err(ReplayError::Stopped),
            worked = self.work(show) => worked,
        };
        let committed = if self.settings.dry_run { Ok(()) } else { self.letters.commit() };
        (self.summary, worked.and(committed))
    }

    async fn work(&mut self, mut show: impl FnMut(&str)) -> Result<(), ReplayError> {
        let mut committed = Instant::now();
        let dry_run = self.settings.dry_run;
        while self.summary.replayed < self.settings.limit {
            let Some(message) = self.letters.next().await? else { break };
            let place = format!("{}/{}", message.partition(), message.offset());
            match self.replay_letter(&message, &place).await? {
                LetterOutcome::Replayed(record) => {
                    self.summary.replayed += 1;
                    self.letters.done(message.partition(), message.offset());
                    if dry_run {
                        show(&format!("{place} {record}"));
                    } else {
                        tracing::info!(letter = place, "replayed: {record}");
                    }
                }
                LetterOutcome::Poison(poison) => {
                    tracing::warn!(
                        letter = place,
                        cause = poison.cause.key(),
                        "still undeliverable: {poison}"
                    );
                    self.leave(&message);
                }
                LetterOutcome::Unreadable(why) => {
                    tracing::warn!(letter = place, "cannot read the dead letter: {why}");
                    self.leave(&message);
                }
                LetterOutcome::HeldBack => self.summary.held_back += 1,
                LetterOutcome::OtherCause => self.summary.skipped += 1,
                LetterOutcome::Duplicate => {
                    self.summary.skipped += 1;
                    self.letters.done(message.partition(), message.offset());
                }
                LetterOutcome::NotALetter => {
                    tracing::warn!(letter = place, "not a dead letter of walpost");
                    self.summary.skipped += 1;
                    self.letters.done(message.partition(), message.offset());
                }
            }
            if !dry_run && committed.elapsed() >= COMMIT_INTERVAL {
                self.letters.commit()?;
                committed = Instant::now();
            }
        }
        Ok(())
    }

    /// Keeps a dead letter, and later ones with the same key.
    fn leave(&mut self, message: &OwnedMessage) {
        self.summary.poison += 1;
        if let Some(key) = message.key() {
            self.held_back.insert(message.partition(), key);
        }
    }

    async fn replay_letter(
        &mut self,
        message: &OwnedMessage,
        place: &str,
    ) -> Result<LetterOutcome, ReplayError> {
        let header = |name: &str| {
            let mut headers = message.headers()?.iter();
            headers.find(|header| header.key == name)?.value
        };
        let letter = match Letter::read(message.key(), message.payload(), header) {
            Ok(Some(letter)) => letter,
            Ok(None) => return Ok(LetterOutcome::NotALetter),
            Err(fault) => return Ok(LetterOutcome::Unreadable(fault.to_string())),
        };
        let identity = identity(&letter, message, header(FIELDS));
        if self.seen.contains(&identity) {
            return Ok(LetterOutcome::Duplicate);
        }
        if self.settings.cause.as_deref().is_some_and(|cause| cause != letter.cause) {
            return Ok(LetterOutcome::OtherCause);
        }
        let is_held_back = |key| self.held_back.contains(message.partition(), key);
        if message.key().is_some_and(is_held_back) {
            return Ok(LetterOutcome::HeldBack);
        }
        let unread = unread(&letter);
        let event = match &unread {
            None => letter.event(self.router.placed(), &self.columns),
            Some(logical) => decode_again(&self.outbox, logical, &letter),
        };
        let event = match event {
            Ok(event) => event,
            Err(poison) => return Ok(LetterOutcome::Poison(poison)),
        };
        let record = match self.router.route(&event) {
            Ok(record) => record,
            Err(poison) => return Ok(LetterOutcome::Poison(poison)),
        };
        let line = described(&record, &letter);
        if self.settings.dry_run {
            drop(record);
            self.seen.insert(identity);
            return Ok(LetterOutcome::Replayed(line + &dropped(&self.router)));
        }
        if !self.letters.has_room(message.partition()) {
            return Err(ReplayError::Scattered { place: place.to_owned() });
        }
        let refused = self.producer.deliver(&record, place).await?;
        let topic = record.topic.to_owned();
        drop(record);
        crash_points::point!("replayed");
        Ok(match refused {
            None => {
                self.seen.insert(identity);
                LetterOutcome::Replayed(line + &dropped(&self.router))
            }
            Some(refusal) => LetterOutcome::Poison(Poison::new(refusal.cause(&topic), &event)),
        })
    }
}

/// The text about dropped headers of the last event's row.
fn dropped(router: &Router) -> String {
    router.dropped_headers().map_or_else(String::new, named)
}

fn named(dropped: &Dropped) -> String {
    let Dropped { count, name } = dropped;
    format!(", {count} header(s) dropped whose names are walpost's: {}, …", excerpt(name))
}

fn identity(letter: &Letter<'_>, message: &OwnedMessage, fields: Option<&[u8]>) -> Identity {
    let mut hasher = DefaultHasher::new();
    (letter.origin, message.key(), message.payload(), fields).hash(&mut hasher);
    (letter.position, hasher.finish())
}

/// The logical message in a dead letter of an unreadable message.
fn unread(letter: &Letter<'_>) -> Option<LogicalMessage> {
    letter.is_unread.then(|| LogicalMessage {
        transactional: true,
        lsn: Lsn::ZERO,
        prefix: letter.origin.to_owned(),
        content: Bytes::copy_from_slice(letter.value.unwrap_or_default()),
    })
}

/// The event of such a message, as parsed now.
fn decode_again<'a>(
    outbox: &Outbox,
    logical: &'a LogicalMessage,
    letter: &Letter<'_>,
) -> Result<Event<'a>, Poison> {
    if let Some(event) = outbox.message_event(logical, letter.position, letter.commit_time) {
        return event.map_err(Poison::from);
    }
    let why = "cannot be read: its prefix is not the configured one".to_owned();
    let cause = Cause::Undecodable { field: "the logical message".to_owned(), why };
    let event = Outbox::unread(logical, letter.position, letter.commit_time);
    Err(Poison::new(cause, &event))
}

/// A description of the record and its destination.
fn described(record: &Record<'_>, letter: &Letter<'_>) -> String {
    let key = record.key.map_or_else(|| "no key".into(), String::from_utf8_lossy);
    let (cause, topic, key) = (excerpt(letter.cause), excerpt(record.topic), excerpt(&key));
    let bytes = record.value.map_or(0, <[u8]>::len);
    format!("({cause}, event {}) -> topic {topic}, key {key}, {bytes} bytes", letter.position)
}

/// The relay's producer, for one record at a time.
struct Producer {
    sink: KafkaSink,
    last: Seq,
}

impl Producer {
    /// Publishes a record and waits for the acknowledgement; a rejection is permanent.
    async fn deliver(
        &mut self,
        record: &Record<'_>,
        place: &str,
    ) -> Result<Option<Refusal>, ReplayError> {
        let deadline = Instant::now() + DELIVERY_TIMEOUT;
        let mut reason = format!("no acknowledgement came within {DELIVERY_TIMEOUT:?}");
        loop {
            let outcome = self.attempt(record, deadline, &mut reason).await?;
            if outcome == Some(Outcome::Delivered) {
                return Ok(None);
            }
            self.sink.replace_producer().await?;
            // The rejection may be reported after the failure that it caused.
            let mut last = Vec::new();
            self.sink.take_reports(&mut last);
            let last = last.into_iter().filter(|report| report.seq == self.last);
            for outcome in outcome.into_iter().chain(last.map(|report| report.outcome)) {
                match outcome {
                    Outcome::Delivered => return Ok(None),
                    Outcome::Refused(refusal) => return Ok(Some(refusal)),
                    // Whether it is the letter's fault is not known: it is tried again.
                    Outcome::Suspect(Refusal { reason: why, .. }) | Outcome::Lost(why) => {
                        reason = why;
                    }
                    Outcome::Purged => {}
                }
            }
            if Instant::now() >= deadline {
                return Err(ReplayError::Undelivered { place: place.to_owned(), reason });
            }
            sleep(RETRY_PAUSE * 10).await;
        }
    }

    /// One production; `None` if it timed out.
    async fn attempt(
        &mut self,
        record: &Record<'_>,
        deadline: Instant,
        reason: &mut String,
    ) -> Result<Option<Outcome>, ReplayError> {
        self.last = self.last.plus(1);
        let mut reports: Vec<Report> = Vec::new();
        loop {
            self.sink.take_reports(&mut reports);
            match self.sink.produce(self.last, NO_POSITION, record) {
                Ok(()) => break,
                Err(ProduceError::Full) if Instant::now() < deadline => sleep(RETRY_PAUSE).await,
                Err(ProduceError::Full) => return Ok(None),
                Err(ProduceError::Refused(refusal)) => return Ok(Some(Outcome::Refused(refusal))),
                Err(
                    ProduceError::Suspect(Refusal { reason: why, .. }) | ProduceError::Broken(why),
                ) => return Ok(Some(Outcome::Lost(why))),
            }
        }
        loop {
            let stirred = timeout_at(deadline, self.sink.wait_for_events(true)).await;
            self.sink.take_reports(&mut reports);
            if let Some(report) = reports.drain(..).find(|report| report.seq == self.last) {
                return Ok(Some(report.outcome));
            }
            for condition in self.sink.take_conditions() {
                match condition {
                    Condition::Unauthenticated(why) => {
                        return Err(ReplayError::Unauthenticated(why));
                    }
                    Condition::Broken(why) | Condition::Regressed(why) => {
                        return Ok(Some(Outcome::Lost(why)));
                    }
                    Condition::Unreachable(why) | Condition::Stalled { reason: why, .. } => {
                        *reason = why;
                    }
                    Condition::Flowing | Condition::Repartitioned { .. } => {}
                }
            }
            if stirred.is_err() {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Headers;
    use crate::record::dead_letter::{CAUSE, COMMIT_TIME, ORIGIN, POSITION};

    #[test]
    fn a_dead_letter_cannot_forge_lines() {
        let header = |name: &str| {
            let value: &[u8] = match name {
                CAUSE => b"refused\n7/7 all is well",
                POSITION => b"0000000000000001/00000000",
                ORIGIN => b"public.outbox",
                COMMIT_TIME => b"0",
                FIELDS => b"{}",
                _ => return None,
            };
            Some(value)
        };
        let letter = Letter::read(None, None, header).expect("it can be read").expect("it is one");
        let record = Record {
            topic: "a\rb",
            partition: None,
            key: Some(b"k\n\x1b[2K\xff"),
            value: Some(b"abc"),
            timestamp_ms: None,
            headers: Headers::new(),
        };
        assert_eq!(
            described(&record, &letter),
            concat!(
                r"(refused\n7/7 all is well, event 0000000000000001/00000000) -> ",
                r"topic a\rb, key k\n\u{1b}[2K\u{fffd}, 3 bytes"
            )
            .replace(r"\u{fffd}", "\u{fffd}")
        );
    }

    #[test]
    fn a_dropped_header_cannot_forge_lines() {
        let dropped = Dropped { count: 2, name: "walpost.a\nb".to_owned() };
        assert_eq!(
            named(&dropped),
            r", 2 header(s) dropped whose names are walpost's: walpost.a\nb, …"
        );
    }
}
