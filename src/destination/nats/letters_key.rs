//! The key `letters` of the key-value bucket beside the stream: which dead letters are processed, and which
//! messages at the end of the stream are replayed ones. Its value is JSON:
//!
//! | member | content |
//! |---|---|
//! | `created` | when the stream was made: another one has other sequence numbers |
//! | `subjects` | the progress for each subject of dead letters, by sequence numbers |
//! | `from`, `to` | sequence numbers of the replayed messages that were published last, without others between them |

use std::collections::BTreeMap;

use async_nats::Client;
use serde::{Deserialize, Serialize};

use super::api::{compare_and_publish, last_of};
use super::config::{NatsConfig, bucket};
use crate::destination::parts::Failure;
use crate::destination::parts::progress::Progress;

const KEY: &str = "letters";

/// The version of the value.
const VERSION: u32 = 1;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Value {
    version: u32,
    created: String,
    subjects: BTreeMap<String, Processed>,
    from: u64,
    to: u64,
}

/// See [`Progress`].
#[derive(Debug, Default, Serialize, Deserialize)]
struct Processed {
    next: i64,
    #[serde(default)]
    beyond: String,
}

/// The key, as it was read or written.
#[derive(Debug)]
pub(super) struct LettersKey {
    revision: u64,
    value: Value,
}

impl LettersKey {
    /// Reads the key; one that does not exist is empty.
    pub(super) async fn read(client: &Client, config: &NatsConfig) -> Result<Self, Failure> {
        let stream = format!("KV_{}", bucket(&config.stream));
        let Some(found) = last_of(client, &stream, &subject(config)).await? else {
            return Ok(Self { revision: 0, value: Value::default() });
        };
        // A key that was deleted has a message without data.
        let value = if found.data.is_empty() {
            Value::default()
        } else {
            serde_json::from_slice(&found.data).map_err(|error| unreadable(config, &error))?
        };
        if value.version > VERSION {
            return Err(unreadable(config, &format!("version {}", value.version)));
        }
        Ok(Self { revision: found.seq, value })
    }

    /// Writes the key; [`Failure::Gap`] if it has changed meanwhile.
    pub(super) async fn write(
        &mut self,
        client: &Client,
        config: &NatsConfig,
    ) -> Result<(), Failure> {
        self.value.version = VERSION;
        let text = serde_json::to_string(&self.value)
            .map_err(|error| Failure::Unusable(format!("a key cannot be written: {error}")))?;
        self.revision = compare_and_publish(client, &subject(config), self.revision, text).await?;
        Ok(())
    }

    /// Forgets what is not about the stream that was made then.
    pub(super) fn require_stream(&mut self, created: &str) {
        if self.value.created != created {
            self.value = Value { created: created.to_owned(), ..Value::default() };
        }
    }

    /// The progress among the dead letters of a subject, in a stream that ends at `end`.
    pub(super) fn progress(&self, letters: &str, end: i64) -> Progress {
        match self.value.subjects.get(letters) {
            Some(found) if found.next <= end + 1 => Progress::committed(found.next, &found.beyond),
            // The server has lost its newest messages.
            Some(_) => Progress::committed(end + 1, ""),
            None => Progress::committed(1, ""),
        }
    }

    /// Sets the progress.
    pub(super) fn set_progress(&mut self, letters: &str, progress: &Progress) {
        let processed = Processed { next: progress.next(), beyond: progress.metadata() };
        self.value.subjects.insert(letters.to_owned(), processed);
    }

    /// Notes that message `seq` is a replayed one.
    pub(super) fn add_replayed(&mut self, seq: u64) {
        let Value { from, to, .. } = &mut self.value;
        if *to + 1 != seq {
            *from = seq;
        }
        *to = seq;
    }

    /// The message before the replayed ones of which `seq` is one, if that is noted.
    pub(super) fn before_replayed(&self, seq: u64) -> Option<u64> {
        let Value { from, to, .. } = &self.value;
        (*from..=*to).contains(&seq).then(|| from.saturating_sub(1))
    }
}

fn subject(config: &NatsConfig) -> String {
    format!("$KV.{}.{KEY}", bucket(&config.stream))
}

fn unreadable(config: &NatsConfig, reason: &dyn std::fmt::Display) -> Failure {
    let bucket = bucket(&config.stream);
    Failure::Unsupported(format!(
        "the key {KEY} in the bucket {bucket} has other contents than this walpost's: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replayed_messages_without_others_between_them_are_passed_at_once() {
        let mut key = LettersKey { revision: 0, value: Value::default() };
        assert_eq!((key.before_replayed(0), key.before_replayed(5)), (Some(0), None));
        for seq in [4, 7, 8, 9] {
            key.add_replayed(seq);
        }
        let before = [4, 6, 7, 8, 9, 10].map(|seq| key.before_replayed(seq));
        assert_eq!(before, [None, None, Some(6), Some(6), Some(6), None]);
    }

    #[test]
    fn progress_of_a_stream_that_was_made_again_begins_anew() {
        let mut key = LettersKey { revision: 0, value: Value::default() };
        assert_eq!(key.progress("dead", 0).next(), 1);
        let mut progress = Progress::committed(1, "");
        progress.add(1..9);
        progress.add(11..12);
        key.set_progress("dead", &progress);
        assert_eq!(key.progress("dead", 20), progress);
        assert_eq!((key.progress("dead", 7).next(), key.progress("other", 20).next()), (8, 1));
        key.require_stream("another time");
        assert_eq!(key.progress("dead", 20).next(), 1);
    }
}
