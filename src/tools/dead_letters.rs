//! Replays dead letters: each is restored to the original event, routed and published with the
//! current configuration, and counts as processed once the destination has acknowledged its record.
//!
//! Dead letters are replayed one at a time, in order within a lane of their store. One that is still
//! poison is kept, and so are later ones with the same key, so that the dead letters of a key keep
//! their order, but for those that `--cause` leaves out. A processed dead letter is never replayed
//! again, and one that is stored twice is replayed once per run. If the process ends between the
//! acknowledgement and the note of it, a record is duplicated, unless the destination does both at
//! once, but never lost.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::Instant;

use crate::admin::words::duration;
use crate::assembly;
use crate::config::{self, Config, ConfigError};
use crate::destination::dead_letters::{
    DeadLetters, LettersAt, LettersError, Passed, PutBack, Restored, StoredLetter,
};
use crate::destination::of;
use crate::excerpt::excerpt;
use crate::lsn::Lsn;
use crate::metrics::unix_micros;
use crate::outbox::{ColumnNames, Event, Outbox};
use crate::pgoutput::LogicalMessage;
use crate::position::EventPosition;
use crate::record::dead_letter::{FIELDS, Letter};
use crate::record::{Cause, Dropped, Poison, Record, Router, Unrouted};
use crate::registry::{self, LearnError};

