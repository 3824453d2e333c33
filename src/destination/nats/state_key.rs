//! The state key: the key `position` of the key-value bucket beside the stream. Its value is JSON:
//!
//! | member | content |
//! |---|---|
//! | `owner` | whose stream it is: installation, server, database, slot |
//! | `claim` | of the walpost that holds the slot; written when it opens the key |
//! | `generation` | a part of the ids of messages |
//! | `after` | messages up to this sequence number were there before this generation |
//! | `last` | sequence number and position of an event's message, the last one that was known |
//! | `state` | walpost's position |
//!
//! Each write names the revision that it replaces (`Nats-Expected-Last-Subject-Sequence`), so a
//! walpost that was paused cannot write any more once another one has opened the key.

use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::api::{
    Stored, StreamInfo, compare_and_publish, create_bucket, last_of, stored, stream_info,
};
use super::config::{NatsConfig, bucket};
use super::letters_key::LettersKey;
use super::message::MESSAGE_ID;
use crate::destination::parts::Failure;
use crate::destination::parts::message_id::Writer;
use crate::position::EventPosition;

/// The key.
pub(crate) const KEY: &str = "position";

/// The version of the value.
const VERSION: u32 = 1;

/// The message of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Last {
    /// The sequence number of the record.
    pub(crate) seq: u64,
    /// The event's position.
    pub(crate) position: EventPosition,
}

/// The value of the state key.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Value {
    version: u32,
    owner: String,
    claim: String,
    generation: u64,
    after: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<LastValue>,
    state: Box<RawValue>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct LastValue {
    seq: u64,
    position: String,
}

impl From<Last> for LastValue {
    fn from(last: Last) -> Self {
        Self { seq: last.seq, position: last.position.to_string() }
    }
}

/// The state key, as it was read or written.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    revision: u64,
    value: Value,
}

impl Entry {
    /// Whose stream it is.
    pub(crate) fn owner(&self) -> &str {
        &self.value.owner
    }

    /// Who has opened the key.
    pub(super) fn claim(&self) -> &str {
        &self.value.claim
    }

    /// Who publishes.
    pub(crate) fn writer(&self) -> Writer {
        Writer::new(&self.value.owner, self.value.generation)
    }

    /// walpost's position, in JSON.
    pub(crate) fn state(&self) -> &str {
        self.value.state.get()
    }

    /// The position that the stream has only reached, if its last event is before the one that the key
    /// knows: the server has lost the newest messages of the stream, and not those of the key.
    pub(crate) fn reached(&self, last: Option<Last>) -> Option<EventPosition> {
        let (known, last) = self.last().zip(last)?;
        (last.seq < known.seq).then_some(last.position)
    }

    /// The message of an event that it knows.
    fn last(&self) -> Option<Last> {
        let last = self.value.last.as_ref()?;
        Some(Last { seq: last.seq, position: EventPosition::from_text(&last.position)? })
    }
}

/// The state key, and what is found with it.
#[derive(Debug)]
pub(crate) struct Opened {
    /// `None`: it does not exist.
    pub(crate) entry: Option<Entry>,
    /// The stream.
    pub(crate) stream: StreamInfo,
}

fn stream_of(config: &NatsConfig) -> String {
    format!("KV_{}", bucket(&config.stream))
}

fn subject_of(config: &NatsConfig) -> String {
    format!("$KV.{}.{KEY}", bucket(&config.stream))
}

/// Reads the state key; `None` if it does not exist.
pub(crate) async fn read(client: &Client, config: &NatsConfig) -> Result<Option<Entry>, Failure> {
    let found = last_of(client, &stream_of(config), &subject_of(config)).await?;
    // A key that was deleted has a message without data.
    let Some(found) = found.filter(|found| !found.data.is_empty()) else { return Ok(None) };
    let unreadable = |reason: &dyn std::fmt::Display| {
        Failure::Unsupported(format!(
            "the state key {KEY} in the bucket {} has other contents than walpost's: {reason}",
            bucket(&config.stream)
        ))
    };
    let value: Value = serde_json::from_slice(&found.data).map_err(|error| unreadable(&error))?;
    if value.version > VERSION {
        return Err(unreadable(&format!("version {}, of a newer walpost", value.version)));
    }
    Ok(Some(Entry { revision: found.seq, value }))
}

