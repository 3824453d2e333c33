//! Reads back the messages of the stream, from its end on: by their sequence numbers, which disturbs no
//! consumer and needs no other right than `run` does.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use serde_json::json;

use super::api::{Stored, StreamInfo, stored, stream_info};
use super::config::NatsConfig;
use super::connection::{Connection, connect};
use super::message::{KEY, KEY_BASE64, MESSAGE_ID, TIMESTAMP, TOMBSTONE, TOPIC};
use crate::destination::parts::Failure;
use crate::destination::parts::message_id::is_of_replayed;
use crate::destination::published::{
    Found, Part, PublishedEvent, ReadError, ReadTopic, Reader, WantedRecords,
};

/// Messages that are read together. If all of them are older than the time in question, the rest is too.
const BATCH: u64 = 1_000;

/// Requests in flight.
const WINDOW: usize = 64;

/// A stream that is read.
pub(super) struct StreamReader {
    config: NatsConfig,
    wanted: WantedRecords,
    connection: Option<Connection>,
    /// The sequence numbers of the first message, and of the last one that is not read; `None`: all are.
    left: Option<(u64, u64)>,
    /// Whether a message was missing.
    is_lacking: bool,
}

impl StreamReader {
    /// The stream on these servers.
    pub(super) fn new(config: NatsConfig) -> Self {
        Self {
            config,
            wanted: WantedRecords::default(),
            connection: None,
            left: None,
            is_lacking: false,
        }
    }

    /// The messages with these sequence numbers that are there, each with its time in milliseconds since
    /// 1970, and its event if that is wanted.
    async fn read(
        &self,
        connection: &Connection,
        (from, to): (u64, u64),
    ) -> Result<Vec<(Option<i64>, Option<PublishedEvent>)>, Failure> {
        let one = async |seq| {
            let which = json!({ "seq": seq });
            let found = stored(&connection.client, &self.config.stream, which).await?;
            Ok(found.map(|message| {
                let topic = message.header(TOPIC).unwrap_or(&message.subject);
                let is_wanted = self.wanted.has(topic.as_bytes());
                (ms(&message), is_wanted.then(|| event(&message)))
            }))
        };
        let found = iter(from..=to).map(one).buffered(WINDOW);
        found.try_filter_map(|found| async { Ok(found) }).try_collect().await
    }
}

impl Reader for StreamReader {
    async fn find(
        &mut self,
        wanted: WantedRecords,
        _note: &mut dyn FnMut(&str),
    ) -> Result<Found, ReadError> {
        let connection = connect(&self.config).await?;
        let info =
            connection.or_failed(stream_info(&connection.client, &self.config.stream)).await?;
        (self.connection, self.wanted) = (Some(connection), wanted);
        let gap = match &info {
            None => Some("its stream does not exist".to_owned()),
            Some(StreamInfo { config, .. }) if config.retention != "limits" => Some(format!(
                "its stream has the retention {}, and removes messages that are acknowledged",
                config.retention
            )),
            // A stream that was purged, or whose messages are all too old.
            Some(StreamInfo { state, .. }) if state.first_seq > state.last_seq.max(1) => {
                Some("the messages of its stream are removed".to_owned())
            }
            Some(StreamInfo { state, .. }) => {
                self.left = Some((state.first_seq, state.last_seq)).filter(|(_, last)| *last > 0);
                None
            }
        };
        let topic = |name: &String| ReadTopic::of_stream(name, gap.as_deref());
        let records = info.map_or(0, |info| info.state.messages);
        Ok(Found { topics: self.wanted.topics.iter().map(topic).collect(), records })
    }

    async fn part(&mut self) -> Result<Option<Part>, ReadError> {
        let Some((first, last)) = self.left else { return Ok(None) };
        let from = last.saturating_sub(BATCH - 1).max(first);
        let count = last - from + 1;
        let connection = self.connection.as_ref();
        let connection =
            connection.ok_or_else(|| Failure::Unusable("it is not open".to_owned()))?;
        let read = self.read(connection, (from, last));
        let messages = connection.or_failed(read).await?;
        self.is_lacking |= messages.len() as u64 != count;
        let is_older = |(ms, _): &(Option<i64>, _)| self.wanted.is_older(*ms);
        let is_kept = messages.first().is_some_and(is_older);
        let is_enough = is_kept && messages.iter().all(is_older);
        self.left = (from > first && !is_enough).then(|| (first, from - 1));
        let why = match self.left {
            None if self.is_lacking => Some("messages were removed from its stream"),
            None if !is_kept && first > 1 => Some("the oldest messages of its stream are removed"),
            _ => None,
        };
        let topics = &self.wanted.topics;
        let gap = |why: &str| topics.iter().map(|topic| (topic.clone(), why.to_owned())).collect();
        Ok(Some(Part {
            gaps: why.map(gap).unwrap_or_default(),
            events: messages.into_iter().filter_map(|(_, event)| event).collect(),
        }))
    }
}

/// The record's time, in milliseconds since 1970; `None`: it does not tell which messages came before it.
fn ms(message: &Stored) -> Option<i64> {
    if message.header(MESSAGE_ID).is_some_and(is_of_replayed) {
        return None;
    }
    message.header(TIMESTAMP)?.parse().ok()
}

/// The key of a message's record.
pub(super) fn key_of(message: &Stored) -> Option<Vec<u8>> {
    let encoded = message.header(KEY_BASE64).and_then(|text| STANDARD.decode(text).ok());
    encoded.or_else(|| message.header(KEY).map(|key| key.as_bytes().to_vec()))
}

fn event(message: &Stored) -> PublishedEvent {
    let key = key_of(message);
    let value = message.header(TOMBSTONE).is_none().then_some(&*message.data);
    PublishedEvent::of(key.as_deref(), value, |name| message.header(name).map(str::as_bytes))
}
