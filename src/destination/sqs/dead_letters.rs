//! The queue of dead letters. A letter is taken, which hides it from others for a while, and deleted once
//! SQS has the message of its event. What is kept is made visible again at the end. While a letter is hidden,
//! SQS gives out none of the same group behind it, so the letters of a key keep their order.

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_sqs::types::Message;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::client::Connection;
use super::message::{BODY, HEADERS, KEY, KEY_BASE64};
use super::settings::sqs_config;
use super::sink::SqsSink;
use super::url::QueueUrl;
use crate::config::Config;
use crate::destination::dead_letters::{
    LetterStore, LettersAt, LettersError, OneAtATime, PutBack, Restored, StoredLetter,
};
use crate::destination::parts::Failure;
use crate::destination::parts::settings::reread;
use crate::sink::{Origin, Sink as _};

/// Nothing depends on the origin of an event that is published again: its message has a hash of its content in
/// the deduplication id.
const NO_ORIGIN: Origin<'_> = Origin { system_identifier: "", database_oid: 0, slot: "" };

/// The letters that a queue has.
pub(super) struct LettersOfQueue {
    connection: Connection,
    producer: OneAtATime,
    /// Ids of messages that are kept, with what gives them back.
    kept: HashMap<String, String>,
    /// The same of what was taken last; `None`: it is processed.
    last: Option<(String, String)>,
}

impl LettersOfQueue {
    /// The letters in the configured queue, or in `at`.
    pub(super) async fn open(config: &Config, at: &LettersAt) -> Result<Self, LettersError> {
        let mut sqs = sqs_config(config)?;
        let mut sink = SqsSink::new(&sqs, reread(config, sqs_config), Arc::default())?;
        sink.begins(&NO_ORIGIN);
        if let Some(from) = &at.from {
            let url = QueueUrl::parse(from);
            let invalid = |reason| Failure::Unsupported(format!("--from {from}: {reason}"));
            let url = url.map_err(invalid)?;
            if url.as_str() == sqs.queue.as_str() {
                return Err(invalid("it is the queue of the events".to_owned()).into());
            }
            sqs.dead_letter_queue = Some(url);
        }
        if sqs.dead_letter_queue.is_none() {
            let reason =
                "no queue of dead letters is named: set sqs.dead_letter_queue_url, or --from";
            return Err(Failure::Unsupported(reason.to_owned()).into());
        }
        let connection = Connection::new(sqs).await?;
        let producer = OneAtATime::new(sink);
        Ok(Self { connection, producer, kept: HashMap::new(), last: None })
    }

    async fn remove(&mut self) -> Result<(), Failure> {
        if let Some((_, receipt)) = &self.last {
            self.connection.delete(receipt).await?;
            self.last = None;
        }
        Ok(())
    }
}

impl LetterStore for LettersOfQueue {
    const KEEPS_LETTERS: bool = false;

    async fn take(&mut self) -> Result<Option<StoredLetter>, LettersError> {
        self.kept.extend(self.last.take());
        let mut again = 0;
        while let Some(message) = self.connection.receive().await? {
            let [id, receipt] = [&message.message_id, &message.receipt_handle]
                .map(|text| text.clone().unwrap_or_default());
            let Some(kept) = self.kept.get_mut(&id) else {
                let other = || StoredLetter { place: id.clone(), ..StoredLetter::default() };
                let letter = letter(&id, message).unwrap_or_else(other);
                self.last = Some((id, receipt));
                return Ok(Some(letter));
            };
            // It was not hidden any more, and is again now.
            *kept = receipt;
            again += 1;
            if again > self.kept.len() {
                break;
            }
        }
        Ok(None)
    }

    async fn put_back(&mut self, restored: Restored<'_, '_>) -> Result<PutBack, LettersError> {
        let put_back = self.producer.deliver(restored).await?;
        if matches!(put_back, PutBack::Published) {
            self.remove().await?;
        }
        Ok(put_back)
    }

    async fn processed(&mut self) -> Result<(), LettersError> {
        Ok(self.remove().await?)
    }

    async fn give_back(&mut self) -> Result<(), LettersError> {
        self.kept.extend(self.last.take());
        for receipt in self.kept.values() {
            // Otherwise it is visible soon by itself, or is already.
            if let Err(error) = self.connection.give_back(receipt).await {
                tracing::debug!(%error, "a dead letter stays hidden for a while");
            }
        }
        Ok(())
    }
}

/// The letter in a message; `None`: it has attributes that walpost does not write.
fn letter(id: &str, message: Message) -> Option<StoredLetter> {
    let mut letter = StoredLetter { place: id.to_owned(), ..StoredLetter::default() };
    for (name, value) in message.message_attributes.unwrap_or_default() {
        let value = value.string_value.unwrap_or_default();
        letter.headers.push((name, value.into_bytes()));
    }
    if let Some(others) = letter.header(HEADERS) {
        let others: Vec<(String, String)> = serde_json::from_slice(others).ok()?;
        letter.headers.extend(others.into_iter().map(|(name, text)| (name, text.into_bytes())));
    }
    letter.key = match letter.header(KEY_BASE64) {
        Some(text) => Some(STANDARD.decode(text).ok()?),
        None => letter.header(KEY).map(<[u8]>::to_vec),
    };
    let body = message.body.unwrap_or_default();
    letter.value = match letter.header(BODY) {
        None => Some(body.into_bytes()),
        Some(b"tombstone") => None,
        Some(b"empty") => Some(Vec::new()),
        Some(_) => Some(STANDARD.decode(body).ok()?),
    };
    Some(letter)
}