/// The stream; an error if it cannot be used.
pub(crate) async fn usable_stream(
    client: &Client,
    config: &NatsConfig,
) -> Result<StreamInfo, Failure> {
    let stream = &config.stream;
    let Some(info) = stream_info(client, stream).await? else {
        return Err(Failure::Unusable(format!(
            "stream {stream} does not exist: create it by the command that `walpost check` prints"
        )));
    };
    match unfit(&info) {
        None => Ok(info),
        Some(why) => Err(Failure::Unsupported(format!("stream {stream} cannot be used: {why}"))),
    }
}

/// Why walpost cannot publish to a stream.
pub(crate) fn unfit(info: &StreamInfo) -> Option<&'static str> {
    let config = &info.config;
    if config.mirror.is_some() {
        Some("it is a mirror, and only its origin changes it: name the origin in nats.stream")
    } else if config.sources.as_ref().is_some_and(|sources| !sources.is_empty()) {
        Some("it has sources, which add messages of others: give walpost a stream without sources")
    } else if config.no_ack {
        Some("it acknowledges nothing (no_ack): set that to false")
    } else if config.sealed {
        Some("it is sealed: nothing can be added to it any more")
    } else if config.subject_transform.is_some() {
        Some("it changes subjects (subject_transform): give walpost a stream without that")
    } else if config.retention != "limits" {
        Some(
            "consumers remove its messages (retention), and its last message tells walpost what was \
             published: create it with retention `limits`",
        )
    } else {
        None
    }
}

/// Opens the state key of `owner` with this claim: nobody else can write it any more. The key of
/// another owner is read only.
pub(crate) async fn open(
    client: &Client,
    config: &NatsConfig,
    owner: &str,
    claim: &str,
) -> Result<Opened, Failure> {
    let stream = usable_stream(client, config).await?;
    let Some(mut entry) = read(client, config).await? else {
        return Ok(Opened { entry: None, stream });
    };
    if entry.owner() == owner {
        claim.clone_into(&mut entry.value.claim);
        match write(client, config, &mut entry).await {
            // Another one opens it too: the next attempt sees which of the two it is.
            Err(Failure::Fenced) => {
                return Err(Failure::Unusable("the state key changed meanwhile".to_owned()));
            }
            written => written?,
        }
    }
    Ok(Opened { entry: Some(entry), stream })
}

async fn write(client: &Client, config: &NatsConfig, entry: &mut Entry) -> Result<(), Failure> {
    let text = serde_json::to_string(&entry.value)
        .map_err(|error| Failure::Unusable(format!("the state key cannot be written: {error}")))?;
    match compare_and_publish(client, &subject_of(config), entry.revision, text).await {
        Ok(revision) => {
            entry.revision = revision;
            Ok(())
        }
        Err(Failure::Gap(_)) => Err(Failure::Fenced),
        Err(failure) => Err(failure),
    }
}

/// Writes the position, and the last message that is known to be an event's.
pub(crate) async fn write_state(
    client: &Client,
    config: &NatsConfig,
    entry: &mut Entry,
    (state, last): (String, Option<Last>),
) -> Result<(), Failure> {
    entry.value.state = raw(state)?;
    if let Some(last) = last {
        entry.value.last = Some(last.into());
    }
    write(client, config, entry).await
}

/// Makes the stream this owner's, behind what it has now.
pub(crate) async fn adopt(
    client: &Client,
    config: &NatsConfig,
    (owner, claim): (&str, &str),
    before: Option<Entry>,
    state: String,
) -> Result<Entry, Failure> {
    let stream = usable_stream(client, config).await?;
    create_bucket(client, &bucket(&config.stream), stream.config.num_replicas.max(1)).await?;
    let deleted = last_of(client, &stream_of(config), &subject_of(config)).await?;
    let revision = deleted.map_or(0, |found| found.seq);
    let known = before.as_ref().map_or(0, |entry| entry.revision);
    if before.is_some() && revision != known {
        return Err(Failure::Stream(
            "the state key changed meanwhile: run the command again".into(),
        ));
    }
    // Higher than any before, also if the key was deleted: it is never that of another adoption.
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let previous = before.map_or(0, |entry| entry.value.generation);
    let value = Value {
        version: VERSION,
        owner: owner.to_owned(),
        claim: claim.to_owned(),
        generation: seconds.max(previous + 1),
        after: stream.state.last_seq,
        last: None,
        state: raw(state)?,
    };
    let mut entry = Entry { revision, value };
    match write(client, config, &mut entry).await {
        Err(Failure::Fenced) => {
            Err(Failure::Stream("the state key changed meanwhile: run the command again".into()))
        }
        written => written.map(|()| entry),
    }
}