/// How often the progress is committed.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// What to replay.
#[derive(Debug, Clone)]
pub(crate) struct ReplaySettings {
    /// Where they are.
    pub at: LettersAt,
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

/// Why a replay ended early. The progress up to then is stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    /// The letters cannot be taken, or not be published.
    #[error(transparent)]
    Letters(#[from] LettersError),
    /// What the destination has received cannot be read back.
    #[error(
        "dead letters cannot be taken back from sink.kind = \"{0}\": whoever received them has them. \
         `walpost replay --id` publishes an event again while its row is there"
    )]
    NotKept(&'static str),
    /// The schema registry does not help.
    #[error(transparent)]
    Learn(#[from] LearnError),
    /// A signal stopped it.
    #[error("stopped by a signal")]
    Stopped,
}

impl From<ConfigError> for ReplayError {
    fn from(error: ConfigError) -> Self {
        Self::Letters(error.into())
    }
}

/// Replays dead letters.
pub(crate) struct Replay {
    config: Config,
    router: Router,
    outbox: Outbox,
    columns: ColumnNames,
    letters: Box<dyn DeadLetters>,
    settings: ReplaySettings,
    summary: ReplaySummary,
    held_back: HeldBack,
    /// The dead letters that were replayed.
    seen: HashSet<Identity>,
}

/// The keys of kept dead letters, by lane: a 128-bit hash of each, because a key can be as
/// large as a record. Keys with the same hash delay each other's dead letters, which reorders
/// nothing.
#[derive(Default)]
struct HeldBack {
    hashers: [RandomState; 2],
    keys: HashSet<[u64; 2]>,
}

impl HeldBack {
    fn hash(&self, lane: i32, key: &[u8]) -> [u64; 2] {
        self.hashers.each_ref().map(|hasher| hasher.hash_one((lane, key)))
    }

    fn insert(&mut self, lane: i32, key: &[u8]) {
        self.keys.insert(self.hash(lane, key));
    }

    fn contains(&self, lane: i32, key: &[u8]) -> bool {
        self.keys.contains(&self.hash(lane, key))
    }
}

/// The identity of a dead letter: the position, and a hash of the rest, because an event of another
/// cluster may have the same position.
type Identity = (EventPosition, u64);

/// The outcome for what is stored among dead letters.
enum LetterOutcome {
    /// The letter was published, or would be.
    Replayed(String),
    Poison(Poison),
    Unreadable(String),
    HeldBack,
    OtherCause,
    NotALetter,
    /// The letter was already replayed: it is stored twice.
    Duplicate,
    /// Somebody else has removed the letter meanwhile.
    Gone,
}

impl Replay {
    /// Opens the place of the dead letters. Events are restored with the configured columns, and published
    /// as records of the configured format.
    pub(crate) async fn open(
        config: &Config,
        settings: ReplaySettings,
    ) -> Result<Self, ReplayError> {
        let profile = config::profile(config)?;
        let outbox = config::outbox(config, &profile);
        let columns = config::columns(config, &profile);
        let router = assembly::router(config, profile)?;
        let destination = of(config);
        let opening = destination.dead_letters(config, &settings.at);
        let letters = opening.ok_or(ReplayError::NotKept(destination.kind()))?.await?;
        Ok(Self {
            config: config.clone(),
            router,
            outbox,
            columns,
            letters,
            settings,
            summary: ReplaySummary::default(),
            held_back: HeldBack::default(),
            seen: HashSet::new(),
        })
    }

    /// Replays until the end or until `stop` completes; `show` receives a line for
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
        let committed = if self.settings.dry_run { Ok(()) } else { self.letters.commit().await };
        let closed = self.letters.close().await;
        (self.summary, worked.and(committed.map_err(Into::into)).and(closed.map_err(Into::into)))
    }

    async fn work(&mut self, mut show: impl FnMut(&str)) -> Result<(), ReplayError> {
        let mut committed = Instant::now();
        let dry_run = self.settings.dry_run;
        while self.summary.replayed < self.settings.limit {
            let Some(stored) = self.letters.next().await? else { break };
            let place = &stored.place;
            match self.replay_letter(&stored).await? {
                LetterOutcome::Replayed(record) => {
                    self.summary.replayed += 1;
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
                    self.leave(&stored);
                }
                LetterOutcome::Unreadable(why) => {
                    tracing::warn!(letter = place, "cannot read the dead letter: {why}");
                    self.leave(&stored);
                }
                LetterOutcome::HeldBack => self.summary.held_back += 1,
                LetterOutcome::OtherCause | LetterOutcome::Gone => self.summary.skipped += 1,
                LetterOutcome::Duplicate => {
                    self.summary.skipped += 1;
                    self.pass(Passed::Duplicate).await?;
                }
                LetterOutcome::NotALetter => {
                    tracing::warn!(letter = place, "not a dead letter of walpost");
                    self.summary.skipped += 1;
                    self.pass(Passed::NoLetter).await?;
                }
            }
            if !dry_run && committed.elapsed() >= COMMIT_INTERVAL {
                self.letters.commit().await?;
                committed = Instant::now();
            }
        }
        Ok(())
    }

    /// Counts what came last as processed, unless nothing is to be changed.
    async fn pass(&mut self, what: Passed) -> Result<(), LettersError> {
        if self.settings.dry_run { Ok(()) } else { self.letters.pass(what).await }
    }

    /// Keeps a dead letter, and later ones with the same key.
    fn leave(&mut self, stored: &StoredLetter) {
        self.summary.poison += 1;
        if let Some(key) = &stored.key {
            self.held_back.insert(stored.lane, key);
        }
    }

    async fn replay_letter(&mut self, stored: &StoredLetter) -> Result<LetterOutcome, ReplayError> {
        let header = |name: &str| stored.header(name);
        let (key, value) = (stored.key.as_deref(), stored.value.as_deref());
        let letter = match Letter::read(key, value, header) {
            Ok(Some(letter)) => letter,
            Ok(None) => return Ok(LetterOutcome::NotALetter),
            Err(fault) => return Ok(LetterOutcome::Unreadable(fault.to_string())),
        };
        let identity = identity(&letter, stored);
        if self.seen.contains(&identity) {
            return Ok(LetterOutcome::Duplicate);
        }
        if self.settings.cause.as_deref().is_some_and(|cause| cause != letter.cause) {
            return Ok(LetterOutcome::OtherCause);
        }
        if key.is_some_and(|key| self.held_back.contains(stored.lane, key)) {
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
        while let Some(schema) = self.router.needs(&event) {
            let known = registry::learn(&self.config, &schema).await?;
            self.router.learn(schema, Some(known));
        }
        let record = match self.router.route(&event) {
            Ok(record) => record,
            Err(Unrouted::Poison(poison)) => return Ok(LetterOutcome::Poison(poison)),
            // It was learned.
            Err(Unrouted::NeedsSchema(_)) => return Ok(LetterOutcome::HeldBack),
        };
        let line = described(&record, &letter, SystemTime::now());
        if self.settings.dry_run {
            drop(record);
            self.seen.insert(identity);
            return Ok(LetterOutcome::Replayed(line + &dropped(&self.router)));
        }
        let (place, position) = (stored.place.as_str(), letter.position);
        let restored = Restored { place, position, record: &record };
        let put_back = self.letters.publish(restored).await?;
        let topic = record.topic.to_owned();
        drop(record);
        Ok(match put_back {
            PutBack::Published => {
                self.seen.insert(identity);
                LetterOutcome::Replayed(line + &dropped(&self.router))
            }
            PutBack::Refused(refusal) => {
                LetterOutcome::Poison(Poison::new(refusal.cause(&topic), &event))
            }
            PutBack::Gone => LetterOutcome::Gone,
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

fn identity(letter: &Letter<'_>, stored: &StoredLetter) -> Identity {
    let mut hasher = DefaultHasher::new();
    (letter.origin, &stored.key, &stored.value, stored.header(FIELDS)).hash(&mut hasher);
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

/// What the letter is, and the record that is published: never the payload.
fn described(record: &Record<'_>, letter: &Letter<'_>, now: SystemTime) -> String {
    let text = |bytes: &[u8]| excerpt(&String::from_utf8_lossy(bytes));
    let id = letter.id().map_or_else(String::new, |id| format!(", id {}", text(id)));
    let micros = unix_micros(now) - letter.commit_time.unix_micros();
    let age =
        duration(Duration::from_micros(u64::try_from(micros).unwrap_or_default()).as_secs_f64());
    let key = record.key.map_or_else(|| "no key".into(), text);
    let (cause, topic) = (excerpt(letter.cause), excerpt(record.topic));
    let bytes = record.value.map_or(0, <[u8]>::len);
    format!(
        "({cause}, event {}{id}, committed {age} ago) -> topic {topic}, key {key}, {bytes} bytes",
        letter.position
    )
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
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3 * 86_400);
        assert_eq!(
            described(&record, &letter, now),
            concat!(
                r"(refused\n7/7 all is well, event 0000000000000001/00000000, committed 3 d ago) -> ",
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
