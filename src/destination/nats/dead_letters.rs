//! The dead letters of the stream. They stay there: the key `letters` has which ones are processed. A replayed
//! message has an id of its own, so that the server stores it once in the stream's duplicate window, and `run`
//! passes it when it looks for the last event.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use serde_json::json;
use tokio::time::sleep;

use super::api::{Stored, answered_by, stored};
use super::config::NatsConfig;
use super::connection::{Connection, connect};
use super::letters_key::LettersKey;
use super::link::limits_of;
use super::message::{Limits, TOMBSTONE, Target, not_allowed};
use super::published::key_of;
use super::settings::nats_config;
use super::state_key::{read, usable_stream};
use crate::config::Config;
use crate::destination::dead_letters::{
    LetterStore, LettersAt, LettersError, PutBack, Restored, StoredLetter,
};
use crate::destination::parts::Failure;
use crate::destination::parts::message_id::Writer;
use crate::destination::parts::progress::Progress;
use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};

/// How long messages follow each other beside a walpost at work, and the pause after that.
const BURST: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_secs(1);

/// The messages of the dead letters' subject, up to the last one that there was at the start.
pub(super) struct LettersOfStream {
    config: NatsConfig,
    connection: Connection,
    writer: Writer,
    target: Target,
    limits: Limits,
    key: LettersKey,
    progress: Progress,
    /// Sequence numbers: the next message to look at, the last one that there was, what was taken last, and
    /// the first message behind the letter before that.
    next: u64,
    end: u64,
    last: u64,
    since: u64,
    pace: Pace,
}

/// What keeps a replay from holding up a walpost at work, which connects again for each message that others
/// publish.
#[derive(Default)]
struct Pace {
    /// The sequence number of the message that was published last.
    last: Option<u64>,
    /// Since when messages follow each other, if walpost has published in between.
    burst: Option<Instant>,
}

impl Pace {
    /// Waits, once messages have followed each other for some time.
    async fn wait(&mut self) {
        if self.burst.take_if(|since| since.elapsed() >= BURST).is_some() {
            sleep(PAUSE).await;
        }
    }

    fn published(&mut self, seq: u64) {
        if self.last.is_some_and(|last| last + 1 != seq) {
            self.burst.get_or_insert_with(Instant::now);
        }
        self.last = Some(seq);
    }
}

impl LettersOfStream {
    /// The letters of the configured subject, or of that in `at`.
    pub(super) async fn open(config: &Config, at: &LettersAt) -> Result<Self, LettersError> {
        let mut config = nats_config(config)?;
        if let Some(from) = &at.from {
            config.dead_letters.clone_from(from);
        }
        let connection = connect(&config).await?;
        let client = connection.client.clone();
        let asked = async {
            let entry = read(&client, &config).await?;
            let stream = usable_stream(&client, &config).await?;
            Ok((entry, stream, LettersKey::read(&client, &config).await?))
        };
        let (entry, stream, mut key) = connection.or_failed(asked).await?;
        key.require_stream(&stream.created);
        let entry = entry.ok_or_else(|| {
            let reason = "it has no position beside it: let `walpost run` publish to it first";
            Failure::Unusable(format!("stream {}: {reason}", config.stream))
        })?;
        let end = stream.state.last_seq;
        let progress = key.progress(&config.dead_letters, signed(end));
        let next = u64::try_from(progress.next()).unwrap_or_default();
        let limits = limits_of(&client, stream.config);
        // Another subject than that of new letters is one of letters too.
        let target = Target {
            stream: config.stream.clone(),
            template: config.subject.clone(),
            dead_letters: config.dead_letters.clone(),
        };
        let (writer, last, since, pace) = (entry.writer(), 0, next, Pace::default());
        Ok(Self {
            config,
            connection,
            writer,
            target,
            limits,
            key,
            progress,
            next,
            end,
            last,
            since,
            pace,
        })
    }

    fn done(&mut self) {
        // What lies before it is none.
        self.progress.add(signed(self.since)..signed(self.last) + 1);
        self.key.set_progress(&self.config.dead_letters, &self.progress);
    }