fn raw(json: String) -> Result<Box<RawValue>, Failure> {
    RawValue::from_string(json)
        .map_err(|error| Failure::Unusable(format!("the position is not JSON: {error}")))
}

/// The last event that is in the stream; `None`: none of this generation. An error if the stream
/// ends with anything else than an event of walpost's.
pub(crate) async fn last_event(
    client: &Client,
    config: &NatsConfig,
    entry: &Entry,
    stream: &StreamInfo,
) -> Result<Option<Last>, Failure> {
    let (name, end, after) = (&config.stream, stream.state.last_seq, entry.value.after);
    let known = entry.last();
    let needed = known.map_or(after, |last| last.seq);
    let replaced = || {
        Failure::Stream(format!(
            "stream {name} ends at message {end}, and walpost knows of message {needed}: the stream \
             was deleted, replaced or restored. `walpost adopt --apply` continues behind what it has \
             now"
        ))
    };
    if end < after {
        return Err(replaced());
    }
    // Behind an event that is known there may be replayed messages alone.
    let least = if end < needed { after } else { needed };
    let (at, found) = before_replayed(client, config, entry, (least, end)).await?;
    if at == after {
        return if needed > after { Err(replaced()) } else { Ok(None) };
    }
    match found {
        Some(found) => {
            let position = found.header(MESSAGE_ID).and_then(|id| entry.writer().position(id));
            match position {
                // It may have lost its newest messages: see `Entry::reached`.
                Some(position) => Ok(Some(Last { seq: at, position })),
                None if at < needed => Err(replaced()),
                None => Err(foreign(name, at)),
            }
        }
        None if at < needed => Err(replaced()),
        // It was removed: by its age, or by somebody.
        None if known.is_some_and(|last| last.seq == at) => Ok(known),
        None => Err(Failure::Stream(format!(
            "the last message of stream {name} ({at}) was removed before walpost had noted which \
             event it was: `walpost adopt --apply` continues behind it, and publishes events again \
             that were published behind the slot's position"
        ))),
    }
}

/// The last message from `least` to `end` that is not the one of a replayed dead letter; `None`: it was removed.
async fn before_replayed(
    client: &Client,
    config: &NatsConfig,
    entry: &Entry,
    (least, end): (u64, u64),
) -> Result<(u64, Option<Stored>), Failure> {
    let (mut at, mut noted) = (end, None);
    while at > entry.value.after {
        let found = stored(client, &config.stream, json!({ "seq": at })).await?;
        let id = found.as_ref().and_then(|found| found.header(MESSAGE_ID));
        let is_replayed = id.is_some_and(|id| entry.writer().is_of_replayed(id));
        if at <= least || found.is_some() && !is_replayed {
            return Ok((at, found));
        }
        if noted.is_none() {
            noted = Some(LettersKey::read(client, config).await?);
        }
        let before = noted.as_ref().and_then(|noted| noted.before_replayed(at));
        match before {
            Some(before) => at = before.max(least),
            None if is_replayed => at -= 1,
            None => return Ok((at, None)),
        }
    }
    Ok((at, None))
}

/// Somebody else has published.
pub(super) fn foreign(stream: &str, seq: u64) -> Failure {
    Failure::Stream(format!(
        "stream {stream} has messages of another publisher (message {seq}): let nobody else publish to \
         its subjects, or give walpost a stream of its own by nats.stream. `walpost adopt --apply` \
         continues behind them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    #[test]
    fn value_is_read_back() {
        let position = EventPosition { commit_lsn: Lsn::new(7), ordinal: 1 };
        let value = Value {
            version: VERSION,
            owner: "o".to_owned(),
            claim: "c".to_owned(),
            generation: 3,
            after: 4,
            last: Some(Last { seq: 9, position }.into()),
            state: raw("{\"a\":1}".to_owned()).expect("JSON"),
        };
        let text = serde_json::to_string(&value).expect("JSON");
        let value: Value = serde_json::from_str(&text).expect("a value");
        let entry = Entry { revision: 1, value };
        assert_eq!((entry.last(), entry.state()), (Some(Last { seq: 9, position }), "{\"a\":1}"));
        assert_eq!((entry.owner(), entry.claim(), entry.value.after), ("o", "c", 4));
    }
}