    /// Publishes the message of a replayed letter. Returns its sequence number, or why it is rejected.
    async fn publish(
        &self,
        subject: &str,
        message: (HeaderMap, bytes::Bytes),
    ) -> Result<Result<u64, Refusal>, Failure> {
        let (headers, payload) = message;
        let client = &self.connection.client;
        let sent = answered_by(client, subject, headers, payload);
        match self.connection.or_failed(sent).await {
            Ok(Ok(ack)) if ack.stream == self.config.stream => Ok(Ok(ack.seq)),
            Ok(Ok(ack)) => Err(Failure::Unsupported(format!(
                "subject {subject} belongs to stream {}, not to {}",
                ack.stream, self.config.stream
            ))),
            Ok(Err(error)) => match error.of_message() {
                Some((reason, _)) => {
                    Ok(Err(Refusal { ground: Ground::Other, may_pass: false, reason }))
                }
                None => Err(error.into()),
            },
            Err(Failure::Denied(subject)) => Ok(Err(not_allowed(&subject))),
            Err(failure) => Err(failure),
        }
    }
}

impl LetterStore for LettersOfStream {
    const KEEPS_LETTERS: bool = true;

    async fn take(&mut self) -> Result<Option<StoredLetter>, LettersError> {
        let (client, letters) = (&self.connection.client, &self.config.dead_letters);
        while self.next <= self.end {
            let which = json!({ "seq": self.next, "next_by_subj": letters });
            let asked = stored(client, &self.config.stream, which);
            let found = self.connection.or_failed(asked).await?;
            let Some(found) = found.filter(|found| found.seq <= self.end) else { break };
            (self.since, self.next) = (self.next, found.seq + 1);
            if !self.progress.contains(signed(found.seq)) {
                self.last = found.seq;
                return Ok(Some(letter(found)));
            }
        }
        Ok(None)
    }

    async fn put_back(&mut self, restored: Restored<'_, '_>) -> Result<PutBack, LettersError> {
        let Restored { place, record, .. } = restored;
        if !self.progress.has_room() {
            return Err(LettersError::Scattered { place: place.to_owned() });
        }
        let id = self.writer.id_of_replayed(self.last);
        let built = self.target.message((Seq::FIRST, record), Some(&id), None, &self.limits);
        let message = match built {
            Ok(message) => message,
            Err(refusal) => return Ok(PutBack::Refused(refusal)),
        };
        // That it may be written is known before anything is published.
        if self.pace.last.is_none() {
            self.store_progress().await?;
        }
        self.pace.wait().await;
        match self.publish(&message.subject, (message.headers, message.payload)).await? {
            Ok(seq) => {
                self.key.add_replayed(seq);
                self.pace.published(seq);
            }
            Err(refusal) => return Ok(PutBack::Refused(refusal)),
        }
        crate::crash_points::point!("replayed");
        self.done();
        self.store_progress().await?;
        Ok(PutBack::Published)
    }

    async fn processed(&mut self) -> Result<(), LettersError> {
        self.done();
        Ok(())
    }

    async fn store_progress(&mut self) -> Result<(), LettersError> {
        let Self { config, connection, key, .. } = self;
        let written = connection.or_failed(key.write(&connection.client, config)).await;
        written.map_err(|failure| match failure {
            Failure::Gap(_) => LettersError::Another(format!("stream {}", config.stream)),
            failure => failure.into(),
        })
    }
}

/// Sequence numbers stay below 2^63.
fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

fn letter(message: Stored) -> StoredLetter {
    let key = key_of(&message);
    let is_tombstone = message.header(TOMBSTONE).is_some();
    let (headers, data) = (message.headers, message.data);
    StoredLetter {
        place: message.seq.to_string(),
        lane: 0,
        key,
        value: (!is_tombstone).then_some(data),
        headers: headers.into_iter().map(|(name, value)| (name, value.into_bytes())).collect(),
    }
}
